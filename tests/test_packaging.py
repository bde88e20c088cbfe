"""What an installed ds4proto consists of, and that the metadata agree with the tree."""

import os
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import pytest

import ds4proto
from ds4proto.cli._commands import RESERVED
from ds4proto.cli._loader import module_exists

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "ds4proto": "ds4proto",
    "ds4proto_conformance": "conformance/ds4proto_conformance",
    "ds4proto_fuzz": "fuzz/ds4proto_fuzz",
    "ds4proto_runtime": "reference_runtime/ds4proto_runtime",
}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_the_same_everywhere(project: dict[str, Any]) -> None:
    assert project["version"] == ds4proto.__version__ == version("ds4proto")


@pytest.mark.parametrize("group", ["ds4proto.commands", "ds4proto.peers"])
def test_the_installed_entry_points_are_those_of_pyproject(
    project: dict[str, Any], group: str
) -> None:
    installed = {
        entry.name: entry.value
        for entry in entry_points(group=group)
        if entry.dist is not None and entry.dist.name == "ds4proto"
    }
    assert installed == project["entry-points"][group], "reinstall: make setup"


def test_every_reserved_command_has_its_entry_point(project: dict[str, Any]) -> None:
    commands = project["entry-points"]["ds4proto.commands"]
    assert set(commands) == {row.name for row in RESERVED}
    for name, target in commands.items():
        module, _, attribute = target.partition(":")
        package, *rest = module.split(".")
        assert package in PACKAGES
        assert rest == ["cli", name]
        assert attribute == "cmd"


def test_the_reference_peers_are_functions_that_return_an_argv(
    project: dict[str, Any],
) -> None:
    peers = project["entry-points"]["ds4proto.peers"]
    assert {"coordinator", "worker", "tp-leader", "tp-worker"} <= set(peers)
    for entry in entry_points(group="ds4proto.peers"):
        if module_exists(entry.module):
            argv = entry.load()()
            assert argv
            assert all(isinstance(word, str) for word in argv)


def test_no_extra_but_its_own_brings_scapy(project: dict[str, Any]) -> None:
    holders = [
        extra
        for extra, lines in project["optional-dependencies"].items()
        if any(line.startswith("scapy") for line in lines)
    ]
    assert holders == ["scapy"]
    assert not any("torch" in line for line in project["dependencies"])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(folder), str(ROOT)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_four_packages_with_their_data(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    tops = {name.partition("/")[0] for name in names}
    assert tops == {*PACKAGES, f"ds4proto-{ds4proto.__version__}.dist-info"}
    for package, folder in PACKAGES.items():
        tracked = subprocess.run(
            ["git", "ls-files", "-z", folder],
            cwd=ROOT,
            capture_output=True,
            check=True,
            text=True,
        ).stdout.split("\0")
        wanted = {
            package + name.removeprefix(folder)
            for name in tracked
            if name and (ROOT / name).is_file()
        }
        assert wanted <= names
        assert f"{package}/py.typed" in names
    assert f"ds4proto-{ds4proto.__version__}.dist-info/licenses/LICENSE" in names


def test_the_command_runs_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    script = (
        "import sys, ds4proto; from ds4proto.cli import run; "
        "print(ds4proto.__file__); sys.exit(run(['--help']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert Path(first).is_relative_to(tmp_path / "site")
    assert rest[0].startswith("Usage: ds4proto")
