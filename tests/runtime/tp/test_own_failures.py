"""The leader's own engine fails: both ranks empty the session, the pair goes on."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
from ds4proto_runtime.engines.base import EngineError
from ds4proto_runtime.tp.leader import TpLeader
from ds4proto_runtime.tp.toy import ToyShape, ToyTpEngine

from ds4proto.link.ds4t_events import KEEP_ALL, REPLAY
from tests.runtime.tp.rig import Pair, options, pair

FLASH = ToyShape(n_layer=2, n_embd=16, n_vocab=32)
GLM = ToyShape(n_layer=4, n_embd=16, n_vocab=32, model_id=2, start=4, gates_per_token=4)
PROMPT, OTHER = [3, 1, 4, 1, 5, 9], [2, 7, 1, 8]
Operation = Callable[[TpLeader, int, int], Any]
FAULT = "out of memory"


class Failing(ToyTpEngine):
    """Fails in its n-th run or draft: behind the last gate, or before the first."""

    left = 0
    before: Callable[[], None] | None = None

    def run(self, state: Any, tokens: Any, gates: Any, images: Any = ()) -> Any:
        self.left -= 1
        if self.left == 0 and self.before is not None:
            self.before()
            raise EngineError(FAULT)
        return self._unless(super().run(state, tokens, gates, images))

    def draft(self, state: Any, hidden: Any, token: int, gates: Any) -> int:
        self.left -= 1
        found: int = self._unless(super().draft(state, hidden, token, gates))
        return found

    def _unless(self, found: Any) -> Any:
        if self.left == 0:
            raise EngineError(FAULT)
        return found


OPERATIONS: dict[str, tuple[ToyShape, int, tuple[int, ...], Operation]] = {
    "eval": (FLASH, 1, (1,), lambda leader, a, _b: leader.eval(a, 7)),
    "batch": (
        FLASH, 2, (1, 2),
        lambda leader, a, b: leader.batch([(a, 7), (b, 8)]),
    ),
    "mixed": (
        FLASH, 2, (1, 2),
        lambda leader, a, b: leader.mixed(a, [*PROMPT, 1, 2, 3, 4], [(b, 8)]),
    ),
    "block": (
        FLASH, 1, (1,),
        lambda leader, a, _b: leader.verify(a, [7, 8, 9], lambda _rows: (KEEP_ALL, 0)),
    ),
    "replay": (
        FLASH, 2, (1,),
        lambda leader, a, _b: leader.verify(a, [7, 8, 9], lambda _rows: (REPLAY, 1)),
    ),
    "no halves": (GLM, 1, (1,), lambda leader, a, _b: leader.eval(a, 7)),
    "mtp": (GLM, 2, (1,), lambda leader, a, _b: leader.mtp(a, 7, 1)),
}  # fmt: skip


def engine(shape: ToyShape, number: int) -> ToyTpEngine:
    return Failing(shape, number) if number == 0 else ToyTpEngine(shape, number)


def opened(found: Pair) -> tuple[int, int]:
    first, second = found.leader.create(), found.leader.create()
    found.leader.sync(first, PROMPT)
    found.leader.sync(second, OTHER)
    return first, second


def fail(found: Pair, name: str, before: Callable[[], None] | None = None) -> list[int]:
    """Let one operation fail; return the sessions that it has to empty."""
    _, run, sessions, operation = OPERATIONS[name]
    both = opened(found)
    own: Any = found.leader._engine
    own.left, own.before = run, before
    with pytest.raises(EngineError, match=FAULT):
        operation(found.leader, *both)
    return [both[number - 1] for number in sessions]


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_failure_behind_the_last_gate_empties_both_ranks(name: str) -> None:
    shape = OPERATIONS[name][0]
    with pair(lambda number: engine(shape, number), options()) as found:
        emptied = fail(found, name)
        third = found.leader.create()  # answered behind all that was said before
        assert found.worker is not None
        for runner in (found.leader.rank.runner, found.worker.rank.runner):
            for known in (1, 2):
                held = runner[known].tokens
                assert held == ([] if known in emptied else [PROMPT, OTHER][known - 1])
        # the same prompt again, and in a session that never failed
        again = found.leader.sync(emptied[0], PROMPT)
        fresh = found.leader.sync(third, PROMPT)
        assert again is not None
        assert fresh is not None
        assert again.tobytes() == fresh.tobytes()
        ours, theirs = (found.leader.eval(n, 5) for n in (emptied[0], third))
        assert ours.tobytes() == theirs.tobytes()
    assert found.worker_error is None


def test_a_failure_that_ends_the_pair_is_told_all_the_same() -> None:
    """In front of a gate the worker cannot go on; here its data connection ends."""
    with pair(lambda number: engine(FLASH, number), options()) as found:

        def hang_up() -> None:
            transport: Any = found.leader.rank.transport
            transport._data.shutdown(socket.SHUT_RDWR)

        (known,) = fail(found, "eval", hang_up)
        assert found.leader.rank.runner[known].tokens == []
        assert any("the pair ended as well" in line for line in found.log)
    assert "gate transport failed" in str(found.worker_error)
