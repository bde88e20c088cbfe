"""One rank's device, memory and queue pair: chosen, made, and made again."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import Final

from ds4proto.link.ds4t_identity import TpSettings
from ds4proto.link.ds4t_rdma_bulk import bulk_over_rdma
from ds4proto.link.ds4t_rdma_info import RdmaInfo
from ds4proto.link.ds4t_rdma_windows import pieces, slab_region
from ds4proto.link.rdma_attributes import (
    DECODE_WINDOW,
    DEPTH_CAP,
    SEND_CHAIN,
    QpAttributes,
)
from ds4proto.link.rdma_choice import Choice
from ds4proto.link.rdma_lint import lint_attributes
from ds4proto.schema.slab import ROWS
from ds4proto_runtime.transport.choosing import Say, require
from ds4proto_runtime.transport.options import RdmaOptions
from ds4proto_runtime.transport.verbs import (
    PSN_MASK,
    Memory,
    OpenDevice,
    Provider,
    QueuePair,
    VerbsError,
    create_queue_pair,
)

_ATTEMPT_PSN: Final = 0x1000
"""What each further set-up adds to the first packet number (DS4T-RDMA-22)."""


def completions_possible(
    settings: TpSettings, attributes: QpAttributes, granted: int
) -> int:
    """Return the most completions that one phase can raise between two polls.

    Parameters
    ----------
    granted : int
        Receives that the queue pair was granted.
    """

    def signalled(sends: int) -> int:
        return sends if attributes.signal_all else -(-sends // SEND_CHAIN)

    chunks = len(pieces(0, settings.identity.vector_bytes, attributes.message))
    window = DECODE_WINDOW * chunks
    block = ROWS * chunks
    phases = [window + signalled(window), 2 * block + signalled(block)]
    if bulk_over_rdma(settings):
        size = min(granted, DEPTH_CAP, attributes.bulk_window)
        phases.append(size + signalled(size))
    return max(phases)


class OwnSide:
    """What a set-up makes on this side.

    Parameters
    ----------
    provider, options, settings
    buffer : memoryview
        The slab; it is registered whole, once a device.
    address : str
        Local address of the control connection.
    before : Choice, optional
        Of an earlier set-up; compared, never used (DS4T-RDMA-38).

    Attributes
    ----------
    device, memory, pair, choice, attributes, info
        What was made last.
    """

    device: OpenDevice
    memory: Memory
    pair: QueuePair

    def __init__(
        self,
        provider: Provider,
        options: RdmaOptions,
        settings: TpSettings,
        buffer: memoryview,
        address: str,
        *,
        gate_seconds: float,
        before: Choice | None,
        say: Say,
    ) -> None:
        self._provider = provider
        self._options = options
        self._settings = settings
        self._buffer = buffer
        self._address = address
        self._gate_seconds = gate_seconds
        self._say = say
        self._before = before
        self._open = self._made = self._linted = False
        self.attributes = QpAttributes()
        self.info = RdmaInfo(0, 0, 0, bytes(16))

    @property
    def choice(self) -> Choice:
        """Device and GID entry in use."""
        assert self._before is not None
        return self._before

    def close(self) -> None:
        """Destroy everything made, queue pair first."""
        if self._made:
            self._made = False
            self.pair.close()
        if self._open:
            self._open = False
            self.memory.close()
            self.device.close()

    def prepare(self, setup_attempt: int) -> None:
        """Choose anew, make completion queue and queue pair, bring it to INIT.

        A port that went stale while idle refuses the queue pair; it is opened anew
        once, before the peer has been told anything.

        Raises
        ------
        NoRdmaError
        VerbsError
        """
        if self._made:
            self._made = False
            self.pair.close()
        try:
            self._make(setup_attempt)
        except VerbsError as error:
            stale = error.call == "INIT" or (
                error.call == "create_qp" and error.number == errno.EIO
            )
            if not stale:
                raise
            self._say(
                f"ds4-tp: stale link: {error}; opening {self.choice.device.name} anew "
                "and setting the queue pair up again"
            )
            self.close()
            self._make(setup_attempt)

    def _make(self, setup_attempt: int) -> None:
        choice = require(
            self._provider, self._options, self._address, self._before, self._say
        )
        self._before = choice
        if not self._open:
            self.device = self._provider.open(choice.device.name)
            self._open = True
            self.memory = self.device.register(self._buffer)
        self._create()
        pair = self.pair
        self._check(pair)
        pair.to_init()
        if not self._linted:
            self._linted = True
            for advice in lint_attributes(self.attributes, self._gate_seconds):
                self._say(f"ds4-tp: note: {advice}")
        psn = (os.getpid() ^ id(self)) + _ATTEMPT_PSN * (setup_attempt - 1)
        self.info = RdmaInfo(
            pair.number,
            psn & PSN_MASK,
            choice.device.active_mtu,
            choice.entry.gid,
            choice.device.lid,
            choice.device.link_layer,
            self.attributes.qp_type == "RC",
            self.attributes.message,
        )

    def _create(self) -> None:
        dialect, system = self._settings.dialect, self._provider.system
        name = self.choice.device.name
        self.attributes = self._options.attributes(dialect, system, name)
        try:
            self.pair = create_queue_pair(self.device, self.attributes)
        except VerbsError as error:
            refused = error.call == "create_qp" and error.number != errno.EMFILE
            free = dialect == "v9w" and self._options.qp_type is None
            if not (refused and free and self.attributes.qp_type == "UC"):
                raise
            self._say(f"ds4-tp: UC was refused ({error.reason}), using RC")
            self._options = replace(self._options, qp_type="RC")
            self.attributes = self._options.attributes(dialect, system, name)
            self.pair = create_queue_pair(self.device, self.attributes)
        self._made = True

    def _check(self, pair: QueuePair) -> None:
        """Refuse before the start what would fail in the middle of a run."""
        settings, attributes = self._settings, self.attributes
        barriers = settings.rules.decode_barrier
        if bulk_over_rdma(settings) and not barriers and attributes.qp_type == "UC":
            raise VerbsError(
                "create_qp",
                0,
                f"{settings.dialect} has no barrier byte, and on UC its bulk messages "
                "are lost when they come before their receives; use a device with RC, "
                "or --transport tcp",
            )
        worst = completions_possible(settings, attributes, pair.granted[1])
        if worst > pair.cq_entries:
            reason = f"{worst} completions possible, queue holds {pair.cq_entries}"
            raise VerbsError("create_cq", 0, reason)
        window = DECODE_WINDOW * len(
            pieces(0, settings.identity.vector_bytes, attributes.message)
        )
        if window > pair.granted[1]:
            reason = f"a decode window posts {window}, granted were {pair.granted[1]}"
            raise VerbsError("create_qp", errno.ENOMEM, reason)

    def areas(self, size: int) -> tuple[int, int, int]:
        """Return where the warm-up sends from and receives to, and its bytes."""
        out, into = (slab_region(self._settings, n) for n in ("batch_out", "batch_in"))
        return out.offset, into.offset, min(size, out.size)
