"""Where the open gate of a link stands, its deadlines, and how it fails."""

from __future__ import annotations

from typing import Final

from ds4proto.errors import Ds4ProtoError, ExitCode
from ds4proto.link.ds4t_diagnosis import GateDiagnosis, desync_advice, silence_advice
from ds4proto.link.ds4t_gate_headers import GateShape, gate_spec
from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_limits import GateLimits
from ds4proto.link.ds4t_texts import LocalProtocolError, PairFailed, failed, text_of
from ds4proto.link.schedule import Schedule
from ds4proto.schema.fast import struct_of

HEADER: Final = 16
_CLAUSES: Final[dict[GateShape, tuple[str, str, str, str]]] = {
    "row": ("DS4T-GATE-01", "DS4T-GATE-02", "DS4T-GATE-03", "DS4T-GATE-04"),
    "batch": ("DS4B-BATCH-01", "DS4B-BATCH-02", "DS4B-BATCH-03", "DS4B-BATCH-04"),
    "bulk": ("DS4B-BULK-01", "DS4B-BULK-02", "DS4B-BULK-03", "DS4B-BULK-04"),
}
_WORDS: Final = ("magic", "layer", "gate", "seq")
TRANSPORT: Final = text_of("DS4T-GATE-28")
"""How an operation ends whose gate failed."""


class GateFailed(Ds4ProtoError):
    """A gate failed; the link is latched and every further gate fails alike.

    Attributes
    ----------
    failure : PairFailed
        Exact text and log lines, clause, and the diagnosis in words.
    diagnosis : GateDiagnosis
        Rank, token, layer, gate, seq, bytes, who stopped first, skew, next step.
    """

    exit_code = ExitCode.PEER_LOST

    def __init__(self, failure: PairFailed, diagnosis: GateDiagnosis) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.diagnosis = diagnosis


