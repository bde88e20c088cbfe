"""Verbs through pyverbs (extra ``rdma``, Linux). pyverbs is imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from ds4proto.link.rdma_attributes import QpAttributes
from ds4proto.link.rdma_choice import Device, PortState
from ds4proto_runtime.transport.pyverbs_base import (
    PORT,
    Guard,
    load,
    read_gids,
    translated,
)
from ds4proto_runtime.transport.verbs import (
    Call,
    Completion,
    Lost,
    Memory,
    Post,
    Status,
    VerbsError,
)

_STATES: Final[dict[int, PortState]] = {
    0: "NOP", 1: "DOWN", 2: "INIT", 3: "ARMED", 4: "ACTIVE", 5: "ACTIVE_DEFER",
}  # fmt: skip
_STATUS: Final[dict[int, Status]] = {
    0: "SUCCESS",
    1: "LOC_LEN_ERR",
    2: "LOC_QP_OP_ERR",
    4: "LOC_PROT_ERR",
    5: "WR_FLUSH_ERR",
    9: "REM_INV_REQ_ERR",
    10: "REM_ACCESS_ERR",
    11: "REM_OP_ERR",
    12: "RETRY_EXC_ERR",
    13: "RNR_RETRY_EXC_ERR",
}
_RECEIVE_BIT: Final = 128
_COUNTERS: Final = ("hw_counters", "counters")


class PyverbsProvider:
    """The verbs library of this machine, through pyverbs."""

    name = "pyverbs"
    system: Literal["linux", "macos"] = "linux"

    def devices(self) -> tuple[Device, ...]:
        """List devices with port 1 and its GID table; an empty tuple for none."""
        verbs = load()
        try:
            found = verbs.device.get_device_list()
        except verbs.pyverbs_error.PyverbsError:
            return ()  # without RDMA in the kernel the list itself is an error
        names = [d.name.decode() for d in found]
        listed = []
        for name in names:
            with suppress(VerbsError):
                device = PyverbsDevice(verbs, name)
                listed.append(device.query())
                device.close()
        return tuple(listed)

    def open(self, name: str) -> PyverbsDevice:
        """Open a device."""
        return PyverbsDevice(load(), name)


class PyverbsMemory:
    """A memory region over somebody else's buffer."""

    def __init__(self, verbs: Any, pd: Any, buffer: memoryview, access: int) -> None:
        # the array keeps the buffer alive for as long as it is registered
        self._array = np.frombuffer(buffer, np.uint8)
        self.address = int(self._array.ctypes.data)
        self.nbytes = int(self._array.nbytes)
        with Guard(verbs, "reg_mr"):
            self.region = verbs.mr.MR(pd, self.nbytes, access, address=self.address)
        self.key = int(self.region.lkey)

    def close(self) -> None:
        """Deregister it."""
        self.region.close()


class PyverbsDevice:
    """An open device with a protection domain."""

    def __init__(self, verbs: Any, name: str) -> None:
        self._verbs = verbs
        self.name = name
        with Guard(verbs, "open"):
            self._context = verbs.device.Context(name=name)
        self._pd: Any = None

    def query(self) -> Device:
        """Read port and GID table; holes are left out, errors inside it too."""
        with Guard(self._verbs, "query_gid"):
            port = self._context.query_port(PORT)
        return Device(
            self.name,
            _STATES.get(int(port.state), "NOP"),
            int(port.link_layer),
            int(port.active_mtu),
            int(port.lid),
            read_gids(self._context, self._verbs, int(port.gid_tbl_len)),
            int(port.gid_tbl_len),
        )

    def register(self, buffer: memoryview) -> PyverbsMemory:
        """Register memory for local write alone: nothing remote is granted."""
        enums = self._verbs.enums
        if self._pd is None:
            with Guard(self._verbs, "alloc_pd"):
                self._pd = self._verbs.pd.PD(self._context)
        return PyverbsMemory(
            self._verbs, self._pd, buffer, enums.IBV_ACCESS_LOCAL_WRITE
        )

    def create(
        self, attributes: QpAttributes, depth: tuple[int, int]
    ) -> PyverbsQueuePair:
        """Make a completion queue and a queue pair."""
        if self._pd is None:
            with Guard(self._verbs, "alloc_pd"):
                self._pd = self._verbs.pd.PD(self._context)
        return PyverbsQueuePair(
            self._verbs, self._context, self._pd, attributes, depth, self.name
        )

    def close(self) -> None:
        """Close it."""
        if self._pd is not None:
            self._pd.close()
        self._context.close()


