"""Control frames, as a tp-worker has to take or refuse them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from ds4proto_conformance.bench.tp_worker import RankBench
from ds4proto_conformance.registry import case
from ds4proto_conformance.verdicts import Deviation, NotApplicable
from ds4proto_conformance.wire import Ended

Body = Callable[..., None]
OBEYED = "leader finished"
"""What a worker prints when it has taken STOP."""
CREATE, EVAL, REWIND, INVALIDATE, STOP, DESTROY = 13, 2, 3, 4, 5, 14


def control(
    name: str,
    *clauses: str,
    mutants: Sequence[str],
    params: Mapping[str, Sequence[Any]] | None = None,
    ends: bool = True,
    category: Literal["framing", "state", "limits", "faults"] = "framing",
    smoke: bool = False,
) -> Callable[[Body], Body]:
    """Declare a case; one that ends the worker needs a fresh one."""
    return case(
        f"tp-worker/control/{name}",
        clauses=clauses,
        role="tp-worker",
        category=category,
        params=params,
        mutants=tuple(f"tpw-{mutant}" for mutant in mutants),
        harm="process" if ends else "none",
        needs_restart=ends,
        smoke=smoke,
    )


@control("unknown-type", "DS4T-CTRL-02", "DS4T-CTRL-13", "DS4T-CTRL-27",
         params={"frame": ((0, 0), (99, 16), (255, 3000), (0xFFFFFFFF, 16))},
         mutants=["unknown-skipped"], smoke=True)  # fmt: skip
def unknown_type(peer: RankBench, p: dict[str, Any]) -> None:
    """A type that nobody defined ends the worker without a frame."""
    code, size = p["frame"]
    peer.raw(code, bytes(size))
    peer.refused("DS4T-CTRL-02")
    peer.said("DS4T-CTRL-02", code, size)


@control("not-a-command", "DS4T-CTRL-24",
         params={"code": (6, 8, 10, 12, 17, 20, 22)},
         mutants=["answers-skipped"])  # fmt: skip
def not_a_command(peer: RankBench, p: dict[str, Any]) -> None:
    """Types that are legal elsewhere are no commands."""
    size = {12: 8, 22: 24, 9: 0, 8: 0, 19: 4, 20: 4, 7: 48}.get(p["code"], 16)
    peer.raw(p["code"], bytes(size))
    peer.refused("DS4T-CTRL-24")


@control("old-dialect-types", "DS4T-CTRL-22", "DS4T-DIALECT-24",
         params={"code": (18, 21)},
         mutants=["newer-types-skipped"])  # fmt: skip
def old_types(peer: RankBench, p: dict[str, Any]) -> None:
    """Before v9 and v10 the numbers 18 and 21 are no commands."""
    if getattr(peer.own.rules, "multimodal" if p["code"] == 18 else "mtp"):
        raise NotApplicable(f"{peer.dialect} has type {p['code']}")
    peer.raw(p["code"], bytes(24))
    later = peer.dialect == "v9w" and p["code"] > 18
    peer.refused("DS4T-DIALECT-24" if later else "DS4T-CTRL-22")


@control("wrong-length", "DS4T-CTRL-03", "DS4T-SESSION-01",
         params={"frame": ((CREATE, -4), (CREATE, 100), (DESTROY, 4), (EVAL, -4),
                           (REWIND, 4), (INVALIDATE, -4))},
         mutants=["long-taken", "short-filled"])  # fmt: skip
def wrong_length(peer: RankBench, p: dict[str, Any]) -> None:
    """A command is refused unless its payload has exactly its length."""
    known, (code, more) = peer.create(), p["frame"]
    size = {CREATE: 16, DESTROY: 8, EVAL: 24, REWIND: 16, INVALIDATE: 8}[code]
    number = known + 1 if code == CREATE else known
    body = number.to_bytes(8, "little") + (8).to_bytes(8, "little") + bytes(200)
    peer.raw(code, body[: size + more])
    peer.refused("DS4T-CTRL-03")


@control(
    "stop-with-payload",
    "DS4T-STOP-01",
    params={"size": (1, 4)},
    mutants=["stop-any-size"],
)
def stop_with_payload(peer: RankBench, p: dict[str, Any]) -> None:
    """STOP carries nothing; with a payload it is refused, not obeyed."""
    peer.raw(STOP, bytes(p["size"]))
    peer.refused("DS4T-STOP-01")
    if OBEYED in peer.connections.output():
        raise Deviation("DS4T-STOP-01", "a refusal", f"it prints {OBEYED!r}")
    peer.said("DS4T-CTRL-02", STOP, p["size"])


@control("count-and-length", "DS4T-SYNC-02", "DS4T-BATCH-01", "DS4T-MIXED-01",
         params={"frame": (("SYNC", 3), ("SYNC", 0x40000004), ("VERIFY", 5),
                           ("VERIFY", 0), ("BATCH", 2), ("MIXED", 5))},
         mutants=["count-from-length"])  # fmt: skip
def count_and_length(peer: RankBench, p: dict[str, Any]) -> None:
    """A count that does not fit the length is refused, wrapped ones included."""
    known = peer.start()
    name, count = p["frame"]
    code, clause = {"SYNC": (1, "DS4T-SYNC-02"), "VERIFY": (11, "DS4T-CTRL-03"),
                    "BATCH": (15, "DS4T-BATCH-01"),
                    "MIXED": (16, "DS4T-MIXED-01")}[name]  # fmt: skip
    id_, number = known.to_bytes(8, "little"), count.to_bytes(4, "little")
    if name == "BATCH":
        body = number + bytes(4) + id_ + bytes(8)
    else:
        items = int(name == "MIXED").to_bytes(4, "little")
        body = id_ + number + items + bytes(4 * 4)
        body += id_ + bytes(8) if name == "MIXED" else b""
    peer.raw(code, body)
    peer.refused(clause)


@control("batch-of-none", "DS4T-BATCH-02", "DS4T-MIXED-02", "DS4T-MIXED-03",
         params={"frame": ("batch", "no-prompt", "no-items", "wrap")},
         mutants=["empty-batch-acked"], category="limits")  # fmt: skip
def batch_of_none(peer: RankBench, p: dict[str, Any]) -> None:
    """Batches without items or prompt are refused, and counts that wrap to nothing."""
    known = peer.start()
    counts = {"no-prompt": (0, 1), "no-items": (2, 0), "wrap": (0x40000000, 0x10000000)}
    if p["frame"] == "batch":
        peer.raw(15, bytes(8))
    else:
        n, k = counts[p["frame"]]
        tail = bytes(16) if p["frame"] == "no-prompt" else bytes(8 * (n == 2))
        words = n.to_bytes(4, "little") + k.to_bytes(4, "little")
        peer.raw(16, known.to_bytes(8, "little") + words + tail)
    clauses = {"batch": "DS4T-BATCH-02", "wrap": "DS4T-MIXED-03"}
    peer.refused(clauses.get(p["frame"], "DS4T-MIXED-02"))


@control("bad-magic", "DS4T-CTRL-01", "DS4T-FAIL-03",
         params={"magic": (b"B4SD", b"DS4T", b"\0\0\0\0")},
         mutants=["control-magic-unchecked"])  # fmt: skip
def bad_magic(peer: RankBench, p: dict[str, Any]) -> None:
    """A header with another magic ends the worker as an end of stream does."""
    frame = peer.frame("SESSION_CREATE", session_id=9, ctx_size=64)
    peer.pair().send(p["magic"] + frame[4:], "SESSION_CREATE with another magic")
    peer.refused("DS4T-CTRL-01")
    peer.said("DS4T-CTRL-01")


@control("in-pieces", "DS4T-CTRL-11", "DS4T-CTRL-10", params={"size": (1, 5, 12, 20)},
         mutants=["frame-in-one-read"], ends=False, smoke=True)  # fmt: skip
def in_pieces(peer: RankBench, p: dict[str, Any]) -> None:
    """A frame is read whole however its bytes arrive."""
    known = peer.fresh_id()
    frame = peer.frame("SESSION_CREATE", session_id=known, ctx_size=64)
    peer.pair().send_pieces(frame, p["size"], "SESSION_CREATE")
    peer.ack(known, 0, "DS4T-CTRL-11")
    peer.held[known] = []


@control("coalesced", "DS4T-CTRL-11", "DS4T-ACK-02", "DS4T-SESSION-13",
         mutants=["first-frame-only"], ends=False)  # fmt: skip
def coalesced(peer: RankBench) -> None:
    """Several commands in one segment are each answered, in order."""
    ids = [peer.fresh_id() for _ in range(3)]
    frames = [peer.frame("SESSION_CREATE", session_id=i, ctx_size=64) for i in ids]
    peer.pair().send(b"".join(frames), "three SESSION_CREATE")
    for known in ids:
        peer.ack(known, 0, "DS4T-ACK-02")
        peer.held[known] = []


@control("cut-payload", "DS4T-CTRL-04", "DS4T-FAIL-05", params={"keep": (12, 22, 35)},
         mutants=["cut-payload-text"], category="faults")  # fmt: skip
def cut_payload(peer: RankBench, p: dict[str, Any]) -> None:
    """An end of stream inside a payload ends the worker, with a text of its own."""
    known = peer.create()
    frame = peer.frame("EVAL", session_id=known, seq=1, token=1)
    peer.control.send(frame[: p["keep"]], "EVAL, cut")
    peer.control.half_close()
    peer.refused("DS4T-CTRL-04")
    peer.said("DS4T-CTRL-04")
    if "tp: control channel closed" in peer.connections.output():
        raise Deviation(
            "DS4T-CTRL-04", "tp: truncated command frame", "tp: control channel closed"
        )


@control("leader-gone", "DS4T-CTRL-06", "DS4T-FAIL-17", params={"keep": (0, 6)},
         mutants=["eof-ignored"], category="faults")  # fmt: skip
def leader_gone(peer: RankBench, p: dict[str, Any]) -> None:
    """An end of stream between frames, or inside a header, ends the worker."""
    peer.create()
    peer.control.send(peer.frame("STOP")[: p["keep"]], "cut header")
    peer.control.half_close()
    peer.refused("DS4T-CTRL-06")
    peer.said("DS4T-CTRL-06")


@control("oversize", "DS4T-CTRL-17", "DS4T-ROBUST-03",
         params={"frame": ((STOP, 0x7FFFFFFF), (1, 0xFFFFFFFF), (99, 0xFFFFFFFF))},
         mutants=["no-cap"], category="limits")  # fmt: skip
def oversize(peer: RankBench, p: dict[str, Any]) -> None:
    """A length beyond any use is refused from the header, before it is awaited."""
    code, size = p["frame"]
    peer.raw(code, size=size)
    peer.refused("DS4T-CTRL-17", "an end at once; real workers reserve and wait")


@control("create-acked", "DS4T-SESSION-03", "DS4T-ACK-01", "DS4T-ACK-10",
         "DS4T-FLOW-10",
         params={"id": (1, 0x1_0000_0001, (1 << 64) - 1)}, mutants=["ack-id-cut"],
         ends=False, category="state")  # fmt: skip
def create_acked(peer: RankBench, p: dict[str, Any]) -> None:
    """SESSION_CREATE is answered by one ack that carries all 64 bits of the id."""
    known = p["id"] if p["id"] > 1 else peer.fresh_id()
    peer.command("SESSION_CREATE", session_id=known, ctx_size=64)
    ack = peer.ack(known, 0, "DS4T-SESSION-03")
    if any(ack.body[12:]):
        raise Deviation("DS4T-ACK-01", "reserved 0", ack.body.hex(" "))
    peer.nothing("DS4T-ACK-02", "one ack, nothing else")
    peer.held[known] = []


def _create_refused(peer: RankBench, clause: str, known: int, ctx: int) -> None:
    peer.command("SESSION_CREATE", session_id=known, ctx_size=ctx)
    peer.ack(known, None, clause)
    peer.start(2)


@control("create-id-zero", "DS4T-SESSION-04", mutants=["id-zero-taken"], ends=False,
         category="state")  # fmt: skip
def create_id_zero(peer: RankBench) -> None:
    """Session id 0 is answered with a failure, and the worker goes on."""
    _create_refused(peer, "DS4T-SESSION-04", 0, 64)


@control("create-context", "DS4T-SESSION-05", params={"ctx": (0, -1, -(1 << 31))},
         mutants=["context-zero-taken"], ends=False, category="limits")  # fmt: skip
def create_context(peer: RankBench, p: dict[str, Any]) -> None:
    """A context of 0 or less is answered with a failure, and the worker goes on."""
    _create_refused(peer, "DS4T-SESSION-05", peer.fresh_id(), p["ctx"])


@control("create-twice", "DS4T-SESSION-06", mutants=["second-create-wins"], ends=False,
         category="state")  # fmt: skip
def create_twice(peer: RankBench) -> None:
    """An id that is held cannot be created again; the first session stays."""
    known = peer.start()
    peer.command("SESSION_CREATE", session_id=known, ctx_size=64)
    peer.ack(known, None, "DS4T-SESSION-06")
    peer.holds(known, "DS4T-SESSION-06")


@control("create-huge", "DS4T-ROBUST-13", mutants=["context-unbounded"], ends=True,
         category="limits")  # fmt: skip
def create_huge(peer: RankBench) -> None:
    """A context beyond any memory is answered with a failure; the worker goes on."""
    _create_refused(peer, "DS4T-ROBUST-13", peer.fresh_id(), 0x7FFFFFFF)


@control("destroy", "DS4T-SESSION-08", "DS4T-FLOW-11", mutants=["destroy-always-ok"],
         ends=False, category="state")  # fmt: skip
def destroy(peer: RankBench) -> None:
    """A held session is destroyed; an unknown one is a failure that is not fatal."""
    known = peer.start()
    peer.destroy(known)
    for gone in (known, 1 << 40):
        peer.command("SESSION_DESTROY", session_id=gone)
        peer.ack(gone, None, "DS4T-SESSION-08")


@control("unknown-session", "DS4T-CTRL-05",
         params={"frame": (("SYNC", False), ("EVAL", True), ("REWIND", False),
                           ("INVALIDATE", False), ("VERIFY", True))},
         mutants=["unknown-rewind-ignored", "destroyed-still-there"],
         category="state")  # fmt: skip
def unknown_session(peer: RankBench, p: dict[str, Any]) -> None:
    """A command for a session that is not held ends the worker without a frame."""
    known, (name, was) = peer.create(), p["frame"]
    if was:
        peer.destroy(known)
    else:
        known += 7
    words: dict[str, dict[str, Any]] = {
        "SYNC": {"tokens": (1, 2)}, "EVAL": {"seq": 1, "token": 1},
        "REWIND": {"position": 0}, "VERIFY": {"tokens": (1, 2)},
    }  # fmt: skip
    peer.command(name, session_id=known, **words.get(name, {}))
    peer.refused("DS4T-CTRL-05")


@control("stop", "DS4T-STOP-02", "DS4T-FLOW-18", mutants=["stop-acked"], smoke=True,
         category="state")  # fmt: skip
def stop(peer: RankBench) -> None:
    """STOP ends the worker without a word, open sessions or not."""
    peer.start()
    peer.command("STOP")
    peer.refused("DS4T-STOP-02")
    process = getattr(peer.connections, "process", None)
    if process is not None:
        process.wait(deadline=peer.after(peer.patience))
        if process.returncode:
            raise Deviation("DS4T-STOP-02", "exit status 0", str(process.returncode))


@control("quiet-commands", "DS4T-SESSION-09", "DS4T-ACK-03", "DS4T-CTRL-15",
         params={"frame": ("REWIND", "INVALIDATE")},
         mutants=["rewind-acked"], ends=False,
         category="state")  # fmt: skip
def quiet_commands(peer: RankBench, p: dict[str, Any]) -> None:
    """REWIND and INVALIDATE are not answered."""
    known = peer.start()
    words = {"position": 2} if p["frame"] == "REWIND" else {}
    peer.command(p["frame"], session_id=known, **words)
    peer.nothing("DS4T-SESSION-09", f"no answer to {p['frame']}")


@control("eval-reserved", "DS4T-EVAL-04", mutants=["eval-reserved-taken"])
def eval_reserved(peer: RankBench) -> None:
    """From v10 on the last word of EVAL has to be 0."""
    peer.needs("eval_reserved")
    peer.eval_only(peer.start(), 1, reserved=1)
    peer.refused("DS4T-EVAL-04")


@control(
    "eval-reserved-old", "DS4T-EVAL-05", mutants=["eval-reserved-refused"], ends=False
)
def eval_reserved_old(peer: RankBench) -> None:
    """Before v10 the last word of EVAL is not judged."""
    peer.has_not("eval_reserved")
    peer.eval(peer.start(), 1, reserved=7)


@control("sync-reserved", "DS4T-SYNC-12", mutants=["sync-reserved-refused"], ends=False)
def sync_reserved(peer: RankBench) -> None:
    """The reserved words of SESSION_CREATE and SYNC are not judged."""
    known = peer.create(reserved=5)
    peer.sync(known, peer.tokens(3), reserved=0xFFFFFFFF)


@control("mtp-limit", "DS4T-MTP-02", params={"limit": (0, 3, 0xFFFFFFFF)},
         mutants=["mtp-any-limit"], category="limits")  # fmt: skip
def mtp_limit(peer: RankBench, p: dict[str, Any]) -> None:
    """A GLM_MTP cycle accepts one or two tokens; another limit is refused."""
    peer.needs("mtp")
    known = peer.start()
    peer.command("GLM_MTP", session_id=known, seq=1, token=1, limit=p["limit"])
    peer.refused("DS4T-MTP-02")


@control("image-records", "DS4T-MM-04", "DS4T-MM-03", "DS4T-MM-05", "DS4T-MM-06",
         params={"fault": ("tokens", "width", "pixels", "rest", "count")},
         mutants=["image-width-unchecked", "images-unchecked"],
         category="limits")  # fmt: skip
def image_records(peer: RankBench, p: dict[str, Any]) -> None:
    """A wrong image record makes the frame invalid: the worker ends without a frame."""
    peer.needs("multimodal")
    known, width = peer.start(), peer.identity.n_embd
    words = [1, 2, width, 28, 28, 27, 27]
    at = {"tokens": 1, "width": 2, "pixels": 3}.get(p["fault"])
    if at is not None:
        words[at] = width + 1 if at == 2 else 0
    rows = words[1] * width * 4 if at != 2 else 2 * (width + 1) * 4
    record = b"".join(w.to_bytes(4, "little") for w in words) + bytes(32) + bytes(rows)
    record += bytes(4) if p["fault"] == "rest" else b""
    images = 2 if p["fault"] == "count" else 1
    head = known.to_bytes(8, "little") + (4).to_bytes(4, "little")
    peer.raw(18, head + images.to_bytes(4, "little") + bytes(16) + record)
    clauses = {"tokens": "DS4T-MM-04", "width": "DS4T-MM-05", "pixels": "DS4T-MM-06"}
    peer.refused(clauses.get(p["fault"], "DS4T-MM-03"))


@control("idle", "DS4T-ROBUST-04", "DS4T-LIFE-11",
         mutants=["idle-gives-up"], ends=False,
         category="faults")  # fmt: skip
def idle(peer: RankBench) -> None:
    """A worker waits for the next command as long as it takes."""
    known = peer.start()
    found = peer.control.quiet(3 * peer.quiet)
    if isinstance(found, Ended):
        raise Deviation("DS4T-LIFE-11", "a worker that waits", str(found))
    peer.eval(known, 1)
