"""``python -m ds4proto_fuzz.mutants ROLE NAME HOST PORT``: one faulty peer."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Run a peer until it is ended, or until its fault ends it."""
    role, name, host, port = sys.argv[1:5]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from ds4proto_fuzz.mutants import table_of

    try:
        table = table_of(role)
    except KeyError:
        table = {}
    if name not in table:
        known = ", ".join(table)
        print(f"no planted fault {name!r} of a {role}; known: {known}", file=sys.stderr)
        return 2
    table[name]((host, int(port))).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
