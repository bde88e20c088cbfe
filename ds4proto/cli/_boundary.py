"""The one place where an exception becomes a line on stderr and an exit status.

====================================  ======  =====================================
what ends the command                 status  what the user reads
====================================  ======  =====================================
the command returns an ``int``        that    what the command printed
an error class that we define         its*    its text
wrong options, a missing extra        2       what is wrong, and the way to help
a file that cannot be opened          2       its name and the reason
a peer that is gone or late           3       what the system says
Ctrl-C                                130     "interrupted"
the reader of stdout has gone         141     nothing
stdout was closed from the start      2       that it was
anything else, which is our mistake   1       that it is internal, how to report it
====================================  ======  =====================================

(*) the ``exit_code`` of the class; 1 where it has none.
"""

import os
import select
import sys
import traceback
from collections.abc import Sequence
from errno import ELOOP, ENAMETOOLONG, ENOSPC
from importlib.metadata import PackageNotFoundError, requires
from io import StringIO, TextIOWrapper
from typing import Any, Final

import click

from ds4proto.cli._output import printable
from ds4proto.errors import Ds4ProtoError, ExitCode

__all__ = ["INTERRUPTED", "PLAIN_WIDTH", "TRACEBACK_VARIABLE", "run_command"]

TRACEBACK_VARIABLE: Final = "DS4PROTO_TRACEBACK"
PLAIN_WIDTH: Final = 80
INTERRUPTED: Final = 130
"""Exit status after Ctrl-C without a verdict: 128 + SIGINT, as shells report it."""
_NO_READER: Final = 141  # 128 + SIGPIPE
_OUR_PACKAGES: Final = frozenset(
    {"ds4proto", "ds4proto_conformance", "ds4proto_fuzz", "ds4proto_runtime"}
)


def run_command(command: click.Command, args: Sequence[str], name: str) -> int:
    """Run a command line and return the exit status; no exception leaves.

    Parameters
    ----------
    command : click.Command
        The command or group to run.
    args : sequence of str
        The arguments after the program's name.
    name : str
        The program's name, for usage lines.
    """
    if sys.stderr is None:  # closed by the caller: text must not land on stdout
        sys.stderr = StringIO()
    if sys.stdout is None:
        text = "standard output is closed; give it a file, a pipe or a terminal"
        return _say(name, text, ExitCode.NOTHING_RAN)
    for stream in (sys.stdout, sys.stderr):
        # Frames of tables and arrows are no reason to fail where only ASCII is known;
        # the locales C and POSIX come with surrogateescape, which fails at them, too.
        if isinstance(stream, TextIOWrapper) and (
            stream.errors == "strict"
            or (stream.errors == "surrogateescape" and stream.encoding != "utf-8")
        ):
            stream.reconfigure(errors="replace")
    try:
        status = _invoke(command, args, name)
        sys.stdout.flush()
    except BaseException as error:
        return _explain(error, name)
    return status


def _invoke(command: click.Command, args: Sequence[str], name: str) -> int:
    extra: dict[str, Any] = {}
    if not sys.stdout.isatty():
        extra["terminal_width"] = PLAIN_WIDTH
    try:
        with command.make_context(name, list(args), **extra) as context:
            result = command.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code
    if isinstance(result, int) and not isinstance(result, bool):
        return int(result)
    return ExitCode.PASSED


