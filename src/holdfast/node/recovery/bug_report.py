"""What somebody who mends a fault must know of a home, and nothing that its user would mind.

It is made of what is named here: versions, sizes, counts, names of checks and how they ended, and
which settings are set. No name of a peer, a mesh or a key, no path, no address, no value and no
sentence of an error gets in, because sentences quote what they are about.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast import __version__
from holdfast.node.library.node import open_node
from holdfast.node.recovery.doctor import diagnose
from holdfast.node.settings import Settings, load
from holdfast.rules.errors import HoldfastError
from holdfast.storage.files.home import HomePaths
from holdfast.storage.files.presence import others
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.versions import sqlite_version, vector_version

FORMAT: Final = 1
_PACKAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SHOWN_VALUES: Final = (bool, int)
"""Settings of these kinds are shown; of all others only whether they are set."""


def bug_report(home: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """The report of a home, also of one that cannot be opened, or is not there."""
    return {
        "format": FORMAT,
        "versions": _versions(),
        "environment": sorted(name for name in environ if name.startswith("HOLDFAST_")),
        "settings": _settings(environ),
        "files": _files(HomePaths(home)),
        "checks": _checks(home),
        "node": _node(home),
    }


def _versions() -> dict[str, str]:
    found = {
        "holdfast": __version__,
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "system": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "sqlite": sqlite_version(),
        "sqlite-vec": vector_version(),
        "schema": str(migrations.LATEST),
    }
    for line in metadata.requires("holdfast") or ():
        named = _PACKAGE.match(line)
        assert named is not None, "a requirement begins with a name"
        name = named[0]
        try:
            found.setdefault(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            continue  # an extra that is not installed
    return found


def _settings(environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        settings = load(environ, {})
    except HoldfastError as error:
        return {"error": error.code}
    return _changed(settings, Settings())


def _changed(given: msgspec.Struct, usual: msgspec.Struct) -> dict[str, Any]:
    """The settings that are not as usual, and their values where those tell nothing."""
    found: dict[str, Any] = {}
    for name in given.__struct_fields__:
        value, before = getattr(given, name), getattr(usual, name)
        if value == before:
            continue
        if isinstance(value, msgspec.Struct):
            found[name] = _changed(value, before)
        else:
            found[name] = value if isinstance(value, _SHOWN_VALUES) else "set"
    return found


def _files(paths: HomePaths) -> dict[str, dict[str, Any] | None]:
    """Size and mode of the files of every home, by their own names."""
    found: dict[str, dict[str, Any] | None] = {}
    for path in (*paths.folders, *paths.files):
        try:
            status = path.lstat()
        except OSError:
            found[path.name] = None
        else:
            found[path.name] = {"bytes": status.st_size, "mode": f"{status.st_mode & 0o7777:o}"}
    return found


def _checks(home: Path) -> list[dict[str, str]]:
    return [{"name": check.name, "status": check.status} for check in diagnose(home).checks]


def _node(home: Path) -> dict[str, Any]:
    try:
        with open_node(home) as node:
            head = node.log.head()
            return {
                "log": {"epoch": head.epoch, "first": head.first, "last": head.offset},
                "meshes": [
                    {"shared": row.shared, "rows": node.mesh(row.slug).counts()}
                    for row in node.meshes()
                ],
                "consumers": [{"lag": row.lag} for row in node.log.consumers()],
                "conflicts_open": sum(1 for _ in node.conflicts()),
                "processes": len(others(HomePaths(home))),
            }
    except HoldfastError as error:
        return {"error": error.code}
