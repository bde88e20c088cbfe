"""Rules that the vector files keep, beside their JSON schema."""

from __future__ import annotations

from typing import Any


def lint(name: str, content: dict[str, Any]) -> list[str]:
    """Return what is wrong with a vector file; nothing if it keeps the rules.

    Rules: the file says its own name, counts its tests, numbers them 1, 2, 3, ...,
    explains every flag and no other, gives hex of the right length, and asks no
    input twice in a group.
    """
    problems = []
    tests = [test for group in content["testGroups"] for test in group["tests"]]
    if content["algorithm"] != name:
        problems.append(f"algorithm {content['algorithm']!r} in file {name}.json")
    if content["numberOfTests"] != len(tests):
        problems.append(
            f"numberOfTests is {content['numberOfTests']}, there are {len(tests)}"
        )
    for position, test in enumerate(tests, start=1):
        if test["tcId"] != position:
            problems.append(f"tcId {test['tcId']} at position {position}")
    used = {flag for test in tests for flag in test["flags"]}
    for flag in sorted(used ^ set(content["notes"])):
        problems.append(f"flag {flag} is used or explained, but not both")
    for group in content["testGroups"]:
        problems += _lint_group(group)
    return problems


def _lint_rows(kind: str, test: dict[str, Any]) -> list[str]:
    """Check the hex of rows: whole f32 patterns, and wires of one length."""
    patterns, wires = test["input"], [test["expected"]]
    if kind == "BlockDecode":
        patterns, wires = wires[0], [patterns]
    wires += test.get("acceptable", {}).values()
    problems = []
    if len(patterns) % (8 * test["rows"]):
        problems.append(f"tcId {test['tcId']}: no whole rows of f32 patterns")
    if len({len(wire) for wire in wires}) > 1 or len(wires[0]) % (2 * test["rows"]):
        problems.append(f"tcId {test['tcId']}: wires of unequal length")
    if len(set(wires)) < len(wires):
        problems.append(f"tcId {test['tcId']}: an acceptable wire is the expected one")
    return problems


def _lint_group(group: dict[str, Any]) -> list[str]:
    problems = []
    digits = {"Encode": (8, group.get("width", 0) // 4),
              "Decode": (group.get("width", 0) // 4, 8)}.get(group["type"])  # fmt: skip
    seen: set[str] = set()
    for test in group["tests"]:
        if group["type"] in ("BlockEncode", "BlockDecode"):
            key = f"{test['rows']} x {test['input']}"
            problems += _lint_rows(group["type"], test)
        elif digits is None:
            keys = ("values", "wire", "start", "tokens", "rows", "bytes")
            key = repr([test.get(k) for k in keys])
        else:
            key = test["input"]
            codes = [test["expected"], *test.get("acceptable", {}).values()]
            if len(key) != digits[0] or any(len(c) != digits[1] for c in codes):
                problems.append(f"tcId {test['tcId']}: wrong number of hex digits")
            if test["expected"] != test.get("acceptable", {}).get(
                "strict", test["expected"]
            ):
                problems.append(f"tcId {test['tcId']}: expected is not strict's code")
        if key in seen:
            problems.append(f"tcId {test['tcId']}: input {key} is asked twice")
        seen.add(key)
    return problems
