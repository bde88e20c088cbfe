"""Findings as folders: written whole or not at all, folded by effect and state."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ds4proto.errors import WrongUsage
from ds4proto_fuzz.case import Case
from ds4proto_fuzz.effect import CLASSES, Effect
from ds4proto_fuzz.script import script
from ds4proto_fuzz.text import decoded

__all__ = ["FORMAT", "Finding", "Store", "load"]

FORMAT: Final = "ds4proto fuzz finding 1"


@dataclass(slots=True)
class Finding:
    """One finding.

    Attributes
    ----------
    case : Case
        The minimal sequence.
    peer : mapping
        ``spec``, ``role`` and who the peer is.
    found : mapping
        Seed, index and size of the case before reduction.
    reproduced : (int, int)
        How often the minimal sequence had the effect, of how many tries.
    count : int
        Cases that were folded into this one.
    """

    effect: Effect
    case: Case
    peer: Mapping[str, Any]
    found: Mapping[str, Any] = field(default_factory=dict)
    reproduced: tuple[int, int] = (0, 0)
    count: int = 1

    @property
    def name(self) -> str:
        """Name of the folder: the same for the same effect in the same state."""
        role = str(self.peer.get("role", ""))
        key = "|".join((role, self.effect.kind, self.effect.what, self.case.state))
        short = hashlib.sha256(key.encode()).hexdigest()[:8]
        words = f"{self.effect.kind}-{self.case.state}".replace(" ", "-")
        return f"{words}-{short}"

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Finding:
        """Return the finding that ``as_json`` wrote.

        Raises
        ------
        ValueError
            The mapping is none.
        """
        try:
            if found["format"] != FORMAT:
                raise ValueError(f"format {found['format']!r}, expected {FORMAT!r}")
            told, tried = found["effect"], found["reproduced"]
            if told["class"] not in CLASSES:
                raise ValueError(f"class {told['class']!r}")
            for name in ("role", "spec"):
                if not isinstance(found["peer"][name], str):
                    raise ValueError(f"{name} {found['peer'][name]!r} of the peer")
            return cls(
                Effect(told["class"], told["what"], told["detail"], told["clause"]),
                Case.from_json(found["case"]),
                found["peer"],
                found["found"],
                (tried[0], tried[1]),
                found["count"],
            )
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"no finding: {error!r}") from None

    def as_json(self) -> dict[str, Any]:
        """Return what ``finding.json`` holds."""
        return {
            "format": FORMAT,
            "effect": self.effect.as_json(),
            "case": self.case.as_json(),
            "peer": dict(self.peer),
            "found": dict(self.found),
            "reproduced": list(self.reproduced),
            "count": self.count,
        }


def load(folder: Path | str) -> Finding:
    """Return the finding of a folder.

    Raises
    ------
    WrongUsage
        The folder holds none.
    """
    path = Path(folder) / "finding.json"
    try:
        return Finding.from_json(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise WrongUsage(
            f"{path}: no finding ({error}). Next: name a folder that "
            "'ds4proto fuzz peer --out' wrote"
        ) from None


class Store:
    """The findings of one campaign.

    Parameters
    ----------
    root : Path
        Made when the first is written.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def __iter__(self) -> Iterator[Finding]:
        for path in sorted(self.root.glob("*/finding.json")):
            yield load(path.parent)

    def get(self, name: str) -> Finding | None:
        """Return a finding by name."""
        folder = self.root / name
        return load(folder) if (folder / "finding.json").is_file() else None

    def add(self, finding: Finding) -> Path:
        """Write a finding; one of the same name keeps the shorter sequence."""
        before = self.get(finding.name)
        if before is not None:
            finding.count += before.count
            if _weight(before) <= _weight(finding):
                count, finding = finding.count, before
                finding.count = count
        return self._write(finding)

    def names(self) -> set[str]:
        """Return the names of all findings."""
        return {path.parent.name for path in self.root.glob("*/finding.json")}

    def again(self, name: str, count: int) -> None:
        """Count more cases of a finding."""
        found = self.get(name)
        if found is not None:
            found.count += count
            _replace_text(self.root / name / "finding.json", _dumped(found))

    def _write(self, finding: Finding) -> Path:
        self.root.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=self.root))
        final = self.root / finding.name
        try:
            (temporary / "finding.json").write_text(_dumped(finding), "utf-8")
            (temporary / "frames.txt").write_text(decoded(finding), "utf-8")
            (temporary / "sequence.hex").write_text(_hex(finding.case), "utf-8")
            (temporary / "replay.py").write_text(script(finding), "utf-8")
            temporary.chmod(0o755)
            if final.exists():
                old = temporary.with_name(temporary.name + "-old")
                final.replace(old)
                temporary.replace(final)
                shutil.rmtree(old)
            else:
                temporary.replace(final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return final


def _weight(finding: Finding) -> tuple[int, int, int]:
    return len(finding.case.steps), finding.case.size, finding.case.index


def _dumped(finding: Finding) -> str:
    return json.dumps(finding.as_json(), indent=1, sort_keys=True) + "\n"


def _hex(case: Case) -> str:
    lines = []
    for step in case.steps:
        then = f", then {step.then}" if step.then else ""
        lines.append(f"# {step.on}: {step.name} {step.how}{then}".rstrip())
        lines.append(step.data.hex())
    return "\n".join(lines) + "\n"


def _replace_text(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, "utf-8")
    temporary.replace(path)
