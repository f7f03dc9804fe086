"""A snapshot for a link whose source has truncated its log: the source's side.

What the log still holds, the link reads as ever. So the snapshot has only what the tables show and
the log no longer holds, by the filter of the link, rebuilt as for other snapshots
(`mesh_export.py`). It stands for the log before one offset, and the reader goes on from there.

It is refused where it would not make up for what is gone: facts that were truncated, deletions
whose tombstone is gone too, and values of origins that the link takes which one that it does not
take has replaced. Then a person has to decide, and may ask for what there is (`partial`).

Nothing is kept between two parts. The place of the next one says all that is needed.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.forgetting.log_gone import gone_of
from holdfast.node.log.serve import check_known, filter_of
from holdfast.node.snapshots.mesh_export import TABLES, MeshExport, Place, check_place
from holdfast.protocol.link_snapshot import LinkSnapshotPart, SnapshotPartAsked
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import BadInput, NotGranted, Truncated
from holdfast.rules.filters import Filter
from holdfast.rules.limits import CHUNK_ROWS, LINK_SNAPSHOT_PART_BYTES, LINK_SNAPSHOT_PIECES
from holdfast.rules.log_gone import lacks
from holdfast.rules.rows import StateRow
from holdfast.service.caller import Caller
from holdfast.storage.ports import Reader


class _Token(msgspec.Struct, frozen=True, array_like=True):
    """Where a reader is, in words that only the source understands."""

    first: int
    place: Place


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Token).decode


def give_part(engine: NodeEngine, caller: Caller, asked: SnapshotPartAsked) -> LinkSnapshotPart:
    """A part of the snapshot of a mesh. Raises Truncated where no snapshot makes up for what the
    log has forgotten, unless what there is was asked for.
    """
    return engine.read("link.snapshot", lambda tx: _part(tx, caller, asked))


def _part(tx: Reader, caller: Caller, asked: SnapshotPartAsked) -> LinkSnapshotPart:
    filter = filter_of(tx, caller, asked.consumer, asked.epoch)
    check_known(tx, asked.mesh)
    if filter.meshes and asked.mesh not in filter.meshes:
        raise NotGranted(f"{asked.consumer} does not read {asked.mesh!r}")
    token = _token(tx, asked.place)
    if not asked.partial:
        _check_whole(tx, asked, filter)
    raws: list[bytes] = []
    size, place = 0, token.place
    for _ in range(LINK_SNAPSHOT_PIECES):
        found, following = _piece(tx, asked, filter, place)
        raws += found
        size += sum(map(len, found))
        if following is None:
            return LinkSnapshotPart(tx.epoch(), token.first, b"", raws)
        place = following
        if size >= LINK_SNAPSHOT_PART_BYTES:
            break
    after = _encode(msgspec.structs.replace(token, place=place))
    return LinkSnapshotPart(tx.epoch(), token.first, after, raws)


def _piece(
    tx: Reader, asked: SnapshotPartAsked, filter: Filter, place: Place
) -> tuple[list[bytes], Place | None]:
    """A piece that passes the filter. Large rows come one by one."""
    for rows in (CHUNK_ROWS, 1):
        export = MeshExport(tx, asked.mesh, 0, rows=rows, hides=lambda row: _hides(filter, row))
        found, following = export.piece(place)
        if sum(map(len, found)) <= LINK_SNAPSHOT_PART_BYTES:
            break
    if export.hidden and not asked.partial:
        raise _lacking(
            tx, asked.mesh, f"what a value of another origin replaced: {export.hidden!r}"
        )
    return [raw for raw in found if _passes(filter, raw)], following


def _hides(filter: Filter, row: StateRow) -> bool:
    """Whether a value that the link does not take may have replaced one that it takes."""
    taken = (*filter.origins, filter.beyond)
    return bool(filter.origins) and row.version.peer not in taken and _wants_state(filter, row.key)


def _wants_state(filter: Filter, key: str) -> bool:
    return (not filter.subjects or key.startswith(filter.subjects)) and (
        filter.wanted_ops is None or "state.set" in filter.wanted_ops
    )


def _passes(filter: Filter, raw: bytes) -> bool:
    told = decode_trusted(raw)
    return filter.passes(told.mesh, told.op, told.entity, told.origin, "")


def _check_whole(tx: Reader, asked: SnapshotPartAsked, filter: Filter) -> None:
    lacking = lacks(gone_of(tx, asked.mesh), asked.cursor, filter)
    if lacking:
        raise _lacking(tx, asked.mesh, lacking)


def _lacking(tx: Reader, mesh: str, what: str) -> Truncated:
    return Truncated(
        f"no snapshot of {mesh!r} makes up for what the log has forgotten: it lacks {what}",
        first_available=tx.log_bounds()[0],
    )


def _token(tx: Reader, place: bytes) -> _Token:
    if not place:
        return _Token(tx.log_bounds()[0], TABLES)
    try:
        token = _decode(place)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadInput("this is no place of a snapshot") from None
    if not check_place(token.place) or token.place[0] < TABLES[0] or token.first < 1:
        raise BadInput("this is no place of a snapshot")
    return token
