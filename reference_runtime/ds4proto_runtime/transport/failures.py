"""What a failed gate over RDMA says: which message, which queue pair, posted when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ds4proto.link.ds4t_diagnosis import GateDiagnosis
from ds4proto.link.ds4t_gate_headers import GateShape
from ds4proto.link.ds4t_gates import TRANSPORT, GateFailed
from ds4proto.link.ds4t_texts import PairFailed
from ds4proto_runtime.transport.setup import Brought
from ds4proto_runtime.transport.verbs import MEANING, Completion, Lost, VerbsError

STALE_SECONDS = 60.0
"""Idle time before a gate from which a silent failure is called a stale link."""


def lost_words(lost: Sequence[Lost], qp_type: str, seq: int) -> list[str]:
    """Return a sentence for each message that is known to be lost."""
    found = []
    for one in lost:
        known = one.wr_id is not None and 0 < one.wr_id < 1 << 48
        name = f"seq {one.wr_id if known else seq}"
        late = "" if one.late is None else f", receive posted {micros(one.late)} late"
        why = one.why if not late else ""
        text = f"{name} never arrived, transport {qp_type}{late}{why and f', {why}'}"
        found.append(f"{text} (message {one.number} of its direction)")
    return found


def micros(seconds: float) -> str:
    """Return a short time in words."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms"


class GateTrouble:
    """Builds the failure of one gate from what the transport knows.

    Parameters
    ----------
    brought : Brought
    rank : int
    shape, layer, third, seq, token
        As in ``GateDiagnosis``.
    nbytes : int
        Payload each way.
    """

    def __init__(
        self,
        brought: Brought,
        rank: int,
        shape: GateShape,
        layer: int,
        third: int,
        seq: int,
        token: int | None,
        nbytes: int,
        begun: float,
    ) -> None:
        self._brought = brought
        self._place = (rank, shape, layer, third, seq, token)
        self._nbytes = nbytes
        self.begun = begun
        self.idle = 0.0
        self.posted: float | None = None
        self.sent_at: float | None = None
        self.received = 0
        self.sent = 0
        self.skew = 0.0
        self.last = begun

    @property
    def seq(self) -> int:
        """Sequence number of the gate."""
        return self._place[4]

    def story(self, missing: int, flushed: int | None) -> list[str]:
        """Return what is known beyond the bare time-out, one sentence each.

        Parameters
        ----------
        missing : int
            Requests, sends and receives, whose completion has not been seen.
        flushed : int or None
            How many of them came back when the queue pair was put into ERR.
        """
        pair, qp_type = self._brought.pair, self._brought.attributes.qp_type
        found = lost_words(pair.evidence(), qp_type, self.seq)
        if flushed is not None and 0 < flushed < missing:
            found.append(
                f"{missing - flushed} completions lost: their requests ran and are "
                "no longer posted, so the completion queue holds fewer than the "
                f"{pair.cq_entries} entries it was granted, or dropped them"
            )
        elif flushed == 0 and missing:
            found.append(f"{missing} completions lost: nothing is posted any more")
        if not found:
            found.append(f"seq {self.seq} never arrived, transport {qp_type}")
        counters = pair.counters()
        if counters:
            shown = ", ".join(f"{k} {v}" for k, v in sorted(counters.items()))
            found.append(f"port counters since the set-up: {shown}")
        return found

    def times(self) -> str:
        """Return when receive and send were posted, against the opening."""

        def against(time: float | None) -> str:
            if time is None:
                return "not posted"
            lag = time - self.begun
            return f"{micros(abs(lag))} {'before' if lag < 0 else 'after'} the gate"

        return (
            f"receive {against(self.posted)}, send {against(self.sent_at)}"
            if self.sent_at is not None
            else f"receive {against(self.posted)}, send not posted"
        )

    def fail(self, failure: PairFailed, story: Sequence[str], now: float) -> GateFailed:
        """Return the error of the gate."""
        rank, shape, layer, third, seq, token = self._place
        step = failure.problem.next_step
        if self.idle >= STALE_SECONDS and not self.received:
            story = [
                f"stale link: idle for {self.idle:.0f} s before this gate, and "
                "nothing has passed since",
                *story,
            ]
            step = "set the queue pair up again: restart both ranks; some ports stop "
            step += "working after an idle time"
        diagnosis = GateDiagnosis(
            rank,
            shape,
            layer,
            third,
            seq,
            token,
            self.received,
            self._nbytes,
            self.sent,
            self._nbytes,
            now - self.begun,
            now - self.last,
            self.skew,
            step,
        )
        lines = (failure.text, *(f"ds4-tp: {line}" for line in story))
        about = f"ds4-tp: {self._brought.words()}; {self.times()}"
        found = "; ".join((failure.problem.found, *story, self._brought.words()))
        return GateFailed(
            replace(
                failure,
                text=TRANSPORT,
                phase=f"gate ({diagnosis})",
                log=(*failure.log, *lines, about),
                problem=replace(failure.problem, found=found, next_step=step),
                peer_lost=True,
            ),
            diagnosis,
        )


def completion_words(entry: Completion) -> str:
    """Return what a completion that is not SUCCESS says."""
    meaning = MEANING.get(entry.status, "")
    return f"completion {entry.status}{meaning and f': {meaning}'}"


def post_words(error: VerbsError, what: str, wanted: int, granted: int) -> str:
    """Return "posted 63 of 128 receives" and what was granted."""
    return (
        f"posted {error.done} of {wanted} {what}: the provider granted {granted} and "
        f"accepts fewer ({error.reason})"
    )
