"""atheris target ``report``; what holds is said in its parser's check."""

from _atheris import run

run("report")
