"""Build the vector files from boundary rules, definitions and measured rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ds4proto.codec import definition
from ds4proto.codec.base import CodecError
from ds4proto.codec.definition import E4M3_PROFILES, U32
from ds4proto.codec.registry import SCALED
from ds4proto.codec.token_hash import TOKEN_HASH_START, token_hash
from ds4proto.codec.vectors import SCHEMA_FILE, measured, rows
from ds4proto.codec.vectors.blocks import block_groups
from ds4proto.codec.vectors.notes import HEADERS, NOTES
from ds4proto.codec.vectors.rows import Row

Content = dict[str, Any]
_ENCODERS: Final[dict[str, Callable[[U32], NDArray[Any]]]] = {
    "f32": lambda bits: bits,
    "f16": definition.f16_encode,
    "bf16": definition.bf16_encode,
}
_WIDTHS: Final = {"f32": 32, "f16": 16, "bf16": 16, "e4m3": 8}


def generate(directory: Path) -> dict[str, Content]:
    """Return the content of every vector file.

    Parameters
    ----------
    directory
        Holds the measured vectors.

    Raises
    ------
    CodecError
        A measured code differs from the definition: one of the two is wrong.
    """
    rules = {
        "f32": (rows.f32_rows, []),
        "f16": (rows.f16_rows, measured.f16_measured(directory)),
        "bf16": (rows.bf16_rows, measured.bf16_rule_rows(directory)),
        "e4m3": (rows.e4m3_rows, measured.e4m3_measured(directory)),
    }
    files = {
        name: _file(name, _groups(name, rule, extra))
        for name, (rule, extra) in rules.items()
    }
    files["token_hash"] = _file("token_hash", [_hash_group(directory)])
    for name in SCALED:
        files[name] = _file(name, block_groups(name))
    return files


def render(content: Content) -> str:
    """Return a file's text: one test a line."""
    head = {key: value for key, value in content.items() if key != "testGroups"}
    lines = json.dumps(head, indent=1, ensure_ascii=True)[:-2] + ',\n "testGroups": [\n'
    groups = []
    for group in content["testGroups"]:
        fields = {key: value for key, value in group.items() if key != "tests"}
        tests = ",\n".join(json.dumps(t, separators=(",", ":")) for t in group["tests"])
        groups.append(json.dumps(fields)[:-1] + f', "tests": [\n{tests}\n]}}')
    return lines + ",\n".join(groups) + "\n]}\n"


def _file(name: str, groups: list[Content]) -> Content:
    number = 0
    used: set[str] = set()
    for group in groups:
        numbered = []
        for test in group["tests"]:
            number += 1
            numbered.append({"tcId": number, **test})
            used.update(test["flags"])
        group["tests"] = numbered
    return {
        "algorithm": name,
        "schema": SCHEMA_FILE,
        "numberOfTests": number,
        "header": list(HEADERS[name]),
        "notes": {flag: NOTES[flag] for flag in sorted(used)},
        "testGroups": groups,
    }


def _groups(
    name: str, rule: Callable[[], Iterator[Row]], extra: list[Row]
) -> list[Content]:
    width = _WIDTHS[name]
    inputs = _merge(
        [*rows.with_negatives(rows.specials()), *rows.with_negatives(rule()), *extra]
    )
    groups = [{"type": "Encode", "width": width, "tests": _encode_tests(name, inputs)}]
    if width < 32:
        decode = _decode_tests(name, _merge(rows.code_rows(width)))
        groups.append({"type": "Decode", "width": width, "tests": decode})
    groups.append({"type": "WireSize", "width": width, "tests": _size_tests(width)})
    return groups


def _merge(inputs: Iterable[Row]) -> list[Row]:
    """Join rows with the same input: first comment, all flags, the measured code."""
    merged: dict[int, Row] = {}
    for row in inputs:
        known = merged.setdefault(row.bits, row)
        if known is not row:
            known.flags += [flag for flag in row.flags if flag not in known.flags]
            known.comment = known.comment or row.comment
            if row.measured is not None:
                known.measured = row.measured
    return list(merged.values())


