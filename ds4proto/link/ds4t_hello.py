"""The hello of a pair: both ranks write first, then judge (sans-IO).

Order of checks, each with its exact text: exchange, magic, version, role, features
(v9w), identity in one test, own mask, transport. Only the first failing check speaks
(DS4T-HELLO-08); ``all_mismatches`` lists the rest for a person.

Magic and version are judged as soon as eight bytes are there: the hellos of two
dialects differ in length, and waiting for the longer one would hang.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from ds4proto.link.ds4t_identity import (
    Identity,
    TpSettings,
    all_mismatches,
    feature_difference,
)
from ds4proto.link.ds4t_rules import Transport, advice_on_version
from ds4proto.link.ds4t_texts import PairFailed, failed
from ds4proto.link.events import Event, Violation
from ds4proto.schema.declare import offsets_of
from ds4proto.schema.ds4t_common import DS4T_MAGIC
from ds4proto.schema.ds4t_hello import HELLO, ROLE_CODES
from ds4proto.schema.fast import struct_of
from ds4proto.schema.problem import Buf, Problem
from ds4proto.schema.recognise import protocol_of

EARLY: Final = struct.Struct("<II")
"""Magic and version, judged before the rest has come."""
PROBE_BYTES: Final = 88
"""A prober sends at least the longest hello without nonce (DS4T-HELLO-33)."""
HELLO_SECONDS: Final = 30.0
"""Ours: a client that connects and stays silent is given up (DS4T-ROBUST-01)."""

_ROLE_NAMES = {code: name for name, code in ROLE_CODES.items()}


@dataclass(frozen=True, slots=True)
class HelloAgreed:
    """Both hellos passed; the data connection comes next.

    Attributes
    ----------
    time : float
    peer : Identity
        The peer's compared words.
    peer_ctx_size : int
        The leader's context as announced; not compared.
    peer_rdma_ok : bool
    transport : {"tcp", "rdma"}
        What both ranks will use.
    rest : bytes
        Bytes behind the peer's hello: the first of its control frames.
    """

    time: float
    peer: Identity
    peer_ctx_size: int
    peer_rdma_ok: bool
    transport: Literal["tcp", "rdma"]
    rest: bytes = b""


def choose_transport(
    request: Transport, mine: bool, theirs: bool
) -> Literal["tcp", "rdma", "this", "the peer"]:
    """Return the transport, or which side keeps an explicit ``rdma`` from working.

    Parameters
    ----------
    request : {"auto", "tcp", "rdma"}
        The own option; the peer's is not on the wire.
    mine, theirs : bool
        ``rdma_ok`` of both hellos.
    """
    if request != "tcp" and mine and theirs:
        return "rdma"
    if request == "rdma":
        return "the peer" if mine else "this"
    return "tcp"


class HelloExchange:
    """One rank's side of the hello.

    Parameters
    ----------
    settings : TpSettings
    seconds : float
        Limit of the whole exchange.
    any_role : bool
        Accept a role that is neither 1 nor 2, as real peers do; the default refuses
        it (DS4T-HELLO-19).
    probe : bool
        Pad the own hello to 88 bytes, so that a peer of any version answers.

    Notes
    -----
    Use: write ``start()``, feed what comes, stop at ``HelloAgreed`` or ``PairFailed``.
    Only ``PairFailed``, ``Violation`` and ``HelloAgreed`` are ever yielded, one of the
    outer two exactly once; no input raises.
    """

    def __init__(
        self,
        settings: TpSettings,
        *,
        seconds: float = HELLO_SECONDS,
        any_role: bool = False,
        probe: bool = False,
    ) -> None:
        self._settings = settings
        self._size = HELLO.fixed_size(settings.dialect)
        self._seconds = seconds
        self._any_role = any_role
        self._probe = probe
        self._got = bytearray()
        self._events: list[Event] = []
        self._deadline: float | None = None
        self._over = False

    def start(self, now: float) -> list[Buf]:
        """Return the own hello: the first bytes of the connection, before any read."""
        self._deadline = now + self._seconds
        own = self._settings.hello()
        if self._probe:
            own = own.ljust(PROBE_BYTES, b"\0")
        return [own]

    @property
    def wanted(self) -> int:
        """Bytes that are still needed for the next judgement; 0 when it is over."""
        if self._over:
            return 0
        goal = EARLY.size if len(self._got) < EARLY.size else self._size
        return goal - len(self._got)

    @property
    def over(self) -> bool:
        """True after ``HelloAgreed`` or ``PairFailed``."""
        return self._over

    def receive_data(self, data: Buf | None, now: float) -> None:
        """Take bytes of the peer's hello; None is the end of the stream or a reset."""
        if self._over:
            return
        if data is None:
            self._exchange_failed(now, "the connection ended", lost=True)
            return
        early = len(self._got) < EARLY.size
        self._got += data
        if early and len(self._got) >= EARLY.size and self._judge_early(now):
            return
        if len(self._got) >= self._size:
            self._judge(now)

    def events(self) -> Iterator[Event]:
        """Yield what the bytes so far mean."""
        while self._events:
            yield self._events.pop(0)

    def deadline(self) -> float | None:
        """Return when ``timeout`` is due."""
        return None if self._over else self._deadline

    def timeout(self, now: float) -> None:
        """Give the peer up."""
        if not self._over:
            self._exchange_failed(now, f"silence for {self._seconds:g} s", lost=True)

    def _exchange_failed(self, now: float, why: str, *, lost: bool) -> None:
        got = len(self._got)
        step = "is the other side a ds4 tensor-parallel rank of this version?"
        if 0 < got < self._size and got in {56, 64, 72}:
            step = (
                f"a hello of {got} bytes belongs to another version; the side with "
                "the shorter hello prints both version numbers"
            )
        self._fail(
            failed(
                now,
                "DS4T-HELLO-01",
                phase="hello",
                expected=f"{self._size} bytes of hello",
                found=f"{got} bytes, then {why}",
                next_step=step,
                peer_lost=lost,
            )
        )

    def _judge_early(self, now: float) -> bool:
        magic, version = EARLY.unpack_from(self._got)
        mine = self._settings.version
        if magic != DS4T_MAGIC:
            self._fail(self._bad_magic(now))
        elif version != mine:
            self._fail(
                failed(
                    now,
                    "DS4T-HELLO-03",
                    version,
                    mine,
                    phase="hello",
                    path="HELLO.version",
                    expected=f"{mine} ({self._settings.dialect})",
                    found=str(version),
                    next_step=advice_on_version(version),
                )
            )
        return self._over

    def _bad_magic(self, now: float) -> PairFailed:
        kind = protocol_of(self._got)
        step = {
            "DS4T-BE": "the peer writes big-endian words",
            "DS4D": "a pipeline peer (DS4D) connected to a tensor-parallel port",
            "DS4D-LE": "a Swift pipeline peer connected to a tensor-parallel port",
            "DS4B": "these are gate bytes: was this meant as the data connection?",
        }.get(kind or "", "something else than a ds4 rank is connected to this port")
        shown = bytes(self._got[:8]).hex(" ")
        return failed(
            now,
            "DS4T-HELLO-02",
            phase="hello",
            path="HELLO.magic",
            expected="54 34 53 44",
            found=f"{shown} ({bytes(self._got[:16])!r})",
            next_step=step,
        )

    def _judge(self, now: float) -> None:
        spec = struct_of(HELLO.body, self._settings.dialect)
        names = offsets_of(HELLO.body, self._settings.dialect)
        words = dict(zip(names, spec.unpack_from(self._got), strict=True))
        peer = Identity.of(words)
        failure = (
            self._role(words["role"], now)
            or self._features(peer, now)
            or self._identity(peer, now)
            or self._mask(now)
        )
        if failure is not None:
            self._fail(failure)
            return
        theirs = bool(words["rdma_ok"])
        choice = choose_transport(
            self._settings.transport, self._settings.rdma_ok, theirs
        )
        if choice not in ("tcp", "rdma"):
            self._fail(_no_device(choice, now))
            return
        self._note_pad(words, now)
        self._over = True
        self._events.append(
            HelloAgreed(
                now,
                peer,
                words["ctx_size"],
                theirs,
                "rdma" if choice == "rdma" else "tcp",
                bytes(self._got[self._size :]),
            )
        )

    def _role(self, role: int, now: float) -> PairFailed | None:
        mine = ROLE_CODES[self._settings.role]
        if role == mine:
            return failed(
                now,
                "DS4T-HELLO-04",
                role,
                phase="hello",
                path="HELLO.role",
                expected=str(3 - mine),
                found=f"{role} ({_ROLE_NAMES[role]})",
                next_step="start one side with --role coordinator, one with worker",
            )
        if role in _ROLE_NAMES or self._any_role:
            return None
        return failed(
            now,
            "DS4T-HELLO-19",
            phase="hello",
            path="HELLO.role",
            text=f"tp hello: role {role} is neither leader nor worker",
            expected=str(3 - mine),
            found=str(role),
        )

    def _features(self, peer: Identity, now: float) -> PairFailed | None:
        mine, theirs = (
            self._settings.identity.runtime_features,
            peer.runtime_features,
        )
        if not self._settings.rules.features or mine == theirs:
            return None
        return failed(
            now,
            "DS4T-HELLO-30",
            mine,
            theirs,
            phase="hello",
            path="HELLO.runtime_features",
            expected=f"{mine:#010x}",
            found=f"{theirs:#010x}; {feature_difference(mine, theirs)}",
            next_step="set the same DS4_TP_* variables on both sides; an upstream "
            "version 9 has its gate schedule in this place",
        )

    def _identity(self, peer: Identity, now: float) -> PairFailed | None:
        differences = all_mismatches(self._settings.identity, peer)
        if not differences:
            return None
        return failed(
            now,
            "DS4T-HELLO-05",
            peer.gguf_bytes,
            peer.model_id,
            peer.n_layer,
            peer.n_embd,
            peer.n_vocab,
            peer.quant_bits,
            phase="hello",
            path="HELLO",
            expected="equal words on both ranks",
            found="; ".join(entry.text for entry in differences),
            next_step="give both sides the same GGUF file, build and back end",
        )

    def _mask(self, now: float) -> PairFailed | None:
        fault = self._settings.identity.mask_fault()
        if fault is None:
            return None
        bits, gates, slots = fault
        return failed(
            now,
            "DS4T-HELLO-06",
            bits,
            gates,
            slots,
            phase="hello",
            path="HELLO.gate_slot_mask0",
            expected=f"{gates} bits, all below slot {slots}",
            found=f"{bits} bits",
            next_step="the schedule of this rank itself is wrong",
        )

    def _note_pad(self, words: dict[str, int], now: float) -> None:
        """Warn of a pad word: no reason to refuse, but it names two known forks."""
        pad = words.get("pad", 0)
        if not pad:
            return
        advice = {
            "v14": "the OdinLink fork sets it: its gate headers have 24 bytes, so the "
            "first gate will not fit",
            "v12": "the ANE fork sets it: types 22 and 23 are other frames there",
        }.get(self._settings.dialect, "")
        problem = Problem(
            "DS4T-HELLO-26", "HELLO.pad", None, None, "0", f"{pad:#x}", advice
        )
        self._events.append(Violation(now, problem, fatal=False))

    def _fail(self, failure: PairFailed) -> None:
        self._over = True
        self._events.append(failure)


def _no_device(side: str, now: float) -> PairFailed:
    return failed(
        now,
        "DS4T-HELLO-07",
        side,
        phase="hello",
        path="HELLO.rdma_ok",
        expected="rdma_ok 1 on both sides",
        found=f"{side} side says 0",
        next_step="--transport auto falls back to TCP; 0 stands for no library, no "
        "device, a vector above 32768 bytes, or a side started with tcp",
    )
