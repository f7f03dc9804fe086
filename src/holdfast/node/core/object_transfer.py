"""Brings the objects that a batch names, before the batch itself is applied.

An object comes in pieces, and each is durable before the next is asked for: whatever cuts the line,
one piece is asked for again. When the last one is here, all of it is hashed. A source that sent
something else is not believed again: the pieces are gone and the link is refused.

An object that the source no longer has is counted. Its entry is applied without it, as everywhere
where content travels beside what names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.rules.errors import (
    BadAnswer,
    BadValue,
    BlobCorrupt,
    BlobMissing,
)
from holdfast.rules.limits import FILE_BYTES_MAX, OBJECT_RANGE_BYTES


class Pulled(msgspec.Struct):
    """What it took so far. It is counted as it happens, so that people see a large object move."""

    objects: int = 0
    missing: int = 0
    bytes: int = 0


class ObjectSource(Protocol):
    """Whoever has objects: the other end of a link, or a broker."""

    def object_size(self, sha: str) -> int | None: ...
    def object(self, sha: str, start: int, size: int) -> bytes: ...


def pull_objects(
    engine: NodeEngine,
    source: ObjectSource,
    wanted: Iterable[str],
    count: Callable[[Pulled], None],
    ended: Callable[[], bool],
) -> set[str]:
    """Brings all objects of a list of hashes that are not here, and returns those that the source
    does not have. Returns early, with some of them missing, once `ended` says so; the caller must
    not apply anything then.
    """
    names = list(dict.fromkeys(wanted))
    absent: set[str] = set()
    while names and not ended():
        for sha in names:
            if not _pull(engine, source, sha, count, ended):
                absent.add(sha)
        # A sweep takes what nobody names yet once it is old, and a long list takes long.
        names = [sha for sha in names if sha not in absent and not engine.blobs.exists(sha)]
    return absent


def _pull(
    engine: NodeEngine,
    source: ObjectSource,
    sha: str,
    count: Callable[[Pulled], None],
    ended: Callable[[], bool],
) -> bool:
    """False if the source does not have it."""
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
        asked = min(OBJECT_RANGE_BYTES, size - here)
        piece = source.object(sha, here, asked)
        if len(piece) != asked:
            raise BadAnswer(
                f"the source sent {len(piece)} bytes of object {sha} from {here} on, "
                f"not the {asked} that were asked for"
            )
        count(Pulled(bytes=asked))
        try:
            here = blobs.put_piece(sha, here, piece)
        except BadValue:
            # The pieces before it are gone: another link brought the same object and was faster.
            if blobs.exists(sha):
                return True
            here = blobs.partial(sha)
    try:
        blobs.finish(sha, size)
    except (BlobCorrupt, BlobMissing) as error:  # missing: another link found the same
        raise BadAnswer(f"the source sent something else as object {sha}: {error}") from error
    count(Pulled(objects=1))
    return True


class ObjectGone(Exception):
    """An object that was brought for the batch is not here any more: bring it again."""
