"""Every exception ends as a status and, at most, a few lines on stderr."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from errno import ELOOP, ENAMETOOLONG

import click
import pytest

from ds4proto.cli import run
from ds4proto.cli._boundary import TRACEBACK_VARIABLE, run_command
from ds4proto.errors import Ds4ProtoError, NothingRan, PeerLost, WrongUsage


class ParseError(Ds4ProtoError, ValueError):
    """As a package would define one."""


def outcome(body: Callable[[], object], *args: str) -> int:
    command = click.Command("prog", callback=body)
    return run_command(command, args, "prog")


def raising(error: BaseException) -> Callable[[], object]:
    def body() -> None:
        raise error

    return body


def foreign(base: type[Exception], module: str) -> Exception:
    """Return an error as if defined in another module."""
    return type("Odd", (base,), {"__module__": module})("at byte 7")


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ParseError("WORK.route[1]: bad"), 1, "prog: WORK.route[1]: bad\n"),
        (WrongUsage("no such codec"), 2, "prog: no such codec\n"),
        (NothingRan("no frames"), 2, "prog: no frames\n"),
        (PeerLost("peer gone"), 3, "prog: peer gone\n"),
        (foreign(ValueError, "ds4proto.schema"), 1, "prog: at byte 7\n"),
        (foreign(LookupError, "ds4proto_runtime.run"), 1, "prog: at byte 7\n"),
        (ConnectionRefusedError(111, "refused"), 3, "prog: peer lost: refused\n"),
        (TimeoutError("too late"), 3, "prog: peer lost: too late\n"),
        (FileNotFoundError(2, "No file", "a.pcap"), 2, "prog: a.pcap: No file\n"),
        (PermissionError(13, "Not yours", "a.pcap"), 2, "prog: a.pcap: Not yours\n"),
        (OSError(ELOOP, "Loop", "a.pcap"), 2, "prog: a.pcap: Loop\n"),
        (OSError(ENAMETOOLONG, "Long", "a.pcap"), 2, "prog: a.pcap: Long\n"),
        (OSError(28, "No space left", "a.pcap"), 1, "prog: a.pcap: No space left\n"),
        (OSError(28, "Full"), 1, "prog: the output could not be written: Full\n"),
        (KeyboardInterrupt(), 130, "prog: interrupted\n"),
        (click.Abort(), 130, "prog: interrupted\n"),
        (SystemExit(3), 3, ""),
        (SystemExit(None), 0, ""),
        (SystemExit("said"), 1, "prog: said\n"),
    ],
)  # fmt: skip
def test_the_status_and_the_text_of_each_error(
    error: BaseException, status: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert outcome(raising(error)) == status
    assert capsys.readouterr().err == text


@pytest.mark.parametrize(
    "error",
    [KeyError("x"), ValueError("x"), foreign(ValueError, "json"), EOFError("x")],
)
def test_an_unforeseen_error_asks_for_a_report_without_a_traceback(
    error: Exception,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(TRACEBACK_VARIABLE, raising=False)
    assert outcome(raising(error)) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"prog: internal error: {type(error).__name__}: {error}"
    assert "report" in second
    assert f"{TRACEBACK_VARIABLE}=1" in second


@pytest.mark.parametrize("error", [KeyError("x"), ParseError("x")])
def test_a_variable_brings_the_traceback(
    error: Exception,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TRACEBACK_VARIABLE, "1")
    assert outcome(raising(error)) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "extra"),
    [("numba", "fast"), ("torch.nn", "runtime"), ("pyarrow", "parquet")],
)
def test_a_missing_extra_is_named_with_the_way_to_get_it(
    module: str, extra: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ModuleNotFoundError(f"No module named {module!r}", name=module)
    assert outcome(raising(error)) == 2
    assert f"pip install 'ds4proto[{extra}]'" in capsys.readouterr().err


def test_a_missing_module_of_no_extra_is_internal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = ModuleNotFoundError("No module named 'num'", name="num")
    assert outcome(raising(error)) == 1
    assert "internal error" in capsys.readouterr().err


@pytest.mark.parametrize(("value", "status"), [(None, 0), (3, 3), (True, 0), ("x", 0)])
def test_an_integer_that_a_command_returns_is_its_status(
    value: object, status: int
) -> None:
    assert outcome(lambda: value) == status


def test_wrong_options_are_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(lambda: None, "--nonsense") == 2
    assert "--nonsense" in capsys.readouterr().err
    assert run([]) == 2


def test_control_characters_in_an_error_do_not_reach_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert outcome(raising(ParseError("name \x1b]0;owned\x07\nsecond\x9b"))) == 1
    err = capsys.readouterr().err
    assert err == "prog: name \\x1b]0;owned\\x07\n  second\\x9b\n"


SCRIPT = """
import sys, click
from ds4proto.cli._boundary import run_command

def body():
{body}

sys.exit(run_command(click.Command("prog", callback=body), [], "prog"))
"""


def start(*lines: str) -> "subprocess.Popen[bytes]":
    body = "\n".join(f"    {line}" for line in lines)
    # Unbuffered, every write would fail at once and no flush would be left to fail.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(body=body)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
    )


def leave(process: "subprocess.Popen[bytes]") -> tuple[int, bytes]:
    """Close the reading end, only then let the command go on, and see how it ends."""
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stdin.close()
    return process.wait(timeout=300), process.stderr.read()


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_a_reader_that_leaves_ends_the_command_quietly(size: int) -> None:
    write = f"sys.stdout.write('x' * {size})"
    with start("sys.stdin.read()", write, "sys.stdout.flush()") as process:
        assert leave(process) == (141, b"")


def test_a_reader_that_leaves_before_the_last_flush_is_seen_too() -> None:
    with start("sys.stdin.read()", "sys.stdout.write('x')") as process:
        assert leave(process) == (141, b"")


def test_a_reader_that_leaves_while_a_table_is_printed_is_no_failed_check() -> None:
    write = "from ds4proto.cli import stdout; stdout().print('x' * 10)"
    with start("sys.stdin.read()", write) as process:
        assert leave(process) == (141, b"")


def test_a_standard_error_without_a_reader_does_not_end_the_command() -> None:
    write = "from ds4proto.cli import stderr; stderr().print('x'); print('done')"
    with start("sys.stdin.read()", write) as process:
        assert process.stderr is not None
        process.stderr.close()
        out, _ = process.communicate(timeout=300)
    assert (process.returncode, out) == (0, b"done\n")


def test_the_broken_pipe_of_a_peer_is_not_taken_for_a_closed_pager() -> None:
    with start("raise BrokenPipeError(32, 'Broken pipe')") as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 3
    assert err == b"prog: peer lost: Broken pipe\n"
    assert out == b""


def test_a_closed_standard_output_or_error_is_no_internal_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        assert outcome(lambda: None) == 2
    assert "standard output is closed" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)
        assert outcome(raising(WrongUsage("no such codec"))) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_terminal_that_knows_only_ascii_gets_question_marks(
    errors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    ascii_only = io.TextIOWrapper(raw, encoding="ascii", errors=errors)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", ascii_only)
        assert outcome(lambda: print("a \u2502 b")) == 0
    assert raw.getvalue() == b"a ? b\n"


def test_an_interrupt_is_a_clean_line() -> None:
    with start(
        "print('ready', flush=True)", "import threading", "threading.Event().wait(60)"
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert err == b"prog: interrupted\n"
