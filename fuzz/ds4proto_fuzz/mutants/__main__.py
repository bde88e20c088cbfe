"""``python -m ds4proto_fuzz.mutants ROLE NAME HOST PORT``: one faulty peer."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run a peer until it is ended, or until its fault ends it."""
    role, name, host, port = sys.argv[1:5]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from ds4proto_fuzz.mutants.worker_faults import WORKERS

    tables = {"worker": WORKERS}
    if role not in tables or name not in tables[role]:
        known = ", ".join(tables.get(role, tables))
        print(f"no planted fault {name!r} of a {role}; known: {known}", file=sys.stderr)
        return 2
    tables[role][name]((host, int(port))).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
