"""Options of a tensor-parallel rank that only the parser that runs knows."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from ds4proto_runtime.tp import options as tp_options
from ds4proto_runtime.tp.options import parse_options

from ds4proto.errors import WrongUsage
from tests.spec.removing import without_check
from tests.spec.tp_showing import shows

LEAD = ["--role", "coordinator", "--listen", "127.0.0.1", "9911"]


def refused(words: list[str]) -> str:
    with pytest.raises(WrongUsage) as caught:
        parse_options(words)
    return str(caught.value)


@shows(
    (
        "DS4T-OPT-08",
        "the last one counts",
        lambda: without_check(tp_options, "DS4T-OPT-08"),
    )
)
def a_role_is_set_once() -> None:
    text = "--tensor-parallel selects its role through --role"
    assert refused([*LEAD, "--role", "worker"]) == text
    assert refused([*LEAD, "--role", "coordinator"]) == text
    assert parse_options(LEAD).role == "coordinator"


@shows(
    (
        "DS4T-OPT-22",
        "any word is a role",
        lambda: patch.dict(
            tp_options.VALUES, {"--role": ("role", lambda _option, words: words)}
        ),
    )
)
def a_role_is_coordinator_or_worker() -> None:
    for word in ("none", "leader", "Coordinator", ""):
        text = "invalid tensor-parallel role"
        assert refused(["--role", word, *LEAD[2:]]) == text
