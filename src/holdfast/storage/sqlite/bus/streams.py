"""Streams of meshes on the bus: what is covered, and where the entries stand in the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import apsw

from holdfast.rules.bus.meshes.coverage import StreamName, cover, cover_all
from holdfast.rules.bus.meshes.streams import (
    LANES,
    BlockDigest,
    Placed,
    StreamPage,
    StreamRow,
    digest_of,
    lanes_of,
    runs_of,
    two_contents,
)
from holdfast.rules.frontier import Frontier, Range
from holdfast.rules.leaf import leaf_of
from holdfast.rules.limits import BUS_COMPARE_BLOCK
from holdfast.storage.sqlite.bus.rows import in_list
from holdfast.storage.sqlite.log_leaves import refuse_damaged

_LANES: Final = tuple(f"d{lane}" for lane in range(LANES))
_SELECT: Final = (
    "SELECT number, mesh, origin, epoch, key, base, floor, prefix, ranges, entries, trouble, "
    f"{', '.join(_LANES)} FROM stream"
)
_OF: Final = "WHERE mesh = ? AND origin = ? AND epoch = ?"
_ADD: Final = ", ".join(f"{lane} = {lane} + ?" for lane in _LANES)
_PLACE: Final = "INSERT INTO stream_place (stream, seq, offset) VALUES (?, ?, ?)"
_NOTHING: Final = (0,) * LANES
_NEAR: Final = 4
"""So many numbers are read for each one that is asked for before each is looked up by itself."""
_NEXT: Final = (
    f"UPDATE stream SET prefix = ?, entries = entries + ?, {_ADD} "
    "WHERE number = ? AND mesh = ? AND origin = ? AND epoch = ? AND prefix = ? AND ranges = ''"
)


def _row(found: Any) -> StreamRow:
    number, mesh, origin, epoch, key, base, floor, prefix, ranges, entries, trouble, *lanes = found
    return StreamRow(
        number=number,
        mesh=mesh,
        origin=origin,
        epoch=epoch,
        key=key,
        base=base,
        floor=floor,
        covered=Frontier.decode(f"{prefix};{ranges}") if ranges else Frontier(prefix),
        entries=entries,
        digest=digest_of(lanes),
        trouble=trouble,
    )


class StreamReads:
    _con: apsw.Connection
    _once: apsw.Cursor

    def stream_get(self, name: StreamName) -> StreamRow | None:
        found = self._con.execute(f"{_SELECT} {_OF}", name).get
        return None if found is None else _row(found)

    def stream_list(self, mesh: str) -> list[StreamRow]:
        return list(
            map(_row, self._con.execute(f"{_SELECT} WHERE mesh = ? ORDER BY number", (mesh,)))
        )

    def stream_count(self, mesh: str, origin: str | None = None) -> int:
        found = self._con.execute(
            "SELECT count(*) FROM stream WHERE mesh = ?1 AND origin = ifnull(?2, origin)",
            (mesh, origin),
        )
        return int(found.get)

    def stream_page(
        self, number: int, start: int, end: int, limit: int, bytes_max: int
    ) -> StreamPage:
        seqs: list[int] = []
        raws: list[bytes] = []
        cursor: Iterable[Any] = self._con.execute(
            "SELECT p.seq, p.offset, l.raw, l.leaf FROM stream_place p JOIN log l USING (offset) "
            "WHERE p.stream = ? AND p.seq >= ? AND p.seq < ? ORDER BY p.seq LIMIT ?",
            (number, start, end, limit),
        )
        for seq, offset, raw, leaf in cursor:
            bytes_max -= len(raw)
            if bytes_max < 0 and seqs:
                return StreamPage(seqs, raws, seq - 1)
            refuse_damaged(offset, raw, leaf)
            seqs.append(seq)
            raws.append(raw)
        return StreamPage(seqs, raws, seqs[-1] if len(seqs) == limit else end - 1)

    def stream_lost(self) -> dict[int, int]:
        found: Iterable[Any] = self._con.execute(
            "SELECT p.stream, count(*) FROM stream_place p LEFT JOIN log l USING (offset) "
            "WHERE l.offset IS NULL GROUP BY p.stream"
        )
        return dict(found)

    def stream_lowest(self, number: int, ranges: Sequence[Range]) -> int | None:
        lowest = [
            self._con.execute(
                "SELECT min(offset) FROM stream_place WHERE stream = ? AND seq >= ? AND seq < ?",
                (number, start, end),
            ).get
            for start, end in ranges
        ]
        return min((int(found) for found in lowest if found is not None), default=None)

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
        found: Iterable[Any] = self._con.execute(
            # An entry from before leaf hashes has none.
            "SELECT p.seq, l.leaf, iif(l.leaf IS NULL, l.raw, NULL) FROM stream_place p "
            "JOIN log l USING (offset) WHERE p.stream = ? AND p.seq >= ? AND p.seq < ? "
            "ORDER BY p.seq",
            (number, start, end),
        )
        return [(seq, leaf_of(raw) if leaf is None else leaf) for seq, leaf, raw in found]


class StreamWrites(StreamReads):
    _stream_numbers: dict[StreamName, int]
    """Numbers of streams that were written to: only a guess, as a rollback may have taken one
    back."""

    def stream_add(self, name: StreamName, placed: Sequence[Placed]) -> None:
        if len(placed) == 1 and self._stream_next(name, placed[0]):
            return
        if not placed:
            return
        row = self._stream_made(name)
        number = self._stream_numbers[name] = row.number
        there = self._stream_there(number, placed)
        fresh = [one for one in placed if one[1] and one[0] not in there]
        self._con.executemany(_PLACE, [(number, seq, offset) for seq, offset, _ in fresh])
        covered = cover_all(row.covered, runs_of([seq for seq, _, _ in placed]))
        lanes = lanes_of([leaf for _, _, leaf in fresh])
        self._stream_covers(number, covered, len(fresh), lanes)
        twice = two_contents(there, placed)
        if twice and not row.trouble:
            self.stream_trouble(name, twice)

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
        covered = cover_all(covered, ranges)
        if covered != row.covered:
            self._stream_covers(row.number, covered, 0, _NOTHING)
        if base > row.base or floor > row.floor or (key and key != row.key):
            self._con.execute(
                "UPDATE stream SET base = max(base, ?), floor = max(floor, ?), key = ? "
                "WHERE number = ?",
                (base, floor, key or row.key, row.number),
            )
        found = self.stream_get(name)
        assert found is not None
        return found

    def stream_drop(self, mesh: str) -> None:
        self._con.execute(
            # Also those of a stream that is not there: another one may get its number.
            "DELETE FROM stream_place "
            "WHERE stream NOT IN (SELECT number FROM stream WHERE mesh <> ?)",
            (mesh,),
        )
        self._con.execute("DELETE FROM stream WHERE mesh = ?", (mesh,))

    def stream_trouble(self, name: StreamName, trouble: str) -> None:
        self._con.execute(f"UPDATE stream SET trouble = ? {_OF}", (trouble, *name))

    def _stream_next(self, name: StreamName, one: Placed) -> bool:
        """The usual case: the number after the last one. False if it is not."""
        number = self._stream_numbers.get(name)
        if number is None:
            return False
        seq, offset, leaf = one
        lanes = lanes_of((leaf,)) if offset else _NOTHING
        self._once.execute(_NEXT, (seq, offset > 0, *lanes, number, *name, seq - 1))
        if not self._con.changes():
            return False
        if offset:
            self._once.execute(_PLACE, (number, seq, offset))
        return True

    def _stream_made(self, name: StreamName) -> StreamRow:
        row = self.stream_get(name)
        if row is not None:
            return row
        self._con.execute("INSERT INTO stream (mesh, origin, epoch) VALUES (?, ?, ?)", name)
        mesh, origin, epoch = name
        number = self._con.last_insert_rowid()
        return StreamRow(number=number, mesh=mesh, origin=origin, epoch=epoch)

    def _stream_there(self, number: int, placed: Sequence[Placed]) -> dict[int, int]:
        """The offsets of numbers that have an entry, among the new ones or around them."""
        seqs = [seq for seq, _, _ in placed]
        first, last = min(seqs), max(seqs)
        found: Iterable[Any]
        if last - first < _NEAR * len(seqs):
            found = self._con.execute(
                "SELECT seq, offset FROM stream_place WHERE stream = ? AND seq BETWEEN ? AND ?",
                (number, first, last),
            )
        else:  # a peer decides how far apart they are
            found = self._con.execute(
                "SELECT seq, offset FROM json_each(?2) CROSS JOIN stream_place "
                "ON stream = ?1 AND seq = value",
                (number, in_list(seqs)),
            )
        return {seq: offset for seq, offset in found}

    def _stream_covers(
        self, number: int, covered: Frontier, entries: int, lanes: tuple[int, ...]
    ) -> None:
        ranges = covered.encode().partition(";")[2]
        self._con.execute(
            f"UPDATE stream SET prefix = ?, ranges = ?, entries = entries + ?, {_ADD} "
            "WHERE number = ?",
            (covered.prefix, ranges, entries, *lanes, number),
        )

    def _streams_truncated(self, gone: Iterable[tuple[StreamName, int]]) -> None:
        """Entries with these numbers are being removed from the log."""
        numbers = {
            StreamName(*name): number
            for number, *name in self._con.execute("SELECT number, mesh, origin, epoch FROM stream")
        }
        if not numbers:
            return
        doomed = [(numbers[name], seq) for name, seq in gone if name in numbers]
        self._con.executemany("DELETE FROM stream_place WHERE stream = ? AND seq = ?", doomed)
        self._con.executemany("UPDATE stream SET floor = max(floor, ?2) WHERE number = ?1", doomed)
