"""`holdfast task`: work that one peer at a time takes on."""

from __future__ import annotations

import click

from holdfast.apps.cli import documents, short_ids
from holdfast.apps.cli.declare import noun, verb
from holdfast.apps.cli.lists.watching import LIMIT, SINCE, place_of, show_changes
from holdfast.apps.cli.session import CommandSession

task_ = noun(
    "task",
    "Work that one peer at a time takes on. A TASK is its id, or as much of its beginning as tells "
    "it from others.",
)


@verb(task_, "create", writes=True)
@click.argument("title")
@click.option("--description", default="", metavar="TEXT", help="What is to be done.")
def create(session: CommandSession, title: str, description: str) -> None:
    """Create a task; its id is the id of this write."""
    with session.mesh() as mesh:
        row = mesh.tasks.create(title, description=description, id=session.id)
        session.wrote(
            {"id": session.id, **documents.task(row)}, f"created {row.title!r} in {mesh.slug}"
        )


@verb(task_, "watch")
@click.argument("task", default="")
@SINCE
@LIMIT
def watch(session: CommandSession, task: str, since: str | None, limit: int | None) -> None:
    """Show turns of tasks, or of one TASK, as they come.

    Ctrl-C ends it, and says where to go on.
    """
    with session.mesh() as mesh:
        named = short_ids.task(mesh, task) if task else ""
        found = mesh.tasks.watch(named, since=place_of(session.opened, since))
        show_changes(session, found, limit)


@verb(task_, "list", lists="updated_at")
@click.option("--status", metavar="STATUS", help="open, claimed, completed or cancelled.")
def list_(session: CommandSession, status: str | None) -> None:
    """List tasks, oldest first."""
    with session.mesh() as mesh:
        session.rows(
            map(documents.task, mesh.tasks.list(status=status)),
            "task status claimed_by title updated_at",
            empty=f"no {status or ''} task in {mesh.slug}".replace("  ", " "),
        )


@verb(task_, "show")
@click.argument("task")
def show(session: CommandSession, task: str) -> None:
    """Show one task."""
    with session.mesh() as mesh:
        session.show(
            documents.task(mesh.tasks.get(short_ids.task(mesh, task))),
            fields="task mesh title description status created_by created_at claimed_by "
            "claimed_at generation holder ended ended_at updated_at",
        )


@verb(task_, "events", lists="event_at")
@click.argument("task")
def events(session: CommandSession, task: str) -> None:
    """List every turn on a task with what it came to. The order is the one that decides."""
    with session.mesh() as mesh:
        session.rows(
            map(documents.task_event, mesh.tasks.events(short_ids.task(mesh, task))),
            "event turn lamport peer against event_at",
            empty="",
        )


def _move(name: str, done: str, help: str) -> None:
    """Declares the verb of one move of a task."""

    @verb(task_, name, writes=True, help=help)
    @click.argument("task")
    def move(session: CommandSession, task: str) -> None:
        with session.mesh() as mesh:
            meant = short_ids.task(mesh, task)
            row = getattr(mesh.tasks, name)(meant, id=session.id)
            session.wrote({"id": session.id, **documents.task(row)}, f"{done} {row.title!r}")


_move("claim", "claimed", "Take a task on.")
_move("release", "released", "Give a claimed task back, for others to claim.")
_move("complete", "completed", "Mark a task that you claimed as done.")
_move("cancel", "cancelled", "Cancel a task, whichever peer holds it.")
