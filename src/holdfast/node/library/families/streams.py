"""What comes one after the other: turns of tasks, events of an audit, facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.node.core import operations
from holdfast.node.core.change import Receipt
from holdfast.node.core.engine import NodeEngine
from holdfast.node.library.families.family import Family, Rows
from holdfast.node.library.verbs import turns, writes
from holdfast.node.log.audit_trail import AuditEntry, AuditVerdict, chains, read_place, verdicts
from holdfast.node.watching.verb import watches
from holdfast.rules.arguments import checked, checks_arguments
from holdfast.rules.audit_chain import AuditChainRow, AuditRow, check_stream
from holdfast.rules.cursor import Since
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.listed import listed, listed_rows
from holdfast.rules.rows import TaskEventRow, TaskRow
from holdfast.rules.tasks import TaskStatus
from holdfast.storage.audit_port import AuditPlace
from holdfast.storage.ports import Reader, Work

if TYPE_CHECKING:
    from holdfast.node.library.bus import NodeBus
    from holdfast.node.watching.changes import LogChange
    from holdfast.node.watching.source import WatchSource


@checks_arguments()
class Tasks(Family):
    """Work that one peer at a time takes on. In a mesh with voters the quorum decides who does."""

    def __init__(
        self, engine: NodeEngine, mesh: str, bus: Callable[[], NodeBus] | None = None
    ) -> None:
        super().__init__(engine, mesh)
        self._bus = bus
        self._has_voters = False

    @turns("task.create")
    def create(
        self, title: str, *, description: str = "", id: str | None = None
    ) -> operations.ThenTask:
        """Adds a task that is open.

        >>> print(team.tasks.create("Ship it", description="By Friday").status)
        open
        """
        change = operations.task_create(self._engine.ctx, self._mesh, title, description, id)
        return operations.ThenTask(change)

    @turns("task.claim")
    def claim(self, task: str, *, id: str | None = None) -> operations.ThenTask:
        """Takes a task on; TaskTaken if another peer has it.

        >>> task = team.tasks.create("Ship it")
        >>> team.tasks.claim(task.task).claimed_by
        'ana'
        """
        return self._move("claim", task, id)

    @turns("task.release")
    def release(self, task: str, *, id: str | None = None) -> operations.ThenTask:
        """Gives a task back, so that another peer may take it on.

        >>> task = team.tasks.claim(team.tasks.create("Ship it").task)
        >>> print(team.tasks.release(task.task).status)
        open
        """
        return self._move("release", task, id)

    @turns("task.complete")
    def complete(self, task: str, *, id: str | None = None) -> operations.ThenTask:
        """Ends a task that this peer has taken on.

        >>> task = team.tasks.claim(team.tasks.create("Ship it").task)
        >>> print(team.tasks.complete(task.task).status)
        completed
        """
        return self._move("complete", task, id)

    @turns("task.cancel")
    def cancel(self, task: str, *, id: str | None = None) -> operations.ThenTask:
        """Ends a task without its work being done.

        >>> print(team.tasks.cancel(team.tasks.create("Ship it").task).status)
        cancelled
        """
        return self._move("cancel", task, id)

    def get(self, task: str) -> TaskRow:
        """A task by its id; UnknownTask if there is none.

        >>> team.tasks.get(task.task).title
        'Paint the hull'
        """
        return self._engine.read(
            "task.get", lambda tx: operations.require_task(tx, self._mesh, task)
        )

    @listed(TaskRow)
    @checked
    def list(self, *, status: TaskStatus | str | None = None, after: str = "") -> Iterator[TaskRow]:
        """All tasks, or those of one status, by id; only those behind the id `after`.

        >>> "Paint the hull" in [row.title for row in team.tasks.list(status="open")]
        True
        """
        chosen = None if status is None else operations.check_status(status)

        def scan(tx: Reader, behind: str) -> Sequence[TaskRow]:
            return tx.task_scan(self._mesh, chosen, behind, CHUNK_ROWS)

        yield from self._rows(scan, lambda row: row.task, after)

    @listed_rows(TaskEventRow)
    @checked
    def events(self, task: str) -> Rows[TaskEventRow]:
        """Every turn on the task in stamp order, with what it came to.

        >>> [turn.kind for turn in team.tasks.events(task.task)]
        ['create']
        """
        return self._engine.read("task.events", operations.task_events(self._mesh, task))

    @watches
    @checked
    def watch(self, task: str = "", *, since: Since = None) -> WatchSource[LogChange]:
        """Turns of tasks, or of one, as they come; `tasks.get` says what they came to. `since` as
        in `State.watch`.

        >>> with team.tasks.watch(task.task, since="start") as changes:
        ...     next(changes).op
        'task.create'
        """
        return self._follow("task", task, since)

    def _move(self, verb: str, task: str, id: str | None) -> operations.ThenTask:
        change = operations.task_move(self._engine.ctx, self._mesh, verb, task, id)
        return operations.ThenTask(change)

    def _shown_rows(self) -> Iterable[Any]:
        return self.list()


@checks_arguments()
class AuditTrail(Family):
    """Named streams of events that are only added. Each origin's events are a chain of hashes."""

    @writes("audit.append")
    def append(self, stream: str, payload: Any, *, id: str | None = None) -> Work[Receipt]:
        """Adds an event to a stream (`activityLog`, `runAuditEvents`, or any name).

        >>> team.audit.append("activityLog", {"did": "deploy", "by": "ana"})
        """
        return operations.audit_append(self._engine.ctx, self._mesh, stream, payload, id)

    @listed(AuditEntry)
    @checked
    def list(
        self, stream: str, *, origin: str | None = None, after: str = ""
    ) -> Iterator[AuditEntry]:
        """The events of a stream, those of each origin in its order. `after` is a place as
        `place_of` writes it: only what follows it.

        >>> [event.payload for event in team.audit.list("logins")]
        [{'who': 'ana'}]
        """
        check_stream(stream)

        def scan(tx: Reader, behind: AuditPlace) -> Sequence[AuditRow]:
            return tx.audit_scan(self._mesh, stream, origin, behind, CHUNK_ROWS)

        rows = self._rows(
            scan,
            lambda row: (row.stream, row.origin, row.epoch, row.seq),
            (stream, *read_place(after)),
        )
        return map(AuditEntry.of, rows)

    @watches
    @checked
    def watch(self, prefix: str = "", *, since: Since = None) -> WatchSource[LogChange]:
        """Events of streams whose name begins with a prefix. `since` as in `State.watch`.

        >>> with team.audit.watch("logins", since="start") as changes:
        ...     next(changes).key
        'logins'
        """
        return self._follow("audit", prefix, since)

    @listed_rows(AuditChainRow)
    @checked
    def streams(self) -> Rows[AuditChainRow]:
        """Every chain that this node has something of: stream, origin, how far, how many.

        >>> "logins" in [chain.stream for chain in team.audit.streams()]
        True
        """
        return self._engine.read("audit.streams", lambda tx: [*chains(tx, self._mesh)])

    @listed_rows(AuditVerdict)
    @checked
    def verify(self, stream: str | None = None) -> Rows[AuditVerdict]:
        """Reads every event again, and says of each chain whether it is whole: what is missing,
        what does not fit, and which forks were refused.

        >>> [verdict.sound for verdict in team.audit.verify("logins")]
        [True]
        """
        return self._engine.read("audit.verify", lambda tx: [*verdicts(tx, self._mesh, stream)])

    def _shown_rows(self) -> Iterable[Any]:
        return self.streams()


@checks_arguments()
class Facts(Family):
    """What is so: subject, predicate, object. Appended once by id, never changed."""

    @writes("fact.append")
    def append(
        self,
        subject: str,
        predicate: str,
        object: Any,
        *,
        id: str | None = None,
        meta: Mapping[str, Any] | None = None,
        objects: Iterable[str] = (),
    ) -> Work[Receipt]:
        """`objects` are hashes of content that was put here before (`Node.receive_blob`): it is
        kept for as long as the fact.

        >>> team.facts.append("pump-3", "temperature", 71.5)
        """
        return operations.fact_append(
            self._engine.ctx, self._mesh, subject, predicate, object, id, meta, objects
        )

    @watches
    @checked
    def watch(self, prefix: str = "", *, since: Since = None) -> WatchSource[LogChange]:
        """Facts whose subject begins with a prefix, as they come. `since` as in `State.watch`.

        >>> with team.facts.watch("pump", since="start") as changes:
        ...     next(changes).op
        'fact.append'
        """
        return self._follow("fact", prefix, since)
