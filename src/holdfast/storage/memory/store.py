"""The store in memory: the same promises as the one on disk, except that nothing survives the
process.

It serves tests, simulations and looks into the past (`holdfast.node.log.history` folds the log into
one). Tables are dictionaries; a transaction notes how to undo each of its steps, which gives the
writer real savepoints.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from holdfast.storage.group_commit import GroupWriter
from holdfast.storage.memory.audit import MemoryAudit
from holdfast.storage.memory.broker_positions import MemoryBrokerPositions
from holdfast.storage.memory.bus import MemoryBus
from holdfast.storage.memory.conflicts import MemoryLedger
from holdfast.storage.memory.consumers import MemoryConsumers
from holdfast.storage.memory.families import MemoryFamilies
from holdfast.storage.memory.inbox import MemoryInbox
from holdfast.storage.memory.log_pages import MemoryLogPages
from holdfast.storage.memory.mesh_end import MemoryMeshEnd
from holdfast.storage.memory.meshes import MemoryMeshes
from holdfast.storage.memory.outbox import MemoryOutbox
from holdfast.storage.memory.quorum_state import MemoryQuorumState
from holdfast.storage.memory.tasks import MemoryTasks
from holdfast.storage.memory.telemetry import MemoryTelemetry
from holdfast.storage.memory.vector_rows import MemoryVectors
from holdfast.storage.memory.zones import MemoryZones
from holdfast.storage.ports import Reader, Reading, Transaction, Work

T = TypeVar("T")


class MemoryTransaction(
    MemoryMeshEnd,
    MemoryMeshes,
    MemoryLogPages,
    MemoryFamilies,
    MemoryVectors,
    MemoryTasks,
    MemoryAudit,
    MemoryTelemetry,
    MemoryLedger,
    MemoryConsumers,
    MemoryZones,
    MemoryOutbox,
    MemoryInbox,
    MemoryBrokerPositions,
    MemoryQuorumState,
    MemoryBus,
):
    """Every table, with steps that can be undone."""


class MemoryEngine:
    """The dictionaries, as the group writer drives them."""

    def __init__(self) -> None:
        self._tables = MemoryTransaction()
        self.transaction: Transaction = self._tables
        self._marks: list[int] = []
        self.lock = threading.RLock()
        """Held from begin to commit: a reader sees whole transactions only."""

    def begin(self) -> None:
        self.lock.acquire()
        self._tables.undo.clear()
        self._marks = [0]

    def savepoint(self) -> None:
        self._marks.append(len(self._tables.undo))

    def release(self) -> None:
        self._marks.pop()

    def undo(self) -> None:
        self._tables.undo_to(self._marks.pop())

    def commit(self) -> None:
        self._marks.clear()
        self._tables.undo.clear()
        self.lock.release()

    def rollback(self) -> None:
        self._tables.undo_to(0)
        self._marks.clear()
        self.lock.release()

    def changes(self) -> int:
        return len(self._tables.undo)

    def alive(self) -> bool:
        return bool(self._marks)

    def pinned(self) -> bool:
        return False

    def error(self, error: BaseException, *, committing: bool) -> BaseException:
        return error

    def disown(self) -> None:
        """A copy in memory harms nobody."""


class MemoryReading:
    """The dictionaries, while no transaction changes them."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        self._held = False

    def begin(self) -> Reader:
        self._engine.lock.acquire()
        self._held = True
        return self._engine.transaction

    def end(self) -> None:
        if self._held:
            self._held = False
            self._engine.lock.release()

    def error(self, error: BaseException) -> BaseException:
        return error

    def __enter__(self) -> Reader:
        return self.begin()

    def __exit__(self, *exc: object) -> None:
        self.end()


class MemoryStore:
    """A store that lives as long as its process."""

    def __init__(self) -> None:
        self._engine = MemoryEngine()
        self.writer = GroupWriter(self._engine)

    def write(self, work: Work[T]) -> T:
        result: T = self.writer.write(work)
        return result

    def read(self) -> Reading:
        return MemoryReading(self._engine)

    def on_commit(
        self, listener: Callable[[], None], *, unstreamed: Callable[[], None] | None = None
    ) -> None:
        self.writer.on_commit(listener, unstreamed=unstreamed)

    def stop(self, timeout_s: float | None = None) -> bool:
        return self.writer.stop(timeout_s)

    def abort(self) -> None:
        self.writer.abort()
