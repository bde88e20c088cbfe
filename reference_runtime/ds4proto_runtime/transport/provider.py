"""How the command line gets its RDMA transport."""

from __future__ import annotations

from ds4proto.link.ds4t_texts import TpRole
from ds4proto_runtime.transport.choosing import Say
from ds4proto_runtime.transport.options import RdmaOptions
from ds4proto_runtime.transport.pyverbs_provider import PyverbsProvider
from ds4proto_runtime.transport.rdma import RdmaTransport


def open_provider(
    *,
    device: str | None = None,
    gid_index: int | None = None,
    warm_up: bool = True,
    verify_window: bool = True,
    first_sender: TpRole = "tp-leader",
    explicit: bool = False,
    say: Say | None = None,
) -> RdmaTransport:
    """Return the RDMA transport of a rank; nothing is opened or imported yet.

    Parameters
    ----------
    first_sender : {"tp-leader", "tp-worker"}
        See ``RdmaOptions``.
    explicit : bool
        ``--transport rdma``: an unusable device ends the start-up with a verdict;
        otherwise it means TCP, said in one line.
    say : callable, optional
        Takes log lines; default: standard error.
    """
    if say is None:
        from ds4proto_runtime.tp.rank import log_line

        say = log_line
    options = RdmaOptions(
        transport="rdma" if explicit else "auto",
        device=device,
        gid_index=gid_index,
        warm_up=warm_up,
        verify_window=verify_window,
        first_sender=first_sender,
    )
    return RdmaTransport(PyverbsProvider(), options, say=say)
