"""One look into a home that is in order, at the cost of a look.

Opening a home as a node costs several times what a single read does, and most of that is spent on
what can only matter when something is unusual: modes that drifted, a process that ended badly, a
schema to migrate, a warning for the peer. So this module looks whether anything is unusual,
by stat calls and four short queries. If it is, it gives no answer and the caller opens the home
properly; only a home where opening would find nothing to do is read here.

Nothing is written: not even the checkpoint that SQLite makes when the last connection closes, since
this reader stands in no list of processes and must not clean up under anybody.

This module stands on the CLI's cold path: keep its imports few, and its results plain tuples.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import COMPLETIONS_MAX
from holdfast.storage.sqlite.connection import APPLICATION_ID, connect, shut

TYPE_CHECKING = False  # type checkers know the name; importing typing costs the cold path
if TYPE_CHECKING:
    from typing import Final

SCHEMA = 22
"""The schema whose columns are read here: `migrations.LATEST`, which is too heavy to import."""

DATABASE = "data.db"
WAL = "data.db-wal"
PROCESSES = "processes"
FOLDERS = ("blobs", "logs", PROCESSES)
FILES = (
    *(DATABASE, WAL, "data.db-shm", "identity.key", "log.mark", "bus.mark"),
    "identity.former",
    *("backup.lock", "identity.next.key", "tls.crt", "tls.key", "ballast", "whereabouts.json"),
    *("logs/metrics.jsonl", "console.json"),
    *("quorum.db", "quorum.db-wal", "quorum.db-shm"),
    *("quorum.mark", "quorum.lock", "quorum.ballast", "auth.key"),
)

_BEGINS: Final = "{0} >= :part AND {0} < :end"
_OF_MESH: Final = {
    "state": "SELECT key FROM state WHERE mesh = :mesh AND tombstone = 0 AND {key}",
    "memory": "SELECT key FROM memory WHERE mesh = :mesh AND tombstone = 0 AND {key} "
    "AND owner = (SELECT value FROM meta WHERE name = 'peer')",
    "path": "SELECT DISTINCT path FROM file WHERE mesh = :mesh AND tombstone = 0 AND {path}",
    "vector": "SELECT DISTINCT key FROM vector WHERE mesh = :mesh AND {key}",
    "task": "SELECT task FROM task WHERE mesh = :mesh AND {task}",
    "stream": "SELECT DISTINCT stream FROM audit_chain WHERE mesh = :mesh AND {stream}",
    "entity_type": "SELECT DISTINCT type FROM entity WHERE mesh = :mesh AND {type}",
    "entity": "SELECT id FROM entity WHERE mesh = :mesh AND deleted = 0 AND {id}",
    "lease": "SELECT name FROM quorum_lease WHERE mesh = :mesh AND {name}",
    "telemetry_kind": "SELECT DISTINCT kind FROM telemetry WHERE mesh = :mesh AND {kind}",
}
_OF_HOME: Final = {
    "mesh": "SELECT slug FROM mesh WHERE ending = 0 AND {slug}",
    "peer": "SELECT peer FROM peer WHERE {peer} UNION SELECT name FROM zone WHERE {name}",
    "link": "SELECT name FROM link WHERE {name}",
    "token": "SELECT name FROM token WHERE {name}",
    "consumer": "SELECT name FROM consumer WHERE {name}",
    "conflict": "SELECT number FROM conflict WHERE resolved_at IS NULL "
    "AND CAST(number AS TEXT) LIKE :part || '%'",
}
NAMES: Final = frozenset((*_OF_MESH, *_OF_HOME))
_COLUMNS: Final = ("key", "path", "task", "stream", "type", "id", "name", "kind", "slug", "peer")


class Unusual(Exception):
    """The home asks for a proper opening, which will say what is the matter."""


@contextmanager
def open_read_only(root: str) -> Iterator[apsw.Connection]:
    """A connection in a read transaction; Unusual where there is more to do than to read."""
    if not undisturbed(root):
        raise Unusual
    try:
        connection = connect(f"{root}/{DATABASE}", read_only=True)
    except HoldfastError as error:
        raise Unusual from error
    try:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.execute("BEGIN")
        ours = connection.pragma("application_id") == APPLICATION_ID
        if not ours or connection.pragma("user_version") != SCHEMA:
            raise Unusual
        yield connection
    except apsw.Error as error:
        raise Unusual from error
    finally:
        shut(connection)


def mesh_names(connection: apsw.Connection) -> list[str]:
    return [
        row[0] for row in connection.execute("SELECT slug FROM mesh WHERE ending = 0 ORDER BY slug")
    ]


def peer_name(connection: apsw.Connection) -> str | None:
    name = connection.execute("SELECT value FROM meta WHERE name = 'peer'").get
    return None if name is None else str(name)


def anything_to_tell(connection: apsw.Connection, mesh: str) -> bool:
    row = connection.execute("SELECT 1 FROM warning WHERE mesh = ? LIMIT 1", (mesh,)).get
    return row is not None


def state_row(connection: apsw.Connection, mesh: str, key: str) -> tuple[str, int, str, int] | None:
    """The live value as its JSON text, with lamport, peer and the time of the change."""
    for value, lamport, peer, updated_at in connection.execute(
        "SELECT value, lamport, peer, updated_at FROM state "
        "WHERE mesh = ? AND key = ? AND tombstone = 0",
        (mesh, key),
    ):
        return value, lamport, peer, updated_at
    return None


def state_rows(
    connection: apsw.Connection, mesh: str, most: int
) -> Iterator[tuple[str, str, int, str, int]]:
    """The first live keys in order, each with what `state_row` says of it."""
    yield from connection.execute(
        "SELECT key, value, lamport, peer, updated_at FROM state "
        "WHERE mesh = ? AND tombstone = 0 ORDER BY key LIMIT ?",
        (mesh, most),
    )


def memory_row(
    connection: apsw.Connection, mesh: str, owner: str, key: str
) -> tuple[str, str, int, int, int] | None:
    """The live value and the tags as their JSON texts, with lamport, and when it was changed and
    first made.
    """
    for value, tags, lamport, updated_at, created_at in connection.execute(
        "SELECT value, tags, lamport, updated_at, created_at FROM memory "
        "WHERE mesh = ? AND owner = ? AND key = ? AND tombstone = 0",
        (mesh, owner, key),
    ):
        return value, tags, lamport, updated_at, created_at or updated_at
    return None


def keys_near(connection: apsw.Connection, mesh: str, key: str, most: int) -> list[str]:
    """Live keys of the state on both sides of one that is not there."""
    live = "SELECT key FROM state WHERE mesh = ? AND tombstone = 0 AND key"
    found = []
    for side in ("> ? ORDER BY key", "< ? ORDER BY key DESC"):
        rows = connection.execute(f"{live} {side} LIMIT ?", (mesh, key, most))
        found += [row[0] for row in rows]
    return found


def memories_near(
    connection: apsw.Connection, mesh: str, owner: str, key: str, most: int
) -> list[str]:
    """Live keys of one peer's memory on both sides of one that is not there."""
    live = "SELECT key FROM memory WHERE mesh = ? AND owner = ? AND tombstone = 0 AND key"
    found = []
    for side in ("> ? ORDER BY key", "< ? ORDER BY key DESC"):
        rows = connection.execute(f"{live} {side} LIMIT ?", (mesh, owner, key, most))
        found += [row[0] for row in rows]
    return found


