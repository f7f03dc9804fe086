"""Snapshots of what a mesh has committed, for its driver: given into a file, taken in from parts.

All of it lasts, so it runs in threads of its own, and the answers come back into the driver's. One
thing is done at a time: a member that gives does not take.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from blake3 import blake3

from holdfast.node.core.committed_snapshot import SnapshotStage, give_snapshot
from holdfast.node.core.context import NodeContext
from holdfast.node.quorum.embedded.log_disk import in_a_thread
from holdfast.node.quorum.embedded.ports import Given, GivenSnapshot, ReadPart, Wrote
from holdfast.rules.errors import BadQuorumSnapshot, HoldfastError, StoreFailed
from holdfast.rules.limits import QUORUM_PART_BYTES_MAX, QUORUM_SNAPSHOT_BYTES_MAX
from holdfast.rules.quorum.log_rows import QuorumSnapshot
from holdfast.storage.files.nameless import NamelessFile
from holdfast.storage.ports import Store

log = logging.getLogger("holdfast")


def clear_staged(store: Store, ctx: NodeContext, meshes: Iterable[str]) -> None:
    """At the start of a process, before their groups begin: removes what an earlier process had
    staged of snapshots that it did not take in. It lasts. Nobody reads what is staged, so a disk
    that is full keeps no group from beginning.
    """
    for mesh in meshes:
        try:
            SnapshotStage(store, ctx, mesh, tuple).clear()
        except HoldfastError as error:
            log.warning("what was staged for %s stays: %s", mesh, error.message)


class FiledSnapshot:
    """A `GivenSnapshot` in a file without a name."""

    def __init__(self, file: NamelessFile, index: int, digest: bytes) -> None:
        self._file, self.index, self.digest = file, index, digest
        self.size = file.size

    def part(self, offset: int) -> bytes:
        return self._file.read(offset, QUORUM_PART_BYTES_MAX)

    def close(self) -> None:
        self._file.close()


class StateSnapshots:
    """A `GroupSnapshots` of one mesh."""

    def __init__(
        self,
        store: Store,
        ctx: NodeContext,
        mesh: str,
        folder: Path,
        *,
        post: Callable[[Callable[[], None]], None],
        aside: Callable[[Callable[[], None]], None] = in_a_thread,
        applied: Callable[[], int] = lambda: 0,
        on_taken: Callable[[int], None] = lambda index: None,
    ) -> None:
        """`folder` is where the file lies. `post` calls a function in the driver's thread, from any
        thread; `aside` in another one, because it lasts. `applied` is how far the fold is: entries
        that no caller made are noted in the store only with the next one. `on_taken` hears, in the
        driver's thread, up to which index the mesh is applied now.
        """
        self._store, self._ctx, self._mesh, self._folder = store, ctx, mesh, folder
        self._post, self._aside, self._applied, self._on_taken = post, aside, applied, on_taken
        self._checked: tuple[bytes, SnapshotStage] | None = None

    def give(self, done: Given) -> None:
        applied = self._applied()

        def work() -> None:
            try:
                given: GivenSnapshot | HoldfastError = self._filed(applied)
            except Exception as error:
                given = _typed(error)
            self._post(partial(done, given))

        self._aside(work)

    def check(self, snapshot: QuorumSnapshot, read: ReadPart, done: Wrote) -> None:
        self._run(lambda: self._stage(snapshot, read), done)

    def take_in(self, snapshot: QuorumSnapshot, read: ReadPart, done: Wrote) -> None:
        def taken(error: HoldfastError | None) -> None:
            if error is None:
                self._on_taken(snapshot.index)
            done(error)

        self._run(lambda: self._place(snapshot, read), taken)

    def _filed(self, applied: int) -> FiledSnapshot:
        file, total = NamelessFile(self._folder, QUORUM_SNAPSHOT_BYTES_MAX), blake3()

        def write(data: bytes) -> None:
            file.write(data)
            total.update(data)

        try:
            with self._store.read() as reader:
                index = give_snapshot(reader, self._mesh, write, applied)
        except BaseException:
            file.close()
            raise
        return FiledSnapshot(file, index, total.digest())

    def _stage(self, snapshot: QuorumSnapshot, read: ReadPart) -> None:
        self._checked = None
        total = blake3()
        for part in _chunks(read):
            total.update(part)
        if total.digest() != snapshot.digest:
            # The log would refuse it too, when it has to take the place of the log.
            raise BadQuorumSnapshot("a snapshot is not what was announced")
        stage = SnapshotStage(self._store, self._ctx, self._mesh, lambda: _chunks(read))
        stage.stage(snapshot.index)
        self._checked = (snapshot.digest, stage)

    def _place(self, snapshot: QuorumSnapshot, read: ReadPart) -> None:
        """The parts that are in place are those that were checked, or they are checked again."""
        if self._checked is None or self._checked[0] != snapshot.digest:
            self._stage(snapshot, read)
        assert self._checked is not None
        _, stage = self._checked
        self._checked = None
        stage.put_in_place(snapshot.index)

    def _run(self, work: Callable[[], None], done: Wrote) -> None:
        def run() -> None:
            error: HoldfastError | None = None
            try:
                work()
            except Exception as raised:
                error = _typed(raised)
            self._post(partial(done, error))

        self._aside(run)


def _chunks(read: ReadPart) -> Iterator[bytes]:
    at = 0
    while part := read(at):
        yield part
        at += len(part)


def _typed(error: Exception) -> HoldfastError:
    if isinstance(error, HoldfastError):
        return error
    log.error("a snapshot of a quorum", exc_info=error)
    return StoreFailed(f"a snapshot of a quorum: {error!r}")
