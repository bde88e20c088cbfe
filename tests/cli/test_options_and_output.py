"""Durations, the shared options, and printing that is equal on every machine."""

import io
import json

import click
import pytest

from ds4proto.cli import (
    DURATION,
    Duration,
    json_option,
    parse_duration,
    printable,
    progress,
    stderr,
    stdout,
    write_json,
)
from ds4proto.cli._boundary import run_command


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20", 20.0),
        ("20s", 20.0),
        ("10m", 600.0),
        ("500ms", 0.5),
        ("2h", 7200.0),
        ("1.5", 1.5),
        (".5s", 0.5),
        (" 7 ", 7.0),
        ("0", 0.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, abs=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "-1",
        "1e9",
        "inf",
        "nan",
        "10 m",
        "1d",
        "1m30s",
        "٣",
        "9" * 400,
        "1.",
        "+1",
    ],
)
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no duration: .* 20s, 500ms, 10m"):
        parse_duration(text)


def outcome(kind: Duration, *args: str) -> tuple[int, list[object]]:
    seen: list[object] = []

    @click.command()
    @click.option("--time", type=kind, default=2, show_default=True)
    @json_option
    def cmd(time: float, as_json: bool) -> None:
        seen.extend([time, as_json])

    return run_command(cmd, args, "prog"), seen


def test_a_duration_option_takes_text_and_a_plain_default() -> None:
    assert outcome(DURATION, "--time", "3m", "--json") == (0, [180.0, True])
    assert outcome(DURATION) == (0, [2.0, False])


def test_zero_is_refused_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(DURATION, "--time", "0s") == (2, [])
    assert "more than zero" in capsys.readouterr().err
    assert outcome(Duration(zero=True), "--time", "0s") == (0, [0.0, False])


def test_a_bad_duration_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(DURATION, "--time", "soon") == (2, [])
    assert "'soon' is no duration" in capsys.readouterr().err


@pytest.mark.parametrize("columns", ["20", "300"])
def test_without_a_terminal_the_width_is_fixed_and_nothing_is_coloured(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    stdout().rule("[bold]x[/bold]", characters="-", style="red")
    stderr().print("[red]y[/red]", style="red")
    out, err = capsys.readouterr()
    assert len(out.rstrip("\n")) == 100
    assert "\x1b" not in out + err
    assert err == "[red]y[/red]\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("no_color", "coloured"), [("1", False), (None, True)])
def test_a_terminal_gets_colour_unless_told_otherwise(
    no_color: str | None, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    if no_color is None:
        monkeypatch.delenv("NO_COLOR", raising=False)
    else:
        monkeypatch.setenv("NO_COLOR", no_color)
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    stdout().print("x", style="red")
    assert ("\x1b[31m" in screen.getvalue()) is coloured


def test_json_is_one_line_and_refuses_what_json_cannot_say(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_json({"a": [1, None], "b": "ä\n"})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"a": [1, None], "b": "ä\n"}
    with pytest.raises(ValueError, match="Out of range"):
        write_json(float("nan"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ä 語", "plain ä 語"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\tb\r\n", "a\\tb\\r\\n"),
        ("\u202eevil", "\\u202eevil"),
    ],
)
def test_text_from_a_peer_cannot_steer_the_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_progress_is_silent_without_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress("reading", 10) as advance:
        advance(5)
    assert capsys.readouterr() == ("", "")


def test_progress_shows_on_a_terminal_and_on_stderr_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    with progress("reading", 10) as advance:
        advance(5)
    assert "reading" in screen.getvalue()
    assert capsys.readouterr().out == ""
