"""Streams of meshes on the bus, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.rules.bus.meshes.coverage import StreamName, cover, cover_all
from holdfast.rules.bus.meshes.streams import (
    BlockDigest,
    Placed,
    StreamPage,
    StreamRow,
    digest_of,
    lanes_of,
    runs_of,
    two_contents,
)
from holdfast.rules.frontier import Range
from holdfast.rules.leaf import leaf_of
from holdfast.rules.limits import BUS_COMPARE_BLOCK
from holdfast.storage.memory.undo import UndoTables


class MemoryStreams(UndoTables):
    """What is covered of each stream, and where its entries stand in the log."""

    def stream_get(self, name: StreamName) -> StreamRow | None:
        return self._table("stream").get(name)

    def stream_list(self, mesh: str) -> list[StreamRow]:
        return sorted(self._rows("stream", mesh), key=lambda row: row.number)

    def stream_count(self, mesh: str, origin: str | None = None) -> int:
        rows: Iterable[StreamRow] = self._rows("stream", mesh)
        return sum(origin in (None, row.origin) for row in rows)

    def stream_page(
        self, number: int, start: int, end: int, limit: int, bytes_max: int
    ) -> StreamPage:
        seqs: list[int] = []
        raws: list[bytes] = []
        for seq, raw in self._held(number, start, end)[:limit]:
            bytes_max -= len(raw)
            if bytes_max < 0 and seqs:
                return StreamPage(seqs, raws, seq - 1)
            seqs.append(seq)
            raws.append(raw)
        return StreamPage(seqs, raws, seqs[-1] if len(seqs) == limit else end - 1)

    def stream_lost(self) -> dict[int, int]:
        log, lost = self._table("log"), dict[int, int]()
        for (number, _), offset in self._table("stream_place").items():
            if offset not in log:
                lost[number] = lost.get(number, 0) + 1
        return lost

    def stream_lowest(self, number: int, ranges: Sequence[Range]) -> int | None:
        places = self._places(number)
        offsets = [places[seq] for start, end in ranges for seq in places if start <= seq < end]
        return min(offsets, default=None)

    def stream_blocks(self, number: int, first: int, blocks: int) -> list[BlockDigest]:
        found: dict[int, list[bytes]] = {}
        start = first * BUS_COMPARE_BLOCK
        for seq, leaf in self.stream_leaves(number, start, start + blocks * BUS_COMPARE_BLOCK):
            found.setdefault(seq // BUS_COMPARE_BLOCK, []).append(leaf)
        return [
            BlockDigest(block, len(leaves), digest_of(lanes_of(leaves)))
            for block, leaves in found.items()
        ]

    def stream_leaves(self, number: int, start: int, end: int) -> list[tuple[int, bytes]]:
        return [(seq, leaf_of(raw)) for seq, raw in self._held(number, start, end)]

    def stream_add(self, name: StreamName, placed: Sequence[Placed]) -> None:
        if not placed:
            return
        row = self._stream_made(name)
        places = self._places(row.number)
        fresh = [one for one in placed if one[1] and one[0] not in places]
        for seq, offset, _ in fresh:
            self._put("stream_place", (row.number, seq), offset)
        changed = msgspec.structs.replace(
            row,
            covered=cover_all(row.covered, runs_of([seq for seq, _, _ in placed])),
            entries=row.entries + len(fresh),
            digest=digest_of(lanes_of([row.digest, *(leaf for _, _, leaf in fresh)])),
            trouble=row.trouble or two_contents(places, placed),
        )
        self._put("stream", name, changed)

    def stream_cover(
        self,
        name: StreamName,
        ranges: Sequence[Range],
        *,
        base: int = 0,
        key: bytes = b"",
        floor: int = 0,
    ) -> StreamRow:
        row = self._stream_made(name)
        covered = cover(row.covered, 1, base + 1) if base else row.covered
        changed = msgspec.structs.replace(
            row,
            covered=cover_all(covered, ranges),
            base=max(base, row.base),
            floor=max(floor, row.floor),
            key=key or row.key,
        )
        self._put("stream", name, changed)
        return changed

    def stream_drop(self, mesh: str) -> None:
        for row in self.stream_list(mesh):
            for seq in self._places(row.number):
                self._drop("stream_place", (row.number, seq))
            self._drop("stream", row.name)

    def stream_trouble(self, name: StreamName, trouble: str) -> None:
        row = self.stream_get(name)
        if row is not None:
            self._put("stream", name, msgspec.structs.replace(row, trouble=trouble))

    def _stream_made(self, name: StreamName) -> StreamRow:
        row = self.stream_get(name)
        if row is None:
            number = len(self._table("stream")) + 1
            mesh, origin, epoch = name
            row = StreamRow(number=number, mesh=mesh, origin=origin, epoch=epoch)
            self._put("stream", name, row)
        return row

    def _places(self, number: int) -> dict[int, int]:
        """Offsets by number, in the order of the numbers."""
        found = self._table("stream_place").items()
        return dict(sorted((seq, offset) for (of, seq), offset in found if of == number))

    def _held(self, number: int, start: int, end: int) -> list[tuple[int, bytes]]:
        log = self._table("log")
        return [
            (seq, log[offset].raw)
            for seq, offset in self._places(number).items()
            if start <= seq < end
        ]

    def _streams_truncated(self, gone: Iterable[tuple[StreamName, int]]) -> None:
        """Entries with these numbers are being removed from the log."""
        for name, seq in gone:
            row = self.stream_get(name)
            if row is not None:
                self._drop("stream_place", (row.number, seq))
                changed = msgspec.structs.replace(row, floor=max(row.floor, seq))
                self._put("stream", name, changed)
