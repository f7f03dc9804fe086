"""Homes to throw away: made for one run of a daemon, and removed after it.

A mark in the home says that it is one, so that nothing else is ever removed. What the home still
owes to brokers is not thrown away: then it stays, and its user is told where.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from holdfast.node.home.opening import open_home
from holdfast.rules.outbox import OutboxState
from holdfast.rules.rows import MeshRow
from holdfast.storage.files.durable import disk_errors
from holdfast.storage.files.home import HomePaths

_OWED = (OutboxState.PENDING, OutboxState.INFLIGHT, OutboxState.DEAD)


def make(environ: Mapping[str, str], peer: str | None, mesh: str) -> HomePaths:
    """A new home in the user's runtime folder, or else in the folder for temporary files."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    with disk_errors("make a home to throw away"):
        root = Path(tempfile.mkdtemp(prefix="holdfast-", dir=runtime or None))
    opened = open_home(root, peer=peer or root.name, create=True, environ=environ)
    try:
        now = opened.engine.ctx.now_ms()
        row = MeshRow(slug=mesh, name=mesh, created_at=now, updated_at=now)
        opened.engine.write("mesh.create", lambda tx: tx.mesh_add(row))
    finally:
        opened.close()
    paths = HomePaths(root)
    with disk_errors(f"mark {root}"):
        os.close(os.open(paths.ephemeral, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    return paths


def remove(paths: HomePaths) -> int:
    """Removes a home that was made to be thrown away; returns how many envelopes it still owes to
    brokers, and leaves it alone if there are any.
    """
    assert paths.ephemeral.exists(), "only a home that was made for this is removed"
    opened = open_home(paths.root)
    try:
        counts = opened.engine.read("outbox.counts", lambda tx: tx.outbox_counts())
    finally:
        opened.close()
    owed = sum(count for (_, state), count in counts.items() if state in _OWED)
    if not owed:
        with disk_errors(f"remove {paths.root}"):
            shutil.rmtree(paths.root)
    return owed
