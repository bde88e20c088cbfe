"""Sound runs of real peers: nothing above a note may be found in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ds4proto.testing import captures_dir
from ds4proto.trace.diagnosis import diagnose

ROOT = captures_dir()
ON_PURPOSE = "v7_payload_nan_inf"
"""Both peers exit with 0, and their stand-in engine makes NaN and infinity."""
PIPELINES = (
    *(f"ds4d/{name}" for name in (
        "a_s2_decode_f32", "b_s2_decode_f16", "c_s2_decode_e4m3", "d_s3_forward_f16",
        "d_s3_hidden_return_f32", "e_s2_prefill_c16_w3", "e_s3_prefill_c8_w4",
        "f_snapshot_load_s3", "f_snapshot_save_s2", "j_flags_s2",
        "l_s2_decode_sohardcement", "l_s2_ipc_anyei",
    )),
    *(f"toy/{name}/trace" for name in (
        "pipeline_e4m3_hidden", "pipeline_f16", "pipeline_f32",
    )),
)  # fmt: skip


def sound_pairs() -> list[str]:
    """Return the captures of two real peers that both ended with status 0."""
    found = []
    for path in sorted((ROOT / "ds4t").glob("*.json")):
        if path.stem == "index":
            continue
        roles = json.loads(path.read_text()).get("roles")
        if not isinstance(roles, dict):
            continue
        real = all(
            role.get("kind") == "real peer" and role.get("exit") == 0
            for role in roles.values()
        )
        if real and path.stem != ON_PURPOSE:
            found.append(path.stem)
    return found


def capture(name: str) -> Path:
    """Return the file of a capture, which may be compressed."""
    path = ROOT / f"{name}.pcap"
    return path if path.exists() else path.with_suffix(".pcap.gz")


def alarms(path: Path) -> list[str]:
    return [f"{f.code}: {f.sentence}" for f in diagnose([path]) if f.severity != "note"]


@pytest.mark.parametrize("name", PIPELINES)
def test_a_sound_pipeline_raises_no_alarm(name: str) -> None:
    assert alarms(capture(name)) == []


def test_sound_pairs_raise_no_alarm() -> None:
    names = sound_pairs()
    assert len(names) == 65
    found = {name: alarms(capture(f"ds4t/{name}")) for name in names}
    assert {name: said for name, said in found.items() if said} == {}


def test_the_same_run_with_values_that_are_no_numbers_does() -> None:
    assert any(
        "numeric.non-finite" in said for said in alarms(capture(f"ds4t/{ON_PURPOSE}"))
    )
