"""The RDMA lane: two ranks over soft-RoCE, as UC and as RC, faults included.

Runs inside the virtual machine; see run.sh. Each case has what is expected of it; the
table goes to standard output and, with ``--out``, to a JSON file.
"""

from __future__ import annotations

import argparse
import json
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PATIENCE = 90.0
Answer = dict[str, Any]
TOY = {"n_layer": 2, "n_embd": 64, "n_vocab": 32}
BULKY = {"n_layer": 8, "n_embd": 4096, "n_vocab": 32, "null": True}
"""Messages of their real size and the least batch region for bulk over RDMA; without
arithmetic, so that the bytes are compared by patterns."""
DECODE = (
    "create;create;sync:1:1-6;sync:2:1-5;eval:1:5,6;batch:1=9,2=3;eval:2:4;destroy:2"
)
BLOCKS = (
    "create;sync:1:1-6;eval:1:5;verify:1:8,9,10:full;eval:1:4;verify:1:1-8:prefix=3;"
    "verify:1:2,3:replay=1;eval:1:6"
)
BULK = "create;sync:1:1-9;eval:1:5;verify:1:1-8:full;eval:1:6"
PATTERNS = [3_000_001, 100, 64 * 16384, 16384 + 5]


class RankProcess:
    """One rank and its lines."""

    def __init__(self, role: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "rank.py"), role],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.role = role

    def say(self, case: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Answer:
        stream = self._process.stdout
        assert stream is not None
        ready, _, _ = select.select([stream], [], [], PATIENCE)
        line = stream.readline() if ready else ""
        if not line:
            raise SystemExit(f"the {self.role} said nothing for {PATIENCE:g} s")
        found: Answer = json.loads(line)
        return found

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)


def run_case(
    ranks: tuple[RankProcess, RankProcess], case: dict[str, Any]
) -> tuple[Answer, Answer]:
    leader, worker = ranks
    leader.say(case)
    first = leader.answer()
    if "port" not in first:
        return first, {"log": [], "lines": [], "error": "not started", "seconds": 0}
    worker.say({**case, "port": first["port"]})
    found = leader.answer(), worker.answer()
    for one in found:
        one["sums"] = [text for text in one["log"] if ": sum " in text]
        one["log"] = [text for text in one["log"] if ": sum " not in text]
    return found


def shell(command: str) -> None:
    subprocess.run(command, shell=True, check=True)


# -- what is expected ------------------------------------------------------------

Judge = Callable[[Answer, Answer], str]
"""Returns what is wrong, "" for nothing."""


def passes(reference: Answer | None = None) -> Judge:
    def judge(leader: Answer, worker: Answer) -> str:
        if leader["error"] or worker["error"]:
            return leader["error"] or worker["error"]
        if leader["sums"] != worker["sums"]:
            return "the ranks hold different bits"
        if not leader["sums"]:
            return "no gate ran"
        if reference is not None and leader["lines"] != reference["lines"]:
            return "not the text of the run over TCP"
        if reference is not None and leader["sums"] != reference["sums"]:
            return "not the bits of the run over TCP"
        return ""

    return judge


def fails(leader_text: str, worker_text: str = "") -> Judge:
    def judge(leader: Answer, worker: Answer) -> str:
        for side, text, wanted in (
            ("leader", leader["error"], leader_text),
            ("worker", worker["error"], worker_text),
        ):
            if not re.search(wanted, text, re.DOTALL):
                return f"{side} said {text!r}, expected {wanted!r}"
        return ""

    return judge


def one_fails(text: str) -> Judge:
    """Return a judge for faults that strike whichever side comes first."""

    def judge(leader: Answer, worker: Answer) -> str:
        if re.search(text, leader["error"] + worker["error"]):
            return ""
        return f"neither side said {text!r}: {leader['error']} {worker['error']}"

    return judge


def up_line(answer: Answer) -> str:
    return next((t for t in answer["log"] if "rdma up" in t), "").partition(": ")[2]


