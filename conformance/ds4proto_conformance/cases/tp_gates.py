"""Gates, as a tp-worker has to send, judge and use them.

An ack does not show that gates worked: each case forces tokens through them and
compares what the worker sends afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ds4proto.link.ds4t_events import KEEP_ALL, START
from ds4proto.link.plan import PlannedGate, verify_gates
from ds4proto_conformance.bench.tp_wire import gate_bytes
from ds4proto_conformance.bench.tp_worker import RankBench, Trace
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation, NotApplicable
from ds4proto_conformance.wire import Ended

Body = Callable[..., None]


def gates(
    name: str,
    *clauses: str,
    mutants: Sequence[str],
    params: Mapping[str, Sequence[Any]] | None = None,
    ends: bool = True,
    smoke: bool = False,
) -> Callable[[Body], Body]:
    """Declare a case; one that breaks a gate needs a fresh worker."""
    return case(
        f"tp-worker/gates/{name}",
        clauses=clauses,
        role="tp-worker",
        category="gates",
        params=params,
        mutants=tuple(f"tpw-{mutant}" for mutant in mutants),
        harm="process" if ends else "none",
        needs_restart=ends,
        smoke=smoke,
    )


def first_gate(peer: RankBench) -> PlannedGate:
    """Bring a worker to the first gate of a token and return that gate."""
    known = peer.start()
    peer.eval_only(known, 1)
    return peer.token()[0]


def failed(peer: RankBench, clause: str) -> None:
    """Take it that a row or batch gate failed: no frame, no further gate, an end."""
    peer.refused(clause, "the worker to end behind a gate that does not fit")


@gates("token", "DS4T-GATE-50", "DS4T-SEQ-02", "DS4T-GATE-10", "DS4T-FLOW-13",
       mutants=["ffn-first", "row-seq-stuck"], ends=False, smoke=True)  # fmt: skip
def token(peer: RankBench) -> None:
    """The gates of a token come in schedule order, numbered on across tokens."""
    known = peer.start()
    for number in range(3):
        peer.eval(known, number)


@gates("counters", "DS4T-SEQ-03", "DS4T-SEQ-01", "DS4T-SEQ-04", "DS4T-SEQ-06",
       mutants=["batch-own-counter", "seq-reset"], ends=False)  # fmt: skip
def counters(peer: RankBench) -> None:
    """Batch and bulk gates share one counter, rows another; neither starts anew."""
    first = peer.start()
    peer.eval(first, 1)
    peer.verify(first, (1, 2, 3), KEEP_ALL, 0)
    second = peer.start(6)
    peer.verify(second, (4, 5), 0, 2)
    peer.eval(second, 2)


@gates("row-magic", "DS4T-GATE-01", "DS4T-GATE-28",
       params={"magic": (0x44533442, 0, 0xDEADBEEF)},
       mutants=["row-magic-unchecked"])  # fmt: skip
def row_magic(peer: RankBench, p: dict[str, Any]) -> None:
    """A row gate with another magic fails, that of block gates included."""
    peer.wrong_gate(first_gate(peer), magic=p["magic"])
    failed(peer, "DS4T-GATE-01")


@gates("row-layer", "DS4T-GATE-02", "DS4T-EVAL-07", params={"layer": (1, 0xFFFF)},
       mutants=["row-layer-unchecked"])  # fmt: skip
def row_layer(peer: RankBench, p: dict[str, Any]) -> None:
    """A row gate of another layer fails."""
    gate = first_gate(peer)
    peer.wrong_gate(gate, layer=(gate.layer + p["layer"]) & 0xFFFF)
    failed(peer, "DS4T-GATE-02")


@gates(
    "row-kind",
    "DS4T-GATE-03",
    params={"kind": (2, 0x0B16)},
    mutants=["row-kind-unchecked"],
)
def row_kind(peer: RankBench, p: dict[str, Any]) -> None:
    """A row gate of the other kind, or of none, fails."""
    gate = first_gate(peer)
    kind = 1 - peer.third(gate) if p["kind"] == 2 else p["kind"]
    peer.wrong_gate(gate, third=kind)
    failed(peer, "DS4T-GATE-03")


@gates("row-seq", "DS4T-GATE-04", "DS4T-FAIL-06", params={"off": (-1, 1, 1 << 32)},
       mutants=["row-seq-unchecked", "row-seq-low-half"])  # fmt: skip
def row_seq(peer: RankBench, p: dict[str, Any]) -> None:
    """A row gate with an old, a future or a wrapped number fails."""
    gate = first_gate(peer)
    peer.wrong_gate(gate, seq=(peer.row_seq + p["off"]) & (1 << 64) - 1)
    failed(peer, "DS4T-GATE-04")


@gates("repeated", "DS4T-GATE-04", "DS4T-GATE-27", mutants=["repeat-taken"])
def repeated(peer: RankBench) -> None:
    """A gate that comes twice fails at the second."""
    gate = first_gate(peer)
    peer.gate(gate)
    again = peer.token()[1]
    seq = peer.next_seq("row")
    own = gate_bytes("row", gate.layer, peer.third(gate), seq - 1) + peer.partial(gate)
    found = peer.data.exchange(own, len(peer.partial(gate)))
    peer.judge_gate(again, seq, found)
    failed(peer, "DS4T-GATE-04")


@gates("batch-rows", "DS4B-BATCH-03", "DS4B-BATCH-01",
       params={"rows": (0, 2, 65535, 0x0B16, -1)},
       mutants=["batch-rows-unchecked"])  # fmt: skip
def batch_rows(peer: RankBench, p: dict[str, Any]) -> None:
    """A block gate with another number of rows, or another magic (-1), fails."""
    gate = block_gate(peer)
    lies = {"magic": 0x44533454} if p["rows"] < 0 else {"third": p["rows"]}
    peer.wrong_gate(gate, **lies)
    failed(peer, "DS4B-BATCH-03")


def block_gate(peer: RankBench) -> PlannedGate:
    """Bring a worker to the first gate of a block of three drafts."""
    peer.command("VERIFY", session_id=peer.start(), tokens=(1, 2, 3))
    return next(iter(verify_gates(3, peer.schedule)))


@gates("batch-place", "DS4B-BATCH-02", "DS4B-BATCH-04",
       params={"word": ("layer", "seq")},
       mutants=["batch-seq-unchecked", "batch-layer-unchecked"])  # fmt: skip
def batch_place(peer: RankBench, p: dict[str, Any]) -> None:
    """A block gate of another layer, or with another number, fails."""
    gate = block_gate(peer)
    wrong = {"layer": gate.layer + 1, "seq": peer.batch_seq + 1}[p["word"]]
    peer.wrong_gate(gate, **{p["word"]: wrong})
    failed(peer, "DS4B-BATCH-02")


@gates("bulk-header", "DS4B-BULK-01", "DS4B-BULK-02", "DS4B-BULK-03", "DS4T-ROBUST-26",
       params={"word": ("magic", "layer", "third")},
       mutants=["bulk-tag-unchecked", "bulk-layer-unchecked"])  # fmt: skip
def bulk_header(peer: RankBench, p: dict[str, Any]) -> None:
    """A bulk gate with a wrong word fails the sync, or at the latest the next token."""
    wrong = {"magic": 0x44533454, "layer": 1, "third": 0x0B17}[p["word"]]
    bulk_fails(peer, "DS4B-BULK-02", **{p["word"]: wrong})


@gates("bulk-seq", "DS4B-BULK-04", "DS4T-FAIL-08", params={"seq": (0, 2)},
       mutants=["bulk-seq-unchecked", "bulk-failure-hidden"])  # fmt: skip
def bulk_seq(peer: RankBench, p: dict[str, Any]) -> None:
    """A bulk gate with another number fails the sync, or the next token."""
    bulk_fails(peer, "DS4B-BULK-04", seq=p["seq"])


def bulk_fails(peer: RankBench, clause: str, **lies: int) -> None:
    """Break the first bulk gate of a sync; where the ack is 0, force a token."""
    known, prompt = peer.create(), peer.tokens(5)
    planned = peer.chunk(peer.plan(known, prompt).chunks[0])
    peer.command("SYNC", session_id=known, tokens=prompt)
    peer.meet(START, 0, len(prompt), Trace())
    peer.spent = True
    peer.wrong_gate(planned[0], **lies)
    send_ahead(peer, planned[1:])
    found = peer.control.next()
    while not isinstance(found, Ended) and found.name == "SYNC_CHECKPOINT":
        peer.checkpoint(found["point"], found["current"], found["total"])
        found = peer.control.next()
    if isinstance(found, Ended) and found.how != "silence":
        return
    if isinstance(found, Ended) or found.name != "COMMAND_ACK":
        raise Deviation(clause, "an ack that says failure, or an end", str(found))
    if found["status"]:
        peer.refused(clause, "the worker to end behind a failed sync", gates=True)
        return
    if peer.split:
        peer.logits("DS4T-SYNC-07")
    peer.eval_only(known, 1)
    send_ahead(peer, peer.token())
    after = peer.control.next()
    if isinstance(after, Ended) and after.how != "silence":
        peer.concept("acknowledges the sync; the failed gate shows at the next token")
        return
    raise Deviation(clause, "a failed sync, or a failed token behind it", str(after))


def send_ahead(peer: RankBench, planned: Sequence[PlannedGate]) -> None:
    """Send gates without reading those of the worker."""
    for gate in planned:
        seq = peer.next_seq(gate.kind)
        head = gate_bytes(gate.kind, gate.layer, peer.third(gate), seq)
        peer.data.send(head + peer.partial(gate), "gate, ahead")


@gates("in-pieces", "DS4T-GATE-22",
       params={"size": (1, 15, 17)}, mutants=["gate-in-one-read"],
       ends=False)  # fmt: skip
def in_pieces(peer: RankBench, p: dict[str, Any]) -> None:
    """A gate is read whole however its bytes arrive."""
    known = peer.start()
    peer.eval_only(known, 1)
    for gate in peer.token():
        seq, rows = peer.next_seq("row"), peer.partial(gate)
        own = gate_bytes("row", gate.layer, peer.third(gate), seq) + rows
        peer.data.push_apart(own[:96], p["size"])
        peer.judge_gate(gate, seq, peer.data.exchange(own[96:], len(rows)))
    if peer.split:
        peer.logits("DS4T-EVAL-06")
    peer.held[known].append(1)


@gates("ahead", "DS4T-GATE-29", "DS4T-FLOW-04", mutants=["data-drained"], ends=False)
def ahead(peer: RankBench) -> None:
    """All gates of a token may come before the command that needs them."""
    known, planned = peer.start(), peer.token()
    if len(planned) * peer.identity.vector_bytes > 1 << 17:
        planned = planned[:4]
    seqs = [peer.next_seq("row") for _ in planned]
    for gate, seq in zip(planned, seqs, strict=True):
        head = gate_bytes("row", gate.layer, peer.third(gate), seq)
        peer.data.send(head + peer.partial(gate), "gate, ahead")
    peer.eval_only(known, 1)
    for gate, seq in zip(planned, seqs, strict=True):
        found = peer.data.gate(len(peer.partial(gate)))
        peer.judge_gate(gate, seq, found)
    peer.gates(peer.token()[len(planned) :])
    if peer.split:
        peer.logits("DS4T-EVAL-06")
    peer.held[known].append(1)


@gates("surplus", "DS4T-GATE-05", "DS4T-GATE-11", mutants=["surplus-skipped"])
def surplus(peer: RankBench) -> None:
    """Bytes behind a gate are read as the next header, and fail there."""
    gate, following = first_gate(peer), peer.token()[1]
    rows = peer.partial(gate)
    peer.gate(gate)
    seq = peer.next_seq("row")
    own = b"\x11" * 16 + gate_bytes("row", following.layer, peer.third(following), seq)
    peer.judge_gate(following, seq, peer.data.exchange(own + rows, len(rows)))
    failed(peer, "DS4T-GATE-05")


@gates("data-gone", "DS4T-GATE-06", "DS4T-FAIL-10", params={"keep": (0, 8, 16, 24)},
       mutants=["data-end-filled"])  # fmt: skip
def data_gone(peer: RankBench, p: dict[str, Any]) -> None:
    """The end of the data connection fails the gate at once, wherever it comes."""
    gate = first_gate(peer)
    own = gate_bytes("row", gate.layer, peer.third(gate), peer.row_seq) + peer.partial(
        gate
    )
    peer.data.send(own[: p["keep"]], "gate, cut")
    peer.data.half_close()
    peer.refused("DS4T-GATE-06", "the worker to end: its gate is cut", gates=True)


@gates("silence", "DS4T-GATE-23", "DS4T-FAIL-07", params={"keep": (0, 16)},
       mutants=["gate-waits-for-ever"])  # fmt: skip
def silence(peer: RankBench, p: dict[str, Any]) -> None:
    """A gate that makes no progress fails by itself."""
    if peer.own.rules.gate_timeout is None:
        raise NotApplicable(f"{peer.dialect} waits for gates without end over TCP")
    gate = first_gate(peer)
    own = gate_bytes("row", gate.layer, peer.third(gate), peer.row_seq) + peer.partial(
        gate
    )
    peer.data.send(own[: p["keep"]], "gate, cut")
    peer.control.patience = peer.gate_patience
    peer.refused("DS4T-GATE-23", "the worker to give the gate up", gates=True)


@gates(
    "payload-used",
    "DS4T-GATE-41",
    "DS4T-SPLIT-10",
    mutants=["peer-rows-ignored"],
    ends=False,
)
def payload_used(peer: RankBench) -> None:
    """What we send in a gate shows in every later gate of the token, and only there."""
    prompt, traces = peer.tokens(5), []
    for salt in (0, 0, 1):
        known = peer.create()
        peer.sync(known, prompt)
        traces.append(peer.eval(known, 1, salt=salt))
    same, again, other = traces
    if same.partials != again.partials or same.logits != again.logits:
        raise Deviation("DS4T-SPLIT-10", "equal gates behind equal ones", "they differ")
    if other.partials[0] != same.partials[0]:
        raise Deviation(
            "DS4T-GATE-41", "a first partial that needs nothing of us", "it differs"
        )
    for number, (one, two) in enumerate(
        zip(same.partials, other.partials, strict=True)
    ):
        if number and one == two:
            raise Deviation(
                "DS4T-GATE-41", f"gate {number + 1} to depend on ours", "it does not"
            )
    if peer.split and same.logits == other.logits:
        raise Deviation(
            "DS4T-GATE-41", "logits that depend on our gates", "the same logits"
        )


@gates("bulk-used", "DS4T-SPLIT-15", "DS4B-BULK-05", "DS4T-GATE-40",
       mutants=["bulk-rows-ignored"], ends=False)  # fmt: skip
def bulk_used(peer: RankBench) -> None:
    """What we send in a prefill shows in the tokens behind it."""
    prompt, traces = peer.tokens(5), []
    for salt in (0, 1):
        known = peer.create()
        peer.sync(known, prompt, salt=salt)
        traces.append(peer.eval(known, 1))
    last = (traces[0].partials[-1], traces[0].logits)
    if last == (traces[1].partials[-1], traces[1].logits):
        due = "a token that depends on the rows of the prefill"
        raise Deviation("DS4T-SPLIT-15", due, "the same partials and logits")


@gates("bits-kept", "DS4T-GATE-42", "DS4T-ROBUST-11",
       params={"word": (0x7FC00001, 0x7F800001, 0x7F800000)},
       mutants=["nan-refused", "nan-cleared"], ends=False)  # fmt: skip
def bits_kept(peer: RankBench, p: dict[str, Any]) -> None:
    """NaN and infinity are taken as they are, and show in the gates behind them."""
    import numpy as np

    known, planned = peer.start(), peer.token()
    peer.eval_only(known, 1)
    rows = p["word"].to_bytes(4, "little") * (len(peer.partial(planned[0])) // 4)
    peer.gate(planned[0], payload=rows)
    rest = peer.gates(planned[1:])
    if peer.split:
        peer.logits("DS4T-EVAL-06")
    values = np.frombuffer(rest[-1], np.float32)
    if np.isfinite(values).all() and p["word"] != 0x7F800000:
        raise Deviation(
            "DS4T-GATE-42", "NaN in the gates behind a NaN", "finite values"
        )
    peer.held[known].append(1)


@gates("row-swap", "DS4T-PLAN-21", "DS4T-PLAN-20", "DS4T-GATE-51",
       params={"tokens": (31, 32, 40)},
       mutants=["no-row-swap"], ends=False)  # fmt: skip
def row_swap(peer: RankBench, p: dict[str, Any]) -> None:
    """From 32 rows on the first chunk swaps attention rows before each FFN gate."""
    known = peer.create()
    peer.sync(known, peer.tokens(p["tokens"]))
    peer.eval(known, 1)
