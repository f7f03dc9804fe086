"""The engine: runs reads and writes of this node against its store.

Every write takes the same way, whether a thread of the library makes it (`NodeEngine.write`), a
coroutine or a handler of the HTTP API (`LoopWriter.write`):

1. A write that needs room is refused while the disk is too full (`admit_write`).
2. It runs in a transaction that it shares with the writes that wait at the same time.
3. It is counted with the time that it took, and so is its error, if it failed.
4. When it met a full disk, some room is made. A write that itself makes room is then run once more
   (`write_failed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast.rules.errors import DiskFull, HoldfastError, UnknownMesh
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.names import check_mesh

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.node.core.context import NodeContext
    from holdfast.node.core.message_count import MessageCount
    from holdfast.node.core.metrics import Metrics
    from holdfast.rules.rows import MeshRow, WarningRow
    from holdfast.storage.files.blobs import BlobStore
    from holdfast.storage.ports import Reader, Reading, Store, Work

T = TypeVar("T")

NEEDS_ROOM: Final = frozenset(
    (
        *("state.set", "memory.set", "vector.store", "vector.reembed", "file.share"),
        *("task.create", "task.claim", "task.release", "task.complete", "task.cancel"),
        *(
            "fact.append",
            "audit.append",
            "telemetry.set",
            "mesh.create",
            "conflict.restore",
            "intake",
            "import",
            "link.take",
        ),
        *("batch", "message.send", "sync.take", "sync.express", "quorum.queue"),
    )
)
"""The writes that are refused while the disk is too full. All others make room or keep track of
readers. Deletions are among those: each needs something to delete, so they come to an end."""


class NodeEngine:
    """Runs reads and writes against one store."""

    def __init__(
        self,
        store: Store,
        ctx: NodeContext,
        metrics: Metrics,
        blobs_free: Callable[[], AbstractContextManager[bool]] = lambda: nullcontext(True),
    ) -> None:
        """`blobs_free` says whether blobs may be removed now; while its context is held, nobody
        copies them.
        """
        self.store = store
        self.ctx = ctx
        self.metrics = metrics
        self.blobs_free = blobs_free
        self.admit: Callable[[], None] | None = None
        """Raises `DiskFull` while nothing new is taken in; set by the watch of the disk."""
        self.relieve: Callable[[], None] | None = None
        """Makes what room it can, after a write met a full disk; set by the watch of the disk."""
        self.is_kept: Callable[[str], bool] = lambda sha: False
        """Whether something besides the tables still needs a blob; set by whoever opens the
        home.
        """
        self.sync_word: Callable[[str, str, bool], str] | None = None
        """How a shared mesh stands with its broker, given the mesh, its kind and whether it is
        paused; set by the sync, if it runs in this process.
        """
        self.wake_folder: Callable[[], Path] | None = None
        """Says where readers of this home that wait for commits have their sockets; set by whoever
        opens the home.
        """
        self.watches: Any = None
        """The watches of this node, as soon as there are some (`node.watching.watches`)."""
        self.on_close: list[Callable[[], None]] = []
        """Called when the node is closed, before its store is."""
        self.opened: object = None
        """What closes the home; kept by whoever holds any family of the node."""

    @cached_property
    def message_count(self) -> MessageCount:
        # Here, because only the status and the metrics of a daemon ask.
        from holdfast.node.core.message_count import MessageCount, MessageFigures

        return MessageCount(lambda: self.read("outbox.counts", MessageFigures.read))

    @property
    def blobs(self) -> BlobStore:
        return self.ctx.blobs

    # --- writes ------------------------------------------------------------------------------

    def write(self, name: str, work: Work[T]) -> T:
        """Runs a write in the caller's thread; returns after its commit. `name` is what the metrics
        and `NEEDS_ROOM` call it.
        """
        # Spelled out, because calls and a context manager here cost a tenth of a durable write.
        if self.admit is not None and name in NEEDS_ROOM:
            self.check_room()
        begun = perf_counter_ns()
        try:
            return self.store.write(work)
        except HoldfastError as error:
            if self.write_failed(name, error):
                return self.store.write(work)
            raise
        finally:
            self.metrics.add(name, perf_counter_ns() - begun)

    def admit_write(self, name: str) -> None:
        """Raises `DiskFull` if the write needs room and there is none."""
        if self.admit is not None and name in NEEDS_ROOM:
            self.check_room()

    def write_failed(self, name: str, error: HoldfastError) -> bool:
        """Counts the error, and makes room if the disk was full. Returns whether the write is to be
        run once more: the first try was rolled back as a whole.
        """
        self.metrics.failed(error)
        if not isinstance(error, DiskFull) or self.relieve is None:
            return False
        self.relieve()
        return name not in NEEDS_ROOM

    def check_room(self) -> None:
        """Raises `DiskFull` if there is no room; call it before storing a blob."""
        if self.admit is None:
            return
        try:
            self.admit()
        except HoldfastError as error:
            self.metrics.failed(error)
            raise

    # --- reads -------------------------------------------------------------------------------

    def read(self, name: str, read: Callable[[Reader], T]) -> T:
        begun = perf_counter_ns()
        try:
            return _read_once(self.store.read(), read)
        except HoldfastError as error:
            self.metrics.failed(error)
            raise
        finally:
            self.metrics.add(name, perf_counter_ns() - begun)

    def pages(self, page: Callable[[Reader], Sequence[T]]) -> Iterator[T]:
        """Yields all rows that paged reads give, with one page in memory at a time. `page` moves
        its own cursor.
        """
        while True:
            rows = _read_once(self.store.read(), page)
            yield from rows
            if len(rows) < CHUNK_ROWS:
                return

    def take_warnings(self, mesh: str | None) -> list[WarningRow]:
        """What this peer must know and was not told before, of one mesh or of all; each once."""
        if not self.read("warnings", lambda tx: tx.warning_list(mesh)):
            return []
        return self.write("warnings", lambda tx: tx.warnings_take(mesh))

    def require_mesh(self, slug: str) -> MeshRow:
        """The mesh of this name; `UnknownMesh` if there is none."""
        check_mesh(slug)
        row = self.read("mesh.get", lambda tx: tx.mesh_get(slug))
        if row is None:
            raise UnknownMesh(f"there is no mesh {slug!r}")
        return row


def _read_once(reading: Reading, read: Callable[[Reader], T]) -> T:
    """Runs one read. An exception that a signal handler raises meanwhile leaves nothing open:
    `end` runs again if it came within the first one.
    """
    try:
        try:
            return read(reading.begin())
        finally:
            reading.end()
    except BaseException as error:
        known = reading.error(error)
        if known is error:
            raise
        raise known from error
    finally:
        reading.end()
