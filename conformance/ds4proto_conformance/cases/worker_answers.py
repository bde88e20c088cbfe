"""RESULT and telemetry of a worker."""

from __future__ import annotations

from typing import Any

from ds4proto.schema.ds4d_result import ACK, HIDDEN_STATE, LOGITS
from ds4proto_conformance.bench.answers import Answer
from ds4proto_conformance.bench.worker import WorkerBench
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation


@case(
    "worker/result/request-echo",
    clauses=("DS4D-RESULT-21",),
    role="worker",
    category="state",
    params={"request": (1, 0x80000000, 0xFFFFFFFF, 1 << 32, (1 << 64) - 1)},
    mutants=("request-low-half", "request-zero"),
)
def request_echo(peer: WorkerBench, p: dict[str, Any]) -> None:
    """The request id comes back, both halves."""
    peer.work(1, request=p["request"]).served("DS4D-RESULT-21")


@case(
    "worker/result/hash-echo",
    clauses=("DS4D-RESULT-22",),
    role="worker",
    category="state",
    mutants=("result-hash-zero", "result-hash-is-prefix"),
)
def hash_echo(peer: WorkerBench) -> None:
    """A served WORK's result_hash comes back."""
    peer.work(3).served("DS4D-RESULT-22")


@case(
    "worker/result/one-for-each",
    clauses=("DS4D-RESULT-27", "DS4D-WORKER-03"),
    role="worker",
    category="state",
    params={"pattern": ("gg", "gb", "bg", "bb", "gbgb")},
    mutants=("answers-twice", "refusals-first"),
)
def one_for_each(peer: WorkerBench, p: dict[str, Any]) -> None:
    """Good and bad WORK sent at once are answered once each, in their order."""
    works = [
        peer.make(1) if good == "g" else peer.make(1, flags=0xF0)
        for good in p["pattern"]
    ]
    peer.data.send(b"".join(work.frame() for work in works))
    for work, good in zip(works, p["pattern"], strict=True):
        answer = peer.answer(work)
        if good == "g":
            answer.served("DS4D-WORKER-03")
        else:
            answer.refused("DS4D-WORK-07")
    extra = peer.data.quiet(peer.quiet)
    if extra is not None:
        raise Deviation("DS4D-RESULT-27", "one RESULT for each WORK", f"also {extra}")


@case(
    "worker/result/ack",
    clauses=("DS4D-WORK-50", "DS4D-RESULT-24"),
    role="worker",
    category="state",
    params={"tokens": (1, 4), "bits": (32, 8), "logits": (True, False)},
    mutants=("ack-ignored", "ack-with-bits", "ack-with-payload"),
)
def ack(peer: WorkerBench, p: dict[str, Any]) -> None:
    """ACK_ONLY is answered by an empty ACK, whether or not logits were asked."""
    logits = p["logits"] and peer.facts.has_output
    answer = peer.work(p["tokens"], bits=p["bits"], ack=True, logits=logits)
    answer.served("DS4D-WORK-50", ACK)


@case(
    "worker/result/ack-then-logits",
    clauses=("DS4D-WORK-50", "DS4D-SESS-06"),
    role="worker",
    category="state",
    mutants=("ack-skips-evaluation",),
)
def ack_then(peer: WorkerBench) -> None:
    """A chunk that was only acknowledged has been evaluated all the same."""
    tokens, width = peer.tokens(4), peer.facts.hidden_values * 4
    whole = peer.make(tokens)
    once = peer.answer(peer.send(whole)).served().payload
    session, last = peer.session(), b""
    for at in (0, 2):
        work = peer.make(
            tokens[at : at + 2],
            pos0=at,
            prefix=tokens[:at],
            reset=not at,
            ack=not at,
            hidden=whole.hidden[at * width : (at + 2) * width],
            session=session,
        )
        last = peer.answer(peer.send(work)).served().payload
    if last != once[-len(last) :]:
        raise Deviation("DS4D-WORK-50", "the answer of an undivided span", "another")


@case(
    "worker/result/logits",
    clauses=("DS4D-WORK-51", "DS4D-RESULT-26"),
    role="worker",
    category="codec",
    params={"tokens": (1, 3), "bits": (32, 16, 8, 0)},
    positions=("last",),
    mutants=("logits-bits-of-work", "logits-cut"),
    smoke=True,
)
def logits(peer: WorkerBench, p: dict[str, Any]) -> None:
    """Logits are f32 of one token, at payload_bits 32, whatever width came in."""
    peer.work(p["tokens"], bits=p["bits"], logits=True).served("DS4D-WORK-51", LOGITS)


