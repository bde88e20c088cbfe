"""pyverbs itself: loading it, its errors, and GID tables with holes."""

from __future__ import annotations

import sys
from typing import Any, Final

from ds4proto.link.rdma_choice import GidEntry, GidKind
from ds4proto_runtime.transport.verbs import Call, NoLibraryError, VerbsError

LIBRARY: Final = "libibverbs.so.1"
PORT: Final = 1
_KINDS: Final[dict[int, GidKind]] = {0: "IB", 1: "RoCE v1", 2: "RoCE v2"}
"""As query_gid_ex and query_gid_table count them; query_gid_type counts otherwise."""
_GID_PLACES: Final = 256


def load() -> Any:
    """Import pyverbs.

    Raises
    ------
    NoLibraryError
    """
    if not sys.platform.startswith("linux"):
        raise NoLibraryError("pyverbs (Linux alone)")
    try:
        import pyverbs.addr
        import pyverbs.cq
        import pyverbs.device
        import pyverbs.enums
        import pyverbs.mr
        import pyverbs.pd
        import pyverbs.pyverbs_error
        import pyverbs.qp
        import pyverbs.wr
    except ImportError as error:
        raise NoLibraryError("pyverbs", LIBRARY, str(error)) from None
    return pyverbs


class Guard:
    """Turns pyverbs' exceptions of one call into VerbsError."""

    def __init__(self, verbs: Any, call: Call) -> None:
        self._errors = verbs.pyverbs_error.PyverbsError
        self._call: Call = call

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, self._errors):
            raise translated(self._call, error) from None


def translated(call: Call, error: BaseException, done: int = 0) -> VerbsError:
    """Return the error of a call that pyverbs refused."""
    number = int(getattr(error, "error_code", 0) or 0)
    text = str(error).partition(". Errno:")[0].strip()
    return VerbsError(call, max(number, 0), text, done=done)


def read_gids(context: Any, verbs: Any, length: int) -> tuple[GidEntry, ...]:
    """Read a GID table that may have holes, zero entries, or raise in the middle.

    Parameters
    ----------
    context : pyverbs Context, or anything with its query methods
    length : int
        Places of the table.
    """
    errors: Any = verbs.pyverbs_error.PyverbsError
    try:
        return tuple(
            GidEntry(int(e.gid_index), raw_gid(e.gid_str), _kind(int(e.gid_type)))
            for e in context.query_gid_table(length)
        )
    except (errors, AttributeError, TypeError):
        pass  # older libraries: one by one
    found = []
    for index in range(min(length, _GID_PLACES)):
        try:
            entry = context.query_gid_ex(PORT, index)
            raw = raw_gid(entry.gid_str)
            kind = _kind(int(entry.gid_type))
        except (errors, AttributeError):
            try:
                raw, kind = raw_gid(context.query_gid(PORT, index).gid), ""
            except errors:
                continue
            if not any(raw):
                continue  # a hole reads as zeros there
        found.append(GidEntry(index, raw, kind))
    return tuple(found)


def _kind(code: int) -> GidKind:
    return _KINDS.get(code, "")


def raw_gid(value: Any) -> bytes:
    """Return 16 bytes of what pyverbs gives for a GID: text with colons, or a GID."""
    value = value() if callable(value) else value
    text = value if isinstance(value, str) else str(value.gid)
    return bytes.fromhex(text.replace(":", ""))
