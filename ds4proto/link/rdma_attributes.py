"""Queue pair attributes and constants of the RDMA data plane, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

QpType = Literal["UC", "RC"]

MESSAGE: Final = 16384
"""Bytes of one message; a vector is one or two (DS4T-RDMA-10)."""
MAX_VECTOR: Final = 2 * MESSAGE
"""Largest gate vector of a rank that offers RDMA (DS4T-RDMA-02)."""
DECODE_WINDOW: Final = 16
"""Row gates whose receives are posted (DS4T-RDMA-64)."""
DEPTH_CAP: Final = 4096
SEND_CHAIN: Final = 64
"""Sends of a bulk window that are posted in one chain."""
BULK_WINDOW: Final = 256
"""Messages of a bulk window at most (DS4T-RDMA-83)."""
BULK_REGION: Final = 64 * MESSAGE
"""A batch region below this sends bulk gates over TCP (DS4T-RDMA-80)."""
BULK_REGIONS: Final = {"v9w": 4 << 20}
"""Dialects that ask for a larger one (DS4T-RDMA-81)."""
BULK_MESSAGES: Final = {"v9w": 131072}
"""Dialects whose bulk messages are longer than the others (DS4T-RDMA-84)."""
CQ_ENTRIES: Final = 512
WARM_FILL: Final = 0x5A
WARM_ATTEMPTS: Final[dict[QpType, int]] = {"UC": 20, "RC": 1}
WARM_POLL_SECONDS: Final = 0.1
"""One attempt on UC; on RC it is the gate timeout (DS4T-RDMA-55)."""
SETUP_ATTEMPTS: Final[dict[QpType, int]] = {"UC": 4, "RC": 1}
"""Queue pairs tried in all (DS4T-RDMA-58)."""

BULK_ID: Final = 1 << 63
"""Work request ids of bulk and drain; the low bits are index + 1."""
WARM_ID: Final = 1 << 62
VERIFY_ID: Final = 1 << 61

MTU_BYTES: Final = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
"""Verbs numbers of path MTUs."""
MTU_1024: Final = 3
INFINIBAND, ETHERNET = 1, 2
"""Verbs numbers of link layers."""

RNR_MILLISECONDS: Final = (
    655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12,
    0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
    2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72,
    40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
)  # fmt: skip
"""What each number of min_rnr_timer stands for; 0 is the longest, not none."""


@dataclass(frozen=True, slots=True)
class QpAttributes:
    """How a queue pair is created and brought to RTS.

    Attributes
    ----------
    qp_type : {"UC", "RC"}
    depths : tuple of (int, int)
        (send, receive) requests to ask for, the next where one is refused.
    hop_limit, port, pkey_index : int
    max_sge, inline : int
    min_rnr_timer, timeout, retry_cnt, rnr_retry, rd_atomic : int
        RC alone; ``timeout`` n stands for 4.096 us * 2**n.
    signal_all : bool
        Every send asks for a completion (DS4T-RDMA-24).
    cq_entries : int
    message : int
        Largest decode message.
    bulk_message, bulk_window : int
        Bytes and number of messages in a bulk window.
    """

    qp_type: QpType = "UC"
    depths: tuple[tuple[int, int], ...] = ((1024, 1024), (256, 64))
    hop_limit: int = 1
    port: int = 1
    pkey_index: int = 0
    max_sge: int = 1
    inline: int = 0
    min_rnr_timer: int = 12
    timeout: int = 14
    retry_cnt: int = 3
    rnr_retry: int = 3
    rd_atomic: int = 1
    signal_all: bool = True
    cq_entries: int = CQ_ENTRIES
    message: int = MESSAGE
    bulk_message: int = MESSAGE
    bulk_window: int = BULK_WINDOW

    def path_mtu(self, mine: int, theirs: int) -> int:
        """Return the verbs number of the path MTU (DS4T-RDMA-18)."""
        return MTU_1024 if self.qp_type == "UC" else min(mine, theirs)


_V14 = QpAttributes()
_V7 = replace(_V14, depths=((256, 64),), signal_all=False, bulk_window=64)


def attributes_for(
    dialect: str,
    system: Literal["linux", "macos"],
    *,
    device: str = "",
    qp_type: QpType | None = None,
) -> QpAttributes:
    """Return the attributes that a rank of that dialect uses.

    Parameters
    ----------
    dialect : str
    system : {"linux", "macos"}
    device : str
        v9w takes RC at once, and another hop limit, on devices called ``mlx5_*``.
    qp_type : {"UC", "RC"}, optional
        Overrides the rule; v9w falls back to RC where UC is refused.
    """
    if dialect == "v7":
        return replace(_V7, qp_type=qp_type or "UC")
    if dialect == "v9w":
        mlx5 = device.startswith("mlx5_")
        return replace(
            _V7,
            qp_type=qp_type or ("RC" if mlx5 else "UC"),
            hop_limit=64 if mlx5 else 1,
            retry_cnt=7,
            rnr_retry=7,
            bulk_message=BULK_MESSAGES[dialect],
            bulk_window=32,
        )
    if dialect == "v14":
        default: QpType = "RC" if system == "linux" else "UC"
        return replace(_V14, qp_type=qp_type or default)
    return replace(_V14, qp_type=qp_type or "UC", signal_all=False)
