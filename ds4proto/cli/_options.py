"""Option types and options that several commands share."""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    _FloatType = click.ParamType[float]
else:
    _FloatType = click.ParamType  # not generic in the oldest click that we accept

__all__ = [
    "DURATION",
    "Duration",
    "host_and_port",
    "json_option",
    "not_an_input",
    "parse_duration",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_UNITS: Final = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
# Twelve digits are more than any wait needs and keep the arithmetic finite.
_TEXT: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?|\.[0-9]{1,9})(ms|s|m|h|)")


def parse_duration(text: str) -> float:
    """Return a duration in seconds from ``20``, ``20s``, ``500ms``, ``10m`` or ``2h``.

    Raises
    ------
    ValueError
        The text is no duration.
    """
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is no duration: expected a number of seconds or a number "
            f"with ms, s, m or h, such as 20, 20s, 500ms, 10m"
        )
    number, unit = match.groups()
    return float(number) * _UNITS[unit]


def host_and_port(text: str) -> tuple[str, int]:
    """Return an address from ``127.0.0.1:9000`` or ``[::1]:9000``.

    Raises
    ------
    click.UsageError
    """
    host, colon, port = text.rpartition(":")
    number = port.isdecimal() and len(port) <= len("65535")
    if not colon or not host or not number or int(port) > 65535:
        raise click.UsageError(f"{text!r}: expected HOST:PORT")
    return host.strip("[]"), int(port)


def not_an_input(option: str, output: str, inputs: Iterable[str]) -> None:
    """Refuse an output that is one of the files to read.

    Raises
    ------
    click.UsageError
    """
    for name in inputs:
        with suppress(OSError):  # one of them is not there
            if Path(output).samefile(name):
                raise click.UsageError(
                    f"{option} {output}: that is an input itself, "
                    "and would be lost; give another name"
                )


class Duration(_FloatType):
    """A duration on the command line; the value is a float in seconds.

    Parameters
    ----------
    zero : bool
        Whether a duration of zero is allowed.
    """

    name = "duration"

    def __init__(self, *, zero: bool = False) -> None:
        self.zero = zero

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Return seconds from a text, or take a number (a default) as it is."""
        try:
            is_number = isinstance(value, int | float)
            seconds = float(value) if is_number else parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if seconds == 0 and not self.zero:
            self.fail(f"{value!r}: expected more than zero", param, ctx)
        return seconds


DURATION: Final = Duration()


def json_option(function: _Function) -> _Function:
    """Add the flag ``--json``, passed on as the keyword ``as_json``."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Write JSON instead of text."
    )(function)
