"""Reduction keeps the effect and drops the rest."""

from ds4proto_fuzz.case import Case, Step
from ds4proto_fuzz.shrink import shrink


def test_frames_words_and_bytes_that_do_not_matter_go() -> None:
    base = bytes(64)
    bad = bytearray(base)
    bad[20:24] = b"\xff\xff\xff\xff"
    bad[40:44] = b"\1\2\3\4"
    steps = [Step("data", "WORK", bytes([n]) * 8) for n in range(1, 8)]
    steps[4] = Step("data", "WORK", bytes(bad), "two words", base)
    case = Case(1, 2, "live", "bits", tuple(steps))
    tried = []

    def holds(other: Case) -> bool:
        tried.append(other)
        return any(step.data[20:24] == b"\xff" * 4 for step in other.steps)

    small = shrink(case, holds)
    (step,) = small.steps
    assert step.data[20:24] == b"\xff" * 4
    assert step.data[40:44] in (b"", bytes(4))
    assert len(step.data) < 64
    assert len(tried) < 60
    assert (small.seed, small.index) == (1, 2)


def test_a_bound_ends_it_with_what_was_reached() -> None:
    steps = tuple(Step("data", "WORK", bytes([n])) for n in range(32))
    calls = []

    def holds(other: Case) -> bool:
        calls.append(other)
        return True

    small = shrink(Case(1, 1, "live", "x", steps), holds, tests=3)
    assert len(calls) == 3
    assert 0 < len(small.steps) < 32


def test_an_effect_that_needs_all_of_it_stays() -> None:
    steps = tuple(Step("data", "WORK", bytes([n]) * 20) for n in range(3))
    case = Case(1, 1, "live", "x", steps)
    assert shrink(case, lambda other: other == case) == case


def test_a_question_goes_with_its_answer() -> None:
    """Answers are taken in turn: one of them is wrong for what is asked then."""
    asked = [Step("above", "WORK", bytes([n])) for n in (1, 2)]
    said = Step("next", "RESULT", b"\1")

    def holds(other: Case) -> bool:
        works = [step.data for step in other.steps if step.name == "WORK"]
        answers = [step.data for step in other.steps if step.name == "RESULT"]
        pairs = [work == answer for work, answer in zip(works, answers, strict=False)]
        return len(works) == len(answers) and pairs[-1:] == [False]

    small = shrink(Case(1, 1, "forwarded", "x", (*asked, said, said)), holds)
    assert [step.data for step in small.steps] == [b"\2", b"\1"]


def test_repetitions_are_halved_while_the_effect_lasts() -> None:
    case = Case(1, 1, "open", "x", (Step("data", "WORK", b"x"),), repeat=256)
    assert shrink(case, lambda other: other.repeat >= 40).repeat == 64
