"""Are two sets of rows the same? A few hundred digests answer that, without sending the rows.

A row becomes canonical bytes: a msgpack array of its table's name and its columns in a fixed order,
ids as hex, times as milliseconds. Only what is the same on every node goes in, so neither the place
in one node's log nor the time of arrival. Its digest is their SHA-256. Rows fall into 256 buckets
by a hash of what they are about, and a bucket's digest is the sum of its rows' digests modulo
2^256: it does not depend on the order, needs no sorting, and can be made in parts and put together.
That is strong against accidents. It is no proof against a node that wants to deceive: it makes the
rows and also computes their digests.

The node and the lake both work with the functions here, so they cannot disagree about the bytes.

What is covered: state, memory, files, vectors and tasks that are live; those that are dead
(tombstones, vectors that a newer one replaced, tasks that have ended) only above the stamp up to
which the node may have forgotten them; turns on tasks above that stamp; entities as they stand, by
their fences and not by stamps; and the entries that the log still holds, facts and messages among
them: the log is the only table of those. The inbox is not covered, because it says what one node
did with its messages. Models are not: a model's id is the hash of all that it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from itertools import compress
from typing import Any, Final, Literal, NamedTuple, cast
from zlib import crc32

import msgspec

from holdfast.rules.errors import BadInput
from holdfast.rules.ids import id_text
from holdfast.rules.limits import DIGEST_SHOWN_BYTES_MAX
from holdfast.rules.order import Version
from holdfast.rules.quorum.view import EntityRow
from holdfast.rules.rows import (
    Entry,
    FileRow,
    MemoryRow,
    StateRow,
    TaskEventRow,
    TaskRow,
    VectorRow,
)

FORMAT: Final = 3
"""The format of the canonical bytes: digests of two formats cannot be compared."""
BUCKETS: Final = 256
_MODULUS: Final = 1 << 256
_LANES: Final = 8
_LANE_BITS: Final = 32

Kind = Literal["text", "int", "time", "id", "bytes", "bool", "texts"]
Values = Sequence[Any]
"""A row as its table's columns, in order: text, integers, hex of ids, milliseconds, None."""


class MeshEntity(msgspec.Struct, frozen=True):
    """An entity with its mesh, which its own row does not name."""

    mesh: str
    row: EntityRow


AnyRow = StateRow | MemoryRow | FileRow | VectorRow | TaskRow | TaskEventRow | MeshEntity | Entry


class Column(NamedTuple):
    name: str
    kind: Kind


class _Table(NamedTuple):
    columns: tuple[Column, ...]
    about: tuple[int, ...]
    """Indexes of the columns by which rows fall into buckets: all versions of one thing are in one
    bucket."""
    key: tuple[int, ...]
    """Indexes of the columns that tell a row from every other row of its mesh."""
    live: int | None
    """Index of the column that says whether a row is live; None where all rows stay for ever."""
    lives_if: bool | None
    """The value of that column in a live row."""
    lamport: int
    """Index of the stamp above which dead rows are covered."""


def _table(
    declared: str,
    about: str,
    key: str = "",
    live: str = "",
    lives_if: bool | None = False,
) -> _Table:
    """A table from its columns as `name:kind` words."""
    words = (word.partition(":") for word in declared.split())
    columns = tuple(Column(name, cast(Kind, kind)) for name, _, kind in words)
    places = {column.name: place for place, column in enumerate(columns)}
    return _Table(
        columns,
        tuple(places[name] for name in about.split()),
        tuple(places[name] for name in (about + " " + key).split()),
        places[live] if live else None,
        lives_if,
        places.get("lamport", 0),
    )


_STAMP: Final = "lamport:int peer:text id:id"
_ROW: Final = f"{_STAMP} updated_at:time tombstone:bool"

