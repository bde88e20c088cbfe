"""Run the packaged vectors, and compare kernels with definitions pattern by pattern."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ds4proto.codec import kernels, vectors
from ds4proto.codec.base import PROFILES, Codec, CodecError, Path
from ds4proto.codec.registry import SCALED, get
from ds4proto.codec.token_hash import TokenHash, token_hash

Advance = Callable[[int], None]

ALL_PATTERNS: Final = 1 << 32
_BLOCK: Final = 1 << 22
_COMPILED: Final = ("f16", "bf16", "e4m3")
_CODE_TYPES: Final = {8: np.uint8, 16: np.uint16, 32: np.uint32}


@dataclass(frozen=True)
class Verdict:
    """Outcome of one group of checks.

    Attributes
    ----------
    subject
        What was checked, for example ``e4m3 encode``.
    path, profile
        Computation path and numeric profile.
    ran, failed
        Number of checks.
    first
        The first failure in words, or why nothing ran.
    """

    subject: str
    path: str
    profile: str
    ran: int
    failed: int
    first: str = ""

    @property
    def passed(self) -> bool:
        """Whether something ran and all of it passed."""
        return self.ran > 0 and self.failed == 0


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """Return 0 if all that ran passed, 1 if something failed, 2 if nothing ran."""
    if any(verdict.failed for verdict in verdicts):
        return 1
    return 0 if any(verdict.ran for verdict in verdicts) else 2


def paths_of(name: str, wanted: Sequence[Path]) -> list[Path]:
    """Return those of the wanted paths that the vectors of ``name`` can take here."""
    compiled = name in (*_COMPILED, *SCALED) and kernels.available(name)
    return [path for path in wanted if path == "numpy" or compiled]


def missing_paths(names: Sequence[str], wanted: Sequence[Path]) -> Iterator[Verdict]:
    """Give a verdict with nothing run for each compiled path that is not there."""
    for name in names:
        compiled = name in (*_COMPILED, *SCALED)
        if "numba" in wanted and compiled and not kernels.available(name):
            yield Verdict(name, "numba", "-", 0, 0, kernels.reason(name))


def verify_vectors(
    names: Sequence[str], wanted: Sequence[Path], advance: Advance
) -> Iterator[Verdict]:
    """Check every packaged vector of the named codecs on each path and profile.

    ``advance`` is called with the number of vectors done since the last call.
    """
    for name in names:
        content = vectors.load(name)
        for path in paths_of(name, wanted):
            for profile in PROFILES if name == "e4m3" else PROFILES[:1]:
                for group in content["testGroups"]:
                    verdict = _verify_group(name, path, profile, group)
                    advance(verdict.ran)
                    yield verdict


def vector_count(names: Sequence[str], wanted: Sequence[Path]) -> int:
    """Return how many checks `verify_vectors` will make."""
    return sum(
        int(vectors.load(name)["numberOfTests"])
        * len(paths_of(name, wanted))
        * (len(PROFILES) if name == "e4m3" else 1)
        for name in names
    )


def _verify_group(
    name: str, path: Path, profile: str, group: dict[str, Any]
) -> Verdict:
    tests = group["tests"]
    if "variant" in group:
        failures = _check_rows(name, path, group)
        variant = " ".join(f"{k}={v}" for k, v in group["variant"].items())
        subject = " ".join(filter(None, [name, group["type"], variant]))
        first = failures[0] if failures else ""
        return Verdict(subject, path, profile, len(tests), len(failures), first)
    if group["type"] == "TokenHash":
        failures = [message for test in tests if (message := _check_hash(test))]
    elif group["type"] == "WireSize":
        codec = get(name, profile=profile, path=path)
        failures = [message for test in tests if (message := _check_size(codec, test))]
    else:
        codec = get(name, profile=profile, path=path)
        failures = _check_codes(codec, profile, group)
    subject = f"{name} {group['type']}"
    first = failures[0] if failures else ""
    return Verdict(subject, path, profile, len(tests), len(failures), first)


def _check_codes(codec: Codec, profile: str, group: dict[str, Any]) -> list[str]:
    tests = group["tests"]
    wanted = [t.get("acceptable", {}).get(profile, t["expected"]) for t in tests]
    given = [test["input"] for test in tests]
    if group["type"] == "Encode":
        x = _numbers(given, np.uint32).view(np.float32)
        got = codec.encode(x).view(_CODE_TYPES[group["width"]])
    else:
        wire = _numbers(given, _CODE_TYPES[group["width"]]).view(np.uint8)
        got = codec.decode(wire, values=len(tests)).view(np.uint32)
    digits = len(wanted[0])
    return [
        f"tcId {test['tcId']}: {test['input']} gave {int(code):0{digits}x}, not {want}"
        for test, code, want in zip(tests, got, wanted, strict=True)
        if int(code) != int(want, 16)
    ]


def _check_rows(name: str, path: Path, group: dict[str, Any]) -> list[str]:
    codec = get(name, path=path, **group["variant"])
    check = {
        "BlockEncode": _check_row_encode,
        "BlockDecode": _check_row_decode,
        "RowSize": _check_row_size,
    }[group["type"]]
    return [
        f"tcId {test['tcId']}: {message}"
        for test in group["tests"]
        if (message := check(codec, test))
    ]


def _check_row_encode(codec: Codec, test: dict[str, Any]) -> str:
    bits = np.frombuffer(bytes.fromhex(test["input"]), dtype=">u4").astype(np.uint32)
    got = codec.encode(bits.view(np.float32), rows=test["rows"]).tobytes().hex()
    wanted = test["expected"]
    return "" if got == wanted else f"{test['comment']} gave {got}, not {wanted}"


def _check_row_decode(codec: Codec, test: dict[str, Any]) -> str:
    values = len(test["expected"]) // 8
    wire = bytes.fromhex(test["input"])
    bits = codec.decode(wire, values=values, rows=test["rows"]).view(np.uint32)
    got = bits.astype(">u4").tobytes().hex()
    wanted = test["expected"]
    return "" if got == wanted else f"{test['comment']} gave {got}, not {wanted}"


def _check_row_size(codec: Codec, test: dict[str, Any]) -> str:
    try:
        codec.decode(bytes(test["bytes"]), values=test["values"], rows=test["rows"])
    except CodecError as error:
        return "" if test["result"] == "invalid" else str(error)
    if test["result"] == "invalid":
        return f"{test['comment']} were not refused"
    size = codec.wire_bytes(test["values"], test["rows"])
    return "" if size == test["bytes"] else f"wire_bytes() says {size}"


def _numbers(digits: Sequence[str], dtype: Any) -> Any:
    return np.array([int(number, 16) for number in digits], dtype=dtype)


def _check_size(codec: Codec, test: dict[str, Any]) -> str:
    try:
        result = codec.decode(bytes.fromhex(test["wire"]), values=test["values"])
    except CodecError as error:
        return "" if test["result"] == "invalid" else f"tcId {test['tcId']}: {error}"
    if test["result"] == "invalid":
        return f"tcId {test['tcId']}: {test['comment']} were not refused"
    if result.size != test["values"]:
        return f"tcId {test['tcId']}: {result.size} values came out"
    return ""


def _check_hash(test: dict[str, Any]) -> str:
    """Check one hash at once, token by token, and as an array."""
    tokens, start = test["tokens"], int(test["start"], 16)
    if test["result"] == "invalid":
        try:
            token_hash(tokens, start)
        except CodecError:
            return ""
        return f"tcId {test['tcId']}: {test['comment']} was not refused"
    expected = int(test["expected"], 16)
    steps = TokenHash(value=start)
    for token in tokens:
        steps.append(token)
    array = np.array(tokens, dtype=np.uint32)
    results = {token_hash(tokens, start), steps.value, token_hash(array, start)}
    if results != {expected}:
        found = ", ".join(f"{value:016x}" for value in sorted(results))
        return f"tcId {test['tcId']}: got {found}, not {test['expected']}"
    return ""


def pattern_checks(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the (codec, profile) pairs whose kernels can be compared here."""
    return [
        (name, profile)
        for name in names
        if name in _COMPILED and kernels.available(name)
        for profile in (PROFILES if name == "e4m3" else PROFILES[:1])
    ]


