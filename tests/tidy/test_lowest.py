"""The lowest versions that the project file allows are those that were tried."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from support.project import ROOT, expect_none

LOCKED = re.compile(r"(?m)^([\w.-]+)==([^\s;]+)")
SUBCLASSED = ("uvicorn",)


def wanted() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [*project["dependencies"], *project["optional-dependencies"]["postgres"]]
    found: dict[str, Requirement] = {
        canonicalize_name(one.name): one for one in map(Requirement, listed)
    }
    here = {name: one for name, one in found.items() if one.marker is None or one.marker.evaluate()}
    assert len(here) > 15
    return here


def locked() -> dict[str, Version]:
    text = (ROOT / "requirements-lowest.lock").read_text(encoding="utf-8")
    return {canonicalize_name(name): Version(version) for name, version in LOCKED.findall(text)}


def test_the_lowest_lock_has_what_the_lower_bounds_say() -> None:
    versions = locked()
    wrong = []
    for name, requirement in wanted().items():
        bounds = [one.version for one in requirement.specifier if one.operator == ">="]
        # What an index has of 0.23 may begin with 0.23.1.
        said = Version(bounds[0]).release if bounds else None
        if said is None or versions[name].release[: len(said)] != said:
            wrong.append(f"{requirement}: {versions.get(name)} is locked")
    expect_none(wrong, "run: make lock, or raise the bound to what was tried")


def test_what_we_subclass_has_an_upper_bound() -> None:
    open_ended = [
        name for name in SUBCLASSED if not any(s.operator == "<" for s in wanted()[name].specifier)
    ]
    expect_none(open_ended, "the next version may change what we have subclassed")


def test_the_environment_has_versions_that_are_allowed_and_the_lowest_one_the_lowest() -> None:
    found = {name: Version(importlib.metadata.version(name)) for name in wanted()}
    assert all(version in wanted()[name].specifier for name, version in found.items())
    if Path(sys.prefix).name == "lowest":
        assert found == {name: locked()[name] for name in wanted()}
