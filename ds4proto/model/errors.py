"""The error of the GGUF reader."""

from __future__ import annotations


class GgufError(ValueError):
    """A GGUF header that cannot be trusted, refused before anything is allocated.

    Attributes
    ----------
    offset : int
        Byte offset in the file where the offending field starts.
    field : str
        Its name, e.g. ``"kv[3].key length"`` or ``"tensor 'output.weight' dims[1]"``.
    expected, found : str
        What a good file has there and what this one has.
    next_step : str
        What to do about it.
    source : str
        The file's name, or what stands for it.
    """

    def __init__(
        self,
        field: str,
        *,
        offset: int,
        expected: str,
        found: str,
        next_step: str,
        source: str = "",
    ) -> None:
        self.field = field
        self.offset = offset
        self.expected = expected
        self.found = found
        self.next_step = next_step
        self.source = source
        where = f"{source}: " if source else ""
        super().__init__(
            f"{where}{field} at byte {offset}: expected {expected}, found {found}. "
            f"Next: {next_step}"
        )
