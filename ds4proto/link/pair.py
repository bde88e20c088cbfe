"""The shared state of one leader and worker: two connections in lockstep."""

from __future__ import annotations


class TpPair:
    """State that the control and the data connection of one TP pair share.

    Hand the same object to ``open_observer`` for both connections; the first one
    becomes the control connection, the second the data connection.
    """

    @property
    def has_control(self) -> bool:
        """True once a control connection was opened with this pair."""
        raise NotImplementedError

    @property
    def wants_data(self) -> bool:
        """True while the pair has a control connection and no data connection."""
        raise NotImplementedError
