"""atheris target ``schema``; what holds is said in its parser's check."""

from _atheris import run

run("schema")