@case(
    "worker/result/logits-of-the-last-token",
    clauses=("DS4D-RESULT-26", "DS4D-WORK-51"),
    role="worker",
    category="codec",
    positions=("last",),
    mutants=("logits-of-first",),
)
def logits_last(peer: WorkerBench) -> None:
    """The logits of a span are those of its last token."""
    tokens, width = peer.tokens(3), peer.facts.hidden_values * 4
    whole = peer.make(tokens)
    once = peer.answer(peer.send(whole)).served().payload
    session, found = peer.session(), b""
    for at in range(3):
        work = peer.make(
            tokens[at : at + 1],
            pos0=at,
            prefix=tokens[:at],
            reset=not at,
            hidden=whole.hidden[at * width : (at + 1) * width],
            session=session,
        )
        found = peer.answer(peer.send(work)).served().payload
    if found != once:
        raise Deviation("DS4D-RESULT-26", "the logits of the last token", "others")


@case(
    "worker/result/hidden-when-no-logits",
    clauses=("DS4D-WORK-52", "DS4D-RESULT-25"),
    role="worker",
    category="codec",
    params={"tokens": (1, 2, 5), "bits": (32, 16, 8, 0)},
    mutants=("hidden-last-row", "bits-zero-echoed", "logits-always"),
)
def hidden(peer: WorkerBench, p: dict[str, Any]) -> None:
    """Asked for neither logits nor ACK, all rows come back at the width that came."""
    answer = peer.work(p["tokens"], bits=p["bits"], logits=False)
    answer.served("DS4D-WORK-52", HIDDEN_STATE)


@case(
    "worker/result/refusal-shape",
    clauses=("DS4D-RESULT-23", "DS4D-WORK-44", "DS4D-RESULT-22"),
    role="worker",
    category="state",
    mutants=("refusal-with-hash", "refusal-with-kind", "refusal-with-bits"),
)
def refusal_shape(peer: WorkerBench) -> None:
    """A refusal has kind, hash and width 0, and its text as payload."""
    peer.work(2, flags=0xF0).refused("DS4D-WORK-07")


@case(
    "worker/result/refusal-status",
    clauses=("DS4D-RESULT-23", "DS4D-WORK-44"),
    role="worker",
    category="state",
    mutants=("refusal-status-zero",),
)
def refusal_status(peer: WorkerBench) -> None:
    """A refusal says so in its status."""
    peer.work(2, model_id=peer.facts.model_id + 1).refused(
        "DS4D-WORK-05", peer.facts.model_id + 1, peer.facts.model_id
    )


@case(
    "worker/result/refusal-text",
    clauses=("DS4D-RESULT-23", "DS4D-FRAME-10"),
    role="worker",
    category="state",
    mutants=("refusal-terminated", "refusal-empty"),
)
def refusal_text(peer: WorkerBench) -> None:
    """The text of a refusal is 1 to 255 bytes without terminator."""
    answer = peer.work(2, route_index=9).refused("DS4D-WORK-04")
    text = answer.payload
    if not 1 <= len(text) <= 255 or b"\0" in text:
        raise Deviation("DS4D-RESULT-23", "1 to 255 bytes without NUL", repr(text))


@case(
    "worker/result/refusal-keeps-open",
    clauses=("DS4D-WORK-45",),
    role="worker",
    category="liveness",
    params={"times": (1, 4)},
    mutants=("refusal-closes",),
)
def keeps_open(peer: WorkerBench, p: dict[str, Any]) -> None:
    """After refusals the same connection serves the next WORK."""
    wire = peer.data
    for _ in range(p["times"]):
        peer.work(1, flags=0xF0, wire=wire).refused("DS4D-WORK-07")
    peer.work(1, wire=wire).served("DS4D-WORK-45")


@case(
    "worker/result/in-time",
    clauses=("DS4D-RESULT-27",),
    role="worker",
    category="liveness",
    mutants=("answers-late", "swallows-every-third"),
    smoke=True,
)
def in_time(peer: WorkerBench) -> None:
    """Ten small WORK frames, one after the other, are each answered in time."""
    wire = peer.data
    for _ in range(10):
        peer.work(1, wire=wire).served("DS4D-RESULT-27")


# telemetry


