"""What a store keeps of tasks: each as it stands, and its turns."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from holdfast.rules.id_prefix import IdSpan
from holdfast.rules.order import Version
from holdfast.rules.rows import TaskEventRow, TaskRow
from holdfast.rules.tasks import TaskStatus


class ForgottenTask(NamedTuple):
    """A task that was removed after its end."""

    lamport: int
    """Its highest stamp."""
    offset: int
    """The place of the last thing that came of it."""


class TaskReader(Protocol):
    def task_get(self, mesh: str, task: str) -> TaskRow | None: ...
    def task_scan(
        self,
        mesh: str,
        status: TaskStatus | None,
        after: str,
        limit: int,
        *,
        known_only: bool = True,
    ) -> list[TaskRow]:
        """By task; without `known_only` also those whose creation has not arrived."""

    def task_ids_within(self, mesh: str, span: IdSpan, limit: int) -> list[str]:
        """Tasks whose ids lie in a span, in order, but for those whose creation has not arrived."""

    def task_events(self, mesh: str, task: str) -> list[TaskEventRow]:
        """In the order in which they were folded: by stamp, and then those that a quorum has
        committed in commit order.
        """

    def task_held(self, mesh: str, peer: str, limit: int) -> list[TaskRow]:
        """Tasks that a peer holds, by task."""

    def task_event_before(
        self, mesh: str, task: str, version: Version, *, or_at: bool = False
    ) -> TaskEventRow | None:
        """The last turn before this version; `or_at` also finds the version itself."""

    def task_events_after(
        self, mesh: str, task: str, version: Version, limit: int
    ) -> list[TaskEventRow]:
        """In stamp order."""

    def task_events_naming(
        self, mesh: str, task: str, first: int, last: int, before: Version
    ) -> list[TaskEventRow]:
        """Claims and releases before this version that name one of these generations, in stamp
        order.
        """

    def task_event_opening(self, mesh: str, task: str, generation: int) -> TaskEventRow | None:
        """The first turn after which the task had reached this generation, or a later one."""

    def task_event_create(self, mesh: str, task: str) -> TaskEventRow | None:
        """The first creation of the task."""

    def task_forgotten(self, mesh: str, task: str) -> bool:
        """Whether a task that is not here may have ended and been forgotten."""

    def task_lacks_standings(self, mesh: str, task: str) -> bool:
        """Whether one of its turns was stored before turns had standings."""


class TaskWriter(TaskReader, Protocol):
    def task_put(self, row: TaskRow) -> None: ...
    def task_event_put(self, row: TaskEventRow) -> None:
        """Adds a turn, or changes the outcome of one that is there."""

    def tasks_forget(
        self, mesh: str, below_offset: int, most: int, names_max: int
    ) -> list[ForgottenTask]:
        """Removes tasks that have ended, with their turns, and of which the last thing came below
        an offset: about `most` rows, the oldest first. Their names are remembered; of more than
        `names_max` the oldest are not.
        """
