"""We play the coordinator: the vocabulary of cases for workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ds4proto.errors import WrongUsage
from ds4proto.peer import PeerLost
from ds4proto.schema.ds4d_result import HIDDEN_STATE, LOGITS
from ds4proto_conformance.bench import texts
from ds4proto_conformance.bench.answers import Answer
from ds4proto_conformance.bench.base import Bench, Connections
from ds4proto_conformance.bench.work import (
    ACK_ONLY,
    INPUT_HC,
    OUTPUT_LOGITS,
    RESET_SESSION,
    Hop,
    Work,
    chain,
    route_blob,
)
from ds4proto_conformance.facts import ModelAnswers, PeerFacts, candidates, from_hello
from ds4proto_conformance.settings import Settings
from ds4proto_conformance.verdicts import Deviation, NotApplicable
from ds4proto_conformance.wire import Ended, Frame, Wire

__all__ = ["WorkerBench"]

_POOL: Final = 16
_FRESH: Final = 24
_MANY: Final = 64
"""Token ids below this exist in every vocabulary."""


class WorkerBench(Bench):
    """A worker under test.

    Attributes
    ----------
    facts : PeerFacts
        What its HELLO says, and the width of its hidden state.
    hello : Frame
        The HELLO of the present control connection.
    """

    def __init__(self, connections: Connections, settings: Settings) -> None:
        super().__init__(connections, settings)
        self.facts = PeerFacts()
        self.hello: Frame | None = None
        self._pool = [self.rng.randrange(1, 1 << 63) for _ in range(_POOL)]
        self._turn = self._fresh = 0
        self._control: Wire | None = None
        self._data: Wire | None = None

    # meeting

    def learn(self) -> None:
        """Await the HELLO, then find the width of the hidden state.

        Raises
        ------
        WrongUsage
            The worker stands elsewhere than ``--position`` says.
        """
        self.begin(self.settings.seed)
        self.meet()
        told = self.settings
        if told.position not in ("", self.facts.position):
            raise WrongUsage(
                f"--position {told.position}: expected a worker there, its HELLO says"
                f" {self.facts.position} (layers {self.facts.span} of"
                f" {self.facts.n_layers}). Next: give it other layers, or leave the"
                " option out"
            )
        if told.hidden_values is not None:
            answers = [ModelAnswers(told.hidden_values, told.vocab)]
        else:
            answers = candidates(self.facts.model_id, self.facts.model_name, told.model)
        tried, last = [], None
        for answer in answers:
            self.facts.hidden_values = answer.hidden_values
            self.facts.vocab = told.vocab or answer.vocab
            found = self.work().seen
            if isinstance(found, Frame) and not found.values.get("status"):
                if found["result_kind"] == LOGITS and told.vocab is None:
                    self.facts.vocab = len(found["payload"]) // 4
                self.end()
                return
            tried.append(f"{answer.hidden_values} values a token: {found}")
            last = found
        seen = "; ".join(tried)
        if isinstance(last, Frame):
            raise WrongUsage(_unserved(seen, last))
        raise PeerLost(
            "closed",
            phase="asked to serve one token, to learn the width of its hidden state",
            address=self.settings.peer,
            reason=seen + ". Give --hidden-values, --vocab or --model FILE",
        )

    def meet(self) -> Wire:
        """Return the control connection, a new one where the last has ended."""
        if self._control is not None and self._control.open:
            return self._control
        channel = self.connections.channel("control", fresh=True, deadline=self._soon())
        line = self.transcript.line("control", "DS4D", dialled_by_us=False)
        wire = self._control = self._over(channel, line)
        self._fresh = 0
        hello = wire.next(patience=self.settings.wait(self.settings.connect))
        if isinstance(hello, Ended):
            raise PeerLost(
                "timeout" if hello.how == "silence" else "closed",
                phase="connected, waiting for HELLO",
                address=self.settings.peer,
                reason=str(hello),
                output=self.connections.output(),
            )
        unread = any(problem.fatal for problem in hello.problems)
        if hello.name != "HELLO" or unread or "listen_port" not in hello.values:
            raise Deviation("DS4D-HELLO-20", "a HELLO as the first frame", str(hello))
        width, vocab = self.facts.hidden_values, self.facts.vocab
        self.hello, self.facts = hello, from_hello(hello.values)
        self.facts.hidden_values, self.facts.vocab = width, vocab
        return wire

    @property
    def control(self) -> Wire:
        """The control connection, shown in this case's transcript."""
        before = self._control
        wire = self.meet()
        if wire is before and wire.line not in self.transcript.lines:
            self.transcript.join(wire.line)
        return wire

    def lose_control(self) -> None:
        """Note that the case has ended the control connection."""
        if self._control is not None:
            self._control.close()
            self._control = None

    # connections

    def begin(self, seed: int) -> None:
        """Get ready for a case."""
        super().begin(seed)
        self._data = None

    def end(self) -> None:
        """Close what the case opened; the control connection stays."""
        super().end()
        self._data = None
        control = self._control
        if control is not None and control.ended is not None:
            self.lose_control()

    def close(self) -> None:
        """End the run."""
        super().close()
        self.lose_control()

    def dial(self, name: str = "data") -> Wire:
        """Return a new data connection."""
        self.meet()
        channel = self.connections.dial(
            self.facts.port, deadline=self._soon(self.settings.patience)
        )
        return self._wire(channel, name, dialled_by_us=True)

    @property
    def data(self) -> Wire:
        """The data connection of this case; a new one where the last has ended."""
        if self._data is None or not self._data.open:
            self._data = self.dial()
        return self._data

    def only(self, *positions: str) -> None:
        """Leave the case where the worker stands elsewhere."""
        here = self.facts.position
        if here not in positions:
            wanted = " or ".join(positions)
            raise NotApplicable(f"the worker is {here}, this needs {wanted}")

    def describe(self) -> dict[str, Any]:
        """Return the peer's identity for a report."""
        f = self.facts
        return {
            "model_id": f.model_id,
            "model_name": f.model_name,
            "layers": f.span,
            "n_layers": f.n_layers,
            "ctx": f.ctx,
            "quant_bits": f.quant_bits,
            "hidden_values": f.hidden_values,
            "vocab": f.vocab,
            "position": f.position,
        }

    # building

    def session(self) -> int:
        """Return a session id for a WORK that resets: one of a few, in turn.

        Workers bound the sessions they keep, and the wire cannot end one.
        """
        self._turn += 1
        return self._pool[self._turn % len(self._pool)]

    def fresh_session(self) -> int:
        """Return a session id that the worker has never seen.

        After many of them the control connection is made anew, which ends them all.
        """
        if self._fresh >= _FRESH:
            self.lose_control()
            self.meet()
        self._fresh += 1
        return self.rng.randrange(1, 1 << 63)

    def tokens(self, count: int = 3) -> tuple[int, ...]:
        """Return token ids that exist."""
        return tuple(self.rng.randrange(_MANY) for _ in range(count))

    def hidden(self, count: int, bits: int = 32) -> bytes:
        """Return the wire bytes of a synthetic hidden state, within -2 .. 2."""
        import numpy as np

        from ds4proto.codec.widths import activation_codec

        if not count:
            return b""
        size = count * self.facts.hidden_values
        values = np.random.default_rng(self.rng.randrange(1 << 32)).uniform(-2, 2, size)
        half: Any = self.settings.half
        codec = activation_codec(bits if bits in (8, 16, 32) else 32, half=half)
        return bytes(codec.encode(values.astype(np.float32), rows=count))

    def hop(self, **changes: Any) -> Hop:
        """Return the worker's own route record."""
        f = self.facts
        values = {
            "host": b"127.0.0.1",
            "port": f.port,
            "layer_start": f.layer_start,
            "layer_end": f.layer_end,
            "flags": int(f.has_output),
        }
        return Hop(**{**values, **changes})

    def next_hop(self, **changes: Any) -> Hop:
        """Return a record that sends the worker to our own data port."""
        host, port = self.connections.data_address()
        f = self.facts
        values = {
            "host": host.encode(),
            "port": port,
            "layer_start": f.layer_end + 1,
            "layer_end": f.n_layers - 1,
            "flags": 1,
        }
        return Hop(**{**values, **changes})

    def make(
        self,
        tokens: Sequence[int] | int = 3,
        *,
        pos0: int = 0,
        prefix: Sequence[int] | int = (),
        reset: bool = True,
        bits: int = 32,
        hops: Sequence[Hop] | None = None,
        hidden: bytes | None = None,
        blob: bytes | None = None,
        logits: bool | None = None,
        ack: bool = False,
        session: int | None = None,
        **lies: int,
    ) -> Work:
        """Return a WORK for this worker, as it ought to be but for the changes.

        Parameters
        ----------
        tokens : sequence of int, or int
            The span, or how many tokens.
        prefix : sequence of int, or int
            Tokens before it, or their hash.
        hops : sequence of Hop, optional
            Default: this worker alone.
        **lies
            Words of the fixed part, by wire name.
        """
        span = self.tokens(tokens) if isinstance(tokens, int) else tuple(tokens)
        before = prefix if isinstance(prefix, int) else chain(prefix)
        f = self.facts
        route = [self.hop()] if hops is None else list(hops)
        if logits is None:
            logits = f.has_output and len(route) == 1
        if hops is None and logits != f.has_output:
            route = [self.hop(flags=int(logits))]
        flags = (RESET_SESSION if reset else 0) | (ACK_ONLY if ack else 0)
        flags |= (INPUT_HC if f.layer_start else 0) | (OUTPUT_LOGITS if logits else 0)
        if hidden is None:
            hidden = self.hidden(len(span), bits) if f.layer_start else b""
        if session is None:
            session = self.session() if reset else self.fresh_session()
        words = {
            "model_id": f.model_id,
            "session": session,
            "request": self.rng.randrange(1, 1 << 32),
            "prefix_hash": before,
            "result_hash": _extend(span, before),
            "pos0": pos0,
            "n_tokens": len(span),
            "layer_start": f.layer_start,
            "layer_end": f.layer_end,
            "flags": flags,
            "input_hc_bits": bits,
            "route_count": len(route),
            "route_index": 0,
        }
        made = route_blob(route) if blob is None else blob
        return Work(words, span, hidden, made, lies)

    # talking

    def send(self, work: Work, wire: Wire | None = None) -> Work:
        """Send a WORK and return it."""
        (wire or self.data).send(work.frame())
        return work

    def answer(self, work: Work, wire: Wire | None = None) -> Answer:
        """Return the answer to a WORK that was sent."""
        return Answer(self, work, (wire or self.data).next())

    def work(self, *args: Any, wire: Wire | None = None, **changes: Any) -> Answer:
        """Send a WORK and return its answer; arguments as for ``make``."""
        on = wire or self.data
        return self.answer(self.send(self.make(*args, **changes), on), on)

    def kind(self, logits: bool | None = None) -> int:
        """Return the result kind of a plain answer."""
        wants = self.facts.has_output if logits is None else logits
        return LOGITS if wants else HIDDEN_STATE

    def check_alive(self) -> None:
        """Take it that the worker serves a plain WORK on a new connection."""
        wire = self.dial("after the case")
        self.work(wire=wire).served("DS4D-WORK-45")
        wire.close()


def _unserved(seen: str, last: Frame) -> str:
    """Say why no case can run where a worker refuses the plainest WORK."""
    clause = texts.owner(last.message)
    if clause in (None, "DS4D-WORK-18"):
        next_step = "give --hidden-values, --vocab or --model FILE"
    else:
        seen += f" ({clause})"
        next_step = f"ds4proto spec show {clause} says when that is due"
        if "hash" in last.message:
            next_step += "; DS4D tokens are hashed by CODEC-HASH-01 to CODEC-HASH-03"
    return (
        "no case can run: expected the worker to serve one token in a new session,"
        f" found a refusal: {seen}. Next: {next_step}"
    )


def _extend(tokens: Sequence[int], before: int) -> int:
    from ds4proto.codec.token_hash import token_hash

    return token_hash([t & 0xFFFFFFFF for t in tokens], before)
