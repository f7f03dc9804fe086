"""Brings the objects that a batch names, before the batch itself is applied.

An object comes in pieces, and each piece is durable before the next is requested: when the
connection breaks, only one piece is requested again. When the last piece is here, the whole object
is hashed. If it is not what its name says, the pieces are deleted and `BadAnswer` is raised.

An object that the source no longer has is counted. The entry that names it is applied without it,
as everywhere where content travels separately.

A sweep may remove an object between its arrival and the transaction that names it. So
`require_objects` looks once more inside that transaction, where no sweep can come between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.rules.arrivals import Arrivals, objects_of
from holdfast.rules.errors import (
    BadAnswer,
    BadValue,
    BlobCorrupt,
    BlobMissing,
    Unreachable,
)
from holdfast.rules.limits import FILE_BYTES_MAX, OBJECT_RANGE_BYTES, OBJECT_RANGE_BYTES_MIN


class Pulled(msgspec.Struct):
    """What was transferred. Each piece is counted, so that people see a large object move."""

    objects: int = 0
    missing: int = 0
    bytes: int = 0


class ObjectSource(Protocol):
    """The other end of a link, or a broker."""

    def object_size(self, sha: str) -> int | None:
        """None if the source does not have the object."""

    def object(self, sha: str, start: int, size: int) -> bytes:
        """`size` bytes of the object, from `start` on; fewer, but some, if the line broke."""


class PieceSize:
    """How much of an object is asked for at a time: less after the line broke, then more again."""

    def __init__(self) -> None:
        self.bytes = OBJECT_RANGE_BYTES

    def broke(self) -> None:
        self.bytes = max(OBJECT_RANGE_BYTES_MIN, self.bytes // 2)

    def came(self) -> None:
        self.bytes = min(OBJECT_RANGE_BYTES, self.bytes * 2)


class ObjectGone(Exception):
    """A sweep has removed an object that was brought for the batch: bring it again."""


def pull_objects(
    engine: NodeEngine,
    source: ObjectSource,
    wanted: Iterable[str],
    count: Callable[[Pulled], None],
    ended: Callable[[], bool],
    size: PieceSize | None = None,
) -> set[str]:
    """Brings the objects of a list of hashes that are not here. Returns the hashes of those that
    the source does not have.

    When `ended` returns True, this returns early with objects missing: the caller must then not
    apply the batch. `size` outlasts this call where lines break often.
    """
    pieces = size or PieceSize()
    names = list(dict.fromkeys(wanted))
    absent: set[str] = set()
    while names and not ended():
        for sha in names:
            if not _pull(engine, source, sha, count, ended, pieces):
                absent.add(sha)
        # Until an entry names it, a sweep may remove an object that is old enough. Bringing a long
        # list takes long, so look again.
        names = [sha for sha in names if sha not in absent and not engine.blobs.exists(sha)]
    return absent


def _pull(
    engine: NodeEngine,
    source: ObjectSource,
    sha: str,
    count: Callable[[Pulled], None],
    ended: Callable[[], bool],
    pieces: PieceSize,
) -> bool:
    """Brings one object. Returns False if the source does not have it."""
    blobs = engine.blobs
    if ended() or blobs.exists(sha):
        return True
    size = source.object_size(sha)
    if size is None:
        count(Pulled(missing=1))
        return False
    if not 0 <= size <= FILE_BYTES_MAX:
        raise BadAnswer(f"the source says that object {sha} has {size} bytes")
    here = blobs.partial(sha)
    while here < size:
        if ended():
            return True
        engine.check_room()
        wanted = min(pieces.bytes, size - here)
        try:
            piece = source.object(sha, here, wanted)
        except Unreachable:
            pieces.broke()
            raise
        if not 0 < len(piece) <= wanted:
            raise BadAnswer(
                f"the source sent {len(piece)} bytes of object {sha} from {here} on, "
                f"not the {wanted} that were asked for"
            )
        if len(piece) < wanted:
            pieces.broke()  # the line broke, and this is what came
        else:
            pieces.came()
        count(Pulled(bytes=len(piece)))
        try:
            here = blobs.put_piece(sha, here, piece)
        except BadValue:
            # Another link has brought the same object meanwhile, and used up the pieces before.
            if blobs.exists(sha):
                return True
            here = blobs.partial(sha)
    try:
        blobs.finish(sha, size)
    except (BlobCorrupt, BlobMissing) as error:  # missing: another link saw it first
        raise BadAnswer(f"the source sent something else as object {sha}: {error}") from error
    count(Pulled(objects=1))
    return True


def require_objects(engine: NodeEngine, arrivals: Arrivals, absent: Collection[str] | None) -> None:
    """Raises `ObjectGone` if an object that the arrivals name is not here, unless it is `absent` at
    the source. Call it in the transaction that stores them. None: nothing was brought.
    """
    if absent is None:
        return
    for named in objects_of(arrivals):
        if named.sha256 not in absent and not engine.blobs.exists(named.sha256):
            raise ObjectGone