_TABLES: Final[dict[str, _Table]] = {
    "state": _table(f"mesh:text key:text value:text {_ROW}", "key", live="tombstone"),
    "memory": _table(
        f"mesh:text owner:text key:text value:text tags:texts {_ROW}",
        "owner key",
        live="tombstone",
    ),
    "files": _table(
        f"mesh:text owner:text path:text sha256:text size:int content:bytes {_ROW}",
        "owner path",
        live="tombstone",
    ),
    "vectors": _table(
        "mesh:text owner:text key:text model:text content:text metadata:text embedding:bytes "
        f"{_ROW} live:bool",
        "owner key model",
        "lamport peer id",
        live="live",
        lives_if=True,
    ),
    "tasks": _table(
        "mesh:text task:text known:bool title:text description:text created_by:text "
        "created_at:time status:text generation:int "
        "holder_lamport:int holder_peer:text holder_id:id claimed_at:time "
        f"ended_lamport:int ended_peer:text ended_id:id ended_at:time {_STAMP} updated_at:time",
        "task",
        live="ended_lamport",
        lives_if=None,
    ),
    "task_events": _table(
        f"mesh:text task:text {_STAMP} kind:text generation:int event:text event_time:time "
        "against_lamport:int against_peer:text against_id:id title:text description:text",
        "task",
        "lamport peer id",
        # A turn does not say whether its task has ended: none counts as live.
        live="mesh",
    ),
    "entities": _table(
        "mesh:text type:text entity:text revision:int fields:text parent:text whole:bool "
        "lamport:int peer:text tombstone:bool incarnation:int lease_epoch:int coordinator:text "
        "sequence:int committed_at:time",
        "type entity",
    ),
    "log": _table("mesh:text id:id raw:bytes", "id"),
}

TABLES: Final = tuple(_TABLES)

_encode: Final = msgspec.msgpack.Encoder().encode


def columns_of(table: str) -> tuple[Column, ...]:
    return _of(table).columns


# --- one row -------------------------------------------------------------------------------------


def row_bytes(table: str, values: Values) -> bytes:
    """The bytes of a row that are hashed: two rows that differ have different bytes."""
    return _encode((table, *values))


def row_digest(table: str, values: Values) -> bytes:
    return sha256(row_bytes(table, values)).digest()


def bucket_of(table: str, values: Values) -> int:
    """The bucket of a row, 0 to 255."""
    return crc32(_encode([values[place] for place in _of(table).about])) % BUCKETS


def row_key(table: str, values: Values) -> tuple[Any, ...]:
    """The values that tell a row from the others of its mesh and table; they sort alike
    everywhere.
    """
    return tuple(values[place] for place in _of(table).key)


def is_covered(table: str, values: Values, forgotten_lamport: int) -> bool:
    """Whether the digests cover a row: it must be on the node and in the lake alike."""
    declared = _of(table)
    if declared.live is None or values[declared.live] is declared.lives_if:
        return True
    return bool(values[declared.lamport] > forgotten_lamport)


def shown(table: str, values: Values) -> dict[str, Any]:
    """A row for people: ids as UUIDs, and a long value as its length and hash."""
    document: dict[str, Any] = {}
    for column, value in zip(columns_of(table), values, strict=True):
        raw = value.encode() if isinstance(value, str) else value
        if isinstance(raw, bytes) and len(raw) > DIGEST_SHOWN_BYTES_MAX:
            document[column.name] = f"{len(raw)} bytes, SHA-256 {sha256(raw).hexdigest()}"
        elif column.kind == "id" and value is not None:
            document[column.name] = id_text(bytes.fromhex(value))
        elif column.kind == "bytes" and value is not None:
            document[column.name] = value.hex()
        else:
            document[column.name] = value
    return document


# --- many rows -----------------------------------------------------------------------------------


class DigestTally:
    """The digests of one table of a mesh, made row by row."""

    __slots__ = ("counts", "sums")

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        """Rows by bucket."""
        self.sums: Counter[int] = Counter()

    @property
    def rows(self) -> int:
        return self.counts.total()

    def add(self, bucket: int, digest: bytes) -> None:
        self.counts[bucket] += 1
        self.sums[bucket] += int.from_bytes(digest, "big")

    def add_lanes(self, bucket: int, rows: int, lanes: Sequence[int]) -> None:
        """Adds a sum that was made elsewhere, given as `lanes`, which may be added up lane by
        lane.
        """
        assert len(lanes) == _LANES, "a digest has eight lanes"
        total = 0
        for lane in lanes:
            total = (total << _LANE_BITS) + lane
        self.counts[bucket] += rows
        self.sums[bucket] += total

    def lanes(self, bucket: int) -> tuple[int, ...]:
        """The sum of a bucket as eight numbers of 32 bits: an engine with 64-bit integers can add
        up the lanes of 2^31 parts.
        """
        raw = self._digest(bucket)
        return tuple(int.from_bytes(raw[at : at + 4], "big") for at in range(0, len(raw), 4))

    def digests(self) -> dict[str, str]:
        """Digests by bucket, both as hex; buckets without rows are left out."""
        return {bucket_name(bucket): self._digest(bucket).hex() for bucket in sorted(self.counts)}

    def _digest(self, bucket: int) -> bytes:
        return (self.sums[bucket] % _MODULUS).to_bytes(32, "big")


