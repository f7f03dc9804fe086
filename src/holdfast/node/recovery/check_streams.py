"""Checks of the doctor about meshes on the bus: does what is kept of their streams agree with the
log?

Numbers that are covered and have no entry are normal: messages, holes, snapshots. What cannot be
is an entry under another place than its own, one that no stream counts, so that no peer ever gets
it, or a number of our own that is covered and was never written. Peers would be told something that
is not so. Counting the log again mends all of it: what others still have is asked for again.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.node.bus.meshes.backfill import counted_meshes
from holdfast.node.recovery.checks import Check, fail, ok, warn
from holdfast.rules.bus.meshes.coverage import StreamName, without
from holdfast.rules.bus.meshes.streams import (
    StreamRow,
    digest_of,
    lanes_of,
    place_of,
    runs_of,
)
from holdfast.rules.envelope import UNCOUNTED
from holdfast.rules.errors import HoldfastError
from holdfast.rules.filters import MESSAGES, Filter
from holdfast.rules.leaf import leaf_of
from holdfast.rules.limits import LAMPORT_MAX, RANGE_BATCH_BYTES, RANGE_BATCH_ROWS
from holdfast.rules.rows import MeshRow
from holdfast.storage.ports import Reader

REPAIR_STREAMS = "holdfast doctor --repair (streams are counted again; the log stays as it is)"


class _InLog(msgspec.Struct):
    """What the log has of a stream."""

    entries: int = 0
    messages: list[int] = []


def check_streams(reader: Reader, peer: str, *, full: bool = False) -> Iterator[Check]:
    meshes = [row for row in reader.mesh_list() if row.on_bus]
    faults = {row.slug: stream_faults(reader, peer, row, full=full) for row in meshes}
    for mesh, found in faults.items():
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            yield fail("streams", f"{mesh}: {found[0]}{more}", REPAIR_STREAMS)
    streams = [
        row for mesh in meshes if not faults[mesh.slug] for row in reader.stream_list(mesh.slug)
    ]
    for row in streams:
        if row.trouble:
            what = f"what {row.origin} wrote to {row.mesh}: {row.trouble}"
            fix = "find the two homes, and make a new one for one of them"
            if row.origin == peer:
                fix = f"if an older copy of this home was put back: holdfast doctor --repair; {fix}"
            yield warn("streams", what, fix)
    if meshes:
        how = "agree with the log" if full else "look right"
        yield ok("streams", f"{len(streams)} streams of {len(meshes)} meshes on the bus {how}")


def stream_faults(reader: Reader, peer: str, mesh: MeshRow, *, full: bool) -> list[str]:
    """What is wrong with the streams of a mesh; `full` also reads its entries."""
    try:
        rows = reader.stream_list(mesh.slug)
    except HoldfastError as error:
        return [f"what is covered cannot be read: {error.message}"]
    lost = reader.stream_lost()
    faults = [fault for row in rows for fault in _row_faults(row, lost.get(row.number, 0))]
    if mesh.slug not in counted_meshes(reader):
        return faults  # the rest is still being counted
    own = StreamName(mesh.slug, peer, reader.epoch())
    faults += [
        f"this node has written {mesh.seq} numbers, and its stream says {row.covered.prefix}"
        for row in rows
        if row.name == own and row.covered.prefix != mesh.seq
    ]
    if full and not faults:
        in_log = _in_log(reader, mesh.slug)
        for row in rows:
            faults += _entry_faults(reader, row, in_log.pop(row.name, _InLog()), row.name == own)
        faults += [
            f"{found.entries} entries of {name.origin} in epoch {name.epoch} are in no stream"
            for name, found in in_log.items()
            if found.entries
        ]
    return faults


def _row_faults(row: StreamRow, lost: int) -> Iterator[str]:
    what = f"the stream of {row.origin} in epoch {row.epoch}"
    if row.base > row.covered.prefix:
        yield f"{what} begins after {row.base}, and is covered only up to {row.covered.prefix}"
    if row.floor > row.covered.last:
        yield f"{what} was truncated up to {row.floor}, and ends at {row.covered.last}"
    if lost:
        yield f"{what} has {lost} numbers that lead to no entry of the log"


def _entry_faults(reader: Reader, row: StreamRow, found: _InLog, own: bool) -> Iterator[str]:
    """What is wrong with the entries of a stream."""
    what = f"the stream of {row.origin} in epoch {row.epoch}"
    entries, above, total, at = 0, 0, 0, 0
    while True:
        page = reader.stream_page(row.number, at, LAMPORT_MAX, RANGE_BATCH_ROWS, RANGE_BATCH_BYTES)
        for seq, raw in zip(page.seqs, page.raws, strict=True):
            place = place_of(raw)
            if (place.mesh, place.origin, place.epoch, place.seq) != (*row.name, seq):
                yield f"{what} has the entry of another place under number {seq}"
                return
            total += int.from_bytes(leaf_of(raw), "big")
        bare = without(runs_of(page.seqs), row.covered)
        if bare:
            yield f"{what} has an entry under number {bare[0][0]}, which it does not cover"
            return
        entries += len(page.seqs)
        above += sum(seq > row.floor for seq in page.seqs)
        at = page.upto + 1
        if not page.seqs:
            break
    if entries != found.entries and not row.trouble:
        yield f"{what} has {entries} entries, and the log {found.entries}"
    digest = digest_of(lanes_of([(total % (1 << 256)).to_bytes(32, "big")]))
    if not row.floor and (entries, digest) != (row.entries, row.digest):
        yield f"{what} has another digest than its entries make"
    first = max(row.base, row.floor)
    messages = sum(seq > first for seq in found.messages)
    if own and row.covered.prefix - first != above + messages:
        yield f"{what}, this node's own, covers numbers under which it wrote nothing"


def _in_log(reader: Reader, mesh: str) -> dict[StreamName, _InLog]:
    """What the log has of each stream of a mesh."""
    found: dict[StreamName, _InLog] = {}
    at, head = reader.log_bounds()
    while at <= head:
        page = reader.log_columns(
            at, head + 1, RANGE_BATCH_ROWS, RANGE_BATCH_BYTES, Filter(meshes=(mesh,))
        )
        for raw in page.raw:
            place = place_of(raw)
            if place.epoch == UNCOUNTED:
                continue
            name = StreamName(place.mesh, place.origin, place.epoch)
            stream = found.setdefault(name, _InLog())
            if place.op in MESSAGES:
                stream.messages.append(place.seq)
            else:
                stream.entries += 1
        at = page.upto + 1
    return found
