"""What a RoCE capture tells about a run: lost, late and repeated messages, by gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ds4proto.printable import counted
from ds4proto.trace.roce_plan import SIDES, Expected, MessagePlan, Setup

if TYPE_CHECKING:
    from ds4proto.trace.roce import RoceFlow, RoceMessage

MANY = 16
"""Findings of one kind that are listed one by one."""
EARLY_SECONDS = 0.1
"""A first message so long before the peer's first one is suspect on UC."""


def findings_of(flows: Sequence[RoceFlow], plan: MessagePlan) -> list[str]:
    """Return one line for each thing that went wrong, in the order of the flows."""
    found: list[str] = []
    for flow in flows:
        found += _repeated(flow)
        found += _absent(flow)
    for setup in plan.setups:
        found += _silent(setup, flows)
        found += _early(setup, flows, plan)
    return found


def way(flow: RoceFlow) -> str:
    """Return ``leader>worker``, or the addresses of a flow that has no name."""
    if not flow.side:
        return f"{flow.src}>{flow.dst}"
    return f"{flow.side}>{'worker' if flow.side == 'leader' else 'leader'}"


def named(flow: RoceFlow, message: RoceMessage) -> str:
    """Return the gate of a message, or its packet number."""
    text = f"psn {message.psn:#08x}" if message.gate is None else str(message.gate)
    return f"{way(flow)} {text}"


def _repeated(flow: RoceFlow) -> list[str]:
    found = []
    for message in flow.messages:
        if message.rnr:
            span = (message.acked or message.last_time) - message.time
            end = "delivered" if message.acked is not None else "never acknowledged"
            found.append(
                f"late: {named(flow, message)}: {message.rnr} RNR NAKs, "
                f"{message.detail}: the receive was posted {span * 1e3:.1f} ms after "
                f"the message came; {end}"
            )
        elif message.sends > 1 and message.acked is None:
            span = message.last_time - message.time
            found.append(
                f"lost: {named(flow, message)}: sent {counted(message.sends, 'time')} "
                "in "
                f"{span:.2f} s without an acknowledgement: packets of the other "
                "direction do not come back"
            )
        elif message.naks:
            found.append(
                f"repeated: {named(flow, message)}: {message.naks} NAKs, "
                f"{message.detail}"
            )
        elif message.sends > 1:
            found.append(
                f"repeated: {named(flow, message)}: sent "
                f"{counted(message.sends, 'time')}, "
                f"acknowledged after {((message.acked or 0) - message.time) * 1e3:.1f}"
                " ms"
            )
        if not message.whole:
            found.append(
                f"incomplete: {named(flow, message)}: "
                f"{counted(message.packets, 'packet')} of "
                f"{counted(message.nbytes, 'byte')}, the rest was not captured"
            )
    if len(found) > MANY:
        found[MANY:] = [f"{len(found) - MANY} more on {way(flow)}"]
    return found


def _absent(flow: RoceFlow) -> list[str]:
    found = [
        f"lost: {way(flow)} {expected}: its packets are not in the capture, later "
        "ones are"
        for expected in flow.lost[:MANY]
    ]
    if len(flow.lost) > MANY:
        found.append(f"{len(flow.lost) - MANY} more on {way(flow)}")
    if flow.unnamed:
        found.append(
            f"note: {way(flow)}: no names from {flow.unnamed} on: the commands do not "
            "tell its length"
        )
    elif flow.missing:
        found.append(_unsent(way(flow), flow.missing))
    return found


def _unsent(direction: str, missing: Sequence[Expected]) -> str:
    count = len(missing)
    rest = f", and {count - 1} after it" if count > 1 else ""
    return f"not sent: {direction} {missing[0]}{rest}"


def _silent(setup: Setup, flows: Sequence[RoceFlow]) -> list[str]:
    """Name directions in which not one packet was captured."""
    found = []
    for side in SIDES:
        known = any(f.setup is setup and f.side == side for f in flows)
        due = setup.expected[side]
        if known or not due:
            continue
        other = "worker" if side == "leader" else "leader"
        rest = f", and {len(due) - 1} after it" if len(due) > 1 else ""
        found.append(
            f"lost: {side}>{other} {due[0]}{rest}: not one packet of this direction "
            "is in the capture"
        )
    return found


def _early(setup: Setup, flows: Sequence[RoceFlow], plan: MessagePlan) -> list[str]:
    """Name a first UC message that was sent before its receive can have been there.

    UC loses it without a trace on the wire. What shows is its consequence: the token
    has all of its messages both ways, and the worker never answers it.
    """
    mine = {f.side: f for f in flows if f.setup is setup and f.messages}
    if plan.barriers or len(mine) < len(SIDES):
        return []
    if any(f.transport != "UC" for f in mine.values()):
        return []
    order = sorted(mine.values(), key=lambda f: f.messages[0].time)
    early, late = order
    lead = late.messages[0].time - early.messages[0].time
    open_tokens = [seq for seq, answered in setup.tokens if not answered]
    if lead < EARLY_SECONDS or not open_tokens:
        return []
    token = open_tokens[0]
    whole = all(
        any(m.gate is not None and m.gate.seq == token for m in f.messages)
        for f in mine.values()
    )
    if not whole:
        return []
    first = early.messages[0]
    return [
        f"lost: {named(early, first)}: on the wire {lead * 1e3:.0f} ms before "
        f"{way(late)} sent anything, and the token was never answered although every "
        "message crossed: no receive was posted yet, UC drops such a message in "
        f"silence, and each later one was taken a gate early; gate seq {token} then "
        "timed out"
    ]


__all__ = ["findings_of", "named", "way"]
