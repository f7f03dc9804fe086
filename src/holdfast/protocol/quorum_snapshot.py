"""A snapshot of what a quorum has committed in a mesh: the bytes that one member gives another.

It is a run of pages, each a MessagePack array behind its length in four bytes:

    header      whose it is, and how far: mesh, incarnation, tag, index, number, fence
    commits     commit records by number, each with its envelope if the giver still has it
    entities    as they stand, deleted ones too, by type and id
    revisions   which commit made which revision
    voids       intents that were given up, and by which commit
    leases, nodes, conflicts, tasks, turns
    end         how many rows of each kind, and the SHA-256 of all bytes before this page

Nothing in it depends on the node that gives it: no offsets of its log, no times of its clock. So
two members that have folded the same order give the same bytes, but for envelopes that one of them
has truncated and conflicts that somebody has marked as resolved.

Reading is strict. A page must be in the form in which it is written, kinds and rows in their order,
and `rules/quorum/snapshot_rules.py` says what a row may be.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from holdfast.rules.errors import BadQuorumSnapshot
from holdfast.rules.limits import QUORUM_PAGE_BYTES, QUORUM_PAGE_BYTES_MAX, REASON_CHARS_MAX
from holdfast.rules.order import Version
from holdfast.rules.quorum.fence import FenceToken, Incarnation
from holdfast.rules.quorum.view import LeaseWaiter
from holdfast.rules.tasks import TaskEvent, TaskStanding, TaskStatus

VERSION: Final = 1
_LENGTH: Final = struct.Struct(">I")
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Id = Annotated[bytes, Meta(min_length=16, max_length=16)]


class _Row(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """One row of a page."""


class SnapshotHeader(_Row, frozen=True, tag=0):
    version: int
    mesh: str
    incarnation: Incarnation
    tag: Annotated[bytes, Meta(min_length=16, max_length=16)]
    index: Count
    number: Count
    fence: FenceToken | None
    committed_at: Count


class GivenCommit(_Row, frozen=True):
    record: bytes
    raw: bytes | None
    """The envelope; None if the giver has truncated it."""


class GivenEntity(_Row, frozen=True):
    type: str
    id: str
    revision: Count
    fields: bytes
    parent: str
    deleted: bool
    whole: bool
    origin: str
    lamport: Count
    fence: FenceToken
    committed_at: Count


class GivenRevision(_Row, frozen=True):
    type: str
    id: str
    revision: Count
    number: Count
    deleted: bool
    whole: bool


class GivenVoid(_Row, frozen=True):
    id: Id
    number: Count


class GivenLease(_Row, frozen=True):
    name: str
    holder: str
    session: Id
    ttl_ms: Count
    grant: FenceToken | None
    renewed: FenceToken | None
    since: Count
    waiting: tuple[LeaseWaiter, ...]


class GivenNode(_Row, frozen=True):
    peer: str
    lost: bool
    fence: FenceToken
    committed_at: Count


class GivenClash(_Row, frozen=True):
    type: str
    id: str
    base: Count
    revision: Count
    kind: str
    fields: tuple[str, ...]


class GivenConflict(_Row, frozen=True):
    number: Count
    clashes: tuple[GivenClash, ...]
    resolved_at: Count | None
    resolution: str


class GivenTask(_Row, frozen=True):
    task: str
    known: bool
    title: str
    description: str
    created_by: str
    created_at: Count
    status: TaskStatus
    generation: Count
    holder: Version | None
    claimed_at: Count | None
    ended: Version | None
    ended_at: Count | None
    last: Version
    updated_at: Count


class GivenTurn(_Row, frozen=True):
    task: str
    version: Version
    kind: str
    generation: Count
    event: TaskEvent
    event_time: Count
    against: Version | None
    title: str
    description: str
    standing: TaskStanding | None
    opened: Count | None
    place: Count


class CommittedPage(_Row, frozen=True, tag=1):
    rows: tuple[GivenCommit, ...]


class EntitiesPage(_Row, frozen=True, tag=2):
    rows: tuple[GivenEntity, ...]


class RevisionsPage(_Row, frozen=True, tag=3):
    rows: tuple[GivenRevision, ...]


class VoidsPage(_Row, frozen=True, tag=4):
    rows: tuple[GivenVoid, ...]


class LeasesPage(_Row, frozen=True, tag=5):
    rows: tuple[GivenLease, ...]


class NodesPage(_Row, frozen=True, tag=6):
    rows: tuple[GivenNode, ...]


class ConflictsPage(_Row, frozen=True, tag=7):
    rows: tuple[GivenConflict, ...]


class TasksPage(_Row, frozen=True, tag=8):
    rows: tuple[GivenTask, ...]


class TurnsPage(_Row, frozen=True, tag=9):
    rows: tuple[GivenTurn, ...]


class SnapshotEnd(_Row, frozen=True, tag=10):
    counts: tuple[Count, ...]
    digest: Annotated[bytes, Meta(min_length=32, max_length=32)]


RowsPage = (
    CommittedPage
    | EntitiesPage
    | RevisionsPage
    | VoidsPage
    | LeasesPage
    | NodesPage
    | ConflictsPage
    | TasksPage
    | TurnsPage
)
Page = SnapshotHeader | RowsPage | SnapshotEnd
ROW_PAGES: Final[tuple[type[RowsPage], ...]] = (
    *(CommittedPage, EntitiesPage, RevisionsPage, VoidsPage, LeasesPage, NodesPage),
    *(ConflictsPage, TasksPage, TurnsPage),
)
"""In the order in which they come."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final[msgspec.msgpack.Decoder[Page]] = msgspec.msgpack.Decoder(Page)


