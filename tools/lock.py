"""Write requirements.lock: every package with its version and hashes, and no address.

    python tools/lock.py                look at the index as it was on the date in pyproject.toml
    python tools/lock.py 2027-01-31     move that date first

uv's own lock file records where each file came from, which differs from machine to machine; the
export keeps only what has to be the same everywhere.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ROOT / "pyproject.toml"
LOCK = ROOT / "requirements.lock"
UV = Path(sys.executable).parent / "uv"
EXPORT = (
    "export",
    "--quiet",
    "--system-certs",
    "--no-header",
    "--no-annotate",
    "--no-emit-project",
    "--all-groups",
    "--all-extras",
)


def move_date(before: str) -> None:
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", before):
        sys.exit(f"{before!r} is not a date like 2027-01-31")
    text = PROJECT.read_text(encoding="utf-8")
    moved, count = re.subn(
        r'(?m)^exclude-newer = ".*"$', f'exclude-newer = "{before}T00:00:00Z"', text
    )
    assert count == 1, "pyproject.toml names one date"
    PROJECT.write_text(moved, encoding="utf-8")


def main() -> None:
    if len(sys.argv) > 1:
        move_date(sys.argv[1])
    # Without the old resolution every version is chosen anew, as it would be on any other machine.
    (ROOT / "uv.lock").unlink(missing_ok=True)
    exported = subprocess.run(
        [UV, *EXPORT], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    for line in exported.splitlines():
        if "://" in line or line.lstrip().startswith(
            ("--index", "--extra-index", "--find-links", "-e ", "/", ".")
        ):
            sys.exit(f"the export names a place, which a lock for everyone must not: {line}")
    LOCK.write_text(exported, encoding="utf-8")
    print(f"{LOCK.name}: {exported.count('==')} packages")


if __name__ == "__main__":
    main()
