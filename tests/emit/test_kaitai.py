"""The Kaitai descriptions: their shape, and, where the compiler is, what they read.

``make test-kaitai`` fetches the compiler and sets ``DS4PROTO_KSC`` to the folder of its
node modules; without it the descriptions are checked structurally alone.
"""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ds4proto.emit.kaitai import kaitai_files, kaitai_frames
from ds4proto.schema import all_dialects, frames
from tests.spec.chapters import SPEC, examples

CAPTURES = Path(__file__).parents[2] / "conformance" / "captures"
COMPILER = os.environ.get("DS4PROTO_KSC", "")
BUILT_IN = re.compile(r"[us][1248](?:be|le)?|f[48](?:be|le)?|str")
COMPILE = """
const K = require('kaitai-struct-compiler'), Y = require('js-yaml'), fs = require('fs');
const C = K.default || K, out = process.argv[1];
(async () => {
  for (const file of process.argv.slice(2)) {
    const tree = Y.load(fs.readFileSync(file, 'utf8'));
    const made = await (typeof C === 'function' ? new C() : C)
      .compile('python', tree, null, false);
    for (const name in made) fs.writeFileSync(out + '/' + name, made[name]);
  }
})().catch(e => { console.error(e.message || e); process.exit(1); });
"""


def tree(text: str) -> list[tuple[int, str, str]]:
    """Return depth, key and value of each line of our own YAML."""
    rows = []
    for line in text.splitlines():
        stripped = line.lstrip(" -")
        key, _, value = stripped.partition(":")
        rows.append(((len(line) - len(stripped)) // 2, key, value.strip()))
    return rows


@pytest.mark.parametrize("name", sorted(kaitai_files()))
def test_every_type_and_enum_that_is_used_is_defined(name: str) -> None:
    text = kaitai_files()[name]
    rows = tree(text)
    defined = {key for depth, key, value in rows if depth == 1 and not value}
    used = {value for _, key, value in rows if key == "type" and value}
    assert {u for u in used if not BUILT_IN.fullmatch(u)} <= defined
    assert {value for _, key, value in rows if key == "enum"} <= defined
    assert text.startswith(f"meta:\n  id: {name.partition('.')[0]}\n")
    assert "\t" not in text


@pytest.mark.parametrize(
    ("file", "protocol", "dialect"),
    [("ds4d.ksy", "DS4D", "upstream"), ("ds4t.ksy", "DS4T", "v14")],
)
def test_every_field_of_a_frame_is_there(
    file: str, protocol: str, dialect: str
) -> None:
    text = kaitai_files()[file]
    for spec in frames(protocol, dialect=dialect):
        if spec.name == "BARRIER":
            continue
        head = f"\n  {spec.name.lower()}:\n"
        assert head in text
        section = text.partition(head)[2]
        section = re.split(r"\n  \w+:\n", section)[0]
        wanted = [field.path for field in spec.fixed(dialect)]
        found = re.findall(r"      - id: (\w+)", section.partition("    seq:\n")[2])
        assert found[: len(wanted)] == [path.lower() for path in wanted]
        assert len(found) >= len(wanted) + bool(spec.tails(dialect))


def test_every_dialect_can_be_described() -> None:
    for entry in all_dialects():
        if not entry.foreign:
            assert kaitai_frames(entry.protocol, entry.name).count("- id:") > 20
    assert "ipc_inbox" in kaitai_frames("DS4D", "anyei")


def read_back(folder: Path, name: str) -> Any:
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))


def test_compiled_descriptions_read_real_bytes(tmp_path: Path) -> None:
    files = []
    for name, text in kaitai_files().items():
        path = tmp_path / name
        path.write_text(text, "utf-8")
        files.append(str(path))
    assert len(files) == 4
    if not COMPILER:
        return
    subprocess.run(
        ["node", "-e", COMPILE, str(tmp_path), *files],
        check=True,
        timeout=300,
        env={**os.environ, "NODE_PATH": COMPILER},
    )
    pipeline = read_back(tmp_path, "ds4d").Ds4d
    for example in examples(SPEC / "02-ds4d.md"):
        (frame,) = pipeline.from_bytes(example.data).frames
        for path, shown in example.values.items():
            if "." not in path and path not in {"tokens", "model_name"}:
                found = getattr(frame.body, path)
                assert getattr(found, "value", found) == int(shown, 0), path
    saved = read_back(tmp_path, "dsv4").Dsv4
    data = (CAPTURES / "toy" / "pipeline_f32" / "session.dsv4").read_bytes()
    file = saved.from_bytes(data)
    assert (file.vocab, len(file.logits)) == (256, 1024)
    assert (file.token_count, len(file.tokens), file.n_layers) == (62, 62, 8)