class SnapshotWriter:
    """Writes the pages of one snapshot, in order."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._sum = sha256()
        self._counts = [0] * len(ROW_PAGES)

    def header(self, header: SnapshotHeader) -> None:
        self._page(header)

    def rows(self, kind: type[RowsPage], rows: Iterable[Any]) -> None:
        page: list[Any] = []
        size = 0
        for row in rows:
            length = len(_encode(row))
            if page and size + length > QUORUM_PAGE_BYTES:
                self._rows(kind, page)
                page, size = [], 0
            page.append(row)
            size += length
        if page:
            self._rows(kind, page)

    def end(self) -> None:
        self._page(SnapshotEnd(tuple(self._counts), self._sum.digest()))

    def _rows(self, kind: type[RowsPage], rows: list[Any]) -> None:
        self._counts[ROW_PAGES.index(kind)] += len(rows)
        self._page(kind(tuple(rows)))

    def _page(self, page: Page) -> None:
        raw = _encode(page)
        framed = _LENGTH.pack(len(raw)) + raw
        self._sum.update(framed)
        self._write(framed)


def read_pages(chunks: Iterable[bytes]) -> Iterator[SnapshotHeader | RowsPage]:
    """The header and the pages of rows, in order. BadQuorumSnapshot if the bytes are not a whole
    snapshot: then what came before it counts for nothing.
    """
    total, counts, place = sha256(), [0] * len(ROW_PAGES), -1
    ended = False
    for framed, raw in _frames(chunks):
        if ended:
            raise BadQuorumSnapshot("a snapshot goes on after its end")
        page = _page(raw)
        if isinstance(page, SnapshotEnd):
            if place < 0 or page.counts != tuple(counts):
                raise BadQuorumSnapshot("a snapshot does not have the rows that it says it has")
            if page.digest != total.digest():
                raise BadQuorumSnapshot("a snapshot is not what its giver wrote: its sum differs")
            ended = True
            continue
        total.update(framed)
        if isinstance(page, SnapshotHeader):
            if place >= 0:
                raise BadQuorumSnapshot("a snapshot has two headers")
            place = 0
        else:
            kind = ROW_PAGES.index(type(page))
            if place < 0 or kind + 1 < place or not page.rows:
                raise BadQuorumSnapshot("the pages of a snapshot are out of order, or empty")
            place = kind + 1
            counts[kind] += len(page.rows)
        yield page
    if not ended:
        raise BadQuorumSnapshot("a snapshot has no end: the rest of it is missing")


def read_header(begin: bytes) -> SnapshotHeader:
    """The header of a snapshot, from its first bytes. BadQuorumSnapshot if there is none."""
    (length,) = _LENGTH.unpack_from(begin) if len(begin) >= _LENGTH.size else (0,)
    end = _LENGTH.size + length
    page = _page(begin[_LENGTH.size : end]) if 0 < length <= len(begin) - _LENGTH.size else None
    if not isinstance(page, SnapshotHeader) or page.version != VERSION:
        raise BadQuorumSnapshot("a snapshot does not begin with a header of this version")
    return page


def _frames(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    waiting = bytearray()
    for chunk in chunks:
        waiting += chunk
        while len(waiting) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(waiting)
            if length > QUORUM_PAGE_BYTES_MAX:
                raise BadQuorumSnapshot(f"a page of a snapshot of {length} bytes")
            end = _LENGTH.size + length
            if len(waiting) < end:
                break
            framed = bytes(waiting[:end])
            del waiting[:end]
            yield framed, framed[_LENGTH.size :]
    if waiting:
        raise BadQuorumSnapshot("a snapshot ends within a page")


def _page(raw: bytes) -> Page:
    try:
        page = _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        why = str(error)[:REASON_CHARS_MAX]
        raise BadQuorumSnapshot(f"a page of a snapshot cannot be read: {why}") from None
    if _encode(page) != raw:
        raise BadQuorumSnapshot("a page of a snapshot is not in its canonical form")
    return page
