"""Keep source files short: none past 600 lines, those past 400 listed with a reason.

Run from anywhere: ``python mk/file_lengths.py [ROOT]``. The list is
``mk/long_files.txt``, one ``path: reason`` a line.
"""

import subprocess
import sys
from pathlib import Path

MAY_REACH = 400
MUST_NOT_PASS = 600
LIST = "mk/long_files.txt"


def reasons(root: Path) -> dict[str, str]:
    """Return the listed files and why each is long."""
    listed: dict[str, str] = {}
    for line in (root / LIST).read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            path, _, reason = line.partition(":")
            listed[path.strip()] = reason.strip()
    return listed


def source_files(root: Path) -> list[str]:
    """Return the Python files that git tracks or would track, as relative paths."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    answer = subprocess.run(
        [*command, "--", "*.py"], cwd=root, capture_output=True, check=True, text=True
    )
    names = {name for name in answer.stdout.split("\0") if name}
    return sorted(name for name in names if (root / name).is_file())


def findings(root: Path) -> list[str]:
    """Return one line for each file that is too long or wrongly listed."""
    listed = reasons(root)
    found = []
    for name in source_files(root):
        text = (root / name).read_text(encoding="utf-8")
        lines = len(text.splitlines())
        reason = listed.pop(name, None)
        if lines > MUST_NOT_PASS:
            found.append(f"{name}: {lines} lines, none may pass {MUST_NOT_PASS}")
        elif lines > MAY_REACH and not reason:
            found.append(f"{name}: {lines} lines; split it, or give a reason in {LIST}")
        elif lines <= MAY_REACH and reason is not None:
            found.append(f"{name}: {lines} lines; it need not be in {LIST} any more")
    found += [f"{name}: listed in {LIST}, but there is no such file" for name in listed]
    return found


def main() -> int:
    """Print the findings; the exit status is 1 where there are any."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    found = findings(root)
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
