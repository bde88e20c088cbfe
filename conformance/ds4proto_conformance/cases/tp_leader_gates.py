"""Gates, as a tp-leader has to send and judge them."""

from __future__ import annotations

from typing import Any

from ds4proto.link.ds4t_events import END
from ds4proto_conformance.bench.tp_leader import LeaderBench, Step
from ds4proto_conformance.bench.tp_wire import gate_bytes
from ds4proto_conformance.cases.tp_leader import leading
from ds4proto_conformance.verdicts import Deviation, NotApplicable
from ds4proto_conformance.wire import Ended


def broken(peer: LeaderBench, step: Step, clause: str, **lies: int) -> None:
    """Break the first gate of a command, send the rest as due: no work may follow."""
    peer.wrong_gate(step.gates[0], **lies)
    for gate in step.gates[1:]:
        peer.push_gate(gate)
    if step.name == "EVAL":
        peer.logits()
    peer.no_more_work(clause, failed=True)


@leading("gates/token", "DS4T-GATE-50", "DS4T-SEQ-02", "DS4T-SEQ-07",
         mutants=["ffn-first", "row-seq-stuck"], category="gates")  # fmt: skip
def token(peer: LeaderBench) -> None:
    """The gates of tokens come in schedule order and are numbered on."""
    peer.serve(peer.until("EVAL"))
    peer.serve(peer.until("EVAL"))


@leading("gates/counters", "DS4T-SEQ-03", "DS4T-SEQ-04", mutants=["batch-own-counter"],
         category="gates")  # fmt: skip
def counters(peer: LeaderBench) -> None:
    """Bulk and block gates share one counter over the whole run."""
    peer.serve(peer.until("VERIFY"))


@leading("gates/row-magic", "DS4T-GATE-01", params={"magic": (0x44533442, 0xDEADBEEF)},
         mutants=["row-magic-unchecked"], category="gates")  # fmt: skip
def row_magic(peer: LeaderBench, p: dict[str, Any]) -> None:
    """A row gate with another magic fails the token."""
    broken(peer, peer.until("EVAL"), "DS4T-GATE-01", magic=p["magic"])


@leading("gates/row-layer", "DS4T-GATE-02", "DS4T-FAIL-13",
         mutants=["row-layer-unchecked", "destroys-after-failure"],
         category="gates")  # fmt: skip
def row_layer(peer: LeaderBench) -> None:
    """A row gate of another layer fails the token, and the pair with it."""
    step = peer.until("EVAL")
    broken(peer, step, "DS4T-GATE-02", layer=step.gates[0].layer + 1)


@leading(
    "gates/row-kind", "DS4T-GATE-03", mutants=["row-kind-unchecked"], category="gates"
)
def row_kind(peer: LeaderBench) -> None:
    """A row gate of the other kind fails the token."""
    step = peer.until("EVAL")
    broken(peer, step, "DS4T-GATE-03", third=1 - peer.third(step.gates[0]))


@leading("gates/row-seq", "DS4T-GATE-04", "DS4T-GATE-28",
         params={"off": (-1, 1, 1 << 32)},
         mutants=["row-seq-unchecked", "row-seq-low-half"],
         category="gates")  # fmt: skip
def row_seq(peer: LeaderBench, p: dict[str, Any]) -> None:
    """A row gate with another number fails the token."""
    step = peer.until("EVAL")
    wrong = (peer.row_seq + p["off"]) & (1 << 64) - 1
    broken(peer, step, "DS4T-GATE-04", seq=wrong)


@leading("gates/batch-words", "DS4B-BATCH-03", "DS4B-BATCH-01", "DS4B-BATCH-02",
         "DS4B-BATCH-04",
         params={"word": ("magic", "layer", "third", "seq")},
         mutants=["batch-rows-unchecked", "batch-seq-unchecked"],
         category="gates")  # fmt: skip
def batch_words(peer: LeaderBench, p: dict[str, Any]) -> None:
    """A block gate with a wrong word fails the block: no verdict follows."""
    step = peer.until("VERIFY")
    wrong = {
        "magic": 0x44533454,
        "layer": 1,
        "third": 0x0B16,
        "seq": peer.batch_seq + 1,
    }
    broken(peer, step, "DS4B-BATCH-03", **{p["word"]: wrong[p["word"]]})


