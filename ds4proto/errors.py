"""The exceptions that a user of ds4proto may meet, and the exit codes they stand for.

Each package defines its own errors beside the code that raises them, deriving from
`Ds4ProtoError` (and from `ValueError` where bad input is the cause):
``class SchemaError(Ds4ProtoError, ValueError)``. The text of an error says what is
wrong and where, what was expected, what was found, and what to do next; the command
line prints that text and nothing else.
"""

from enum import IntEnum
from typing import ClassVar

__all__ = ["Ds4ProtoError", "ExitCode", "NothingRan", "PeerLost", "WrongUsage"]


class ExitCode(IntEnum):
    """Exit status of every ``ds4proto`` command."""

    PASSED = 0
    FAILED = 1
    NOTHING_RAN = 2
    PEER_LOST = 3


class Ds4ProtoError(Exception):
    """Base of all documented errors; its text is fit to show to a user.

    Attributes
    ----------
    exit_code : ExitCode
        Exit status of a command that ends with this error.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED


class WrongUsage(Ds4ProtoError):
    """The request cannot be met as it was made: an option, a name, a missing extra."""

    exit_code = ExitCode.NOTHING_RAN


class NothingRan(Ds4ProtoError):
    """The request was sound, yet nothing could be done, so there is no verdict."""

    exit_code = ExitCode.NOTHING_RAN


class PeerLost(Ds4ProtoError):
    """A peer could not be reached, went away, or missed a deadline."""

    exit_code = ExitCode.PEER_LOST
