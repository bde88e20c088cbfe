"""Findings: whole folders, folded by effect and state."""

import ast
import json
import textwrap
from pathlib import Path

import pytest
from ds4proto_fuzz.case import Case, Step
from ds4proto_fuzz.ds4d.facts import Facts
from ds4proto_fuzz.ds4d.frames import Frames
from ds4proto_fuzz.effect import Effect
from ds4proto_fuzz.findings import Finding, Store, load
from ds4proto_fuzz.reached import Reached
from ds4proto_fuzz.script import script

from ds4proto.errors import WrongUsage

FACTS = Facts(0, "Toy V4", 8, 5, 7, True, 2, 256, 4000, 64, 256)
SOUND = Frames(FACTS).probe


def finding(index: int = 3, size: int = 1, **changes: str) -> Finding:
    bad = SOUND[:-1] + b"\7"
    steps = (
        Step("data", "WORK", bad, "bits at [9]", SOUND, "wait", ((16, 8),)),
    ) * size
    effect = Effect("hang", changes.get("what", "no answer"), "3 s", "DS4D-WORK-01")
    peer = {"spec": "exec:x", "role": "worker", **FACTS.identity()}
    case = Case(1, index, changes.get("state", "live"), "bits", steps)
    return Finding(effect, case, peer, {"seed": 1, "index": index}, (2, 2))


def test_a_folder_holds_what_a_reader_needs(tmp_path: Path) -> None:
    folder = Store(tmp_path).add(finding())
    assert {p.name for p in folder.iterdir()} == {
        "finding.json", "frames.txt", "sequence.hex", "replay.py",
    }  # fmt: skip
    assert load(folder) == finding()
    told = json.loads((folder / "finding.json").read_text())
    assert told["effect"]["severity"] == "high"
    assert told["peer"]["model_name"] == "Toy V4"
    text = (folder / "frames.txt").read_text()
    assert "hang: no answer (3 s)" in text
    assert "session = " in text
    assert "(sound: " in text
    assert (SOUND[:-1] + b"\7").hex() in (folder / "sequence.hex").read_text()
    assert [p.name for p in tmp_path.iterdir()] == [folder.name]


@pytest.mark.parametrize("role", ["worker", "coordinator", "tp-worker", "tp-leader"])
def test_the_script_is_short_and_needs_nothing(role: str, tmp_path: Path) -> None:
    one = finding()
    one.peer = {**one.peer, "role": role}
    text = (Store(tmp_path).add(one) / "replay.py").read_text()
    assert len(text.splitlines()) < 30
    tree = ast.parse(text)
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert names == {"json", "pathlib", "socket", "sys"}


def test_equal_effects_in_one_state_are_one_and_the_shorter_stays(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    store.add(finding(size=3))
    store.add(finding(index=9, size=1))
    store.add(finding(index=11, size=2))
    (kept,) = store
    assert (len(kept.case.steps), kept.case.index, kept.count) == (1, 9, 3)
    store.again(kept.name, 4)
    assert next(iter(store)).count == 7
    store.add(finding(state="open"))
    store.add(finding(what="a second client is not served"))
    assert len(store.names()) == 3


def test_a_folder_without_a_finding_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongUsage, match="no finding"):
        load(tmp_path)
    (tmp_path / "finding.json").write_text('{"format": "other"}')
    with pytest.raises(WrongUsage, match="format 'other'"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"peer": []}, "no finding"),
        ({"peer": {"role": "worker"}}, "spec"),
        ({"peer": {"role": 1, "spec": "exec:x"}}, "role 1 of the peer"),
        ({"effect": {"class": "odd"}}, "class 'odd'"),
    ],
)
def test_a_finding_that_says_too_little_is_refused(
    tmp_path: Path, change: dict[str, object], text: str
) -> None:
    (tmp_path / "finding.json").write_text(json.dumps(finding().as_json() | change))
    with pytest.raises(WrongUsage, match=text):
        load(tmp_path)


def test_the_script_leaves_bytes_alone_that_a_cut_frame_lacks(tmp_path: Path) -> None:
    """The same bytes as ``Step.copied`` and ``Step.varied`` give."""
    step = Step("control", "RESULT", b"0123456789", vary=((8, 8), (0, 2)),
                copy=((4, 8, 0), (2, 2, 1)))  # fmt: skip
    said = b"abcdefgh"
    lines = script(finding()).splitlines()
    start = next(n for n, line in enumerate(lines) if "bytearray.fromhex" in line)
    end = next(n for n, line in enumerate(lines) if "wire.sendall" in line)
    for turn in (0, 1):
        known = {"step": step.as_json(), "turn": turn, "said": said}
        exec(textwrap.dedent("\n".join(lines[start:end])), known)
        assert known["data"] == step.copied(step.varied(turn), said)


def test_what_was_reached_is_counted_and_drawn(tmp_path: Path) -> None:
    from ds4proto_fuzz.picture import dot, picture

    reached = Reached()
    for _ in range(3):
        reached.note("live", "bits", "refused")
    reached.note("live", "cut", "closed")
    other = Reached((a, b, c, count) for a, b, c, count in reached.as_json())
    other.merge(reached)
    assert other.table() == [("live", "closed", 2, 1), ("live", "refused", 6, 1)]
    states = {"live": "a session", "saving": "nobody was here"}
    assert '"live" -> "refused" [label="6"]' in dot(other.edges(), states)
    picture(other.edges(), states, tmp_path / "graph.png")
    assert (tmp_path / "graph.png").read_bytes()[:4] == b"\x89PNG"
    for name in ("one.svg", "two.svg"):
        picture(other.edges(), states, tmp_path / name)
    one, two = ((tmp_path / f"{n}.svg").read_bytes() for n in ("one", "two"))
    assert one == two
    with pytest.raises(WrongUsage, match=r"graph\.xyz"):
        picture(other.edges(), states, tmp_path / "graph.xyz")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"graph.png", "one.svg", "two.svg"}