def verify_patterns(
    names: Sequence[str],
    advance: Advance,
    *,
    sample: int | None = None,
    seed: int = 0,
) -> Iterator[Verdict]:
    """Compare kernels with definitions over f32 patterns and over all codes.

    Parameters
    ----------
    names
        Codecs; those without kernels give nothing.
    advance
        Called with the number of patterns done since the last call.
    sample
        Number of random patterns; all 2^32 if absent.
    seed
        Of the random patterns.
    """
    for name, profile in pattern_checks(names):
        plain = get(name, profile=profile, path="numpy")
        fast = get(name, profile=profile, path="numba")
        yield _compare_encoders(
            plain, fast, profile, _pattern_blocks(sample, seed), advance
        )
        yield _compare_decoders(plain, fast, profile)


def _pattern_blocks(sample: int | None, seed: int) -> Iterator[Any]:
    total = ALL_PATTERNS if sample is None else sample
    rng = np.random.default_rng(seed)
    for start in range(0, total, _BLOCK):
        stop = min(start + _BLOCK, total)
        if sample is None:
            yield np.arange(start, stop, dtype=np.uint32)
        else:
            yield rng.integers(0, ALL_PATTERNS, stop - start, dtype=np.uint32)


def _compare_encoders(
    plain: Codec, fast: Codec, profile: str, blocks: Iterator[Any], advance: Advance
) -> Verdict:
    dtype = _CODE_TYPES[8 * plain.wire_bytes(1)]
    ran = failed = 0
    first = ""
    for bits in blocks:
        x = bits.view(np.float32)
        wanted, got = plain.encode(x).view(dtype), fast.encode(x).view(dtype)
        wrong = np.flatnonzero(wanted != got)
        if wrong.size and not first:
            i = int(wrong[0])
            first = f"f32 0x{bits[i]:08x} gave 0x{got[i]:x}, not 0x{wanted[i]:x}"
        ran, failed = ran + bits.size, failed + wrong.size
        advance(bits.size)
    return Verdict(f"{plain.name} encode", "numba = numpy", profile, ran, failed, first)


def _compare_decoders(plain: Codec, fast: Codec, profile: str) -> Verdict:
    dtype = _CODE_TYPES[8 * plain.wire_bytes(1)]
    codes = np.arange(1 << 8 * plain.wire_bytes(1), dtype=dtype)
    wire = codes.view(np.uint8)
    wanted = plain.decode(wire, values=codes.size).view(np.uint32)
    got = fast.decode(wire, values=codes.size).view(np.uint32)
    wrong = np.flatnonzero(wanted != got)
    first = ""
    if wrong.size:
        i = int(wrong[0])
        first = f"code 0x{codes[i]:x} gave 0x{got[i]:08x}, not 0x{wanted[i]:08x}"
    return Verdict(
        f"{plain.name} decode",
        "numba = numpy",
        profile,
        codes.size,
        int(wrong.size),
        first,
    )