class PyverbsQueuePair:
    """A queue pair of the machine; see ``verbs.QueuePair``."""

    def __init__(
        self,
        verbs: Any,
        context: Any,
        pd: Any,
        attributes: QpAttributes,
        depth: tuple[int, int],
        device: str,
    ) -> None:
        self._verbs = verbs
        self._attributes = attributes
        self._device = device
        self._open = True
        enums, qp = verbs.enums, verbs.qp
        with Guard(verbs, "create_cq"):
            self._cq = verbs.cq.CQ(context, attributes.cq_entries, None, None, 0)
        self.cq_entries = int(self._cq.cqe)
        kind = enums.IBV_QPT_RC if attributes.qp_type == "RC" else enums.IBV_QPT_UC
        cap = qp.QPCap(
            max_send_wr=depth[0],
            max_recv_wr=depth[1],
            max_send_sge=attributes.max_sge,
            max_recv_sge=attributes.max_sge,
            max_inline_data=attributes.inline,
        )
        init = qp.QPInitAttr(
            qp_type=kind, scq=self._cq, rcq=self._cq, cap=cap, sq_sig_all=0
        )
        try:
            with Guard(verbs, "create_qp"):
                self._qp = qp.QP(pd, init)
        except VerbsError:
            self._cq.close()
            raise
        self.number = int(self._qp.qp_num)
        self.granted = self._granted(depth)
        self._before = self._read_counters()
        self._receive, self._send = verbs.wr.RecvWR, verbs.wr.SendWR
        self._sge = verbs.wr.SGE
        self._opcode, self._signal = enums.IBV_WR_SEND, enums.IBV_SEND_SIGNALED

    def _granted(self, asked: tuple[int, int]) -> tuple[int, int]:
        """Return the depths that were granted, which may exceed those asked for."""
        with suppress(self._verbs.pyverbs_error.PyverbsError, AttributeError):
            _, init = self._qp.query(self._verbs.enums.IBV_QP_CAP)
            return int(init.max_send_wr), int(init.max_recv_wr)
        return asked

    # -- states ------------------------------------------------------------------

    def _modify(self, call: Call, attr: Any, mask: int) -> None:
        with Guard(self._verbs, call):
            self._qp.modify(attr, mask)

    def to_init(self) -> None:
        """RESET to INIT."""
        enums = self._verbs.enums
        attr = self._verbs.qp.QPAttr(
            qp_state=enums.IBV_QPS_INIT, port_num=self._attributes.port
        )
        attr.pkey_index = self._attributes.pkey_index
        attr.qp_access_flags = (
            enums.IBV_ACCESS_LOCAL_WRITE
            | enums.IBV_ACCESS_REMOTE_READ
            | enums.IBV_ACCESS_REMOTE_WRITE
        )
        mask = (
            enums.IBV_QP_STATE
            | enums.IBV_QP_PKEY_INDEX
            | enums.IBV_QP_PORT
            | enums.IBV_QP_ACCESS_FLAGS
        )
        self._modify("INIT", attr, mask)

    def to_rtr(
        self, *, qpn: int, psn: int, gid: bytes, lid: int, gid_index: int, mtu: int
    ) -> None:
        """INIT to RTR."""
        enums, addr = self._verbs.enums, self._verbs.addr
        a = self._attributes
        attr = self._verbs.qp.QPAttr(qp_state=enums.IBV_QPS_RTR)
        attr.path_mtu = mtu
        attr.dest_qp_num = qpn
        attr.rq_psn = psn
        route = addr.GlobalRoute(
            dgid=addr.GID(gid.hex(":", 2)), sgid_index=gid_index, hop_limit=a.hop_limit
        )
        attr.ah_attr = addr.AHAttr(gr=route, is_global=1, port_num=a.port, dlid=lid)
        mask = (
            enums.IBV_QP_STATE
            | enums.IBV_QP_AV
            | enums.IBV_QP_PATH_MTU
            | enums.IBV_QP_DEST_QPN
            | enums.IBV_QP_RQ_PSN
        )
        if a.qp_type == "RC":
            attr.max_dest_rd_atomic = a.rd_atomic
            attr.min_rnr_timer = a.min_rnr_timer
            mask |= enums.IBV_QP_MAX_DEST_RD_ATOMIC | enums.IBV_QP_MIN_RNR_TIMER
        self._modify("RTR", attr, mask)

    def to_rts(self, *, psn: int) -> None:
        """RTR to RTS."""
        enums, a = self._verbs.enums, self._attributes
        attr = self._verbs.qp.QPAttr(qp_state=enums.IBV_QPS_RTS)
        attr.sq_psn = psn
        mask = enums.IBV_QP_STATE | enums.IBV_QP_SQ_PSN
        if a.qp_type == "RC":
            attr.timeout, attr.retry_cnt = a.timeout, a.retry_cnt
            attr.rnr_retry, attr.max_rd_atomic = a.rnr_retry, a.rd_atomic
            mask |= (
                enums.IBV_QP_TIMEOUT
                | enums.IBV_QP_RETRY_CNT
                | enums.IBV_QP_RNR_RETRY
                | enums.IBV_QP_MAX_QP_RD_ATOMIC
            )
        self._modify("RTS", attr, mask)

    def to_error(self) -> None:
        """Flush what is posted."""
        enums = self._verbs.enums
        attr = self._verbs.qp.QPAttr(qp_state=enums.IBV_QPS_ERR)
        self._modify("ERR", attr, enums.IBV_QP_STATE)

    # -- requests ----------------------------------------------------------------

    def post_receives(self, memory: Memory, posts: Sequence[Post]) -> None:
        """Post receives in order."""

        def post(request: Post, sge: Any, _last: bool) -> None:
            self._qp.post_recv(self._receive(wr_id=request.wr_id, num_sge=1, sg=[sge]))

        self._post("post_recv", memory, posts, post)

    def post_sends(self, memory: Memory, posts: Sequence[Post]) -> None:
        """Post SENDs in order."""
        every = self._attributes.signal_all

        def post(request: Post, sge: Any, last: bool) -> None:
            self._qp.post_send(
                self._send(
                    wr_id=request.wr_id,
                    num_sge=1,
                    sg=[sge],
                    opcode=self._opcode,
                    send_flags=self._signal if every or last else 0,
                )
            )

        self._post("post_send", memory, posts, post)

    def _post(
        self,
        call: Call,
        memory: Memory,
        posts: Sequence[Post],
        post: Callable[[Post, Any, bool], None],
    ) -> None:
        assert isinstance(memory, PyverbsMemory)
        last = len(posts) - 1
        for done, request in enumerate(posts):
            self._inside(call, memory, request)
            sge = self._sge(memory.address + request.offset, request.length, memory.key)
            try:
                post(request, sge, done == last)
            except self._verbs.pyverbs_error.PyverbsError as error:
                raise translated(call, error, done) from None

    @staticmethod
    def _inside(call: Call, memory: PyverbsMemory, request: Post) -> None:
        end = request.offset + request.length
        if 0 <= request.offset <= end <= memory.nbytes:
            return
        raise VerbsError(
            call, 0, f"{request} lies outside the {memory.nbytes} bytes registered"
        )

    def poll(self, most: int = 16) -> list[Completion]:
        """Take completions."""
        with Guard(self._verbs, "poll_cq"):
            count, found = self._cq.poll(most)
        if not count:
            return []
        return [
            Completion(
                int(wc.wr_id),
                _STATUS.get(int(wc.status), "OTHER"),
                bool(int(wc.opcode) & _RECEIVE_BIT),
                int(wc.byte_len),
            )
            for wc in found[:count]
        ]

    # -- what a failure may tell -------------------------------------------------

    def evidence(self) -> tuple[Lost, ...]:
        """Return nothing: hardware keeps no list of what it dropped."""
        return ()

    def _read_counters(self) -> dict[str, int]:
        port = Path("/sys/class/infiniband", self._device, "ports", str(PORT))
        found = {}
        for folder in _COUNTERS:
            with suppress(OSError):
                for path in sorted((port / folder).iterdir()):
                    with suppress(OSError, ValueError):
                        found[path.name] = int(path.read_text())
        return found

    def counters(self) -> dict[str, int]:
        """Return the port's counters of trouble that have moved."""
        now = self._read_counters()
        words = ("err", "rnr", "retry", "nak", "out_of", "duplicate", "timeout", "drop")
        return {
            name: now[name] - before
            for name, before in self._before.items()
            if now.get(name, before) > before and any(w in name for w in words)
        }

    def close(self) -> None:
        """Destroy queue pair and completion queue."""
        if self._open:
            self._open = False
            self._qp.close()
            self._cq.close()
