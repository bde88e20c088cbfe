"""atheris target ``rows``; what holds is said in its parser's check."""

from _atheris import run

run("rows")