class GateState:
    """What ``GateLink`` remembers; see there."""

    __slots__ = (
        "_begun",
        "_bulk",
        "_check",
        "_diagnosis",
        "_expected",
        "_failure",
        "_form",
        "_grace",
        "_head_in",
        "_head_out",
        "_heading",
        "_idle",
        "_in_view",
        "_layer",
        "_out_view",
        "_pack",
        "_peer",
        "_schedule",
        "_send_left",
        "_seq",
        "_settings",
        "_shape",
        "_since",
        "_slots",
        "_third",
        "_to_send",
        "_total",
        "_totals",
        "_vector",
        "batch_seq",
        "logits_seq",
        "receive_view",
        "receiving",
        "row_seq",
        "send_views",
        "sending",
        "skew",
    )

    def __init__(
        self,
        settings: TpSettings,
        *,
        limits: GateLimits,
        check_order: bool,
    ) -> None:
        identity, rules = settings.identity, settings.rules
        self._settings = settings
        self._schedule = Schedule.from_hello(identity.words())
        self._slots = self._schedule.slots
        self._vector = identity.vector_bytes
        self._check = check_order and bool(self._slots)
        form = struct_of(gate_spec("row", settings.dialect).body, settings.dialect)
        if form.size != HEADER:  # pragma: no cover - no live dialect has another
            raise LocalProtocolError(f"gate headers of {form.size} bytes are not sent")
        self._form = form
        self._pack = form.pack_into
        self._head_out, self._head_in = bytearray(HEADER), bytearray(HEADER)
        self._out_view, self._in_view = (
            memoryview(self._head_out),
            memoryview(self._head_in),
        )
        self._idle = limits.idle if limits.idle is not None else rules.gate_timeout
        grace = limits.bulk_grace
        self._grace = grace if grace is not None else rules.bulk_grace
        self._totals = (limits.total, limits.bulk_total)
        self._total = limits.total
        self._failure: PairFailed | None = None
        self._diagnosis: GateDiagnosis | None = None
        self.send_views: list[memoryview] = [self._out_view, self._out_view[:0]]
        self.receive_view: memoryview = self._in_view
        self._peer = self._in_view
        self.sending = self.receiving = False
        self._heading = True
        self._bulk = False
        self._shape: GateShape = "row"
        self._layer = self._third = self._seq = 0
        self._to_send = self._send_left = self._expected = 0
        self._begun = self._since = 0.0
        self.row_seq = self.batch_seq = self.logits_seq = 1
        self.skew = 0.0

    @property
    def schedule(self) -> Schedule:
        """The row gates of one token."""
        return self._schedule

    @property
    def done(self) -> bool:
        """True when no gate is open, or the open one is whole both ways."""
        return not (self.sending or self.receiving)

    @property
    def failure(self) -> PairFailed | None:
        """The latched failure, if any."""
        return self._failure

    @property
    def bytes_received(self) -> int:
        """Bytes of the open gate that have come, header included."""
        if self._heading:
            return HEADER - len(self.receive_view)
        if not self.receiving:
            return self._expected
        return self._expected - len(self.receive_view)

    def deadline(self) -> float | None:
        """Return when ``timeout`` is due: idle or total limit, whichever is first."""
        if self.done:
            return None
        end = self._begun + self._totals[self._bulk]
        if self._idle is None:
            return end
        grace = self._grace if self._bulk and self._heading else 0.0
        return min(end, self._since + self._idle + grace)

    def timeout(self, now: float) -> None:
        """Fail the open gate if its deadline has passed.

        Raises
        ------
        GateFailed
            With what was awaited, and what to try.
        """
        due = self.deadline()
        if due is None or now < due:
            return
        total = self._begun + self._totals[self._bulk] <= due
        why = "took too long in all" if total else "made no progress"
        raise self._lost(why, now, "DS4T-ROBUST-05" if total else "DS4T-GATE-23")

    def abort(self, reason: str, now: float, clause: str = "DS4T-FAIL-14") -> None:
        """Fail for a loss seen elsewhere, such as a closed control connection.

        Raises
        ------
        GateFailed
            Always.
        """
        raise self._lost(reason, now, clause)

    def _again(self) -> GateFailed:
        if self._failure is None or self._diagnosis is None:  # pragma: no cover
            raise AssertionError("no failure is latched")
        return GateFailed(self._failure, self._diagnosis)

    def _where(self) -> str:
        return str(self.diagnose(self._since))

    def diagnose(self, now: float, next_step: str = "") -> GateDiagnosis:
        """Return where the open gate, or the last one, stands."""
        per_token = len(self._slots)
        token = None
        if self._shape == "row" and per_token:
            token = (self._seq - 1) // per_token + 1
        return GateDiagnosis(
            rank=self._settings.rank,
            shape=self._shape,
            layer=self._layer,
            third=self._third,
            seq=self._seq,
            token=token,
            received=self.bytes_received,
            expected=self._expected,
            sent=self._to_send - max(self._send_left, 0),
            to_send=self._to_send,
            waited=now - self._begun,
            quiet=now - self._since,
            skew=self.skew,
            next_step=next_step,
        )

    def _desync(self, now: float) -> GateFailed:
        mine = self._form.unpack(self._head_out)
        theirs = self._form.unpack(self._head_in)
        wrong = next(i for i in range(4) if mine[i] != theirs[i])
        clause = _CLAUSES[self._shape][wrong]
        want = mine[1:] if self._shape != "bulk" else (mine[1], mine[3])
        words = text_of(clause, *theirs[1:], *want)
        step = desync_advice(self._head_in, self._shape, self._seq, self._schedule)
        form = "{:#x}" if wrong == 0 else "{}"
        return self._latch(
            clause,
            now,
            log=(words,),
            path=_WORDS[wrong],
            expected=form.format(mine[wrong]),
            found=form.format(theirs[wrong]),
            step=step,
        )

    def _lost(self, why: str, now: float, clause: str) -> GateFailed:
        got = self.bytes_received
        step = silence_advice(self._shape, got, HEADER)
        log: tuple[str, ...] = ()
        if self._shape == "bulk" and self._heading:
            log = (text_of("DS4B-BULK-07", self._layer, self._seq, why),)
        elif self._shape == "bulk":
            log = (text_of("DS4B-BULK-09", self._layer, why),)
        return self._latch(
            clause,
            now,
            log=log,
            path="payload" if not self._heading else "header",
            expected=f"{self._expected} bytes of header and payload",
            found=f"{got} bytes, then it {why}" if "connection" not in why else why,
            step=step,
            lost=True,
        )

    def _latch(
        self,
        clause: str,
        now: float,
        *,
        log: tuple[str, ...],
        path: str,
        expected: str,
        found: str,
        step: str,
        lost: bool = False,
    ) -> GateFailed:
        if self._failure is not None:
            return self._again()
        self._diagnosis = self.diagnose(now, step)
        if self._settings.dialect == "v14" and self._shape != "bulk":
            metal = text_of("DS4T-GATE-30", self._layer, self._third, self._seq)
            log = (*log, metal)
        self._failure = failed(
            now,
            clause,
            text=TRANSPORT,
            phase=f"gate ({self._diagnosis})",
            path=f"GATE_{self._shape.upper()}.{path}",
            expected=expected,
            found=found,
            next_step=step,
            log=log,
            peer_lost=lost,
        )
        self.receiving = False
        return GateFailed(self._failure, self._diagnosis)
