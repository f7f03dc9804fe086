"""What a store must be able to do with what is kept under a key or a path: memory, state, files and
the blobs that they name. What ends in `_many` is asked for a run of changes at once (see
`node/core/runs/plain_changes.py`); it does what the same verbs do one by one, in order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from holdfast.rules.order import Version
from holdfast.rules.rows import BlobRow, FileRow, MemoryRow, StateRow, SweptRow


class FamilyReader(Protocol):
    def state_version(self, mesh: str, key: str) -> Version | None: ...
    def state_version_many(self, mesh: str, keys: Collection[str]) -> dict[str, Version]:
        """Of those keys that have one."""

    def state_get(self, mesh: str, key: str) -> StateRow | None: ...
    def state_scan(self, mesh: str, prefix: str, after: str, limit: int) -> list[StateRow]:
        """Live and dead rows with key > after."""

    def state_seen(self, mesh: str, key: str) -> dict[str, int]:
        """What the version of a key that stands has seen of other peers: the lamport of each."""

    def memory_get(self, mesh: str, owner: str, key: str) -> MemoryRow | None: ...
    def memory_get_many(self, mesh: str, owner: str, keys: Collection[str]) -> dict[str, MemoryRow]:
        """By key, of those that there are."""

    def memory_all(self, mesh: str, key: str) -> list[MemoryRow]:
        """Live rows of every owner, newest first, then by owner."""

    def memory_scan(
        self, mesh: str, owner: str | None, after: tuple[str, str], limit: int
    ) -> list[MemoryRow]:
        """Rows with (owner, key) > after."""

    def file_get(self, mesh: str, owner: str, path: str) -> FileRow | None: ...
    def file_scan(
        self, mesh: str, owner: str | None, after: tuple[str, str], limit: int
    ) -> list[FileRow]: ...
    def blob_get(self, sha256: str) -> BlobRow | None: ...
    def blob_scan(self, after: str, limit: int) -> list[BlobRow]: ...
    def blob_released(self, limit: int) -> list[BlobRow]:
        """Blobs without references whose files wait to be removed, longest first."""

    def blob_old(
        self, upto: int, before_ms: int, now_ms: int, old_upto: int, limit: int
    ) -> list[BlobRow]:
        """Of `blob_released`, those that were released at an offset up to `upto` and before a time.
        A time that has not come yet says nothing: then the offset must be `old_upto` at most.
        """

    def blob_refs(self, sha256: str) -> int:
        """How many live files, and facts in the log, name this blob: counted, not stored, so it
        cannot be wrong.
        """

    def fact_objects(self, below: int, limit: int) -> list[tuple[int, str]]:
        """Offset and hash of objects that facts below an offset name, by offset."""

    def family_counts(self, mesh: str) -> dict[str, int]:
        """Live rows per family."""


class FamilyWriter(FamilyReader, Protocol):
    def state_put(self, row: StateRow) -> None: ...
    def state_put_many(self, rows: Sequence[StateRow]) -> None: ...
    def memory_put(self, row: MemoryRow) -> None: ...
    def memory_put_many(self, rows: Sequence[MemoryRow]) -> None: ...
    def file_put(self, row: FileRow) -> None: ...
    def blob_put(self, row: BlobRow) -> None: ...
    def fact_objects_put(self, offset: int, sha256s: Sequence[str]) -> None:
        """The fact at this offset names these objects."""

    def fact_objects_drop(self, below: int) -> None:
        """Forgets which objects were named by facts below an offset: those are truncated."""

    def blob_drop(self, sha256: str) -> None: ...
    def state_seen_put(self, mesh: str, key: str, peer: str, lamport: int) -> None: ...
    def state_seen_drop(self, mesh: str, key: str, peer: str) -> None: ...
    def tombstones_sweep(self, mesh: str, below_offset: int, most: int) -> list[SweptRow]:
        """Removes dead rows that were written below an offset, and returns them."""
