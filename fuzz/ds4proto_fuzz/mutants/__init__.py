"""Peers with planted faults: what the fuzzer has to find, and proof that it does.

``python -m ds4proto_fuzz.mutants ROLE NAME HOST PORT`` starts one.
"""

from __future__ import annotations

import shlex
import sys

__all__ = ["spec_of"]


def spec_of(role: str, name: str) -> str:
    """Return the ``--peer`` text that starts a peer with a planted fault."""
    words = (sys.executable, "-m", "ds4proto_fuzz.mutants", role, name)
    return "exec:" + shlex.join(words) + " {host} {port}"
