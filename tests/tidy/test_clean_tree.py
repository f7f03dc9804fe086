"""What is committed belongs to everyone: no machine's paths, no addresses, nothing out of step."""

from __future__ import annotations

import importlib.metadata
import os
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.project import ROOT, expect_none, project_files, where

INDEX_ADDRESS = re.compile(rb"https?://[^\s\"']*/(?:simple|packages)/")
MACHINE_PATH = re.compile(rb"(?<![\w.$-])/(?:work|root)/")

LOCKED = re.compile(
    r"(?m)^(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\\n]+?))? \\$"
)


def test_no_file_knows_the_address_of_a_package_index() -> None:
    found = [where(path) for path in project_files() if INDEX_ADDRESS.search(path.read_bytes())]
    expect_none(found, "which index to use is each machine's own business: remove the address")


def test_no_file_knows_a_path_of_the_machine_it_was_written_on() -> None:
    found = [where(path) for path in project_files() if MACHINE_PATH.search(path.read_bytes())]
    expect_none(found, "name the place in a way that is right everywhere")


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-lowest.lock"])
def test_a_lock_holds_names_versions_and_hashes_and_nothing_else(lock: str) -> None:
    line = re.compile(r"[\w.-]+==[^\s;]+( ; [^\\]+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?")
    lines = (ROOT / lock).read_text(encoding="utf-8").splitlines()
    assert lines
    expect_none([text for text in lines if not line.fullmatch(text)], "run: make lock")


def test_the_lock_satisfies_the_project_file() -> None:
    locked = _locked()
    unmet = [
        str(wanted)
        for wanted in _wanted()
        if not any(
            version in wanted.specifier
            for version in locked.get(canonicalize_name(wanted.name), [])
        )
    ]
    expect_none(unmet, "run: make lock")


def test_the_environment_is_the_locked_one() -> None:
    installed: dict[str, str] = {
        canonicalize_name(found.metadata["Name"]): found.version
        for found in importlib.metadata.distributions()
    }
    other = [
        f"{name}: {installed.get(name)} is installed, {versions} is locked"
        for name, versions in _locked(here=True).items()
        if installed.get(name) not in versions
    ]
    expect_none(other, "run: make sync")


def test_what_ci_runs_can_be_run() -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_every_verb_of_the_makefile_says_what_it_does() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"(?m)^\.PHONY: (.*)$", text)
    assert phony is not None
    assert set(phony[1].split()) == set(re.findall(r"(?m)^(\w+):.*## \S", text))


def test_every_decision_stands_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    records = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert records
    expect_none([name for name in records if f"]({name})" not in index], "add it to the index")
    numbers = [name[:4] for name in records]
    assert len(set(numbers)) == len(numbers), "two decisions share a number"
    rows = re.findall(r"(?m)^\| (\d{4}) \|", index)
    assert rows == numbers, "the index has each decision once, in order"


def _locked(*, here: bool = False) -> dict[str, list[str]]:
    """Versions by package; with `here`, those meant for the Python and platform that runs this."""
    found: dict[str, list[str]] = {}
    for match in LOCKED.finditer((ROOT / "requirements.lock").read_text(encoding="utf-8")):
        wanted = Requirement(match[0].removesuffix(" \\"))
        if not here or wanted.marker is None or wanted.marker.evaluate():
            found.setdefault(canonicalize_name(wanted.name), []).append(match["version"])
    return found


def _wanted() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed: list[str] = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for group in project["dependency-groups"].values():
        listed += [entry for entry in group if isinstance(entry, str)]
    for extra in project["project"].get("optional-dependencies", {}).values():
        listed += extra
    return [Requirement(entry) for entry in listed]
