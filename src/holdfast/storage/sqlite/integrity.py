"""Does a database hold together? What SQLite can see of it, plus what only we know."""

from __future__ import annotations

from pathlib import Path

import apsw

from holdfast.rules.errors import StoreCorrupt
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.connection import connect, shut, typed
from holdfast.storage.sqlite.log_leaves import LeafReads

_PROBLEMS_MAX = 100

_OURS = {
    "two live vectors of one key": (
        "SELECT mesh || '/' || owner || '/' || key FROM vector WHERE live = 1 "
        "GROUP BY mesh, owner, key, model HAVING count(*) > 1"
    ),
    "a blob that a live file names is not registered": (
        "SELECT sha256 FROM file WHERE tombstone = 0 AND content IS NULL "
        "AND sha256 NOT IN (SELECT sha256 FROM blob)"
    ),
    "an object that a fact names is not registered": (
        "SELECT DISTINCT sha256 FROM fact_object WHERE sha256 NOT IN (SELECT sha256 FROM blob)"
    ),
    "a released blob is still named": (
        "SELECT sha256 FROM blob WHERE released_at IS NOT NULL AND sha256 IN "
        "(SELECT sha256 FROM file WHERE tombstone = 0 AND content IS NULL "
        "UNION SELECT sha256 FROM fact_object)"
    ),
    "an entry came through a zone that never was": (
        "SELECT offset FROM log WHERE via > "
        "coalesce((SELECT value FROM meta WHERE name = 'zone'), 0) LIMIT 1"
    ),
    "what is to be sent is not in the log": (
        "SELECT number FROM spool WHERE state IN ('pending', 'inflight', 'dead') "
        "AND lane NOT GLOB 'peer:*' AND NOT EXISTS "
        "(SELECT 1 FROM log WHERE log.offset = spool.offset AND log.id = spool.id)"
    ),
    "a message for a peer has no content": (
        "SELECT number FROM spool WHERE state IN ('pending', 'dead') AND lane GLOB 'peer:*' "
        "AND NOT EXISTS (SELECT 1 FROM bus_message WHERE bus_message.number = spool.number)"
    ),
    "a body of the bus is sealed by a key that is gone": (
        "SELECT number FROM bus_inbox WHERE seal > 0 AND seal NOT IN (SELECT number FROM bus_seal) "
        "UNION ALL SELECT number FROM bus_message "
        "WHERE seal > 0 AND seal NOT IN (SELECT number FROM bus_seal)"
    ),
    "a message of the inbox is something else in the log": (
        "SELECT number FROM inbox JOIN log USING (offset) WHERE log.id <> inbox.id"
    ),
    "a hole of the log has an entry": (
        "SELECT offset FROM log JOIN log_hole ON offset BETWEEN first AND last LIMIT 1"
    ),
    "what has ended does not say when": (
        "SELECT number FROM spool WHERE (ended_at IS NULL) <> (state IN ('pending', 'inflight'))"
    ),
    "a search index does not count its vectors": (
        "SELECT m.mesh || '/' || m.model FROM vector_mesh AS m WHERE m.live <> (SELECT count(*) "
        "FROM vector AS v WHERE v.live = 1 AND v.mesh = m.mesh AND v.model = m.model)"
    ),
    "the log has a gap": (
        "SELECT missing FROM (SELECT max(offset) - min(offset) + 1 - count(*) - "
        "coalesce((SELECT sum(last - max(first, (SELECT min(offset) FROM log)) + 1) "
        "FROM log_hole WHERE last >= (SELECT min(offset) FROM log)), 0) AS missing FROM log) "
        "WHERE missing <> 0"
    ),
    "a clock is behind its own log": (
        "SELECT slug FROM mesh WHERE lamport < "
        "(SELECT coalesce(max(lamport), 0) FROM log WHERE log.mesh = mesh.slug)"
    ),
}


def integrity(path: Path, *, vfs: str | None = None, ours: bool = False) -> list[str]:
    """What is wrong, as sentences; empty if nothing is. `ours` adds our own invariants.

    A disk that cannot be read says nothing about what is on it: that is raised as what it is.
    """
    try:
        connection = connect(path, vfs=vfs, read_only=True)
        try:
            return check(connection, ours=ours)
        except (apsw.Error, UnicodeDecodeError) as error:
            raise typed(error) from error
        finally:
            shut(connection)
    except StoreCorrupt as error:
        return [error.message]


def newest_integrity(path: Path) -> list[str]:
    """What is wrong with what was written last: the tables that every write changes, and the newest
    entries of the log. Its time does not grow with the database.
    """
    try:
        connection = connect(path, read_only=True)
        try:
            return _check_newest(connection)
        except (apsw.Error, UnicodeDecodeError) as error:
            raise typed(error) from error
        finally:
            shut(connection)
    except StoreCorrupt as error:
        return [error.message]


def _check_newest(connection: apsw.Connection) -> list[str]:
    if migrations.version(connection) != migrations.LATEST:
        return check(connection)
    found = [
        row[0]
        for table in ("meta", "mesh")
        for row in connection.execute(f"PRAGMA integrity_check({table})")
        if row[0] != "ok"
    ]
    head = connection.execute("SELECT coalesce(max(offset), 0) FROM log").get
    first = max(0, int(head) - CHUNK_ROWS) + 1
    entries = LeafReads()
    entries._con = connection
    damaged = entries.log_damage(first, int(head) + 1, CHUNK_ROWS)
    return found + [f"the entry at offset {offset}: {what}" for offset, what in damaged]


def check(connection: apsw.Connection, *, ours: bool = False) -> list[str]:
    found = [
        row[0]
        for row in connection.execute(f"PRAGMA integrity_check({_PROBLEMS_MAX})")
        if row[0] != "ok"
    ]
    found += [
        f"row {row[1]} of {row[0]} refers to a missing row of {row[2]}"
        for row in connection.execute("PRAGMA foreign_key_check")
    ]
    if ours and not found and migrations.version(connection) == migrations.LATEST:
        for what, query in _OURS.items():
            found += [f"{what}: {row[0]}" for row in connection.execute(query)]
    return found[:_PROBLEMS_MAX]