@leading("gates/bulk-words", "DS4B-BULK-01", "DS4B-BULK-02", "DS4B-BULK-03",
         "DS4B-BULK-04",
         params={"word": ("magic", "layer", "third", "seq")},
         mutants=["bulk-tag-unchecked", "bulk-seq-unchecked"],
         category="gates")  # fmt: skip
def bulk_words(peer: LeaderBench, p: dict[str, Any]) -> None:
    """A bulk gate with a wrong word fails the sync, or at the latest the next token."""
    step = peer.until("SYNC")
    wrong = {"magic": 0x44533454, "layer": 1, "third": 0x0B17, "seq": 9}[p["word"]]
    if peer.own.rules.checkpoints:
        found = peer.control.frame("SYNC_CHECKPOINT", "DS4T-CKPT-09")
        values = {k: found[k] for k in ("seq", "point", "current", "total")}
        peer.answer("SYNC_CHECKPOINT", **values, cancelled=0)
    peer.spent = True
    peer.wrong_gate(step.gates[0], **{p["word"]: wrong})
    for gate in step.gates[1:]:
        peer.push_gate(gate)
    while True:
        after = peer.control.next()
        if isinstance(after, Ended):
            if after.how == "silence":
                peer.finish_sync(step)
                after = peer.control.next()
            if isinstance(after, Ended):
                break
        if after.name == "SYNC_CHECKPOINT":
            values = {k: after[k] for k in ("seq", "point", "current", "total")}
            peer.answer("SYNC_CHECKPOINT", **values, cancelled=0)
            if after["point"] == END and after["current"]:
                peer.ack(step.known, after["current"])
            elif after["point"] == END:
                peer.finish_sync(step)
        elif after.name == "EVAL":
            more = peer.data.take(16, patience=peer.quiet)
            if not isinstance(more, Ended):
                raise Deviation("DS4B-BULK-02", "no token behind it", str(more))
            peer.concept("says nothing of the sync; the failed gate shows at the token")
            break
        elif after.name == "STOP":
            break


@leading("gates/in-pieces", "DS4T-GATE-22", "DS4T-GATE-29",
         mutants=["gate-in-one-read"],
         category="gates")  # fmt: skip
def in_pieces(peer: LeaderBench) -> None:
    """A gate is read whole however its bytes arrive."""
    step = peer.until("EVAL")
    for gate in step.gates:
        seq, rows = peer.next_seq("row"), peer.partial(gate)
        own = gate_bytes("row", gate.layer, peer.third(gate), seq) + rows
        peer.data.push_apart(own[:48], 3)
        peer.judge_gate(gate, seq, peer.data.exchange(own[48:], len(rows)))
    peer.logits()
    peer.noted(step)
    following = next(iter(peer.commands()), None)
    if following is None:
        raise Deviation("DS4T-GATE-22", "the leader to go on", "its end")


@leading("gates/data-gone", "DS4T-GATE-06", "DS4T-FAIL-10",
         params={"keep": (0, 8, 16, 24)},
         mutants=["data-end-filled"], category="gates")  # fmt: skip
def data_gone(peer: LeaderBench, p: dict[str, Any]) -> None:
    """The end of the data connection fails the token at once."""
    step = peer.until("EVAL")
    cut(peer, step, p["keep"])
    peer.data.half_close()
    peer.logits()
    peer.no_more_work("DS4T-GATE-06", failed=True)


def cut(peer: LeaderBench, step: Step, keep: int) -> None:
    """Send the beginning of a gate."""
    gate = step.gates[0]
    head = gate_bytes("row", gate.layer, peer.third(gate), peer.row_seq)
    peer.data.send((head + peer.partial(gate))[:keep], "gate, cut")


@leading("gates/silence", "DS4T-GATE-23", "DS4T-FAIL-07", params={"keep": (0, 16)},
         mutants=["gate-waits-for-ever"], category="gates")  # fmt: skip
def silence(peer: LeaderBench, p: dict[str, Any]) -> None:
    """A gate that makes no progress fails by itself."""
    if peer.own.rules.gate_timeout is None:
        raise NotApplicable(f"{peer.dialect} waits for gates without end over TCP")
    step = peer.until("EVAL")
    cut(peer, step, p["keep"])
    peer.control.patience = peer.gate_patience
    peer.no_more_work("DS4T-GATE-23", failed=True)
