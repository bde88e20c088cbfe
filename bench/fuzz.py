"""Live fuzzing against the toy worker, beside sound round trips on one connection.

The baseline is what the peer can do at all: one WORK of one token, sent and answered,
again and again. A case is made, judged and given to the same peer; it has two or three
frames, and a connection that it spoils is dialled anew. The wall time decides.
"""

from __future__ import annotations

import os
from time import monotonic

from ds4proto_fuzz.ds4d.frames import POOL, Frames
from ds4proto_fuzz.ds4d.oracle import WorkerOracle
from ds4proto_fuzz.ds4d.worker import WorkerTarget
from ds4proto_fuzz.target import Settings

from bench._timing import measure, report

CASES = 250
ROUNDS = 5
FLOOD = 100


def main() -> None:
    target = WorkerTarget(Settings("reference:worker", "worker"))
    target.start()
    try:
        frame = Frames(target.facts).work(POOL[0], (1,), ack=True)
        wire = target._dial()
        indices = [i for i in range(CASES + 1) if i != FLOOD]
        made = [target.make(1, i) for i in indices]
        cases = [case for case in made if case.state != "control"][:CASES]

        def trips() -> None:
            for _ in cases:
                wire.send(frame, monotonic() + 10)
                assert wire.frame(monotonic() + 10) is not None

        def fuzz() -> None:
            for case in cases:
                assert target.play(case).effect is None

        def alone() -> None:
            for index in indices[: len(cases)]:
                case = target.make(1, index)
                oracle = WorkerOracle(target.facts)
                for step in case.steps:
                    oracle.feed(step.on, step.data)
                    oracle.take(step.on)

        baseline = "sound round trip"
        rows = measure(
            {baseline: trips, "fuzz case": fuzz, "made and judged alone": alone},
            baseline=baseline,
            work=len(cases),
            rounds=ROUNDS,
        )
    finally:
        target.stop()
    for row in rows:  # two processes: wall time decides, not this thread's CPU
        object.__setattr__(row, "rate", len(cases) / row.wall_seconds)
    report(
        f"cases of a live worker, by wall; {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f} (read the wall ratio)",
        rows,
        baseline=baseline,
        unit="cases/s",
    )


if __name__ == "__main__":
    main()
