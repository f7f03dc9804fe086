"""Where entries of the log stand at their broker, in memory."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.storage.memory.undo import UndoTables


class MemoryBrokerPositions(UndoTables):
    """Offsets by mesh, epoch and seq."""

    def broker_positions_above(
        self, mesh: str, epoch: int, seq: int, after_seq: int, limit: int
    ) -> list[tuple[int, int]]:
        above = [
            (at, offset)
            for (slug, in_epoch, at), offset in self._table("broker_position").items()
            if slug == mesh and in_epoch == epoch and at > max(seq, after_seq)
        ]
        return sorted(above)[:limit]

    def broker_positions_at(self, offset: int) -> list[tuple[str, int]]:
        found = [key for key, at in self._table("broker_position").items() if at == offset]
        return [
            (mesh, seq) for mesh, _, seq in sorted(found, key=lambda key: (key[0], -key[1], key[2]))
        ]

    def broker_positions_epochs(self, mesh: str) -> list[int]:
        return sorted({epoch for slug, epoch, _ in self._table("broker_position") if slug == mesh})

    def broker_positions_add(self, mesh: str, epoch: int, rows: Sequence[tuple[int, int]]) -> None:
        for seq, offset in rows:
            if (mesh, epoch, seq) not in self._table("broker_position"):
                self._put("broker_position", (mesh, epoch, seq), offset)

    def broker_positions_sweep(self, below_offset: int, most: int) -> int:
        old = sorted(
            (offset, key)
            for key, offset in self._table("broker_position").items()
            if offset < below_offset
        )[:most]
        for _, key in old:
            self._drop("broker_position", key)
        return len(old)

    def broker_positions_drop(self, mesh: str, most: int) -> int:
        gone = sorted(key for key in self._table("broker_position") if key[0] == mesh)[:most]
        for key in gone:
            self._drop("broker_position", key)
        return len(gone)