def _explain(error: BaseException, name: str) -> int:
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return error.code or ExitCode.PASSED
        return _say(name, str(error.code), ExitCode.FAILED)
    if isinstance(error, BrokenPipeError) and _stdout_has_no_reader():
        return _NO_READER
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return _say(name, "interrupted", INTERRUPTED)
    if isinstance(error, click.ClickException):
        error.show(file=sys.stderr)
        return ExitCode.NOTHING_RAN
    with_traceback = os.environ.get(TRACEBACK_VARIABLE, "0") not in {"", "0"}
    if with_traceback:
        traceback.print_exception(error, file=sys.stderr)
    status = _documented_status(error)
    if status is not None:
        return _say(name, str(error), status)
    if isinstance(error, ModuleNotFoundError):
        extra = _extra_of(error.name or "")
        if extra:
            advice = f"pip install 'ds4proto[{extra}]'"
            text = f"this needs the package {error.name!r}; install it with: {advice}"
            return _say(name, text, ExitCode.NOTHING_RAN)
    if isinstance(error, OSError):
        return _explain_system_error(error, name)
    kind = type(error).__name__
    text = f"internal error: {kind}: {error}\n"
    if not with_traceback:
        text += f"Please report it; {TRACEBACK_VARIABLE}=1 shows where it happened."
    else:
        text += "Please report it with the lines above."
    return _say(name, text, ExitCode.FAILED)


def _explain_system_error(error: OSError, name: str) -> int:
    reason = error.strerror or str(error) or type(error).__name__
    if isinstance(error, ConnectionError | TimeoutError):
        return _say(name, f"peer lost: {reason}", ExitCode.PEER_LOST)
    if error.filename is None:
        full = "the output could not be written: " if error.errno == ENOSPC else ""
        return _say(name, f"{full}{reason}", ExitCode.FAILED)
    cannot_open = (
        FileNotFoundError,
        PermissionError,
        IsADirectoryError,
        NotADirectoryError,
        FileExistsError,
    )
    known = isinstance(error, cannot_open) or error.errno in (ELOOP, ENAMETOOLONG)
    status = ExitCode.NOTHING_RAN if known else ExitCode.FAILED
    return _say(name, f"{os.fsdecode(error.filename)}: {reason}", status)


def _documented_status(error: BaseException) -> int | None:
    """Return the status of an error whose class one of our packages defines."""
    ours = type(error).__module__.partition(".")[0] in _OUR_PACKAGES
    if not ours and not isinstance(error, Ds4ProtoError):
        return None
    status = getattr(error, "exit_code", ExitCode.FAILED)
    return status if isinstance(status, int) else ExitCode.FAILED


def _extra_of(module: str) -> str | None:
    """Name the extra that brings a module, from the metadata of the distribution."""
    wanted = module.partition(".")[0].lower().replace("_", "-")
    try:
        lines = requires("ds4proto") or []
    except PackageNotFoundError:
        return None
    for line in lines:
        requirement, _, condition = line.partition(";")
        names = condition.split("extra == ")
        head = requirement.strip().lower().replace("_", "-")
        if len(names) == 2 and head[: len(wanted)] == wanted:
            rest = head[len(wanted) :]
            extra = names[1].strip(" \"'()")
            if (not rest or rest[0] in "<>=!~[ ") and extra != "dev":
                return extra
    return None


def _stdout_has_no_reader() -> bool:
    """Tell a closed pager from a peer's closed socket: both raise BrokenPipeError."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        pass
    except (OSError, ValueError):
        return False
    else:
        if not _pipe_is_broken():
            return False
    # What is still buffered must not raise once more when the interpreter ends.
    _discard_stdout()
    return True


def _pipe_is_broken() -> bool:
    # Writing nothing to a pipe succeeds even without a reader, so ask the kernel.
    try:
        watch = select.poll()
        watch.register(sys.stdout.fileno(), 0)
        return any(
            seen & (select.POLLERR | select.POLLHUP) for _, seen in watch.poll(0)
        )
    except (OSError, ValueError):
        return False


def _discard_stdout() -> None:
    try:
        target = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, target)
    os.close(sink)


def _say(name: str, text: str, status: int) -> int:
    lines = text.splitlines() or [""]
    try:
        print(f"{name}: {printable(lines[0])}", file=sys.stderr)
        for line in lines[1:]:
            print(f"  {printable(line)}", file=sys.stderr)
    except OSError:
        pass  # stderr itself is gone; the status still tells
    return int(status)
