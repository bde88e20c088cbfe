"""Stands in for atheris: gives the corpus to the check once, as libFuzzer would tell.

With ``PLANTED`` in the environment every input that is not empty raises KeyError.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Check = Callable[[bytes], None]
_STATE: dict[str, Any] = {}


@contextmanager
def instrument_imports(
    include: Iterable[str] = (), exclude: Iterable[str] = ()
) -> Iterator[None]:
    """Instrument nothing; remember what was asked for."""
    _STATE["include"] = (include, exclude)
    yield


def Setup(argv: list[str], check: Check) -> None:  # noqa: N802 - atheris's name
    """Remember what to run."""
    _STATE.update(argv=argv, check=check)


def Fuzz() -> None:  # noqa: N802 - atheris's name
    """Run every file of the corpora once, then end as libFuzzer does."""
    argv, check = _STATE["argv"], _STATE["check"]
    options = dict(arg[1:].split("=", 1) for arg in argv[1:] if arg.startswith("-"))
    folders = [Path(arg) for arg in argv[1:] if not arg.startswith("-")]
    files = sorted(path for folder in folders for path in folder.iterdir())
    print("INFO: a stand-in", file=sys.stderr)
    line = "#{0}\tNEW    cov: {0} ft: 9 corp: {0}/17b lim: 4 exec/s: 5 rss: 64Mb L: 1/2"
    for number, path in enumerate(files, 1):
        data = path.read_bytes()
        try:
            check(data)
            if data and "PLANTED" in os.environ:
                raise KeyError("planted")
        except Exception:
            print(" === Uncaught Python exception: ===", flush=True)
            traceback.print_exc(file=sys.stdout)
            kept = Path(options["artifact_prefix"]) / f"crash-{os.getpid()}-{number}"
            kept.write_bytes(data)
            sys.exit(77)
        print(line.format(number), file=sys.stderr)
    (folders[0] / "found").write_bytes(b"")
    print(f"Done {len(files)} runs in {options['max_total_time']} s", file=sys.stderr)
