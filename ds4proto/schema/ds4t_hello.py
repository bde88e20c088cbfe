"""DS4T HELLO: both ranks write it first, without a frame header."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from construct import Bytes, Int32ul, Int64ul

from ds4proto.schema.declare import (
    REST,
    FieldSpec,
    FrameSpec,
    Layout,
    Limit,
    Name,
    Rule,
)
from ds4proto.schema.declare import Payload as PayloadTail
from ds4proto.schema.dialects_ds4t import (
    ALL,
    ODINLINK,
    SINCE_V6,
    SINCE_V9,
    UNKNOWN_HELLO,
    V9W,
    V15,
)
from ds4proto.schema.ds4t_common import BOTH, DS4T_MAGIC, F

_KNOWN = ALL - UNKNOWN_HELLO
_SCHEDULE = SINCE_V6 - UNKNOWN_HELLO
_MASK = SINCE_V9 - UNKNOWN_HELLO
_V1 = frozenset({"v1"})
_PLAIN_PAD = _SCHEDULE - ODINLINK - V15 - {"v12-ane"}

MODEL_IDS = (
    Name(0, "V4_FLASH", "DeepSeek V4 Flash"),
    Name(1, "V4_PRO", "DeepSeek V4 Pro"),
    Name(2, "GLM_5_2", "GLM 5.2"),
    Name(3, "GLM_5_3_FLASH", "GLM 5.3 Flash"),
    Name(4, "V4_1_FLASH", "DeepSeek V4.1 Flash"),
)

ROLES = (Name(1, "LEADER", "rank 0"), Name(2, "WORKER", "rank 1"))
ROLE_CODES = {"tp-leader": 1, "tp-worker": 2}


def _same(path: str, doc: str, unit: str = "") -> FieldSpec:
    return F(path, Int32ul, doc, unit=unit, dialects=_KNOWN, clause="DS4T-HELLO-05")


def _schedule(path: str, doc: str) -> FieldSpec:
    return F(path, Int32ul, doc, dialects=_SCHEDULE, clause="DS4T-HELLO-05")


def _mask_bits(v: Mapping[str, Any]) -> int:
    words: list[int] = [v[f"gate_slot_mask{word}"] for word in range(3)]
    return words[0] | words[1] << 64 | words[2] << 128


def _mask_holds(v: Mapping[str, Any]) -> bool:
    bits = _mask_bits(v)
    if not bits:
        return True
    slots: int = 2 * v["n_layer"]
    gates: int = v["gates_per_token"]
    return bits.bit_length() <= slots and bits.bit_count() == gates


def _mask_expected(v: Mapping[str, Any]) -> str:
    return f"{v['gates_per_token']} bits, all below slot {2 * v['n_layer']}"


HELLO = FrameSpec(
    "DS4T",
    "HELLO",
    None,
    Layout(
        "HELLO",
        "Who this rank is: version, role, model, gate schedule.",
        (
            F(
                "magic",
                Int32ul,
                "DS4T; also the check of the byte order",
                const=DS4T_MAGIC,
                clause="DS4T-HELLO-02",
            ),
            F("version", Int32ul, "protocol version", clause="DS4T-HELLO-03"),
            F(
                "role",
                Int32ul,
                "1 leader, 2 worker",
                enum=ROLES,
                limit=Limit(1, 2),
                clause="DS4T-HELLO-19",
            ),
            F(
                "rdma_ok",
                Int32ul,
                "1 if the verbs probe found a device",
                dialects=_KNOWN,
                limit=Limit(0, 1),
                clause="DS4T-HELLO-20",
                default=0,
            ),
            F("null_split", Int32ul, "diagnostic switch", dialects=_V1, default=0),
            F("pad0", Int32ul, "padding", dialects=_V1, default=0),
            F(
                "gguf_bytes",
                Int64ul,
                "size of the main GGUF file",
                unit="bytes",
                dialects=_KNOWN,
                clause="DS4T-HELLO-05",
            ),
            F(
                "model_id",
                Int32ul,
                "model number",
                enum=MODEL_IDS,
                dialects=_KNOWN,
                clause="DS4T-HELLO-05",
            ),
            _same("n_layer", "executed layers", "layers"),
            _same("n_embd", "width of one vector", "values"),
            _same("n_vocab", "vocabulary", "tokens"),
            _same("quant_bits", "label of the routed experts", "bits"),
            F(
                "ctx_size",
                Int32ul,
                "the leader's context, 0 from a worker; not compared",
                unit="tokens",
                dialects=_KNOWN,
                default=0,
            ),
            F(
                "runtime_features",
                Int32ul,
                "switches that change arithmetic or schedule; compared exactly",
                dialects=V9W,
                flags=(
                    Name(1 << 0, "Q4K_WMMA"),
                    Name(1 << 1, "BATCH_ATTN_HEAD_SPLIT"),
                    Name(1 << 2, "ODINLINK_BATCH_ASYNC"),
                    Name(1 << 3, "RDMA_LOGITS"),
                    Name(1 << 4, "RANK0_FULL_LOGITS"),
                    Name(1 << 5, "GREEDY_TOP2"),
                    Name(1 << 6, "IQ2_INT8_WMMA"),
                    Name(1 << 7, "TEMPORAL_COMPRESSOR"),
                    *(
                        Name(1 << bit, f"FIRST_EXPERT_BIT{bit - 8}")
                        for bit in range(8, 16)
                    ),
                    Name(1 << 16, "Q4K_FUSED_MID"),
                    Name(1 << 17, "HC_EXACT_COOP"),
                    Name(1 << 18, "INDEXER_RADIX_TREE"),
                ),
                limit=Limit(0, (1 << 19) - 1),
                clause="DS4T-HELLO-31",
            ),
            _schedule("gate_slot_start", "slot of the first row gate"),
            _schedule("gate_slot_step", "slots between row gates"),
            _schedule("gates_per_token", "row gates of one decoded token"),
            F("pad", Int32ul, "0", dialects=_PLAIN_PAD, default=0),
            F("odl_ok", Int32ul, "OdinLink available", dialects=ODINLINK, default=0),
            F(
                "split_flags",
                Int32ul,
                "split switches, compared",
                dialects=frozenset({"v12-ane"}),
                default=0,
            ),
            F(
                "transport",
                Int32ul,
                "requested transport, capability bits from bit 8",
                dialects=V15,
                default=0,
            ),
            F(
                "tail_pad",
                Bytes(4),
                "padding",
                dialects=V9W,
                default=bytes(4),
            ),
            *(
                F(
                    f"gate_slot_mask{word}",
                    Int64ul,
                    f"slots {64 * word} to {64 * word + 63} that fire, all 0: not used",
                    dialects=_MASK,
                    default=0,
                    clause="DS4T-HELLO-05",
                )
                for word in range(3)
            ),
            F("nonce", Int64ul, "half of the epoch", dialects=V15, default=0),
        ),
        (
            PayloadTail(
                "rest",
                REST,
                "identity, schedule, and world and rank in front of pad",
                "DS4T-DIALECT-27",
                frozenset({"v8-mesh"}),
                shape="bytes",
                bits=8,
            ),
            PayloadTail(
                "rest",
                REST,
                "rank, world, collective, expert_only, then the identity",
                "DS4T-DIALECT-28",
                frozenset({"v11-spark"}),
                shape="bytes",
                bits=8,
            ),
        ),
        (
            Rule(
                "DS4T-HELLO-06",
                "gate_slot_mask0",
                _mask_holds,
                _mask_expected,
                "a mask names every row gate of a token, inside the layers",
                dialects=_MASK,
            ),
        ),
        short_clause="DS4T-HELLO-01",
        trailing_clause="DS4T-HELLO-01",
    ),
    BOTH,
    BOTH,
)
