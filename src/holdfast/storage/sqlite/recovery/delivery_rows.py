"""What a repair saves of shared meshes: what waits to be sent, what came, and where we stand.

Rows are found their entries by id, whatever became of the offsets. What was to be sent and has lost
its envelope is lost. Where the list of what is to be sent is damaged, everything that we wrote is
sent once more: the broker knows what it has by its id. Where the log is damaged, everything is read
again from the broker: this node knows what it has, too.
"""

from __future__ import annotations

from typing import Any, Final

import apsw
import msgspec

from holdfast.rules.envelope import decode_trusted
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.outbox import lane_of, outbox_row
from holdfast.rules.rows import OutboxRow
from holdfast.storage.sqlite.outbox import OutboxWrites

Fields = dict[str, Any]

TABLES: Final = ("spool", "inbox", "mate", "heard")
SINCE: Final = 7
"""The schema version that brought them."""
BUS_TABLES: Final = (
    *("bus_mark", "bus_nonces", "bus_sender", "bus_known", "bus_inbox", "bus_message"),
    *("bus_interest", "bus_seal"),
)
"""What the peer bus keeps. Marks or ids that are lost cost nothing: the repaired database is
another file than the bus remembers, so its store takes a new incarnation."""
BUS_SINCE: Final = 11

QUORUM_TABLES: Final = (
    *("quorum", "quorum_commit", "quorum_void", "entity", "entity_revision", "quorum_conflict"),
    *("quorum_lease", "quorum_node", "quorum_queue", "mesh_snapshot"),
)
"""What quorums have committed. A log alone does not give it again: the order is that of commits."""
QUORUM_SINCE: Final = 15

_BYTES: Final = {"spool": ("id", 16), "inbox": ("id", 16), "mate": ("key", 32)}
_names = msgspec.json.Decoder(tuple[str, ...])


def is_valid(table: str, fields: Fields) -> bool:
    """Whether a row can be what it says."""
    name, size = _BYTES.get(table, ("", 0))
    if name and not (isinstance(fields.get(name), bytes) and len(fields[name]) == size):
        return False
    try:
        if table == "mate":
            _names.decode(fields["grants"])
    except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, KeyError):
        return False
    return True


class _Outbox(OutboxWrites):
    def __init__(self, connection: apsw.Connection) -> None:
        self._con = connection
        self._once = connection.cursor()


def settle_rows(
    connection: apsw.Connection,
    peer: str | None,
    *,
    log_lost: bool,
    outbox_lost: bool,
    now_ms: int,
) -> dict[str, int]:
    """Brings rows and log together; `peer` is whose home it is. Says how many rows of each table
    have lost their entry.
    """
    for table in ("spool", "inbox"):
        connection.execute(
            f"UPDATE {table} SET offset = "
            f"coalesce((SELECT offset FROM log WHERE log.id = {table}.id), 0)"
            + (" WHERE lane NOT GLOB 'peer:*'" if table == "spool" else "")
        )
    lost = {}
    # What waits for a peer of the bus has its content elsewhere, and no place in the log.
    connection.execute(
        "DELETE FROM spool WHERE offset = 0 AND state IN ('pending', 'inflight', 'dead') "
        "AND number NOT IN (SELECT number FROM bus_message)"
    )
    lost["spool"] = connection.changes()
    connection.execute(
        "DELETE FROM bus_message WHERE number NOT IN "
        "(SELECT number FROM spool WHERE lane GLOB 'peer:*')"
    )
    connection.execute("DELETE FROM inbox WHERE offset = 0")
    lost["inbox"] = connection.changes()
    connection.execute("UPDATE spool SET state = 'pending' WHERE state = 'inflight'")
    if log_lost:
        connection.execute("UPDATE mesh SET broker_seq = 0 WHERE kind <> 'personal'")
    if outbox_lost:
        _send_again(connection, peer, now_ms)
    return lost


def _send_again(connection: apsw.Connection, peer: str | None, now_ms: int) -> None:
    """All that we wrote into shared meshes and that is not listed."""
    after = 0
    while True:
        page: list[Any] = connection.execute(
            "SELECT offset, id, raw FROM log WHERE offset > ? AND via = 0 AND origin = ? "
            "AND mesh IN (SELECT slug FROM mesh WHERE kind <> 'personal') ORDER BY offset LIMIT ?",
            (after, peer, CHUNK_ROWS),
        ).fetchall()
        if not page:
            return
        _Outbox(connection).outbox_add([_row(at, id, raw, now_ms) for at, id, raw in page])
        after = page[-1][0]


def _row(offset: int, id: bytes, raw: bytes, now_ms: int) -> OutboxRow:
    envelope = decode_trusted(raw)
    row = outbox_row(lane_of(envelope.mesh), envelope, offset, now_ms)
    # As old as it is: a message that the broker may have forgotten must not go as if it were new.
    return msgspec.structs.replace(row, id=id, created_at=min(now_ms, envelope.created_at))
