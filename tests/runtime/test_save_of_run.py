"""What ``--save`` writes at the end of a run: prompt and text, whoever decoded."""

from __future__ import annotations

from pathlib import Path

import pytest
from ds4proto_runtime import kv
from ds4proto_runtime.engines.toy import ToyEngine

from ds4proto.cli import run
from ds4proto.peer import spawn
from ds4proto.peer.connect import free_ports
from tests.runtime.cluster import ENV
from tests.runtime.test_run import RUN, finish

LOCAL = ["--local-decode"]
PRIVATE = ["--dialect", "ds4proto"]


def save(path: Path, coordinator: list[str], worker: list[str]) -> str:
    port = str(free_ports(1)[0])
    process = spawn(
        [*RUN, "--role", "worker", "--layers", "4:output",
         "--coordinator", "127.0.0.1", port, *worker],
        env=ENV,
    )  # fmt: skip
    try:
        done = finish(
            ["--role", "coordinator", "--layers", "0:3", "--listen", "127.0.0.1", port,
             "--route-wait", "240s", "-p", "1,2,3", "-n", "12", "--save", str(path),
             *coordinator]
        )  # fmt: skip
    finally:
        process.end()
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("coordinator", "worker"),
    [([], []), (LOCAL, []), ([*LOCAL, *PRIVATE], [*LOCAL, *PRIVATE])],
    ids=["plain", "decoded here", "decoded at the last worker"],
)
def test_the_saved_session_holds_the_whole_text(
    coordinator: list[str], worker: list[str], tmp_path: Path
) -> None:
    path, alone = tmp_path / "run.dsv4", tmp_path / "alone.dsv4"
    text = save(path, coordinator, worker)
    tokens = [1, 2, 3, *map(int, text.split(","))]
    assert len(tokens) == 15
    engine = ToyEngine()
    session = engine.open()
    hidden = engine.run(session, engine.embed(tokens), tokens, 0)
    kv.save_session(alone, engine, session, engine.head(hidden[-1]))
    assert path.read_bytes() == alone.read_bytes()


@pytest.mark.parametrize(
    "words",
    [
        ["-p", "1"],
        ["--role", "coordinator", "--layers", "0:3", "--listen", "127.0.0.1", "5000",
         "-p", "1"],
        ["--tensor-parallel", "--role", "coordinator", "--listen", "127.0.0.1", "0",
         "-p", "1"],
    ],
    ids=["alone", "pipeline", "pair"],
)  # fmt: skip
def test_a_file_that_cannot_be_written_is_told_before_anything_runs(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing" / "x"
    for target, told in ((missing, "there is no folder"), (tmp_path, "is a folder")):
        assert run(["run", *words, "--save", str(target)]) == 2
        out, err = capsys.readouterr()
        assert told in err
        assert out == ""
