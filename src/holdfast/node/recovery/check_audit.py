"""Checks of the doctor about audit streams: are the chains whole, and was a fork refused?

By default gaps and forks are looked for, which needs no event to be read. On request every event is
hashed again.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.node.log.audit_trail import chains, forks_of, verdicts
from holdfast.node.recovery.check_log import REPAIR
from holdfast.node.recovery.checks import Check, fail, ok, warn
from holdfast.storage.ports import Reader


def check_audit(reader: Reader, *, full: bool = False) -> Iterator[Check]:
    events = 0
    for mesh in reader.mesh_list():
        for row in chains(reader, mesh.slug):
            events += row.events
            if row.events < row.last:
                yield warn(
                    "audit",
                    f"{mesh.slug}: {row.last - row.events} events of {row.origin} in "
                    f"{row.stream!r} are missing",
                    "they come when somebody who has them is reached; see: holdfast audit verify",
                )
        for fork in forks_of(reader, mesh.slug):
            yield fail(
                "audit",
                f"{mesh.slug}: {fork.evidence}",
                f"find out who made two of it: holdfast link quarantine {fork.by}",
            )
        if full:
            for one in verdicts(reader, mesh.slug):
                if one.broken:
                    yield fail("audit", f"{mesh.slug}: {one.broken}", REPAIR)
    yield ok("audit", f"{events} events of audit streams are here")
