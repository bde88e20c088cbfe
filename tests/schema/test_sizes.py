"""Sizes that the facts state: fixed parts, hellos, queue pair data, the slab."""

import pytest

from ds4proto.schema import frame
from ds4proto.schema.slab import slab_layout, slab_size

FIXED = {
    "DS4D.HELLO": 40,
    "DS4D.ERROR": 0,
    "DS4D.WORK": 80,
    "DS4D.RESULT": 40,
    "DS4D.SNAPSHOT_SAVE_REQ": 40,
    "DS4D.SNAPSHOT_BEGIN": 60,
    "DS4D.SNAPSHOT_CHUNK": 12,
    "DS4D.SNAPSHOT_DONE": 16,
    "DS4D.SNAPSHOT_LOAD_BEGIN": 60,
}
CODES = {
    **{name: code for code, name in enumerate(FIXED, start=1)},
    "DS4T.SYNC": 1,
    "DS4T.EVAL": 2,
    "DS4T.REWIND": 3,
    "DS4T.INVALIDATE": 4,
    "DS4T.STOP": 5,
    "DS4T.HASH": 6,
    "DS4T.RDMA_INFO": 7,
    "DS4T.RDMA_READY": 9,
    "DS4T.LOGITS": 10,
    "DS4T.VERIFY": 11,
    "DS4T.VERIFY_COMMIT": 12,
    "DS4T.SESSION_CREATE": 13,
    "DS4T.SESSION_DESTROY": 14,
    "DS4T.EVAL_BATCH": 15,
    "DS4T.MIXED_BATCH": 16,
    "DS4T.COMMAND_ACK": 17,
    "DS4T.SYNC_MULTIMODAL": 18,
    "DS4T.RDMA_WARM": 19,
    "DS4T.RDMA_POSTED": 20,
    "DS4T.GLM_MTP": 21,
    "DS4T.SYNC_CHECKPOINT": 22,
}
# Bytes of the body in front of arrays.
CONTROL = {
    "SYNC": 16, "EVAL": 24, "REWIND": 16, "INVALIDATE": 8, "STOP": 0, "HASH": 16,
    "RDMA_INFO": 48, "RDMA_READY": 0, "LOGITS": 0, "VERIFY": 16, "VERIFY_COMMIT": 8,
    "SESSION_CREATE": 16, "SESSION_DESTROY": 8, "EVAL_BATCH": 8, "MIXED_BATCH": 16,
    "COMMAND_ACK": 16, "SYNC_MULTIMODAL": 16, "RDMA_WARM": 4, "RDMA_POSTED": 4,
    "GLM_MTP": 24, "SYNC_CHECKPOINT": 24, "GATE_ROW": 16,
}  # fmt: skip


def home(name: str) -> str:
    return "upstream" if name.startswith("DS4D") else "v14"


@pytest.mark.parametrize(("name", "size"), FIXED.items())
def test_fixed_part_of_pipeline_messages(name: str, size: int) -> None:
    spec = frame(name, dialect="upstream")
    assert spec.fixed_size("upstream") == size
    assert spec.header_size == 12


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_type_numbers(name: str, code: int) -> None:
    assert frame(name, dialect=home(name)).code == code


@pytest.mark.parametrize(("name", "size"), CONTROL.items())
def test_fixed_part_of_tensor_parallel_frames(name: str, size: int) -> None:
    assert frame(f"DS4T.{name}", dialect="v14").fixed_size("v14") == size


@pytest.mark.parametrize(
    ("dialect", "size"),
    [
        ("v1", 56), ("v6", 64), ("v7", 64), ("v9", 88), ("v9-late", 88), ("v9w", 72),
        ("v10", 88), ("v12", 88), ("v12-ane", 88), ("v14", 88), ("v14-odinlink", 88),
        ("v15", 96),
    ],
)  # fmt: skip
def test_hello_of_each_version(dialect: str, size: int) -> None:
    from ds4proto.schema import dialect as find

    spec = frame("DS4T.HELLO", dialect=dialect)
    assert spec.fixed_size(dialect) == size == find(dialect).hello_size
    assert spec.header_size == 0


@pytest.mark.parametrize(
    ("dialect", "size"),
    [
        ("v7", 48),
        ("v9w", 48),
        ("v10", 48),
        ("v12", 48),
        ("v14", 48),
        ("v14-odinlink", 64),
    ],
)
def test_queue_pair_data(dialect: str, size: int) -> None:
    assert frame("DS4T.RDMA_INFO", dialect=dialect).fixed_size(dialect) == size


