"""The past, read from the log: the state as of an offset, a Lamport time or a wall-clock time.

The entries up to that point are folded into an empty store in memory by the same code that folds
them on arrival, so history cannot disagree with the present about the rules. A whole mesh is folded
some keys at a time, and of each key only the entry that wins: memory goes with the answer, not with
the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from holdfast.node.core.context import NodeContext
from holdfast.node.core.fold import current_version, fold
from holdfast.node.core.views import Memory, StateEntry
from holdfast.rules.bodies import decode_trusted_body
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import BadInput, Truncated, UnknownMesh
from holdfast.rules.limits import CHUNK_ROWS, LAMPORT_MAX
from holdfast.rules.merge import version_of
from holdfast.rules.names import check_key
from holdfast.rules.order import Version, is_newer
from holdfast.rules.rows import Entry, MemoryRow, MeshRow, StateRow
from holdfast.storage.files.blobs import MemoryBlobs
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.ports import Reader, Store, Transaction

R = TypeVar("R")

REPAIR_JOB = "repair"
"""The row of the job table that says up to where a repair left holes in the log."""


class AsOf(NamedTuple):
    """A point in the past: exactly one of the three."""

    offset: int | None = None
    lamport: int | None = None
    at_ms: int | None = None

    def check(self) -> AsOf:
        given = [value for value in self if value is not None]
        if len(given) != 1 or not _is_point(given[0]):
            raise BadInput(
                "give one point in the past: an offset, a lamport or a time",
                hint="for example --as-of offset:120, lamport:77 or 2026-11-15T10:00:00Z",
            )
        return self


def _is_point(value: object) -> bool:
    return type(value) is int and 0 <= value < LAMPORT_MAX


class _Replay:
    """The clock and ids for a replay, which makes nothing new."""

    def now_ms(self) -> int:
        return 0

    def new_id(self) -> bytes:
        raise AssertionError("a replay writes nothing of its own")


def replay(entries: Iterator[Entry], meshes: list[MeshRow], peer: str) -> MemoryStore:
    """Folds entries into a fresh store in memory."""
    store = MemoryStore()
    ctx = NodeContext(peer, 1, _Replay(), MemoryBlobs())
    batch: list[Entry] = []

    def start(tx: Transaction) -> None:
        for mesh in meshes:
            tx.mesh_add(
                MeshRow(
                    slug=mesh.slug,
                    name=mesh.name,
                    kind=mesh.kind,
                    created_at=mesh.created_at,
                    updated_at=mesh.updated_at,
                    # The clock of now: only part of the log may be replayed, and a stamp that is no
                    # leap in the whole log must not be one in the part.
                    lamport=mesh.lamport,
                )
            )

    def take(tx: Transaction) -> None:
        for entry in batch:
            _refold(tx, ctx, entry)

    store.write(start)
    for entry in entries:
        batch.append(entry)
        if len(batch) == CHUNK_ROWS:
            store.write(take)
            batch.clear()
    store.write(take)
    return store


def _refold(tx: Transaction, ctx: NodeContext, entry: Entry) -> None:
    envelope = decode_trusted(entry.raw)
    body = decode_trusted_body(envelope)
    current = None if body is None else current_version(tx, envelope, body)
    tx.tick_merged(entry.mesh, entry.lamport, entry.recorded_at)
    offset = tx.log_append(
        entry.id,
        entry.mesh,
        entry.op,
        entry.entity,
        entry.origin,
        entry.lamport,
        entry.recorded_at,
        entry.raw,
    )
    if envelope.write_class != "strong":  # what a quorum decides, its commits fold
        fold(tx, ctx, envelope, body, offset, current)


def state_as_of(
    store: Store, mesh: str, key: str | None, point: AsOf, now_ms: int
) -> list[StateEntry]:
    def read(past: Reader) -> list[StateEntry]:
        rows: list[StateRow] = past.state_scan(mesh, "", "", _ALL)
        return [StateEntry.of(row) for row in rows if not row.tombstone]

    pages = _past(store, mesh, key, point, "state.", now_ms, read)
    found = [entry for page in pages for entry in page]
    return sorted(found, key=lambda entry: entry.key.encode())


def memory_as_of(
    store: Store, mesh: str, key: str | None, point: AsOf, now_ms: int
) -> list[Memory]:
    def read(past: Reader) -> list[Memory]:
        rows: list[MemoryRow] = past.memory_scan(mesh, None, ("", ""), _ALL)
        return [Memory.of(row) for row in rows if not row.tombstone]

    pages = _past(store, mesh, key, point, "memory.", now_ms, read)
    found = [memory for page in pages for memory in page]
    return sorted(found, key=lambda memory: (memory.peer.encode(), memory.key.encode()))


_ALL = 1 << 62


def _past(
    store: Store,
    mesh: str,
    key: str | None,
    point: AsOf,
    ops: str,
    now_ms: int,
    read: Callable[[Reader], list[R]],
) -> Iterator[list[R]]:
    """What `read` finds in the past, some keys at a time. No more of the log than these keys' last
    entries is in memory, and nobody waits for a long read: the log does not change behind its end.
    """
    point.check()
    if key is not None:
        check_key(key)
    with store.read() as reader:
        row = reader.mesh_get(mesh)
        if row is None:
            raise UnknownMesh(f"there is no mesh {mesh!r}")
        end = _end(reader, point, now_ms)
    after = ""
    while True:
        with store.read() as reader:
            _end(reader, point, now_ms)  # it may have been truncated meanwhile
            page = [key] if key is not None else reader.log_entities(mesh, ops, after, CHUNK_ROWS)
            wanted = Wanted(mesh, ops, end, point.lamport)
            winners = [entry for name in page for entry in _winners(reader, name, wanted)]
        with replay(iter(winners), [row], "").read() as past:
            yield read(past)
        if key is not None or len(page) < CHUNK_ROWS:
            return
        after = page[-1]


class Wanted(NamedTuple):
    """Which entries of the log make the past that was asked for."""

    mesh: str
    ops: str
    end: int
    lamport: int | None


def _winners(reader: Reader, entity: str, wanted: Wanted) -> Iterator[Entry]:
    """The newest entry about an entity for each owner: the last writer wins, so it alone tells."""
    newest: dict[str, tuple[Version, Entry]] = {}
    after = 0
    while page := reader.log_of(wanted.mesh, entity, wanted.end, after, CHUNK_ROWS):
        for entry in page:
            late = wanted.lamport is not None and entry.lamport > wanted.lamport
            if late or not entry.op.startswith(wanted.ops):
                continue
            envelope = decode_trusted(entry.raw)
            version, known = version_of(envelope), newest.get(envelope.owner)
            if known is None or is_newer(version, known[0]):
                newest[envelope.owner] = version, entry
        if len(page) < CHUNK_ROWS:
            break
        after = page[-1].offset
    return (entry for _, entry in newest.values())


def _end(reader: Reader, point: AsOf, now_ms: int) -> int:
    """The first offset after the point; raises Truncated if the log does not hold the whole
    past.
    """
    first, last = reader.log_bounds()
    if point.offset is not None:
        end = min(point.offset, last) + 1
    elif point.at_ms is not None:
        end = reader.log_at(point.at_ms, now_ms) + 1
    else:
        end = last + 1
    if repaired_to(reader) is not None:
        raise Truncated(
            "entries of the log were lost and the database was repaired: the past has holes",
            first_available=first,
            hint="look into a backup from before the damage",
        )
    if first > 1:
        # A key that was last written before the log begins has no entry left.
        raise Truncated(
            f"the log begins at offset {first}: it no longer holds the whole past",
            first_available=first,
            hint="look into a backup from that time",
        )
    return end


def repaired_to(reader: Reader) -> int | None:
    """The offset up to which a repair lost entries of the log; None if it lost none."""
    job = reader.job_get(REPAIR_JOB)
    return None if job is None else int(job.cursor["head"])