class Lane:
    """Runs cases and keeps the table."""

    def __init__(
        self, out: Path | None = None, only: str = "", captures: Path | None = None
    ) -> None:
        self._only = re.compile(only)
        self._captures = captures
        self.ranks = RankProcess("leader"), RankProcess("worker")
        for rank in self.ranks:
            rank.answer()
        self.rows: list[dict[str, Any]] = []
        self._out = out

    def run(
        self,
        name: str,
        qp: str,
        judge: Judge,
        case: dict[str, Any],
        *,
        before: str = "",
        after: str = "",
    ) -> Answer:
        label = f"{name} {qp}".strip()
        if not self._only.search(label) and qp:
            return {}
        if before:
            shell(before)
        tapes = self._record(label.replace(" ", "_"))
        begun = time.monotonic()
        try:
            leader, worker = run_case(self.ranks, {**case, "qp": qp or None})
        finally:
            if after:
                shell(after)
            self._stop(tapes)
        wrong = judge(leader, worker)
        seconds = time.monotonic() - begun
        row = {
            "case": name,
            "qp": qp or "TCP",
            "verdict": "ok" if not wrong else "FAIL",
            "wrong": wrong,
            "seconds": round(seconds, 2),
            "gates": len(leader.get("sums", ())),
            "leader": leader,
            "worker": worker,
        }
        self.rows.append(row)
        if self._out is not None:
            self._out.write_text(json.dumps(self.rows, indent=1))
        note = wrong or seen(leader, worker)
        print(
            f"{row['verdict']:4} {name:28} {row['qp']:3} {seconds:6.2f} s  "
            f"{row['gates']:5} gates  {note}",
            flush=True,
        )
        return leader

    def _record(self, name: str) -> list[subprocess.Popen[bytes]]:
        """Record control stream and port v0, where that was asked for."""
        if self._captures is None:
            return []
        found = []
        for kind, port, what in (
            ("control", "lo", "tcp"),
            ("roce", "v0", "udp port 4791"),
        ):
            path = self._captures / f"{name}.{kind}.pcap"
            command = [
                "tcpdump",
                "-i",
                port,
                "-U",
                "-B",
                "65536",
                "-w",
                str(path),
                what,
            ]
            tape = subprocess.Popen(command, stderr=subprocess.PIPE)
            assert tape.stderr is not None
            tape.stderr.readline()  # "listening on": from here on nothing is missed
            found.append(tape)
        return found

    def _stop(self, tapes: list[subprocess.Popen[bytes]]) -> None:
        """End the recordings once their files have stopped growing."""
        if self._captures is None:
            return
        before, end = -1, time.monotonic() + 20
        while time.monotonic() < end:
            size = sum(p.stat().st_size for p in self._captures.iterdir())
            if size == before:
                break
            before = size
            time.sleep(1.0)
        for tape in tapes:
            tape.terminate()
            tape.wait(20)

    def finish(self) -> int:
        for rank in self.ranks:
            rank.end()
        failed = [row for row in self.rows if row["verdict"] != "ok"]
        for row in failed:
            print(json.dumps(row, indent=1))
        print(f"{len(self.rows) - len(failed)} of {len(self.rows)} cases passed")
        return 1 if failed else 0


def seen(leader: Answer, worker: Answer) -> str:
    """What a reader of the table wants to know of one run."""
    for answer in (leader, worker):
        verdict = re.search(
            r"\((no [a-z]+|port down|no usable GID)\)\. Next.*", answer["error"]
        )
        if verdict:
            return verdict.group()[:200]
        for line in answer["error"].splitlines():
            if re.search(r"never arrived|completion [A-Z]", line):
                return line.strip()[:150]
    return (leader["error"] or worker["error"] or up_line(leader))[:150]


