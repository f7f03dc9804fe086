"""Pieces of the log as they leave it, in memory: filtered, cut by rows and bytes."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.rules.filters import Filter
from holdfast.rules.limits import SCAN_ROWS_MAX
from holdfast.rules.rows import Columns, Entry, Page
from holdfast.storage.memory.log import MemoryLog


class MemoryLogPages(MemoryLog):
    """Pages and columns of the log."""

    def log_page(self, start: int, end: int, limit: int, bytes_max: int, filter: Filter) -> Page:
        entries, upto = self._piece(start, end, limit, bytes_max, filter)
        return Page([entry.offset for entry in entries], [entry.raw for entry in entries], upto)

    def log_columns(
        self,
        start: int,
        end: int,
        limit: int,
        bytes_max: int,
        filter: Filter,
        *,
        damaged: bool = False,
        odd: bool = False,
    ) -> Columns:
        entries, upto = self._piece(start, end, limit, bytes_max, filter)
        return Columns(
            offset=[entry.offset for entry in entries],
            id=[entry.id for entry in entries],
            mesh=[entry.mesh for entry in entries],
            op=[entry.op for entry in entries],
            entity=[entry.entity for entry in entries],
            origin=[entry.origin for entry in entries],
            lamport=[entry.lamport for entry in entries],
            recorded_at=[entry.recorded_at for entry in entries],
            raw=[entry.raw for entry in entries],
            upto=upto,
        )

    def _piece(
        self, start: int, end: int, limit: int, bytes_max: int, filter: Filter
    ) -> tuple[list[Entry], int]:
        stop = min(end, start + SCAN_ROWS_MAX)
        if limit < 1 or stop <= start:
            return [], start - 1
        taken: list[Entry] = []
        room = bytes_max
        for entry in self._passing(start, stop, filter):
            room -= len(entry.raw)
            if room >= 0 or not taken:
                taken.append(entry)
            if room < 0 or len(taken) == limit:
                return taken, taken[-1].offset
        return taken, max(start - 1, min(stop - 1, self.log_bounds()[1]))

    def _passing(self, start: int, stop: int, filter: Filter) -> Iterator[Entry]:
        names = {row.number: row.name for row in self._table("zone").values()}
        through = self._table("log_via")
        for entry in self.log_range(start, stop, SCAN_ROWS_MAX):
            via = names.get(through.get(entry.offset, 0), "")
            if filter.passes(entry.mesh, entry.op, entry.entity, entry.origin, via):
                yield entry
