"""Who dials whom, by the role of the peer. One table, read by `open_peer`.

| peer | control | data |
| --- | --- | --- |
| worker (DS4D) | it dials us | we dial the port that its HELLO announces |
| coordinator (DS4D) | we dial it | it dials the port that our HELLO announces |
| tp-worker (DS4T) | it dials us | it dials us again, same address |
| tp-leader (DS4T) | we dial it | we dial it again, same address |
| codec | stdin and stdout | none |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from ds4proto.peer.api import ChannelName, Role

Link = Literal[
    "accept",  # on the address that the peer was told to dial
    "dial",  # the address that the peer listens on
    "dial-announced",  # a port that the peer names in its HELLO
    "accept-data",  # on our own data listener
    "stdio",
]


@dataclass(frozen=True, slots=True)
class Wiring:
    """How the connections to a peer of one role come about.

    Attributes
    ----------
    links : mapping
        Channel name -> how it is made.
    phases : mapping
        Channel name -> what we wait for meanwhile, for error texts.
    dial : str
        ``ds4d`` or ``ds4t``: whose retry rule applies.
    """

    links: Mapping[ChannelName, Link]
    phases: Mapping[ChannelName, str]
    dial: Literal["ds4d", "ds4t"]

    @property
    def tester_listens(self) -> bool:
        """Whether the peer dials us first."""
        return self.links["control"] == "accept"


WIRING: Final[Mapping[Role, Wiring]] = MappingProxyType(
    {
        "worker": Wiring(
            {"control": "accept", "data": "dial-announced"},
            {
                "control": "waiting for the worker's control connection",
                "data": "dialling the worker's data port",
            },
            "ds4d",
        ),
        "coordinator": Wiring(
            {"control": "dial", "data": "accept-data"},
            {
                "control": "dialling the coordinator",
                "data": "waiting for the coordinator to dial our data port",
            },
            "ds4d",
        ),
        "tp-worker": Wiring(
            {"control": "accept", "data": "accept"},
            {
                "control": "waiting for the tp-worker's control connection",
                "data": "waiting for the tp-worker's data connection",
            },
            "ds4t",
        ),
        "tp-leader": Wiring(
            {"control": "dial", "data": "dial"},
            {
                "control": "dialling the tp-leader for control",
                "data": "dialling the tp-leader for data",
            },
            "ds4t",
        ),
        "codec": Wiring(
            {"control": "stdio"},
            {"control": "starting the codec command"},
            "ds4d",
        ),
    }
)
