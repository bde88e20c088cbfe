"""DS4T and DS4B dialects: upstream versions 1 to 15 and the forks that were read."""

from __future__ import annotations

from ds4proto.schema.dialect_spec import Dialect, Sign


def _version(number: int, size: int) -> tuple[Sign, ...]:
    return (
        Sign("version", number, f"version word {number}"),
        Sign("hello_size", size, f"hello of {size} bytes"),
    )


_PAD_ZERO = Sign("pad", 0, "pad word 0 in both hellos")
_PAD_USED = Sign("pad_used", 1, "pad word not 0")


DS4T_DIALECTS: tuple[Dialect, ...] = (
    Dialect(
        "v1",
        "DS4T",
        "first public tensor-parallel commit",
        "2026-07-18",
        version=1,
        hello_size=56,
        differs=(
            "one implicit session: SYNC and VERIFY are bare token arrays",
            "EVAL is 16 bytes, REWIND 4, INVALIDATE and SYNC_ACK empty",
            "null_split in the hello; no gate schedule; no bulk gates",
        ),
        signs=_version(1, 56),
        settles="the hello length (56) and the version word",
        evidence="read",
    ),
    Dialect(
        "v6",
        "DS4T",
        "upstream version 6 (GLM 5.2)",
        "2026-07-18",
        version=6,
        hello_size=64,
        base="v1",
        differs=(
            "hello carries the gate schedule, null_split is gone",
            "bulk gates with tag 0x0B16; vectors of two RDMA messages",
        ),
        signs=_version(6, 64),
        settles="the hello length (64) and the version word",
        evidence="read",
    ),
    Dialect(
        "v7",
        "DS4T",
        "upstream version 7",
        "2026-07-18",
        version=7,
        hello_size=64,
        base="v6",
        differs=(
            "session ids in every command; SYNC_ACK dropped",
            "SESSION_CREATE, SESSION_DESTROY, EVAL_BATCH, MIXED_BATCH, COMMAND_ACK",
        ),
        signs=_version(7, 64),
        settles="the hello length (64) and the version word",
        evidence="measured",
        live="speaks",
    ),
    Dialect(
        "v8-mesh",
        "DS4T",
        "a mesh fork of version 8",
        "2026",
        version=8,
        base="v7",
        differs=("hello adds world and rank before pad", "an RDMA_MODE frame"),
        signs=(
            Sign("version", 8, "version word 8"),
            Sign("mesh_words", 1, "world and a smaller rank where pad would be"),
        ),
        settles="the hello length and the words before pad",
        evidence="read",
        live="recognises",
    ),
    Dialect(
        "v9",
        "DS4T",
        "upstream version 9, early text",
        "2026-07",
        version=9,
        hello_size=88,
        base="v7",
        differs=(
            "hello carries gate_slot_mask",
            "SYNC_MULTIMODAL 18; gate timeout 750 ms and socket timeouts",
        ),
        signs=_version(9, 88),
        settles="RDMA_WARM and RDMA_POSTED frames mark the late text (v9-late)",
        evidence="read",
    ),
    Dialect(
        "v9-late",
        "DS4T",
        "upstream version 9, late text",
        "2026-07",
        version=9,
        hello_size=88,
        base="v9",
        differs=("RDMA_WARM 19, RDMA_POSTED 20, verify window, 1024-deep queues",),
        signs=(*_version(9, 88), Sign("has_type", 20, "an RDMA_POSTED frame")),
        settles="a frame of type 19 or 20",
        evidence="read",
    ),
    Dialect(
        "v9w",
        "DS4T",
        "wkljohn/ds4-strix-halo-tp-odinlink, branched from version 7",
        "2026-08-21",
        version=9,
        hello_size=72,
        base="v7",
        differs=(
            "hello of 72 bytes with runtime_features, no mask",
            "RDMA_INFO carries decode_max_msg",
            "type 18 is LOGITS_TOP2 from the worker",
            "mode 2 commits; wave gates with tag 0x0B17; logits gates at layer 65534",
        ),
        signs=_version(9, 72),
        settles="the hello length (72)",
        evidence="measured",
        live="speaks",
    ),
    Dialect(
        "v10",
        "DS4T",
        "upstream version 10 (b4c5cc8a)",
        "2026-08",
        version=10,
        hello_size=88,
        base="v9-late",
        differs=("GLM_MTP 21", "EVAL reserved must be 0"),
        signs=_version(10, 88),
        settles="the version word and the hello length (88)",
        evidence="measured",
        live="speaks",
    ),
    Dialect(
        "v11-spark",
        "DS4T",
        "a DGX Spark expert-parallel fork",
        "2026",
        version=11,
        base="v10",
        differs=(
            "hello: magic, version, role, rank, world, collective, expert_only",
            "NCCL data plane",
        ),
        signs=(
            Sign("version", 11, "version word 11"),
            Sign("spark_words", 1, "rank, world and two switches behind role"),
        ),
        settles="the words behind role in the hello",
        evidence="read",
        live="recognises",
    ),
    Dialect(
        "v12",
        "DS4T",
        "upstream version 12",
        "2026-08",
        version=12,
        hello_size=88,
        base="v10",
        differs=(
            "SYNC_CHECKPOINT 22; ack status 2 is interrupted",
            "bulk header grace 2000 ms; every RDMA send is signalled",
        ),
        signs=(*_version(12, 88), _PAD_ZERO),
        settles="the pad word: split flags mark v12-ane",
        evidence="read",
    ),
    Dialect(
        "v12-ane",
        "DS4T",
        "an ANE fork, incompatible with upstream 12",
        "2026",
        version=12,
        hello_size=88,
        base="v12",
        differs=(
            "pad is split_flags and is compared",
            "CANCEL 22, ROLLBACK_CAPTURE 23; REWIND carries a mode and is acknowledged",
        ),
        signs=(*_version(12, 88), _PAD_USED),
        settles="a pad word that is not 0, or a COMMAND_ACK after REWIND",
        evidence="read",
        live="recognises",
    ),
    Dialect(
        "v14",
        "DS4T",
        "upstream version 14 (main branch; Metal and CUDA builds)",
        "2026-08",
        version=14,
        hello_size=88,
        base="v12",
        differs=(
            "V4.1 CUDA workers send LOGITS; ack reserved must be 0",
            "concurrent TCP exchange; RoCE RC on Linux; reliable in RDMA_INFO",
        ),
        signs=(*_version(14, 88), _PAD_ZERO),
        settles="the pad word: odl_ok marks v14-odinlink",
        evidence="read",
        live="speaks",
    ),
    Dialect(
        "v14-odinlink",
        "DS4T",
        "antirez/ds4 object 0665032e (OdinLink), incompatible with upstream 14",
        "2026-08",
        version=14,
        hello_size=88,
        base="v14",
        differs=(
            "pad is odl_ok; gate headers of 24 bytes with a byte count",
            "RDMA_INFO of 64 bytes with three queue pairs",
            "SYNC_GO 22, SYNC_CHECKPOINT 23, ODL_READY 24, GLM_KDA_SYNC 25",
        ),
        signs=(*_version(14, 88), _PAD_USED),
        settles="a pad word that is not 0, or frame type 24 or 25",
        evidence="read",
        live="decodes",
    ),
    Dialect(
        "v15",
        "DS4T",
        "upstream version 15 (ROCm build of a later tree)",
        "2026-08",
        version=15,
        hello_size=96,
        base="v14",
        differs=(
            "hello is followed by an 8-byte nonce",
            "pad holds transport and capabilities",
            "every gate has a 40-byte header with epoch and byte count",
            "RESTORE_PAYLOAD 23; RDMA information on the data socket",
        ),
        signs=_version(15, 96),
        settles="the version word and the nonce behind the 88 bytes",
        evidence="read",
    ),
)

_ORDER = [d.name for d in DS4T_DIALECTS]

ALL = frozenset(_ORDER)
V9W = frozenset({"v9w"})
ODINLINK = frozenset({"v14-odinlink"})
ANE = frozenset({"v12-ane"})
V15 = frozenset({"v15"})
SINCE_V6 = ALL - {"v1"}
SINCE_V7 = SINCE_V6 - {"v6"}
SINCE_V9 = frozenset(_ORDER[_ORDER.index("v9") :]) - V9W
SINCE_V9_LATE = SINCE_V9 - {"v9"}
SINCE_V10 = SINCE_V9_LATE - {"v9-late"}
SINCE_V12 = SINCE_V10 - {"v10", "v11-spark"}
SINCE_V14 = frozenset({"v14", "v14-odinlink", "v15"})
BEFORE_V7 = frozenset({"v1", "v6"})
UNKNOWN_HELLO = frozenset({"v8-mesh", "v11-spark"})
"""Dialects whose hello is known by its first words only."""