def _encode_tests(name: str, inputs: list[Row]) -> list[Content]:
    bits = np.array([row.bits for row in inputs], dtype=np.uint32)
    digits = _WIDTHS[name] // 4
    if name == "e4m3":
        by_profile: dict[str, NDArray[Any]] = {
            profile: definition.e4m3_encode(bits, numeric)
            for profile, numeric in E4M3_PROFILES.items()
        }
    else:
        by_profile = {"strict": _ENCODERS[name](bits)}
    tests = []
    for i, row in enumerate(inputs):
        codes = {p: f"{int(c[i]):0{digits}x}" for p, c in by_profile.items()}
        expected = codes["strict"]
        if row.measured is not None and row.measured != int(expected, 16):
            raise CodecError(
                name,
                f"measured code of f32 0x{row.bits:08x}",
                expected=f"0x{expected} by the definition",
                found=f"0x{row.measured:x}",
                next_step="find out which of the two is wrong before writing vectors",
            )
        test = _test(row, f"{row.bits:08x}", expected)
        if len(set(codes.values())) > 1:
            test |= {"result": "acceptable", "acceptable": codes}
        tests.append(test)
    return tests


def _decode_tests(name: str, inputs: list[Row]) -> list[Content]:
    codes = np.array([row.bits for row in inputs])
    values = {
        "f16": lambda: definition.f16_decode(codes.astype(np.uint16)),
        "bf16": lambda: definition.bf16_decode(codes.astype(np.uint16)),
        "e4m3": lambda: definition.e4m3_decode(codes.astype(np.uint8)),
    }[name]()
    digits = _WIDTHS[name] // 4
    return [
        _test(row, f"{row.bits:0{digits}x}", f"{int(value):08x}")
        for row, value in zip(inputs, values, strict=True)
    ]


def _test(row: Row, given: str, expected: str) -> Content:
    return {
        "comment": row.comment,
        "flags": row.flags,
        "input": given,
        "expected": expected,
        "result": "valid",
    }


def _size_tests(width: int) -> list[Content]:
    size = width // 8
    cases: list[tuple[int, int, str]] = [
        (0, 0, "ExactSize"),
        (1, size, "ExactSize"),
        (16, 16 * size, "ExactSize"),
        (0, 1, "WrongSize"),
        (1, 0, "WrongSize"),
        (2, size, "WrongSize"),
        (1, 2 * size, "WrongSize"),
        (16, 16 * size - 1, "WrongSize"),
        (16, 16 * size + 1, "WrongSize"),
    ]
    if width == 8:
        cases.append((16, 20, "ForeignScale"))
    return [
        {
            "comment": f"{length} bytes for {values} values",
            "flags": [flag],
            "values": values,
            "wire": "00" * length,
            "result": "valid" if flag == "ExactSize" else "invalid",
        }
        for values, length, flag in cases
    ]


def _hash_group(directory: Path) -> Content:
    tests: list[Content] = []
    for start, tokens, value in measured.hash_measured(directory):
        if token_hash(tokens, start) != value:
            raise CodecError(
                "token_hash",
                f"measured hash of {len(tokens)} tokens",
                expected=f"0x{token_hash(tokens, start):016x} by the definition",
                found=f"0x{value:016x}",
                next_step="find out which of the two is wrong before writing vectors",
            )
        tests.append(
            {
                "comment": f"{len(tokens)} tokens",
                "flags": ["Prefix", "Measured"],
                "start": f"{start:016x}",
                "tokens": tokens,
                "expected": f"{value:016x}",
                "result": "valid",
            }
        )
    for token in (-1, 1 << 32):
        tests.append(
            {
                "comment": f"token {token}",
                "flags": ["BadToken"],
                "start": f"{TOKEN_HASH_START:016x}",
                "tokens": [1, token],
                "result": "invalid",
            }
        )
    return {"type": "TokenHash", "tests": tests}
