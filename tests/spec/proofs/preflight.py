"""What preflight calls compatible, and builds that no role is for."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from ds4proto.preflight import rules_commands, rules_pipeline
from tests.preflight.plans import PIPELINE, checks, findings, spoiled
from tests.spec.proving import proof
from tests.spec.removing import without_check


def errors(text: str) -> set[str]:
    """Return the checks of a plan that say error."""
    with TemporaryDirectory() as folder:
        return set(checks(findings(Path(folder), text), "error"))


def builds(first: str, second: str, bits: int = 32) -> set[str]:
    """Return what is wrong where two machines run builds of these dialects."""
    text = spoiled(
        PIPELINE,
        ('name = "a"\n', f'name = "a"\ndialect = "{first}"\n'),
        ('name = "b"\n', f'name = "b"\ndialect = "{second}"\n'),
        ("--ctx 32768", f"--ctx 32768 --dist-activation-bits {bits}"),
    )
    return errors(text) & {"build.dialect", "width.bf16"}


@proof(
    "DS4D-DIALECT-02",
    "every build taken for compatible",
    patch.object(rules_pipeline, "_ODD", frozenset()),
)
@proof(
    "DS4D-DIALECT-02",
    "the encoding at 16 bit passed over",
    lambda: without_check(rules_pipeline, "width.bf16"),
)
def builds_fit_where_frames_agree_and_at_16_bit_the_encoding_too() -> None:
    for other in ("june1", "anyei", "xangel82", "sohardcement", "edwardtian"):
        assert builds("upstream", other) == builds(other, "upstream") == set(), other
    for other in ("local-decode", "fodelf", "swift", "ds4proto"):
        assert builds("upstream", other) == {"build.dialect"}, other
        assert builds(other, other) == set(), other
    assert builds("upstream", "bf16", 16) == {"width.bf16"}
    assert builds("upstream", "bf16", 8) == builds("bf16", "bf16", 16) == set()


@proof(
    "DS4D-WORKER-26",
    "the check left out",
    lambda: without_check(rules_pipeline, "build.cpu"),
)
def a_build_without_a_graph_back_end_has_no_role() -> None:
    assert "build.cpu" not in errors(PIPELINE)
    for name in ("a", "b"):
        text = spoiled(
            PIPELINE, (f'name = "{name}"\n', f'name = "{name}"\nbackend = "cpu"\n')
        )
        assert "build.cpu" in errors(text), name


@proof(
    "DS4D-OPT-32",
    "the check left out",
    lambda: without_check(rules_commands, "command.local-decode"),
)
def local_decode_is_an_option_of_its_dialect_alone() -> None:
    for build, wrong in (("upstream", True), ("local-decode", False)):
        text = spoiled(
            PIPELINE,
            ('name = "b"\n', f'name = "b"\ndialect = "{build}"\n'),
            ("--layers 21:output", "--layers 21:output --local-decode"),
        )
        assert ("command.local-decode" in errors(text)) == wrong, build
