"""What peers say to each other about the meshes that they share, in MESH frames of a link.

    MeshesShared    which meshes this side shares with the other one; sent first and on changes
    StreamsTold     what this side has of streams; a stream is named once and numbered from then on
    EntriesAsked    ranges of a stream that this side lacks
    EntriesPage     entries of a stream, and the range that they cover
    EntriesRefused  this side does not send what it was asked for
    BlocksAsked …   digests of blocks of a stream, to find different content under one number
    SnapshotAsked … what a side has truncated, rebuilt, piece by piece
    CommitsTold …   what a quorum has committed in a mesh, by the number of the commit
    ObjectAsked …   content that entries name, in pieces, on a stream of its own

Each side gives its own numbers to streams. A number in `EntriesAsked`, `BlocksAsked` and
`LeavesAsked` is the other side's, in all others the sender's own.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from holdfast.rules.errors import BadAnswer
from holdfast.rules.limits import (
    BUS_ASK_RANGES_MAX,
    BUS_COMPARE_BLOCK,
    BUS_COMPARE_BLOCKS,
    BUS_OBJECT_BYTES,
    BUS_PAGE_ROWS,
    BUS_SNAPSHOT_PLACE_BYTES,
    BUS_STREAMS_MAX,
    BUS_WORD_RANGES_MAX,
    BUS_WORD_STREAMS_MAX,
    LAMPORT_MAX,
)
from holdfast.rules.quorum.intents import Engine

Count = Annotated[int, Meta(ge=0, lt=LAMPORT_MAX)]
Numeral = Annotated[int, Meta(ge=0, lt=BUS_STREAMS_MAX)]
Digest32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Span = tuple[Count, Count]
"""Half-open."""
Spans = Annotated[list[Span], Meta(max_length=BUS_ASK_RANGES_MAX)]


class MeshesShared(msgspec.Struct, array_like=True, frozen=True, tag=1):
    meshes: Annotated[list[str], Meta(max_length=BUS_STREAMS_MAX)]
    heard: bool
    """Whether the other side's was heard on this link. If not, it says it again: whoever began to
    listen after the link was up has missed it."""


class StreamNamed(msgspec.Struct, array_like=True, frozen=True):
    """A stream when it is spoken of for the first time."""

    mesh: str
    origin: str
    epoch: Count
    key: Annotated[bytes, Meta(max_length=32)]
    """The origin's key as this side knows it; empty if it does not."""


class StreamTold(msgspec.Struct, array_like=True, frozen=True):
    """What this side has of one stream."""

    number: Numeral
    base: Count
    floor: Count
    prefix: Count
    ranges: Annotated[list[Span], Meta(max_length=BUS_WORD_RANGES_MAX)]
    entries: Count
    digest: Digest32
    named: StreamNamed | None = None


class StreamsTold(msgspec.Struct, array_like=True, frozen=True, tag=2):
    streams: Annotated[list[StreamTold], Meta(max_length=BUS_WORD_STREAMS_MAX)]


class EntriesAsked(msgspec.Struct, array_like=True, frozen=True, tag=3):
    number: Numeral
    ranges: Spans


