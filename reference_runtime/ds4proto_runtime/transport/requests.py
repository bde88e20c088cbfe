"""Posting requests and taking completions, for whichever phase is open."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from ds4proto.link.ds4t_rdma_windows import Post, RdmaFailed, rdma_failed
from ds4proto.link.ds4t_texts import text_of
from ds4proto.link.rdma_attributes import DEPTH_CAP
from ds4proto_runtime.transport.failures import completion_words, post_words
from ds4proto_runtime.transport.setup import Brought
from ds4proto_runtime.transport.sockets import PairSockets
from ds4proto_runtime.transport.verbs import VerbsError
from ds4proto_runtime.transport.waits import Clock, Steps

_FLUSH_SECONDS: Final = 0.05
"""How long a failed queue pair is asked for what was still posted."""
_SEQ_LIMIT: Final = 1 << 48
Late = Callable[[float], RdmaFailed]


class Phase(NamedTuple):
    """Who takes completions: (wr_id, bytes, now) of receives, counts of sends."""

    received: Callable[[int, int, float], object]
    sent: Callable[[int], object]


class Requests:
    """One queue pair's requests.

    Attributes
    ----------
    granted : int
        Receives that the pair was granted, capped.
    phase : Phase
    posted_at : dict
        Row gate to the time its receive was posted.
    unseen : int
        Requests whose completion is due and has not come.
    sent_at : float or None
        When the first send since ``begin`` was posted.
    """

    def __init__(self, brought: Brought, sockets: PairSockets, clock: Clock) -> None:
        self._pair = brought.pair
        self._memory = brought.memory
        self._signal_all = brought.attributes.signal_all
        self._sockets = sockets
        self._clock = clock
        self._chains: deque[int] = deque()
        self.granted = min(brought.pair.granted[1], DEPTH_CAP)
        self.phase = Phase(lambda *_: None, lambda _: None)
        self.posted_at: dict[int, float] = {}
        self.unseen = 0
        self.sent_at: float | None = None
        self.sent_bytes = 0
        self.last = clock.now()

    def begin(self, now: float) -> None:
        """Forget what the gate before did."""
        self.sent_at = None
        self.sent_bytes = 0
        self.last = now

    def adopt(self, posts: Iterable[Post], now: float) -> None:
        """Count receives that the bring-up has posted."""
        for post in posts:
            self.unseen += 1
            if post.wr_id:
                self.posted_at[post.wr_id] = now

    def receive(self, posts: Sequence[Post]) -> None:
        """Post receives, all or none.

        Raises
        ------
        RdmaFailed
            With how many were taken.
        """
        if not posts:
            return
        now = self._clock.now()
        try:
            self._pair.post_receives(self._memory, posts)
        except VerbsError as error:
            words = post_words(error, "receives", len(posts), self.granted)
            raise rdma_failed(
                "DS4T-RDMA-14",
                f"ds4-tp: {words}",
                f"{len(posts)} receives posted",
                f"{error.done} posted",
                now,
                "the provider advertises a deeper queue than it accepts: use "
                "--transport tcp, or another device",
            ) from None
        self.unseen += len(posts)
        for post in posts:
            if 0 < post.wr_id < _SEQ_LIMIT:
                self.posted_at[post.wr_id] = now

    def send(self, posts: Sequence[Post], due: float) -> Steps[None]:
        """Post sends; where the queue is full, take completions and go on.

        Raises
        ------
        RdmaFailed
            If nothing could be posted by ``due``.
        """
        if self.sent_at is None:
            self.sent_at = self._clock.now()
        left = list(posts)
        while left:
            done = len(left)
            words = ""
            try:
                self._pair.post_sends(self._memory, left)
            except VerbsError as error:
                done = error.done
                granted = self._pair.granted[0]
                words = post_words(error, "sends", len(left), granted)
            if done:
                self._note(left[:done])
                del left[:done]
            if not left or self.reap():
                continue
            now = self._clock.now()
            if not self._chains or now >= due:
                raise rdma_failed(
                    "DS4T-RDMA-14",
                    f"ds4-tp: {words}",
                    "every send posted",
                    f"{len(left)} are left",
                    now,
                    "the provider accepts fewer sends than it granted",
                )
            yield due

    def _note(self, posts: Sequence[Post]) -> None:
        self.sent_bytes += sum(post.length for post in posts)
        if self._signal_all:
            self._chains.extend([1] * len(posts))
            self.unseen += len(posts)
        else:
            self._chains.append(len(posts))
            self.unseen += 1

    def reap(self) -> int:
        """Take completions and hand them to the open phase; return how many.

        Raises
        ------
        RdmaFailed
            For a completion with an error, or one that the phase refuses.
        """
        found = self._pair.poll(64)
        if not found:
            return 0
        now = self._clock.now()
        self._clock.moved += 1
        self.last = now
        self.unseen -= len(found)
        for entry in found:
            if entry.status != "SUCCESS":
                raise rdma_failed(
                    "DS4T-RDMA-27",
                    f"ds4-tp: {completion_words(entry)}",
                    "SUCCESS",
                    entry.status,
                    now,
                    "look at cable, port and GID index of both ranks",
                )
            if entry.receive:
                self.phase.received(entry.wr_id, entry.nbytes, now)
            else:
                self.phase.sent(self._chains.popleft() if self._chains else 1)
        return len(found)

    def wait(self, due: float, late: Late) -> Steps[None]:
        """Take completions, or wait for some.

        Raises
        ------
        RdmaFailed
            ``late(now)`` from ``due`` on; at once when the peer is gone.
        """
        if self.reap():
            return
        now = self._clock.now()
        if now >= due:
            raise late(now)
        if self._sockets.peer_gone(now):
            raise rdma_failed(
                "DS4T-RDMA-66",
                text_of("DS4T-RDMA-66"),
                "the peer's message",
                "the control connection ended",
                now,
                "look at the peer's last lines",
            )
        yield self._sockets.until(due)

    def flush(self) -> Steps[int | None]:
        """Put the queue pair into ERR and count what comes back.

        A request that neither completed nor is flushed ran without a completion: that
        is how a queue that holds fewer than it was granted shows.

        Returns
        -------
        int or None
            None where the provider would not.
        """
        count = 0
        try:
            self._pair.to_error()
            due = self._clock.now() + _FLUSH_SECONDS
            while count < self.unseen:
                found = len(self._pair.poll(64))
                count += found
                if not found:
                    if self._clock.now() >= due:
                        break
                    yield due
        except VerbsError:
            return None
        return count
