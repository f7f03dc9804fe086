"""The past, read from the log: the state as of an offset, a Lamport time or a wall-clock time.

The entries up to that point are folded into an empty store in memory by the same code that folds
them on arrival, so history cannot disagree with the present about the rules. A whole mesh is folded
some keys at a time, and of each key only the entry that wins: memory goes with the answer, not with
the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import nlargest
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from holdfast.node.core.context import NodeContext
from holdfast.node.core.fold import current_version, fold
from holdfast.node.core.views import KeyVersion, Memory, StateEntry
from holdfast.rules.bodies import MemorySet, StateSet, decode_trusted_body, decode_value
from holdfast.rules.envelope import Envelope, decode_trusted
from holdfast.rules.errors import BadInput, OverLimit, Truncated, UnknownMesh
from holdfast.rules.limits import CHUNK_ROWS, HISTORY_VERSIONS_MAX, LAMPORT_MAX
from holdfast.rules.merge import version_of
from holdfast.rules.names import check_key
from holdfast.rules.order import Version, is_newer, order_key
from holdfast.rules.rows import Entry, MemoryRow, MeshRow, StateRow
from holdfast.storage.ports import Reader, Store, Transaction

if TYPE_CHECKING:
    from holdfast.storage.memory.store import MemoryStore

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


class KeySpan(NamedTuple):
    """Which keys of a past are asked for."""

    prefix: str = ""
    after: str = ""
    limit: int | None = None

    def check(self) -> KeySpan:
        if self.limit is not None and not (type(self.limit) is int and self.limit > 0):
            raise BadInput(f"limit is {self.limit!r}, not a number from 1")
        return self

    def names(self, reader: Reader, mesh: str, ops: str, behind: str | None) -> list[str]:
        """The next of them, in the order of their bytes; none after the last. `behind` is the last
        of those before.
        """
        most = CHUNK_ROWS if self.limit is None else min(CHUNK_ROWS, max(self.limit, _FEW))
        first: list[str] = []
        if behind is None:
            behind = self.after
            if self.prefix.encode() > self.after.encode():
                behind, first = self.prefix, [self.prefix]  # it may be a key itself
        found = reader.log_entities(mesh, ops, behind, most)
        return first + [name for name in found if name.startswith(self.prefix)]


ALL_KEYS = KeySpan()
_FEW = 64
"""Many keys of a past may be deleted: fewer are not looked at together."""


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
    # Imported here: only who looks into the past needs a second kind of store.
    from holdfast.storage.files.blobs import MemoryBlobs
    from holdfast.storage.memory.store import MemoryStore

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
    store: Store,
    mesh: str,
    key: str | None,
    point: AsOf,
    now_ms: int,
    span: KeySpan = ALL_KEYS,
) -> list[StateEntry]:
    def read(past: Reader) -> list[StateEntry]:
        rows: list[StateRow] = past.state_scan(mesh, "", "", _ALL)
        return [StateEntry.of(row) for row in rows if not row.tombstone]

    found: list[StateEntry] = []
    for page in _past(store, mesh, key, point, "state.", now_ms, read, span):
        found += page
        if span.limit is not None and len(found) >= span.limit:
            break
    return sorted(found, key=lambda entry: entry.key.encode())[: span.limit]


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
    span: KeySpan = ALL_KEYS,
) -> Iterator[list[R]]:
    """What `read` finds in the past, some keys at a time. No more of the log than these keys' last
    entries is in memory, and nobody waits for a long read: the log does not change behind its end.
    """
    point.check()
    span.check()
    if key is not None:
        check_key(key)
    with store.read() as reader:
        row = reader.mesh_get(mesh)
        if row is None:
            raise UnknownMesh(f"there is no mesh {mesh!r}")
        end = _end(reader, point, now_ms)
    behind: str | None = None
    while True:
        with store.read() as reader:
            _end(reader, point, now_ms)  # it may have been truncated meanwhile
            page = [key] if key is not None else span.names(reader, mesh, ops, behind)
            wanted = Wanted(mesh, ops, end, point.lamport)
            winners = [entry for name in page for entry in _winners(reader, name, wanted)]
        if not page:
            return
        with replay(iter(winners), [row], "").read() as past:
            yield read(past)
        if key is not None:
            return
        behind = page[-1]


class Wanted(NamedTuple):
    """Which entries of the log make the past that was asked for."""

    mesh: str
    ops: str
    end: int
    lamport: int | None


def _winners(reader: Reader, entity: str, wanted: Wanted) -> Iterator[Entry]:
    """The newest entry about an entity for each owner: the last writer wins, so it alone tells."""
    newest: dict[str, tuple[Version, Entry]] = {}
    for entry in _entries(reader, entity, wanted):
        envelope = decode_trusted(entry.raw)
        version, known = version_of(envelope), newest.get(envelope.owner)
        if known is None or is_newer(version, known[0]):
            newest[envelope.owner] = version, entry
    return (entry for _, entry in newest.values())


def _entries(reader: Reader, entity: str, wanted: Wanted) -> Iterator[Entry]:
    """What the log holds about an entity, in the order of arrival."""
    after = 0
    while page := reader.log_of(wanted.mesh, entity, wanted.end, after, CHUNK_ROWS):
        for entry in page:
            late = wanted.lamport is not None and entry.lamport > wanted.lamport
            if not late and entry.op.startswith(wanted.ops):
                yield entry
        if len(page) < CHUNK_ROWS:
            return
        after = page[-1].offset


def key_history(
    reader: Reader, mesh: str, key: str, ops: str, owner: str, limit: int
) -> list[KeyVersion]:
    """The newest versions of a key that the log still holds, those too that lost against another;
    the one that won comes first. `owner` is whose memory it is, and empty for state.
    """
    check_key(key)
    if not 1 <= limit <= HISTORY_VERSIONS_MAX:
        raise OverLimit(f"limit {limit} is not between 1 and {HISTORY_VERSIONS_MAX}")
    if reader.mesh_get(mesh) is None:
        raise UnknownMesh(f"there is no mesh {mesh!r}")
    _, last = reader.log_bounds()
    entries = _entries(reader, key, Wanted(mesh, ops, last + 1, None))
    found = ((decode_trusted(entry.raw), entry.offset) for entry in entries)
    own = (pair for pair in found if pair[0].owner == owner)
    # What arrives late is not newest: versions are put in order, and no more are held than wanted.
    newest = nlargest(limit, own, key=lambda pair: order_key(version_of(pair[0])))
    return [_version(envelope, offset) for envelope, offset in newest]


def _version(envelope: Envelope, offset: int) -> KeyVersion:
    body = decode_trusted_body(envelope)
    held = body if isinstance(body, StateSet | MemorySet) else None
    return KeyVersion(
        key=envelope.entity,
        value=None if held is None else decode_value(held.value),
        deleted=held is None,
        lamport=envelope.lamport,
        peer=envelope.origin,
        updated_at=envelope.created_at,
        offset=offset,
        tags=held.tags if isinstance(held, MemorySet) else (),
    )


def first_set(reader: Reader, mesh: str, key: str, op: str, owner: str | None) -> Entry | None:
    """The oldest entry of the log by which a key got a value; `owner` is whose memory it is."""
    _, last = reader.log_bounds()
    after = 0
    while page := reader.log_of(mesh, key, last + 1, after, CHUNK_ROWS):
        for entry in page:
            if entry.op == op and owner in (None, entry.origin):
                return entry
        after = page[-1].offset
    return None


def is_after(entry: Entry, point: AsOf) -> bool:
    """Whether an entry came later than a point of the past."""
    if point.offset is not None:
        return entry.offset > point.offset
    if point.lamport is not None:
        return entry.lamport > point.lamport
    return point.at_ms is not None and entry.recorded_at > point.at_ms


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