def cases(lane: Lane) -> None:
    tcp = {"transport": "tcp", "shape": TOY, "script": DECODE}
    decode: Answer | None = lane.run("decode", "", passes(), tcp)
    block = lane.run("verify block", "", passes(), {**tcp, "script": BLOCKS})
    bulk = {"shape": BULKY, "script": BULK, "patterns": PATTERNS}
    wide = lane.run("bulk", "", passes(), {**bulk, "transport": "tcp"})
    for qp in ("UC", "RC"):
        base = {"shape": TOY, "script": DECODE}
        lane.run("decode", qp, passes(decode), base)
        lane.run("verify window", qp, passes(block), {**base, "script": BLOCKS})
        lane.run("bulk", qp, passes(wide), bulk)
        for dialect in ("v7", "v9w", "v10"):
            if dialect == "v7" and qp == "RC":
                continue  # v7 is UC by its own rule
            lane.run(f"decode {dialect}", qp, passes(), {**base, "dialect": dialect})
        faults(lane, qp, base)
        ports(lane, qp, base)


def faults(lane: Lane, qp: str, base: dict[str, Any]) -> None:
    """Losses on the wire, and messages that come before their receives."""
    drop = "tc qdisc add dev v0 root netem loss 100%"
    clear = "tc qdisc del dev v0 root 2>/dev/null || true"
    cut = {
        **base,
        "gate_seconds": 2.0,
        "script": f"create;sync:1:1-6;eval:1:5;!{drop};eval:1:6",
    }
    lost = r"seq 5 never arrived, transport UC"
    judge = (
        fails("", lost) if qp == "UC" else fails("RETRY_EXC_ERR|seq 5", "seq 5|RETRY")
    )
    lane.run("one direction dropped", qp, judge, cut, after=clear)
    loss = "tc qdisc add dev v0 root netem loss 30%"
    noisy = {
        **base,
        "gate_seconds": 2.0 if qp == "UC" else 20.0,
        "overrides": {} if qp == "UC" else {"retry_cnt": 6, "timeout": 12},
        "script": f"create;sync:1:1-6;eval:1:5;!{loss};eval:1:6x12",
    }
    judge = one_fails("never arrived, transport UC") if qp == "UC" else passes()
    lane.run("30% of packets lost", qp, judge, noisy, after=clear)
    late = {
        **base,
        "dialect": "v9w",
        "gate_seconds": 3.0,
        "script": "create;eval:1:5",
        "worker": {"late_window": True, "first_gate_delay": 0.4},
    }
    shifted = r"timeout waiting gate seq 4 \(recv_done 3\).*seq 4 never arrived"
    judge = fails("", shifted) if qp == "UC" else passes()
    lane.run("receives posted 0.4 s late", qp, judge, late)
    safe = {**late, "worker": {"first_gate_delay": 0.4}}
    lane.run("the same, armed safely", qp, passes(), safe)


def ports(lane: Lane, qp: str, base: dict[str, Any]) -> None:
    """What a start-up says of ports and addresses."""
    wrong = {**base, "leader": {"gid_index": 7}}
    judge = fails(r"no usable GID.*\[1\] 192\.0\.2\.1|192\.0\.2\.1", "")
    lane.run("GID index past the entries", qp, judge, wrong)
    down = {"before": "ip link set v0 down", "after": "ip link set v0 up; sleep 0.5"}
    lane.run("port down", qp, fails("port down"), base, **down)
    bare = {
        "before": "ip addr flush dev v0",
        "after": "ip addr add 192.0.2.1/24 dev v0; ip route replace 192.0.2.2 dev v0 "
        "src 192.0.2.1 table 101; sleep 0.5",
    }
    judge = fails("no usable GID.*give the interface of rxe0 an IPv4 address")
    lane.run("no IPv4 GID", qp, judge, base, **bare)
    lane.run("decode again", qp, passes(), base)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="table as JSON")
    parser.add_argument("--only", default="", help="cases whose name and type match")
    parser.add_argument("--captures", type=Path, help="record each case there")
    words = parser.parse_args()
    lane = Lane(words.out, words.only, words.captures)
    shell("rdma link")
    cases(lane)
    return lane.finish()


if __name__ == "__main__":
    sys.exit(main())