def digest_columns(
    table: str, columns: Sequence[Sequence[Any]], forgotten: int
) -> tuple[list[int], list[bytes]]:
    """Buckets and digests of all rows of one mesh that are covered. `columns` come in the order of
    the table. `forgotten`: the stamp up to which dead rows may be gone.
    """
    declared = _of(table)
    if declared.live is not None:
        stamps = zip(columns[declared.live], columns[declared.lamport], strict=True)
        covered = [live is declared.lives_if or lamport > forgotten for live, lamport in stamps]
        if not all(covered):
            columns = [list(compress(column, covered)) for column in columns]
    about = zip(*(columns[place] for place in declared.about), strict=True)
    buckets = [crc32(raw) % BUCKETS for raw in map(_encode, about)]
    rows = zip([table] * len(buckets), *columns, strict=True)
    return buckets, [hashed.digest() for hashed in map(sha256, map(_encode, rows))]


def bucket_name(bucket: int) -> str:
    return f"{bucket:02x}"


def parse_bucket(text: str) -> int:
    if len(text) != 2 or text.strip("0123456789abcdef"):
        raise BadInput(f"{text!r} is not a bucket", hint="give two hex digits, as in a7")
    return int(text, 16)


def check_table(table: str) -> str:
    _of(table)
    return table


def _of(table: str) -> _Table:
    declared = _TABLES.get(table)
    if declared is None:
        raise BadInput(
            f"there are no digests of {table!r}", hint=f"use one of: {', '.join(_TABLES)}"
        )
    return declared


# --- a node's rows as values ---------------------------------------------------------------------


def values_of(row: AnyRow) -> tuple[str, Values]:
    """The table of a row that a node keeps, and its columns."""
    match row:
        case StateRow():
            return "state", (row.mesh, row.key, row.value.decode(), *_row(row))
        case MemoryRow():
            value = (row.value.decode(), row.tags)
            return "memory", (row.mesh, row.owner, row.key, *value, *_row(row))
        case FileRow():
            content = (row.sha256, row.size, row.content)
            return "files", (row.mesh, row.owner, row.path, *content, *_row(row))
        case VectorRow():
            place = (row.mesh, row.owner, row.key, row.model)
            stored = (row.content, row.metadata.decode(), row.embedding)
            return "vectors", (*place, *stored, *_row(row), row.live)
        case TaskRow():
            return "tasks", _task(row)
        case TaskEventRow():
            return "task_events", _turn(row)
        case MeshEntity():
            return "entities", _entity(row.mesh, row.row)
    return "log", (row.mesh, row.id.hex(), row.raw)


def _entity(mesh: str, row: EntityRow) -> Values:
    return (
        *(mesh, row.type, row.id, row.revision, row.fields.decode(), row.parent, row.whole),
        *(row.lamport, row.origin, row.deleted, row.fence.incarnation, row.fence.lease_epoch),
        *(row.fence.coordinator, row.fence.sequence, row.committed_at),
    )


def _row(row: StateRow | MemoryRow | FileRow | VectorRow) -> Values:
    return (row.lamport, row.peer, row.id.hex(), row.updated_at, row.tombstone)


def _task(row: TaskRow) -> Values:
    return (
        *(row.mesh, row.task, row.known, row.title, row.description),
        *(row.created_by, row.created_at, row.status.value, row.generation),
        *(*_version(row.holder), row.claimed_at),
        *(*_version(row.ended), row.ended_at),
        *(*_version(row.last), row.updated_at),
    )


def _turn(row: TaskEventRow) -> Values:
    return (
        *(row.mesh, row.task, *_version(row.version)),
        *(row.kind, row.generation, row.event, row.event_time),
        *(*_version(row.against), row.title, row.description),
    )


def _version(version: Version | None) -> tuple[int | None, str | None, str | None]:
    if version is None:
        return None, None, None
    return version.lamport, version.peer, version.id.hex()
