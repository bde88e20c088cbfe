"""A worker keeps to its dialect: frames, flags and layouts of others."""

from __future__ import annotations

from typing import Any

from ds4proto.link.ds4d_frames import RESULT_PART, TELEMETRY_PART
from ds4proto.schema.ds4d_work import INPUT_HC_IPC
from ds4proto_conformance.bench.worker import WorkerBench
from ds4proto_conformance.cases.worker_framing import expect_error, header
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation
from ds4proto_conformance.wire import Frame

_INBOX = 10
"""A type that three forks use with three meanings."""


@case(
    "worker/dialect/keeps-to-its-own",
    clauses=("DS4D-DIALECT-01", "DS4D-WORKER-34"),
    role="worker",
    category="handshake",
    harm="session",
    mutants=("sends-inbox", "sends-keep-alive"),
)
def keeps_to_its_own(peer: WorkerBench) -> None:
    """Nothing but a plain HELLO, RESULT and ERROR comes; forks' frames are refused."""
    peer.lose_control()
    found = peer.control.quiet(peer.quiet)
    if found is not None:
        raise Deviation(
            "DS4D-DIALECT-01", "nothing behind HELLO but answers", str(found)
        )
    work = peer.make(1)
    peer.answer(peer.send(work)).served("DS4D-DIALECT-01")
    more = peer.data.quiet(peer.quiet)
    if more is not None:
        raise Deviation("DS4D-WORKER-34", "no frame but answers", str(more))
    flagged = peer.make(1, flags=peer.make(1).words["flags"] | INPUT_HC_IPC)
    peer.answer(peer.send(flagged)).refused("DS4D-WORK-07")
    peer.data.send(header(_INBOX, 12) + bytes(12))
    expect_error(peer)


@case(
    "worker/result/adjoining",
    clauses=("DS4D-RESULT-20",),
    role="worker",
    category="framing",
    params={"tokens": (1, 3), "bits": (32, 8)},
    mutants=("result-padded",),
)
def adjoining(peer: WorkerBench, p: dict[str, Any]) -> None:
    """Fixed part, telemetry and payload adjoin, and the body ends with them."""
    work = peer.make(p["tokens"], bits=p["bits"])
    found = peer.answer(peer.send(work)).seen
    if not isinstance(found, Frame) or found.name != "RESULT" or found["status"]:
        raise Deviation("DS4D-RESULT-20", "a RESULT", str(found))
    telemetry = TELEMETRY_PART.size * found["telemetry_count"]
    if found["result_kind"] == 2:
        payload = 4 * (peer.facts.vocab or 0)
    else:
        payload = peer.facts.hidden_bytes(p["tokens"], p["bits"])
    due = RESULT_PART.size + telemetry + payload
    if len(found.body) != due:
        raise Deviation("DS4D-RESULT-20", f"{due} bytes", f"{len(found.body)} bytes")
    record = TELEMETRY_PART.read(found.body, RESULT_PART.size)
    if record["n_tokens"] != p["tokens"]:
        raise Deviation("DS4D-RESULT-20", "telemetry at byte 40", f"{record}")
