"""atheris target ``capture``; what holds is said in its parser's check."""

from _start import run

run("capture")