def telemetry(answer: Answer) -> dict[str, Any]:
    """Return the one record of an answer."""
    records = answer.served().frame["telemetry"]
    if len(records) != 1:
        raise Deviation("DS4D-TELEM-03", "one record from one hop", f"{len(records)}")
    return dict(records[0])


def same(clause: str, record: dict[str, Any], **due: int) -> None:
    """Compare fields of a record."""
    for name, value in due.items():
        if record[name] != value:
            raise Deviation(clause, f"{name} {value}", str(record[name]))


@case(
    "worker/telemetry/one-record",
    clauses=("DS4D-TELEM-03", "DS4D-TELEM-01"),
    role="worker",
    category="telemetry",
    params={"ack": (False, True), "tokens": (1, 3)},
    mutants=("telemetry-missing", "telemetry-twice"),
)
def one_record(peer: WorkerBench, p: dict[str, Any]) -> None:
    """The last hop sends exactly one record with a success."""
    telemetry(peer.work(p["tokens"], ack=p["ack"]))


@case(
    "worker/telemetry/place",
    clauses=("DS4D-TELEM-04",),
    role="worker",
    category="telemetry",
    params={"tokens": (1, 4), "start": (0, 3)},
    mutants=("telemetry-layers-off", "telemetry-pos-off", "telemetry-index-off"),
)
def place(peer: WorkerBench, p: dict[str, Any]) -> None:
    """Layers, route index, position and count are those of the WORK."""
    session, before = peer.session(), peer.tokens(p["start"])
    if before:
        first = peer.make(before)
        first.words["session"] = session
        peer.answer(peer.send(first)).served()
    work = peer.make(
        p["tokens"], pos0=len(before), prefix=before, reset=not before, session=session
    )
    f = peer.facts
    record = telemetry(peer.answer(peer.send(work)))
    same(
        "DS4D-TELEM-04",
        record,
        layer_start=f.layer_start,
        layer_end=f.layer_end,
        route_index=0,
        pos0=p["start"],
        n_tokens=p["tokens"],
    )


@case(
    "worker/telemetry/sizes",
    clauses=("DS4D-TELEM-05", "DS4D-TELEM-06"),
    role="worker",
    category="telemetry",
    params={"ack": (False, True), "bits": (32, 16, 8), "logits": (True, False)},
    mutants=("telemetry-input-off", "telemetry-output-off"),
)
def sizes(peer: WorkerBench, p: dict[str, Any]) -> None:
    """Input counts tokens and hidden bytes, output what this hop made."""
    logits = p["logits"] and peer.facts.has_output
    work = peer.make(3, bits=p["bits"], ack=p["ack"], logits=logits)
    answer = peer.answer(peer.send(work))
    record = telemetry(answer)
    due = 12 + len(work.hidden)
    same("DS4D-TELEM-05", record, input_bytes=due)
    same("DS4D-TELEM-06", record, output_bytes=0 if p["ack"] else len(answer.payload))


@case(
    "worker/telemetry/last-hop-waits-for-nobody",
    clauses=("DS4D-TELEM-03", "DS4D-TELEM-08"),
    role="worker",
    category="telemetry",
    mutants=("telemetry-waits",),
)
def no_waits(peer: WorkerBench) -> None:
    """The last hop waited for nobody and forwarded nothing."""
    record = telemetry(peer.work(2))
    same("DS4D-TELEM-03", record, downstream_wait_usec=0, forward_send_usec=0)


@case(
    "worker/telemetry/times-are-microseconds",
    clauses=("DS4D-TELEM-07",),
    role="worker",
    category="telemetry",
    mutants=("telemetry-nanoseconds",),
)
def microseconds(peer: WorkerBench) -> None:
    """The evaluation took no longer than the whole exchange, in microseconds."""
    from ds4proto.peer import SYSTEM_CLOCK

    started = SYSTEM_CLOCK.now()
    record = telemetry(peer.work(1))
    passed = (SYSTEM_CLOCK.now() - started) * 1e6
    if record["eval_usec"] > passed + 1:
        raise Deviation(
            "DS4D-TELEM-07",
            f"at most {passed:.0f} microseconds",
            str(record["eval_usec"]),
        )


@case(
    "worker/telemetry/none-with-a-refusal",
    clauses=("DS4D-TELEM-10",),
    role="worker",
    category="telemetry",
    mutants=("refusal-with-telemetry",),
)
def none_with_refusal(peer: WorkerBench) -> None:
    """A refusal leaves its origin without telemetry."""
    peer.work(2, flags=0xF0).refused("DS4D-WORK-07")
