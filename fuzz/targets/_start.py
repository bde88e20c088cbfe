"""What every target does: instrument the library, then fuzz one check.

A target is a script: ``python fuzz/targets/NAME.py [libFuzzer options] CORPUS...``;
``python -m ds4proto_fuzz.parsers campaign`` starts them all. atheris comes with the
extra ``fuzz`` (Linux).
"""

import sys

import atheris

EXTRA_BYTES = 1 << 30
"""What a run may map beyond what it has when it starts: libFuzzer's own tables grow."""


def run(name: str) -> None:
    """Fuzz the target of that name until libFuzzer's limits are reached."""
    with atheris.instrument_imports(
        include=["ds4proto", "ds4proto_fuzz", "ds4proto_conformance"],
        exclude=["ds4proto_fuzz.parsers.bounds"],
    ):
        from ds4proto_fuzz.parsers import target

        chosen = target(name)
        for seed in chosen.seeds():  # loads what is imported on first use
            chosen.check(seed)
    from ds4proto_fuzz.parsers.bounds import limit_address_space

    limit_address_space(EXTRA_BYTES)
    atheris.Setup(sys.argv, chosen.check)
    atheris.Fuzz()
