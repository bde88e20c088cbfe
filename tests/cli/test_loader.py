"""The command group knows its commands without importing them."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest

from ds4proto.cli._boundary import run_command
from ds4proto.cli._commands import Reserved
from ds4proto.cli._loader import GROUP, CommandGroup, module_exists

COMMAND = """\
import click

@click.command()
@click.option("--status", default=0)
def cmd(status):
    "Echo."
    click.echo("ran")
    return status
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a package of commands whose import of the package leaves a trace."""
    name = "loader_fixture"
    folder = tmp_path / name
    (folder / "empty").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "echo.py").write_text(COMMAND)
    (folder / "wrong.py").write_text("cmd = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    for module in [m for m in sys.modules if m.partition(".")[0] == name]:
        del sys.modules[module]


def group(package: str) -> CommandGroup:
    def find() -> dict[str, EntryPoint]:
        names = ("echo", "gone", "wrong", "extra")
        modules = {"extra": "echo"}
        return {
            name: EntryPoint(name, f"{package}.{modules.get(name, name)}:cmd", GROUP)
            for name in names
        }

    reserved = (
        Reserved("gone", "First", "Not there."),
        Reserved("echo", "First", "Says something."),
        Reserved("never", "Second", "No entry point at all."),
    )
    return CommandGroup("prog", find=find, reserved=reserved)


def test_a_module_is_found_without_importing_it_or_its_parent(package: str) -> None:
    assert module_exists(f"{package}.echo")
    assert not module_exists(f"{package}.gone")
    assert not module_exists(f"{package}.empty")
    assert not module_exists(f"{package}.echo.deeper")
    assert not module_exists("no_such_package_anywhere.echo")
    assert package not in sys.modules


def test_listing_loads_nothing_and_keeps_the_order_of_the_table(package: str) -> None:
    commands = group(package)
    listed = commands.list_commands(click.Context(commands))
    assert listed == ["echo", "extra", "wrong"]
    assert commands.missing_commands() == ["gone", "never"]
    assert package not in sys.modules


def test_help_shows_headings_and_marks_what_is_missing(
    package: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(group(package), ["--help"], "prog") == 0
    out = capsys.readouterr().out
    assert "First:\n  echo  Says something.\n" in out
    assert "Reserved, not in this release:\n  gone never\n" in out
    assert "Not there." not in out
    assert package not in sys.modules


def test_a_command_is_loaded_when_it_is_run(
    package: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(group(package), ["echo", "--status", "3"], "prog") == 3
    assert capsys.readouterr().out == "ran\n"
    assert f"{package}.echo" in sys.modules


@pytest.mark.parametrize("name", ["gone", "never"])
def test_a_reserved_command_says_that_it_is_not_in_this_release(
    package: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(group(package), [name, "--help"], "prog") == 2
    err = capsys.readouterr().err
    assert f"the command {name!r} is reserved but not in this release" in err
    assert len(err.splitlines()) == 1


def test_a_mistyped_command_is_answered_with_what_is_near(
    package: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(group(package), ["ecoh"], "prog") == 2
    err = capsys.readouterr().err
    assert "There is no command 'ecoh'. Did you mean 'echo'?" in err


def test_an_entry_point_that_is_no_command_is_our_mistake(
    package: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(group(package), ["wrong"], "prog") == 1
    assert "internal error: TypeError" in capsys.readouterr().err
