"""atheris target ``report``; what holds is said in its parser's check."""

from _start import run

run("report")
