"""What users download and install stays small: the wheel, and all that the base install brings."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email import message_from_string
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.project import ROOT
from tools.man_pages import man_pages

MB: Final = 1_000_000
WHEEL_BYTES_MAX: Final = 4 * MB
"""The wheel itself, as it is downloaded."""
INSTALL_BYTES_MAX: Final = 100 * MB
"""All that `pip install holdfast` puts on the disk, without what Python compiles."""
INSTALL_PACKAGES_MAX: Final = 35


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    words = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


def test_the_wheel_is_small_and_holds_the_program_and_nothing_else(wheel: Path) -> None:
    assert wheel.stat().st_size <= WHEEL_BYTES_MAX
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    tops = {name.partition("/")[0] for name in names}
    (beside,) = (name for name in tops if name.endswith(".data"))
    assert {name for name in tops if not name.endswith(".dist-info")} == {
        *("holdfast", "pyspark_holdfast_lake", beside)
    }
    pages = {f"{beside}/data/share/man/man1/{name}" for name in man_pages()}
    changes = f"{beside}/data/share/doc/holdfast/CHANGELOG.md"
    assert {name for name in names if name.startswith(f"{beside}/")} == pages | {changes}
    assert "holdfast/py.typed" in names
    assert not [name for name in names if name.endswith((".pyc", ".db", ".log"))]


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (one for one in packed.namelist() if one.endswith(".dist-info/METADATA"))
        metadata = message_from_string(packed.read(name).decode())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert set(metadata.get_all("Provides-Extra", [])) == {
        "embed",
        "keyring",
        "mcp",
        "postgres",
        "spark",
    }


def test_the_base_install_is_small(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        sizes = {"holdfast": sum(one.file_size for one in packed.infolist())}
    _add(sizes, "holdfast")
    whole = sum(sizes.values())
    largest = sorted(sizes.items(), key=lambda one: -one[1])[:5]
    assert whole <= INSTALL_BYTES_MAX, f"{whole / MB:.0f} MB; the largest: {largest}"
    assert 15 < len(sizes) <= INSTALL_PACKAGES_MAX
    assert not {"torch", "pyspark", "pandas", "numpy"} & sizes.keys()


def _add(sizes: dict[str, int], name: str) -> None:
    """Adds what a package requires, and what that requires."""
    for text in distribution(name).requires or []:
        wanted = Requirement(text)
        found = canonicalize_name(wanted.name)
        asked = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if found in sizes or not asked:
            continue
        sizes[found] = _size(found)
        _add(sizes, found)


def _size(name: str) -> int:
    files = [Path(str(one.locate())) for one in distribution(name).files or []]
    return sum(one.stat().st_size for one in files if one.suffix != ".pyc" and one.exists())
