"""Workers that skip a check of WORK, or judge in another order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from ds4proto.link import ds4d_route_blob as blob
from ds4proto.link import ds4d_sessions as sessions
from ds4proto.link import ds4d_work_checks, ds4d_worker, ds4d_worker_queue
from ds4proto_conformance.mutants.tools import frames_in, skip_check, swap
from ds4proto_conformance.peers.faults import Fault, patched

checks: Any = ds4d_work_checks
worker_queue: Any = ds4d_worker_queue
worker: Any = ds4d_worker
Patch = Callable[[], contextlib.AbstractContextManager[None]]


def _skip(number: str, position: str = "") -> Fault:
    return Fault(
        f"skip-WORK-{number}",
        "worker",
        "limits",
        f"leaves out WORK check {number}",
        position,
        patch=skip_check(f"DS4D-WORK-{number}"),
    )


def _order(
    first: str, second: str, patch: Patch | None = None, position: str = ""
) -> Fault:
    return Fault(
        f"order-{first}-{second}",
        "worker",
        "limits",
        f"judges WORK check {second} before {first}",
        position,
        patch=patch or swap(f"DS4D-WORK-{first}", f"DS4D-WORK-{second}"),
    )


def _tables(
    *changes: tuple[str, Callable[[tuple[Any, ...]], tuple[Any, ...]]],
) -> Patch:
    def patch() -> contextlib.AbstractContextManager[None]:
        return patched(*[(checks, n, f(getattr(checks, n))) for n, f in changes])

    return patch


def _wrapping() -> contextlib.AbstractContextManager[None]:
    def tails(work: Any) -> int:
        f = work.fields
        return (
            int(f["token_bytes"] + f["input_hc_bytes"] + f["route_bytes"]) & 0xFFFFFFFF
        )

    return patched((checks, "_tails", tails))


def _tails_unchecked() -> contextlib.AbstractContextManager[None]:
    return patched((checks, "_tails", lambda w: w.size - checks.WORK_PART.size))


def _judge(change: Callable[[Any, Any, Any], Any]) -> Patch:
    """Replace ``judge_work``; `change` gets the original, the head and the body."""

    def patch() -> contextlib.AbstractContextManager[None]:
        own = worker.judge_work
        return patched(
            (worker, "judge_work", lambda head, body: change(own, head, body))
        )

    return patch


def _size_before_tokens(own: Any, head: Any, body: Any) -> Any:
    fault = own(head, body)
    if fault is not None and head.fault is None and head.size_fault is not None:
        return head.size_fault
    return fault


def _tokens_before_input(own: Any, head: Any, body: Any) -> Any:
    fault = head.fault
    if fault is not None and fault.clause == "DS4D-WORK-11" and len(body) >= 80:
        return checks.Fault("DS4D-WORK-14", checks.text("DS4D-WORK-14"), "remote")
    return own(head, body)


def _route_before_size(own: Any, head: Any, body: Any) -> Any:
    if head.fault is None and head.size_fault is not None:
        return checks.Fault("DS4D-WORK-22", checks.text("DS4D-WORK-22"), "remote")
    return own(head, body)


def _prefix_before_route(own: Any, head: Any, body: Any) -> Any:
    fault = own(head, body)
    if fault is not None and fault.clause == "DS4D-WORK-22":
        return checks.Fault("DS4D-WORK-26", checks.text("DS4D-WORK-26"), "remote")
    return fault


def _no_prefix_check() -> contextlib.AbstractContextManager[None]:
    def lenient(session: Any, prefix: int, pos0: int, count: int, cap: Any) -> Any:
        session.hash = prefix
        return _JUDGE_SESSION(session, prefix, pos0, count, cap)

    return patched((worker_queue, "judge_session", lenient))


_JUDGE_SESSION = sessions.judge_session


def _reset_takes_prefix() -> contextlib.AbstractContextManager[None]:
    def lenient(session: Any, prefix: int, pos0: int, count: int, cap: Any) -> Any:
        if session.count == 0 and pos0 == 0:
            session.hash = prefix
        return _JUDGE_SESSION(session, prefix, pos0, count, cap)

    return patched((worker_queue, "judge_session", lenient))


def _short_with_own_id() -> contextlib.AbstractContextManager[None]:
    own = worker_queue.refusal_frame

    def refusal(request: int, words: str) -> Any:
        return own(request or 7, words)

    return patched((worker_queue, "refusal_frame", refusal))


def _lenient_route(clause: str) -> Patch:
    """Take a blob with this fault for a sound one."""

    def patch() -> contextlib.AbstractContextManager[None]:
        own = blob.read_route
        judge, judge_return = blob._judge, blob._judge_return

        def some(words: Any, host: bytes, before: Any, n_layers: int) -> str | None:
            found = judge(words, host, before, n_layers)
            return None if found == clause else found

        def end(data: bytes, at: int, total: int) -> str | None:
            found = judge_return(data, at, total)
            return None if found == clause else found

        def whole(data: bytes, total: int, count: int, n_layers: int) -> Any:
            found = own.__wrapped__(data, total, count, n_layers)
            return _guessed(data, n_layers) if found == clause else found

        return patched(
            (blob, "_judge", some),
            (blob, "_judge_return", end),
            (checks, "read_route", whole),
        )

    return patch


def _guessed(_data: bytes, n_layers: int) -> tuple[Any, ...]:
    start, end = _SLICE
    return (blob.Hop("127.0.0.1", 1, start, end, end == n_layers - 1),)


_SLICE = (5, 7)


def _own_first(own: Any, head: Any, body: Any) -> Any:
    fault = own(head, body)
    if fault is not None and fault.clause == "DS4D-ROUTE-05":
        return checks.Fault("DS4D-WORK-21", checks.text("DS4D-WORK-21"), "remote")
    return fault


def _one_record(_connection: Any, code: int, body: bytes) -> bytes | None:
    """Read the records that are there, whatever route_count says."""
    if code != 3 or len(body) < 80:
        return None
    fixed = bytearray(body[:80])
    at = checks.WORK_PART.names.index("route_count")
    words = checks.WORK_PART.read(body)
    if words["route_count"] <= 1:
        return None
    words["route_count"] = 1
    fixed[:] = checks.WORK_PART.build(words)
    del at
    rest = body[80:] + bytes.fromhex("000000010000000000000000")
    words["route_bytes"] += 12
    fixed[:] = checks.WORK_PART.build(words)
    return (
        b"DS4D"
        + (3).to_bytes(4, "big")
        + (80 + len(rest)).to_bytes(4, "big")
        + bytes(fixed)
        + rest
    )


def _own_host(own: Any, head: Any, body: Any) -> Any:
    fault = own(head, body)
    if fault is None and head.work.hops[0].host != "127.0.0.1":
        return checks.Fault("DS4D-WORK-21", checks.text("DS4D-WORK-21"), "remote")
    return fault


def _refuse_ack(own: Any, head: Any, body: Any) -> Any:
    fault = own(head, body)
    if (
        fault is None
        and head.work.fields["flags"] & 8
        and not head.work.fields["flags"] & 4
    ):
        return checks.Fault("DS4D-WORK-07", checks.text("DS4D-WORK-07"), "remote")
    return fault


def _empties_session() -> contextlib.AbstractContextManager[None]:
    own = worker.WorkerLink.enqueue

    def enqueue(self: Any, work: Any, fault: Any, now: float) -> None:
        if fault is not None and work is not None:
            found = self.worker.sessions.get(work.fields["session"])
            if found is not None:
                found.empty()
        own(self, work, fault, now)

    return patched((worker.WorkerLink, "enqueue", enqueue))


def _guess_width() -> contextlib.AbstractContextManager[None]:
    def width(work: Any) -> int:
        rows = max(1, work.fields["n_tokens"]) * work.facts.model.hidden_values
        size = work.fields["input_hc_bytes"]
        guess = size * 8 // rows
        return guess if guess in (8, 16, 32) else work.fields["input_hc_bits"] or 32

    return patched((checks.Work, "bits", property(width)))


def _more(name: str, about: str, **hooks: Any) -> Fault:
    return Fault(name, "worker", "limits", about, **hooks)


MUTANTS: Final = (
    *[_skip(n) for n in ("02", "03", "04", "05", "06", "07", "08", "09")],
    _skip("10", "first"),
    _skip("11"),
    _skip("12", "middle"),
    *[_skip(n) for n in ("14", "15", "17", "18")],
    _skip("19", "first"),
    *[_skip(n) for n in ("21", "22")],
    _more("skip-WORK-26", "takes any prefix hash", patch=_no_prefix_check),
    _more(
        "reset-takes-prefix",
        "believes the prefix of a RESET",
        patch=_reset_takes_prefix,
    ),
    _more("sizes-wrap", "adds lengths in 32 bits", patch=_wrapping),
    _more("tails-unchecked", "does not add the tails up", patch=_tails_unchecked),
    _more(
        "tokens-signed",
        "compares token ids as signed numbers",
        patch=_tables(
            (
                "TOKEN_CHECKS",
                lambda t: (
                    t[0]._replace(
                        broken=lambda w: any(
                            x < 0x80000000 and x >= w.facts.model.vocab
                            for x in w.tokens
                        )
                    ),
                    *t[1:],
                ),
            )
        ),
    ),
    _more(
        "refuses-short-with-own-id",
        "a short WORK is refused with an id",
        patch=_short_with_own_id,
    ),
    _more("width-guessed", "guesses the width from the length", patch=_guess_width),
    _more(
        "refusal-empties-session",
        "a refused WORK empties its session",
        patch=_empties_session,
    ),
    _more(
        "flags-ack-refused", "refuses ACK_ONLY without RESET", patch=_judge(_refuse_ack)
    ),
    _order("02", "03"),
    _order("03", "05"),
    _order("04", "05"),
    _order("05", "06"),
    _order("06", "07"),
    _order("07", "08"),
    _order("08", "09"),
    _order("09", "11"),
    _order("11", "14", _judge(_tokens_before_input)),
    _order("14", "15"),
    _order("15", "17", _judge(_size_before_tokens)),
    _order("17", "18"),
    _order("18", "22", _judge(_route_before_size)),
    _order("22", "26", _judge(_prefix_before_route)),
    *[
        Fault(
            f"skip-ROUTE-{n}",
            "worker",
            "limits",
            f"leaves out ROUTE check {n}",
            "middle" if n in ("07", "08") else "",
            patch=_lenient_route(f"DS4D-ROUTE-{n}"),
        )
        for n in (
            "01",
            "02",
            "03",
            "04",
            "05",
            "06",
            "07",
            "08",
            "09",
            "10",
            "11",
            "12",
            "13",
            "14",
            "15",
        )
    ],
    _more(
        "route-count-trusted",
        "reads the records that are there",
        received=frames_in(_one_record),
    ),
    _more(
        "route-own-first", "looks for its own record first", patch=_judge(_own_first)
    ),
    _more(
        "own-address-compared",
        "wants its own address in the route",
        patch=_judge(_own_host),
    ),
)
