"""The terminal browser: list, filter, fields and bytes of a capture's frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Footer, Input, Static

from ds4proto.cli._view_list import FrameList
from ds4proto.cli._view_rows import Kept, RowReader, RowStore
from ds4proto.printable import counted, printable
from ds4proto.trace.text import hexdump, payload_text, problem_text
from ds4proto.trace.where import WhereError, compile_where

__all__ = ["Browser"]

_NOTE: Final = "prompts can be read from token ids and bytes"


class Browser(App[None]):
    """Shows the rows that a reader gives, while it still reads.

    Parameters
    ----------
    title : str
        Name of the capture.
    reader : RowReader
    store : RowStore
    follow : bool
        The file grows: the cursor stays on the last frame while it is there.
    """

    CSS = """
    #head { height: 1; background: $panel; }
    #frames { height: 2fr; }
    #below { height: 1fr; border-top: solid $primary; }
    #fields { width: 1fr; padding: 0 1; }
    #bytes { width: 84; max-width: 60%; padding: 0 1; border-left: solid $primary;
             overflow-x: auto; }
    #byte-text { width: auto; }
    #filter { display: none; }
    #filter.open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter"),
        Binding("escape", "close", "list", show=False),
        Binding("tab", "app.focus_next", "next pane"),
        Binding("q", "quit", "quit"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self, title: str, reader: RowReader, store: RowStore, *, follow: bool = False
    ) -> None:
        super().__init__()
        self._name = printable(title)
        self._reader = reader
        self._store = store
        self._follow = follow
        self._state = "reading"
        self._condition = ""

    def compose(self) -> ComposeResult:
        """Lay the panes out."""
        yield Static("", id="head", markup=False)
        yield FrameList(self._store, self._reader.gates_per_token, id="frames")
        with Horizontal(id="below"):
            with VerticalScroll(id="fields"):
                yield Static("", id="field-text", markup=False)
            with VerticalScroll(id="bytes"):
                yield Static("", id="byte-text", markup=False)
        yield Input(
            placeholder="a condition as in ds4proto decode --where; empty shows all",
            id="filter",
        )
        yield Footer()

    def on_mount(self) -> None:
        """Begin to read."""
        self.query_one(FrameList).focus()
        self.run_worker(self._read, thread=True, exit_on_error=False)

    def on_unmount(self) -> None:
        """Let the reader end."""
        self._reader.stop.set()

    # -- rows --------------------------------------------------------------------

    def _read(self) -> None:
        """Read in a thread; what the screen shows changes in the app's own."""
        ended = "read to the end"
        try:
            self._reader.read(self._take)
        except (ValueError, OSError) as error:
            ended = f"stopped: {printable(str(error))}"
        else:
            at = self._reader.truncated_at
            if at is not None:
                ended = f"the file ends inside a record at offset {at}"
        if self._store.full:
            ended = (
                f"stopped after {counted(len(self._store.rows), 'frame')}; --keep N "
                "holds more"
            )
        if not self._reader.stop.is_set():
            self.call_from_thread(self._say, ended)

    def _take(self, batch: list[Kept]) -> bool:
        if self._reader.stop.is_set():
            return False
        self.call_from_thread(self._add, batch)
        return not self._store.full

    def _add(self, batch: list[Kept]) -> None:
        frames = self.query_one(FrameList)
        last = self._follow and frames.at_end
        before = self._store.dropped
        self._store.add(batch)
        frames.cursor = max(0, frames.cursor - (self._store.dropped - before))
        frames.show(last=last)
        self._say(self._state)

    def _say(self, state: str) -> None:
        self._state = state
        store = self._store
        count = f"{len(store.shown)} of {counted(len(store.rows), 'frame')}"
        if store.dropped:
            count += f" ({store.dropped} older ones dropped)"
        where = f"  filter: {self._condition}" if self._condition else ""
        text = f"{self._name}  {count}  {state}{where}  ({_NOTE})"
        self.query_one("#head", Static).update(Text(printable(text), "bold"))

    # -- panes -------------------------------------------------------------------

    def on_frame_list_chosen(self) -> None:
        """Show the frame under the cursor."""
        kept = self._store.at(self.query_one(FrameList).cursor)
        fields, data = Text(""), Text("")
        if kept is not None:
            fields = Text("\n").join(_field_lines(kept))
            data = Text("\n".join(hexdump(kept.head, kept.row.length)))
            if not kept.head:
                data = Text("no bytes are held of this frame", "dim")
        self.query_one("#field-text", Static).update(fields)
        self.query_one("#byte-text", Static).update(data)

    def action_filter(self) -> None:
        """Ask for a condition."""
        box = self.query_one("#filter", Input)
        box.add_class("open")
        box.focus()

    def action_close(self) -> None:
        """Go back to the list."""
        self.query_one("#filter", Input).remove_class("open")
        self.query_one(FrameList).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Show the rows that meet the condition."""
        text = event.value.strip()
        try:
            meets = compile_where(text) if text else None
        except WhereError as error:
            self._say(f"filter: {error}")
            return
        self._condition = text
        self._store.filter(meets)
        self.query_one(FrameList).show()
        self._say(self._state)
        self.action_close()


def _field_lines(kept: Kept) -> Iterator[Text]:
    row = kept.row
    yield Text(
        f"{row.name if row.is_frame else row.type}  {counted(row.length, 'byte')}",
        "bold",
    )
    for problem in row.problems:
        yield Text("! " + printable(problem_text(problem)), "red")
    shown: dict[str, Any] = {
        "from": f"{row.src_role} {row.src}",
        "to": f"{row.dst_role} {row.dst}",
        "time": f"{row.first_time:.6f} to {row.time:.6f} s",
        "packets": f"{row.first_packet} to {row.last_packet}",
        "connection": f"{row.stream} at offset {row.stream_offset}",
        "dialect": row.dialect,
    }
    if row.payload is not None:
        shown["payload"] = payload_text(row.payload)
    for name, value in (shown | row.fields).items():
        yield Text.assemble((f"{name}: ", "cyan"), printable(str(value))[:2000])
