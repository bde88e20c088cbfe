"""Before a cluster run: whether machines, model and options fit together.

`options_ds4d` and `options_ds4t` read ds4's command lines in ds4's words; `plan` holds
what is known of each machine; `rules` judges it all at once, without a network;
`propose` divides the layers. Modules load on use.
"""

from typing import Final

__all__ = ["MOST_SESSIONS"]

MOST_SESSIONS: Final = 1_000_000
"""Contexts at once that a preflight reckons with; more is a slip of the fingers."""