class EntriesPage(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """All entries that this side has of start <= number < end."""

    number: Numeral
    start: Count
    end: Count
    seqs: Annotated[list[Count], Meta(max_length=BUS_PAGE_ROWS)]
    """Empty, where there are entries: they count from `start` without a gap."""
    raws: Annotated[list[bytes], Meta(max_length=BUS_PAGE_ROWS)]
    named: StreamNamed | None = None


class EntriesRefused(msgspec.Struct, array_like=True, frozen=True, tag=5):
    number: Numeral
    code: str


class BlocksAsked(msgspec.Struct, array_like=True, frozen=True, tag=6):
    number: Numeral
    first: Count


class BlocksTold(msgspec.Struct, array_like=True, frozen=True, tag=7):
    number: Numeral
    first: Count
    blocks: Annotated[list[tuple[Count, Count, Digest32]], Meta(max_length=BUS_COMPARE_BLOCKS)]
    """Block, entries and digest of those that have entries."""


class LeavesAsked(msgspec.Struct, array_like=True, frozen=True, tag=8):
    number: Numeral
    block: Count


class LeavesTold(msgspec.Struct, array_like=True, frozen=True, tag=9):
    number: Numeral
    block: Count
    leaves: Annotated[list[tuple[Count, Digest32]], Meta(max_length=BUS_COMPARE_BLOCK)]


class ObjectAsked(msgspec.Struct, array_like=True, frozen=True, tag=10):
    sha256: Digest32
    start: Count
    size: Annotated[int, Meta(ge=0, le=BUS_OBJECT_BYTES)]


class ObjectPiece(msgspec.Struct, array_like=True, frozen=True, tag=11):
    sha256: Digest32
    size: Count | None
    """Of the whole object; None if this side does not have it."""
    start: Count
    content: Annotated[bytes, Meta(max_length=BUS_OBJECT_BYTES)]


class SnapshotAsked(msgspec.Struct, array_like=True, frozen=True, tag=12):
    mesh: str
    own: bool
    """Only what the asked side wrote itself."""
    place: Annotated[bytes, Meta(max_length=BUS_SNAPSHOT_PLACE_BYTES)]
    """What the last part said; empty: from the beginning."""


class MeshSnapshotPart(msgspec.Struct, array_like=True, frozen=True, tag=13):
    """Changes of a mesh that are in no page of a stream any more."""

    mesh: str
    raws: Annotated[list[bytes], Meta(max_length=BUS_PAGE_ROWS)]
    place: Annotated[bytes, Meta(max_length=BUS_SNAPSHOT_PLACE_BYTES)] | None
    """Where to go on; empty: that was all. None: more parts of this answer follow."""
    forgotten: Count
    """With the last part: this side may have forgotten deletions up to this stamp."""


class SnapshotRefused(msgspec.Struct, array_like=True, frozen=True, tag=14):
    mesh: str
    code: str


class CommitsTold(msgspec.Struct, array_like=True, frozen=True, tag=15):
    """How far this side is in what the quorums of meshes have committed."""

    commits: Annotated[list[tuple[str, Count]], Meta(max_length=BUS_WORD_STREAMS_MAX)]
    """Mesh, and the number of the last commit that is folded here."""


class CommitsAsked(msgspec.Struct, array_like=True, frozen=True, tag=16):
    mesh: str
    first: Annotated[int, Meta(ge=1, lt=LAMPORT_MAX)]
    """The number of the first commit that this side lacks."""


class StateTold(msgspec.Struct, array_like=True, frozen=True):
    """The committed state of a mesh, as an object that this side has for a while."""

    mesh: str
    number: Annotated[int, Meta(ge=1, lt=LAMPORT_MAX)]
    """The last commit that is in it."""
    engine: Engine
    sha256: Digest32
    size: Count


class CommitsSent(msgspec.Struct, array_like=True, frozen=True, tag=17):
    page: bytes
    """As `commit_page` encodes it; empty if there is a state."""
    state: StateTold | None = None
    """In place of a page, if this side has truncated what it was asked for."""


class CommitsRefused(msgspec.Struct, array_like=True, frozen=True, tag=18):
    mesh: str
    code: str


MeshWord = (
    MeshesShared
    | StreamsTold
    | EntriesAsked
    | EntriesPage
    | EntriesRefused
    | BlocksAsked
    | BlocksTold
    | LeavesAsked
    | LeavesTold
    | ObjectAsked
    | ObjectPiece
    | SnapshotAsked
    | MeshSnapshotPart
    | SnapshotRefused
    | CommitsTold
    | CommitsAsked
    | CommitsSent
    | CommitsRefused
)

_decoder: Final = msgspec.msgpack.Decoder(MeshWord)
encode_word = msgspec.msgpack.Encoder().encode


def read_word(body: bytes) -> MeshWord:
    """Raises BadAnswer if it cannot be read."""
    try:
        word: MeshWord = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadAnswer(f"what a peer says of a mesh cannot be read: {error}") from None
    return word


def seqs_of(page: EntriesPage) -> list[int]:
    """The numbers of a page's entries. Raises BadAnswer if they cannot be right."""
    seqs = page.seqs or list(range(page.start, page.start + len(page.raws)))
    rises = all(a < b for a, b in pairwise(seqs))
    inside = not seqs or (page.start <= seqs[0] and seqs[-1] < page.end)
    if not (page.start < page.end and len(seqs) == len(page.raws) and rises and inside):
        raise BadAnswer("a peer sent a page whose numbers are out of order")
    return seqs