def test_sizes_that_forks_change() -> None:
    assert frame("DS4D.HELLO", dialect="local-decode").fixed_size("local-decode") == 44
    assert frame("DS4D.WORK", dialect="fodelf").fixed_size("fodelf") == 88
    assert frame("DS4D.RESULT", dialect="fodelf").fixed_size("fodelf") == 44
    assert frame("DS4T.EVAL", dialect="v1").fixed_size("v1") == 16
    assert frame("DS4T.REWIND", dialect="v6").fixed_size("v6") == 4
    assert frame("DS4T.INVALIDATE", dialect="v1").fixed_size("v1") == 0
    assert frame("DS4T.SYNC_ACK", dialect="v6").fixed_size("v6") == 0
    for name in ("DS4T.GATE_ROW", "DS4B.GATE_BATCH", "DS4B.GATE_BULK"):
        assert frame(name, dialect="v14").fixed_size("v14") == 16
        assert frame(name, dialect="v14-odinlink").fixed_size("v14-odinlink") == 24
        assert frame(name, dialect="v15").fixed_size("v15") == 40
    assert frame("DS4T.RDMA_INFO_RAW", dialect="v15").fixed_size("v15") == 40
    assert frame("DS4T.RDMA_WINDOW", dialect="v15").fixed_size("v15") == 16


def test_numbers_that_name_two_frames() -> None:
    from ds4proto.schema import frame_of_code

    def named(code: int, dialect: str) -> str | None:
        spec = frame_of_code("DS4T", code, dialect=dialect)
        return None if spec is None else spec.name

    assert named(18, "v10") == "SYNC_MULTIMODAL"
    assert named(18, "v9w") == "LOGITS_TOP2"
    assert named(18, "v7") is None
    assert named(22, "v14") == "SYNC_CHECKPOINT"
    assert named(22, "v14-odinlink") == "SYNC_GO"
    assert named(23, "v14-odinlink") == "SYNC_CHECKPOINT"
    assert named(23, "v15") == "RESTORE_PAYLOAD"
    assert named(23, "v14") is None
    assert [named(code, "v10") for code in (8, 22)] == [None, None]
    assert named(8, "v6") == "SYNC_ACK"


# Offsets of the regions behind `out` (which starts at 0), and the total.
SLAB = """
  V4 Flash    43 4096 1409024 2818048 2818736 2818752 2819440 2819784  8455880 14091976
  V4 Pro      61 7168 3497984 6995968 6996944 6996960 6997936 6998424 20990360 34982296
  V4.1 Flash  40 5120 1638400 3276800 3277440 3277456 3278096 3278416  9832016 16385616
  GLM 5.2     78 6144 3833856 7667712 7668960 7668976 7670224 7670848 23006272 38341696
  GLM 5.3     45 4096 1474560 2949120 2949840 2949856 2950576 2950936  8849176 14747416
  toy          4   64    2048    4096    4160    4176    4240    4272    12464    20656
"""
ROWS = {
    line[:12].strip(): [int(number) for number in line[12:].split()]
    for line in (line.strip() for line in SLAB.strip().splitlines())
}
TOTALS = {(2, 16): 2656, (4, 16): 5296, (2, 4096): 655456}


@pytest.mark.parametrize("model", ROWS)
def test_slab(model: str) -> None:
    layers, width, *expected, total = ROWS[model]
    regions = slab_layout(layers, width)
    assert [region.offset for region in regions] == [0, *expected]
    assert [region.name for region in regions] == [
        "out", "in", "in_flags", "token",
        "out_flags", "gpu_flags", "batch_out", "batch_in",
    ]  # fmt: skip
    assert slab_size(layers, width) == total
    assert [r.name for r in regions if r.travels] == [
        "out",
        "in",
        "batch_out",
        "batch_in",
    ]


@pytest.mark.parametrize(("shape", "total"), TOTALS.items())
def test_slab_sizes_that_a_peer_logged(shape: tuple[int, int], total: int) -> None:
    assert slab_size(*shape) == total


@pytest.mark.parametrize("shape", [(0, 16), (4, 0), (-1, 16)])
def test_a_slab_needs_a_shape(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="layers and a width"):
        slab_layout(*shape)
