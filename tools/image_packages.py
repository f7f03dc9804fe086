"""Write which packages of the lock the images have: packaging/container/*.txt.

    python -m tools.image_packages

What is asked for here, and all that this requires on Linux, as the installed packages say. A test
compares, so a new dependency cannot be forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = ROOT / "packaging" / "container"
LISTS: Final = {
    "build": ("hatchling",),
    "node": ("holdfast[mcp,postgres]",),
    "spark": ("holdfast[mcp,postgres,spark]",),
}
NOTE: Final = "# Written by `python -m tools.image_packages`.\n"
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
"""An image may have any of these: a package that one of them wants is listed, and the lock says
when it is installed."""


def packages_of(wanted: Iterable[str]) -> list[str]:
    """The names of all packages that these need, themselves included, but for Holdfast."""
    locked = set(re.findall(r"(?m)^([\w.-]+)==", (ROOT / "requirements.lock").read_text("utf-8")))
    todo, seen = [Requirement(text) for text in wanted], set[tuple[str, str]]()
    names = set[str]()
    while todo:
        one = todo.pop()
        name = canonicalize_name(one.name)
        for extra in ("", *one.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            todo += _required(name, extra)
        if name != "holdfast":
            names.add(name)
    # What only other systems or newer Pythons bring is not in a lock for ours.
    return sorted(names & locked)


def _required(name: str, extra: str) -> Iterator[Requirement]:
    try:
        required = distribution(name).requires or []
    except PackageNotFoundError:
        return  # of a Python that is not ours: its block in the lock says so
    for text in required:
        one = Requirement(text)
        if one.marker is None or any(
            one.marker.evaluate({"extra": extra, "python_version": python, "sys_platform": "linux"})
            for python in PYTHONS
        ):
            yield one


def text_of(name: str) -> str:
    return NOTE + "".join(f"{package}\n" for package in packages_of(LISTS[name]))


def main() -> None:
    for name in LISTS:
        (FOLDER / f"{name}.txt").write_text(text_of(name), encoding="utf-8")
        print(f"{name}.txt: {text_of(name).count(chr(10)) - 1} packages")


if __name__ == "__main__":
    main()
