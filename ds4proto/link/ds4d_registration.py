"""The coordinator's end of a new control connection: one HELLO, 16 checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from ds4proto.link.ds4d_endpoint import Endpoint, earliest
from ds4proto.link.ds4d_events import Fault, HelloAccepted, HelloRefused, Transmit
from ds4proto.link.ds4d_frames import CODE, FIXED, FixedPart, error_frame
from ds4proto.link.ds4d_intake import BadMagic, End, Frame
from ds4proto.link.ds4d_limits import DEFAULT, MAX_NAME, MAX_PORT, LinkLimits
from ds4proto.link.ds4d_texts import text
from ds4proto.schema.declare import Limit
from ds4proto.schema.ds4d_hello import HELLO
from ds4proto.schema.ds4d_private import DIALECT as PRIVATE_DIALECT
from ds4proto.schema.ds4d_private import FORMATS, MARK, ability

HELLO_PART: Final = FIXED[HELLO]
PRIVATE_PART: Final = FixedPart(HELLO.body, PRIVATE_DIALECT)
_QUANT: Final = next(f.limit for f in HELLO.body.fields if f.path == "quant_bits")
_TYPE: Final = CODE[HELLO]

State = Literal["waiting", "registered", "refused", "bare", "closed"]
TRANSITIONS: Final[dict[tuple[State, str], State]] = {
    ("waiting", "accepted"): "registered",
    ("waiting", "accepted bare"): "bare",
    ("waiting", "refused"): "closed",
    ("waiting", "unreadable"): "closed",
    ("waiting", "end"): "closed",
    ("bare", "frame"): "bare",
    ("bare", "second HELLO"): "closed",
    ("bare", "end"): "closed",
}
"""States of a control connection before it carries WORK."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the coordinator's own model asks of a worker; ``ctx`` 0 asks nothing.

    ``bits`` is the width word in use, which a worker of the private dialect has to
    take (DS4D-OURS-03).
    """

    model_id: int
    model_name: str
    n_layers: int
    ctx: int
    dialect: str = "upstream"
    bits: int = 32

    @property
    def private(self) -> bool:
        """Whether this side speaks the private dialect."""
        return self.dialect == PRIVATE_DIALECT


Hello = Mapping[str, Any]


class Check(NamedTuple):
    """One line of the table: the clause, when it is broken, the values of its text."""

    clause: str
    broken: Callable[[Hello, Expected], bool]
    values: Callable[[Hello, Expected], tuple[object, ...]]


def _outside(limit: Limit | None, value: int) -> bool:
    return limit is not None and not limit.holds(value)


CHECKS: Final = (
    Check(
        "DS4D-HELLO-06",
        lambda h, e: h["model_id"] != e.model_id,
        lambda h, e: (h["model_id"], e.model_id),
    ),
    Check(
        "DS4D-HELLO-07",
        lambda h, e: h["model_name"] != e.model_name,
        lambda h, e: (h["model_name"], e.model_name),
    ),
    Check(
        "DS4D-HELLO-08",
        lambda h, e: h["n_layers"] != e.n_layers,
        lambda h, e: (h["n_layers"], e.n_layers),
    ),
    Check(
        "DS4D-HELLO-09",
        lambda h, _: _outside(_QUANT, h["quant_bits"]),
        lambda h, _: (h["quant_bits"],),
    ),
    Check(
        "DS4D-HELLO-10",
        lambda h, _: h["has_output"] > 1,
        lambda h, _: (h["has_output"],),
    ),
    Check(
        "DS4D-HELLO-11",
        lambda h, _: h["has_hidden"] > 1,
        lambda h, _: (h["has_hidden"],),
    ),
    Check(
        "DS4D-HELLO-12",
        lambda h, e: not h["layer_start"] <= h["layer_end"] < e.n_layers,
        lambda h, e: (h["layer_start"], h["layer_end"], e.n_layers),
    ),
    Check(
        "DS4D-HELLO-13",
        lambda h, e: bool(h["has_output"]) and h["layer_end"] != e.n_layers - 1,
        lambda h, e: (h["layer_start"], h["layer_end"], e.n_layers),
    ),
    Check(
        "DS4D-HELLO-14",
        lambda h, e: e.ctx != 0 and h["ctx_size"] < e.ctx,
        lambda h, e: (h["ctx_size"], e.ctx),
    ),
    Check(
        "DS4D-HELLO-15",
        lambda h, _: not 1 <= h["listen_port"] <= MAX_PORT,
        lambda h, _: (h["listen_port"],),
    ),
    Check(
        "DS4D-OURS-03",
        lambda h, e: e.private and ability(e.bits) & ~h["abilities"] != 0,
        lambda _, e: (FORMATS[e.bits],),
    ),
)
"""Checks 6 to 15, and ours: each is answered by an ERROR frame."""


def check_all(hello: Hello, expected: Expected) -> tuple[Fault, ...]:
    """Return every fault of a HELLO in the order of checks 6 to 15.

    A coordinator reports the first; a preflight shows them all.
    """
    return tuple(
        Fault(clause, text(clause, *values(hello, expected)), "remote")
        for clause, broken, values in CHECKS
        if broken(hello, expected)
    )


def read_private_hello(size: int, body: memoryview) -> dict[str, Any] | Fault:
    """Return the values of a HELLO of the private dialect, or why it is none."""
    foreign = Fault("DS4D-OURS-02", text("DS4D-OURS-02"))
    if not PRIVATE_PART.size <= size <= PRIVATE_PART.size + MAX_NAME:
        return foreign
    values: dict[str, Any] = PRIVATE_PART.read(body)
    name = bytes(body[PRIVATE_PART.size :])
    if values["private_mark"] != MARK or values["model_name_len"] != len(name):
        return foreign
    if b"\0" in name:
        return Fault("DS4D-HELLO-05", text("hello-name-nul"))
    values["model_name"] = name.decode("utf-8", "surrogateescape")
    return values


def read_hello(size: int, body: memoryview) -> dict[str, Any] | Fault:
    """Return the values of a HELLO, or why it is unreadable (checks 3 to 5).

    Parameters
    ----------
    size : int
        Body bytes announced.
    body : memoryview
        The body, whole where its size is legal.
    """
    if not HELLO_PART.size <= size <= HELLO_PART.size + MAX_NAME:
        return Fault("DS4D-HELLO-03", text("hello-length", size))
    values: dict[str, Any] = HELLO_PART.read(body)
    name = bytes(body[HELLO_PART.size :])
    if values["model_name_len"] != len(name):
        words = text("hello-name-length", values["model_name_len"])
        return Fault("DS4D-HELLO-04", words)
    if b"\0" in name:
        return Fault("DS4D-HELLO-05", text("hello-name-nul"))
    values["model_name"] = name.decode("utf-8", "surrogateescape")
    return values


class Registration(Endpoint):
    """Reads the HELLO of one accepted connection.

    Events: ``HelloAccepted``, or ``HelloRefused`` with ``Transmit`` (ERROR) and
    ``Close``. Bytes behind an accepted HELLO are kept for the ``WorkLink``
    (``trailing_data``); with ``bare=True`` later frames are skipped instead.
    """

    def __init__(
        self,
        expected: Expected,
        *,
        now: float,
        limits: LinkLimits = DEFAULT,
        bare: bool = False,
    ) -> None:
        super().__init__(limits)
        self.state: State = "waiting"
        self._expected = expected
        self._bare = bare
        self._until = now + limits.hello_s

    @property
    def trailing_data(self) -> bytes:
        """Take the bytes that came behind an accepted HELLO."""
        return self._intake.rest() if self.state == "registered" else b""

    def _reading(self) -> bool:
        return self.state in ("waiting", "bare")

    def _plan(self, type_: int, size: int, kept: memoryview) -> int:
        fixed = PRIVATE_PART.size if self._expected.private else HELLO_PART.size
        legal = fixed <= size <= fixed + MAX_NAME
        waiting = self.state == "waiting" and type_ == _TYPE
        return size if waiting and legal else len(kept)

    def _move(self, cause: str) -> None:
        self.state = TRANSITIONS[self.state, cause]

    def _item(self, item: Any, now: float) -> None:
        if isinstance(item, BadMagic):
            words = text("DS4D-HELLO-01", item.magic)
            self._unreadable(Fault("DS4D-HELLO-01", words), now)
        elif isinstance(item, End):
            self._move("end")
            self._close("end of stream")
        elif isinstance(item, Frame) and self.state == "bare":
            self._move("second HELLO" if item.type == _TYPE else "frame")
            if item.type == _TYPE:
                self._close("second HELLO")
        elif isinstance(item, Frame):
            self._judge(item, now)

    def _judge(self, frame: Frame, now: float) -> None:
        if frame.type != _TYPE:
            words = text("hello-type", frame.type)
            self._unreadable(Fault("DS4D-HELLO-02", words), now)
            return
        reader = read_private_hello if self._expected.private else read_hello
        hello = reader(frame.size, frame.body)
        if isinstance(hello, Fault):
            if hello.clause == "DS4D-OURS-02":
                self._refuse(hello, now)
            else:
                self._unreadable(hello, now)
            return
        faults = check_all(hello, self._expected)
        if faults:
            self._refuse(faults[0], now)
            return
        self._move("accepted bare" if self._bare else "accepted")
        self._emit(HelloAccepted(hello))

    def _refuse(self, fault: Fault, now: float) -> None:
        """Answer with ERROR and close."""
        self._violate(fault, "HELLO", now, fatal=True)
        self._emit(HelloRefused(fault, answered=True))
        self._emit(Transmit(error_frame(fault.text)))
        self._move("refused")
        self._close(fault.text)

    def _unreadable(self, fault: Fault, now: float) -> None:
        """Close without an answer; the text is for the log alone."""
        if self.state == "bare":
            self._move("end")
        else:
            self._emit(HelloRefused(fault, answered=False))
            self._move("unreadable")
        self._violate(fault, "HELLO", now, fatal=True)
        self._close(fault.text)

    def _stalled(self, now: float) -> None:
        self._unreadable(Fault("DS4D-HELLO-36", text("peer-stalled")), now)

    def deadline(self) -> float | None:
        """Return when ``timeout`` wants to be called, if ever."""
        own = self._until if self.state == "waiting" else None
        return earliest(super().deadline(), own)

    def timeout(self, now: float) -> None:
        """Tell that the deadline has passed: the HELLO is late."""
        super().timeout(now)
        if self.state == "waiting" and now >= self._until:
            words = text("hello-late", self._limits.hello_s)
            self._unreadable(Fault("DS4D-HELLO-36", words), now)
