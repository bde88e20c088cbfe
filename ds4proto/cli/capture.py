"""``ds4proto capture``: record the protocols' traffic of this machine."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import click

from ds4proto.cli._options import DURATION, json_option
from ds4proto.cli._output import printable, write_json
from ds4proto.errors import ExitCode
from ds4proto.printable import counted

__all__ = ["cmd"]

_LOOPBACK: Final = "lo0" if sys.platform == "darwin" else "lo"
_RDMA: Final = (
    "gates over RDMA do not pass the kernel and cannot be seen here: take --transport "
    "tcp, or the runtime's own trace (ds4proto run --trace) beside this control stream"
)
_HELP = """Record the protocols' traffic of this machine.

Connections are found by their first bytes, on any port; other traffic is left out. On
Linux this takes a packet socket (root or CAP_NET_RAW), elsewhere tcpdump. Without
either, ds4proto proxy records and needs no privileges.

\b
Examples:
  ds4proto capture -o run.pcapng --until 30s
  sudo ds4proto capture -i en5 -o ring.pcapng --ring 4 --ring-size 100M
  sudo ds4proto capture -i eth0 -o share.pcapng --redact --headers-only

Ends with Ctrl-C or after --until. The exit status is 0, 1 where packets were lost, 2
where nothing of the protocols passed or capturing is not allowed."""


@click.command("capture", help=_HELP)
@click.option("-i", "--interface", metavar="NAME", default=_LOOPBACK,
              show_default=True, help="Where to listen.")  # fmt: skip
@click.option("-o", "--output", metavar="FILE", required=True, help="A pcapng.")
@click.option("--until", type=DURATION, help="End after this long.")
@click.option("--ring", type=click.IntRange(2, 9999), help="Keep the last N files.")
@click.option("--ring-size", metavar="BYTES", default="100M", show_default=True,
              help="Size of each.")  # fmt: skip
@click.option("--redact", is_flag=True,
              help="Replace token ids and payloads, as trace redact.")  # fmt: skip
@click.option("--headers-only", is_flag=True, help="Keep headers and fixed fields.")
@click.option("--tool", type=click.Choice(["auto", "socket", "tcpdump"]),
              default="auto", show_default=True, help="How to capture.")  # fmt: skip
@json_option
def cmd(
    interface: str,
    output: str,
    until: float | None,
    ring: int | None,
    ring_size: str,
    redact: bool,
    headers_only: bool,
    tool: str,
    as_json: bool,
) -> int:
    """Capture."""
    from ds4proto.peer.packet_capture import Finder, Lost, Ring, packets_of
    from ds4proto.peer.proxy_faults import bytes_of

    if ring and (redact or headers_only):
        raise click.UsageError(
            "--ring keeps whole packets: redact the files afterwards"
        )
    try:
        size = bytes_of(ring_size)
    except ValueError as error:
        raise click.UsageError(f"--ring-size: {error}") from None
    later = redact or headers_only
    lost = [Lost()]
    finder = Finder()
    end = None if until is None else time.monotonic() + until
    with _stopping() as event, _target(output, later=later) as path:

        def stop() -> bool:
            return event.is_set() or (end is not None and time.monotonic() >= end)

        batches = packets_of(interface, stop, lost.append, tool=tool)
        store: Ring | None = None
        try:
            for batch in _announced(batches, interface):
                store = store or Ring(path, ring or 0, size)
                for packet in finder.feed(batch):
                    store.packet(*packet)
        except BaseException:
            if store is not None:
                with suppress(OSError):
                    store.abandon()
            raise
        if store is not None:
            store.close()
        if later and finder.kept:
            _rewrite(path, output, headers_only=headers_only, redact=redact)
    finder.finish()
    dropped = lost[-1].dropped
    report = {
        "connections": finder.flows,
        "packets": finder.kept,
        "packets_of_other_traffic": finder.passed_over,
        "packets_lost": dropped,
        "files": [str(name) for name in store.names] if store and not later else
        [output] if finder.kept else [],
    }  # fmt: skip
    if as_json:
        write_json(report)
    _say(
        f"{counted(finder.kept, 'packet')} of {counted(finder.flows, 'connection')}; "
        f"{finder.passed_over} "
        f"packets of other traffic left out; {dropped} lost by the kernel"
    )
    if dropped:
        _say("the capture has holes: record with ds4proto proxy, or on another machine")
        return ExitCode.FAILED
    if not finder.kept:
        _say(f"nothing of the protocols passed on {interface}; {_RDMA}")
        return ExitCode.NOTHING_RAN
    return ExitCode.PASSED


def _announced(batches: Iterator[Any], interface: str) -> Iterator[Any]:
    _say(f"capturing on {interface}; {_RDMA}")
    yield from batches


def _rewrite(path: str, output: str, *, headers_only: bool, redact: bool) -> None:
    import secrets

    from ds4proto.trace.cut import Selection
    from ds4proto.trace.output import output_file
    from ds4proto.trace.redact import REDACTED, Redactor, head_size
    from ds4proto.trace.rewriting import rewrite

    change = Redactor(secrets.token_bytes(16)).frame if redact else None
    with output_file(output) as target:
        rewrite(
            path, target, choice=Selection(headers_only=headers_only), change=change,
            head=head_size, comment=REDACTED if redact else "captured and cut down",
        )  # fmt: skip


@contextmanager
def _target(output: str, *, later: bool) -> Iterator[str]:
    """Yield where to write: the output, or a private file that goes away."""
    if not later:
        yield output
        return
    folder = Path(output).parent
    handle, name = tempfile.mkstemp(prefix=".capture.", dir=folder)
    os.close(handle)
    try:
        yield name
    finally:
        Path(name).unlink(missing_ok=True)


def _say(text: str) -> None:
    print(f"ds4proto capture: {printable(text)}", file=sys.stderr, flush=True)


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Let the first Ctrl-C, or SIGTERM, end the capture and finish the file."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ended(_number: int, _frame: Any) -> None:
        stop.set()

    before = {n: signal.signal(n, ended) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
