"""Counts the streams of meshes on the bus again, where they do not agree with the log.

The log is the truth, and stays as it is; nobody else may have the home open. What was covered
without an entry here is forgotten: peers that still have it are asked for it again, and ids tell
what is known.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.node.bus.meshes.backfill import count_next, job_of, switch_on
from holdfast.node.home.exclusive import exclusive
from holdfast.node.library.node import open_node
from holdfast.node.recovery.check_streams import stream_faults
from holdfast.storage.files import home as homes
from holdfast.storage.ports import Transaction
from holdfast.storage.sqlite.snapshot_copy import open_read_only


def recount_streams(home: Path) -> list[str]:
    """Returns the meshes whose streams were wrong and are counted again."""
    paths = homes.require_home(home)
    with exclusive(paths, "count streams again"), open_read_only(paths.database) as reader:
        peer = reader.peer_name() or ""
        wrong = [
            row.slug
            for row in reader.mesh_list()
            if row.on_bus and stream_faults(reader, peer, row, full=True)
        ]
    if not wrong:
        return []
    with open_node(home) as node:
        engine = node._engine
        for mesh in wrong:

            def forget(tx: Transaction, mesh: str = mesh) -> None:
                tx.stream_drop(mesh)
                tx.job_drop(job_of(mesh))

            engine.write("bus.count", forget)
            switch_on(engine, mesh)
            while count_next(engine, mesh):
                pass
    return wrong
