"""Frames whose bytes are known from elsewhere parse to what they say, and rebuild."""

import struct
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ds4proto.schema import build, frame, header_of, to_bytes
from ds4proto.schema.fast import struct_of
from tests.schema.forms import both_forms, within

DATA = Path(__file__).parents[1] / "data"
VECTORS = tomllib.loads((DATA / "ds4t_golden.toml").read_text())["vector"]
WHOLE = [v for v in VECTORS if not v["frame"].endswith("header")]


@pytest.mark.parametrize("vector", WHOLE, ids=[v["what"] for v in WHOLE])
def test_vector(vector: dict[str, Any]) -> None:
    data, dialect = bytes.fromhex(vector["bytes"]), vector["dialect"]
    spec = frame(vector["frame"], dialect=dialect)
    reading = both_forms(spec, data, dialect)
    assert reading.problems == ()
    assert within(vector["values"], reading.values)
    assert to_bytes(spec, reading.values, dialect=dialect) == data
    assert (
        to_bytes(spec, vector["values"] | _floats(data, spec.name), dialect=dialect)
        == data
    )


def _floats(data: bytes, name: str) -> dict[str, float]:
    """Return the two logits of LOGITS_TOP2, which the vector gives as bits only."""
    if name != "LOGITS_TOP2":
        return {}
    return dict(zip(("value0", "value1"), struct.unpack("<2f", data[-8:]), strict=True))


def test_best_logits_of_the_measured_row() -> None:
    vector = next(v for v in VECTORS if v["frame"] == "DS4T.LOGITS_TOP2")
    spec = frame("DS4T.LOGITS_TOP2", dialect="v9w")
    values = both_forms(spec, bytes.fromhex(vector["bytes"]), "v9w").values
    assert values["value0"].hex() == "0x1.3030ee0000000p+0"
    assert values["value0"] > values["value1"] > 0


def test_header_in_front_of_logits() -> None:
    vector = next(v for v in VECTORS if v["frame"].endswith("header"))
    data = bytes.fromhex(vector["bytes"])
    form = struct_of(header_of("DS4T"), "*")
    _magic, code, size = form.unpack(data)
    assert {"type": code, "bytes": size} == vector["values"]
    spec = frame("DS4T.LOGITS", dialect="v14")
    parts = build(spec, {"logits": bytes(258560)}, dialect="v14")
    assert bytes(parts[0]) == data
    assert len(parts[1]) == 2 * 129280


def test_every_vector_is_used() -> None:
    assert len(VECTORS) == 16
    assert len({v["what"] for v in VECTORS}) == 16


HELLO = (
    "44533444 00000001 0000002e 00000000 00000002 00000002 00000007 00000001 00000001"
    " 00000100 00000008 000015b3 00000006 546f79205634"
)


def test_pipeline_hello_as_measured() -> None:
    data = bytes.fromhex(HELLO)
    assert len(data) == 58
    spec = frame("DS4D.HELLO", dialect="upstream")
    values = both_forms(spec, data, "upstream").values
    assert values == {
        "model_id": 0,
        "quant_bits": 2,
        "layer_start": 2,
        "layer_end": 7,
        "has_output": 1,
        "has_hidden": 1,
        "ctx_size": 256,
        "n_layers": 8,
        "listen_port": 5555,
        "model_name_len": 6,
        "model_name": "Toy V4",
    }
    del values["model_name_len"]
    assert to_bytes(spec, values, dialect="upstream") == data
