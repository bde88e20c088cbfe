"""atheris target ``message``; what holds is said in its parser's check."""

from _start import run

run("message")
