"""The list of a browser: a line a frame, drawn only where it is on the screen."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ds4proto.cli._view_rows import RowStore
from ds4proto.printable import printable
from ds4proto.trace.text import render

__all__ = ["FrameList"]

_WIDTH: Final = 400
_CHOSEN: Final = Style(reverse=True)


def _style(name: str) -> Style:
    return Style.parse(name) if name else Style.null()


class FrameList(ScrollView, can_focus=True):
    """Frames, one line each; `Chosen` says which one the cursor is on.

    Parameters
    ----------
    store : RowStore
    gates : callable
        Says the row gates a token of a run.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", "next", show=False),
        Binding("up,k", "move(-1)", "previous", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("home,g", "edge(0)", "first", show=False),
        Binding("end,G", "edge(1)", "last", show=False),
        Binding("e", "broken", "next broken rule"),
    ]

    class Chosen(Message):
        """The cursor is on another frame."""

    def __init__(
        self, store: RowStore, gates: Callable[[int], int | None], *, id: str
    ) -> None:
        super().__init__(id=id)
        self._store = store
        self._gates = gates
        self.cursor = 0

    def show(self, *, last: bool = False) -> None:
        """Draw anew after the rows have changed; `last` puts the cursor at the end."""
        count = len(self._store.shown)
        self.virtual_size = Size(_WIDTH, count)
        place = count - 1 if last else min(self.cursor, count - 1)
        self._go(max(place, 0), force=True)

    @property
    def at_end(self) -> bool:
        """Whether the cursor is on the last frame."""
        return self.cursor >= len(self._store.shown) - 1

    def render_line(self, y: int) -> Strip:
        """Return one line of the screen."""
        across, down = self.scroll_offset
        place, width = down + y, self.size.width
        kept = self._store.at(place)
        if kept is None:
            return Strip.blank(width, self.rich_style)
        row = kept.row
        pieces = next(render(row, gates_per_token=self._gates(row.run)))
        mark = ("! ", "bold red") if row.problems else ("  ", "")
        chosen = place == self.cursor
        base = self.rich_style + _CHOSEN if chosen else self.rich_style
        segments = [
            Segment(
                printable(text), base if chosen else base + Style.parse(style or "none")
            )
            for text, style in (mark, *pieces)
        ]
        return Strip(segments).crop_extend(across, across + width, base)

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        self._go(self.cursor + by)

    def action_page(self, by: int) -> None:
        """Move the cursor by a screen."""
        self._go(self.cursor + by * max(1, self.size.height - 1))

    def action_edge(self, end: int) -> None:
        """Move the cursor to the first or the last frame."""
        self._go(len(self._store.shown) - 1 if end else 0)

    def action_broken(self) -> None:
        """Move the cursor to the next frame that breaks a rule or is none."""
        for place in range(self.cursor + 1, len(self._store.shown)):
            kept = self._store.at(place)
            if kept is not None and (kept.row.problems or not kept.row.is_frame):
                self._go(place)
                return
        self.app.bell()

    def on_click(self, event: object) -> None:
        """Put the cursor on the line that was clicked."""
        self._go(int(self.scroll_offset.y) + int(getattr(event, "y", 0)))

    def _go(self, place: int, *, force: bool = False) -> None:
        place = max(0, min(place, len(self._store.shown) - 1))
        changed = place != self.cursor
        self.cursor = place
        self.scroll_to_region(
            Region(int(self.scroll_offset.x), place, 1, 1), animate=False, force=True
        )
        self.refresh()
        if changed or force:
            self.post_message(self.Chosen())
