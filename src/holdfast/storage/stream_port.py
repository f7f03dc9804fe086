"""What a store keeps of the streams of meshes that are shared over the bus.

What is covered is kept, not computed from rows: numbers without an entry are normal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from holdfast.rules.bus.meshes.coverage import StreamName
from holdfast.rules.bus.meshes.streams import BlockDigest, Placed, StreamPage, StreamRow
from holdfast.rules.frontier import Range


class StreamReader(Protocol):
    def stream_get(self, name: StreamName) -> StreamRow | None: ...
    def stream_list(self, mesh: str) -> list[StreamRow]:
        """By number."""

    def stream_count(self, mesh: str, origin: str | None = None) -> int:
        """How many streams a mesh has, or an origin in it."""

    def stream_page(
        self, number: int, start: int, end: int, limit: int, bytes_max: int
    ) -> StreamPage:
        """The entries with start <= seq < end: at most `limit`, and no more after about `bytes_max`
        of them (one always fits). EntryDamaged where bytes have changed since they were written.
        """

    def stream_lost(self) -> dict[int, int]:
        """By number of a stream: how many of its places lead to no entry of the log."""

    def stream_lowest(self, number: int, ranges: Sequence[Range]) -> int | None:
        """The lowest offset of the entries in these ranges; None if none of them is here."""

    def stream_blocks(self, number: int, first: int, blocks: int) -> list[BlockDigest]:
        """Of so many blocks of BUS_COMPARE_BLOCK numbers from a block on, those that have
        entries.
        """

    def stream_leaves(self, number: int, start: int, end: int) -> list[tuple[int, bytes]]:
        """Number and leaf hash of the entries with start <= seq < end."""


class StreamWriter(StreamReader, Protocol):
    def stream_add(self, name: StreamName, placed: Sequence[Placed]) -> None:
        """Entries were appended: their numbers are covered from now on. A number that has another
        entry already keeps it, and the row says what is wrong. The stream need not be known.
        """

    def stream_cover(
        self,
        name: StreamName,
        ranges: Sequence[Range],
        *,
        base: int = 0,
        key: bytes = b"",
        floor: int = 0,
    ) -> StreamRow:
        """Covers ranges, whatever is in them, and notes base, key and floor if they are given; the
        floor never sinks. The stream need not be known. Returns it as it is then.
        """

    def stream_drop(self, mesh: str) -> None:
        """Forgets all streams of a mesh."""

    def stream_trouble(self, name: StreamName, trouble: str) -> None:
        """Notes what a person has to look at; empty: it is settled."""
