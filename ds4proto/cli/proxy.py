"""``ds4proto proxy``: stand between two peers, record, and do harm on request."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from ds4proto.cli._options import DURATION, host_and_port, json_option
from ds4proto.cli._output import printable, write_json
from ds4proto.errors import ExitCode

__all__ = ["cmd"]

_LOOK_S: Final = 0.2
_HELP = """Stand between two live peers: pass on, record, inject faults.

Point the side that dials (a pipeline worker, a tensor-parallel worker) at the proxy's
address, and the proxy at the side that listens. Data ports of pipeline workers are
written anew in their HELLO, so that hops between workers pass by as well. The record
is pcapng, readable up to the last whole packet at any time, and needs no privileges.

\b
Examples:
  ds4proto proxy --listen 127.0.0.1:9001 --to 127.0.0.1:9000 --record run.pcapng
  ds4proto proxy --to 127.0.0.1:9000 --fault delay=20ms,jitter=5ms
  ds4proto proxy --to 127.0.0.1:9000 --fault drop=WORK,nth=3,way=down
  ds4proto proxy --to 127.0.0.1:9000 --fault corrupt=RESULT.request,way=up

\b
Faults: delay=TIME[,jitter=TIME]  rate=BYTES  cut=BYTES[,reset=yes]  stall=BYTES
  flip=OFFSET  drop=FRAME[,nth=N|,every=yes]  corrupt=FRAME.FIELD[,value=N][,nth=N]
  each with way=up|down, conn=N, kind=control|hop. Gates are GATE_ROW, GATE_BATCH and
  GATE_BULK, with the fields of their headers and payload, its first byte.

Ends with Ctrl-C, after --until, or with --once when all connections are over. The exit
status is 0, 1 where the record is incomplete, 2 where nobody connected."""


@click.command("proxy", help=_HELP)
@click.option("--listen", "listen_at", metavar="HOST:PORT", default="127.0.0.1:0",
              show_default=True, help="Where the dialling peer connects.")  # fmt: skip
@click.option("--to", "target", metavar="HOST:PORT", required=True,
              help="The peer that listens.")  # fmt: skip
@click.option("--record", metavar="FILE", help="Write a pcapng of what was passed on.")
@click.option("--fault", "faults", metavar="RULE", multiple=True,
              help="Inject a fault; see above.")  # fmt: skip
@click.option("--faults", "faults_file", metavar="FILE",
              help='A TOML file: faults = ["RULE", ...].')  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True,
              help="Of jitter and corrupted values.")  # fmt: skip
@click.option("--allow-remote", is_flag=True, help="Listen beyond loopback.")
@click.option("--until", type=DURATION, help="End after this long.")
@click.option("--once", is_flag=True, help="End when all connections are over.")
@json_option
def cmd(
    listen_at: str,
    target: str,
    record: str | None,
    faults: tuple[str, ...],
    faults_file: str | None,
    seed: int,
    allow_remote: bool,
    until: float | None,
    once: bool,
    as_json: bool,
) -> int:
    """Stand between two peers."""
    from ds4proto.peer.clock import SYSTEM_CLOCK
    from ds4proto.peer.connect import listen
    from ds4proto.peer.proxy import Proxy
    from ds4proto.peer.proxy_faults import parse_rule, read_rules

    rules = [parse_rule(text) for text in faults]
    if faults_file is not None:
        rules += read_rules(faults_file)
    host, port = host_and_port(listen_at)
    goal = host_and_port(target)
    deadline = None if until is None else SYSTEM_CLOCK.now() + until
    listener = listen(host, port, allow_remote=allow_remote)
    proxy = Proxy(
        listener, goal, record=record, rules=rules, seed=seed,
        allow_remote=allow_remote, say=_say,
    )  # fmt: skip
    with _stopping() as stop, proxy:
        shown, number = proxy.address
        _say(f"listening on {shown}:{number}, passing on to {target}")
        while not stop.wait(_LOOK_S):
            if deadline is not None and SYSTEM_CLOCK.now() >= deadline:
                break
            if once and proxy.connections and not proxy.open:
                break
    if proxy.recording_lost:
        _say(
            f"the record {record} is readable and ends early; what crossed after that "
            "is missing in it"
        )
    if as_json:
        write_json(
            {
                "connections": proxy.connections,
                "faults": proxy.faults,
                "record": record,
                "record_complete": bool(record) and not proxy.recording_lost,
            }
        )
    if proxy.recording_lost:
        return ExitCode.FAILED
    if not proxy.connections:
        _say("nobody connected")
        return ExitCode.NOTHING_RAN
    return ExitCode.PASSED


def _say(text: str) -> None:
    print(f"ds4proto proxy: {printable(text)}", file=sys.stderr, flush=True)


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Let the first Ctrl-C, or SIGTERM, end the proxy and finish the record."""
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