def names(connection: apsw.Connection, kind: str, mesh: str, part: str) -> Iterator[str]:
    """The first names of a kind that begin with a part, in order, for shells that complete them.
    Each kind is a range of an index, or a small table.
    """
    statement = _OF_MESH.get(kind, "") or _OF_HOME[kind]
    if kind in _OF_MESH and not mesh:
        return
    columns = {column: _BEGINS.format(column) for column in _COLUMNS}
    given = {"mesh": mesh, "part": part, "end": f"{part}\U0010ffff", "most": COMPLETIONS_MAX}
    rows = connection.execute(f"{statement.format(**columns)} ORDER BY 1 LIMIT :most", given)
    for (name,) in rows:
        yield str(name)


def undisturbed(root: str) -> bool:
    """Whether opening this home would find nothing to mend or to tell."""
    try:
        user = os.geteuid()
        if not _is(os.stat(root), stat.S_IFDIR | 0o700, user):
            return False
        for name in FOLDERS:
            if not _is(os.lstat(f"{root}/{name}"), stat.S_IFDIR | 0o700, user):
                return False
        waiting = 0
        for name in FILES:
            try:
                status = os.lstat(f"{root}/{name}")
            except FileNotFoundError:
                continue
            if not _is(status, stat.S_IFREG | 0o600, user):
                return False
            if name == WAL:
                waiting = status.st_size
        others = os.listdir(f"{root}/{PROCESSES}")
        # A WAL that nobody is working on was left by a process that ended badly.
        return (not waiting or bool(others)) and all(_lives(root, name) for name in others)
    except OSError:
        return False


def _is(status: os.stat_result, mode: int, user: int) -> bool:
    return status.st_mode == mode and status.st_uid == user


def _lives(root: str, name: str) -> bool:
    """As `storage.files.presence` defines it: a living process holds a lock on its file."""
    try:
        fd = os.open(f"{root}/{PROCESSES}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return True  # it left well while we looked
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return os.fstat(fd).st_nlink == 0
    finally:
        os.close(fd)
