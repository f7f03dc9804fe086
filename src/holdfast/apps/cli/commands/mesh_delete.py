"""`holdfast mesh delete`: a mesh leaves this home with all that is in it."""

from __future__ import annotations

import click

from holdfast.apps.cli import asking, documents, own_daemon
from holdfast.apps.cli.commands.mesh_local import mesh_
from holdfast.apps.cli.declare import verb
from holdfast.apps.cli.progress import Progress
from holdfast.apps.cli.session import CommandSession
from holdfast.node.upkeep.delete_mesh import DeletionPlan, delete_mesh, is_begun
from holdfast.rules.mesh_end import check_debts


@verb(mesh_, "delete", mesh=False)
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@click.option("--owed-too", is_flag=True, help="Also if it owes something to others.")
def delete(session: CommandSession, name: str, yes: bool, dry_run: bool, owed_too: bool) -> None:
    """Remove the mesh NAME from this home, with all that is in it.

    Other nodes keep what they have. What was not sent, or not confirmed by a reader, is said first
    and needs --owed-too. A command that is cut off goes on when it is run again.
    """
    with session.node() as node:
        begun = node._engine.read("mesh.delete", lambda tx: is_begun(tx, name))
        if begun:
            session.talk(f"{name} is half removed: an earlier command was cut off")
        else:
            plan = node.deletion_plan(name)
            if dry_run:
                _show_plan(session, plan)
                return
            check_debts(name, plan.debts, node.peer, owed_too=owed_too)
            _say(session, plan)
        consent = " --owed-too" if owed_too else ""
        asking.agree(
            f"Delete the mesh {name} here? This cannot be undone.",
            yes=yes or begun,
            paste=f"holdfast mesh delete {name}{consent} --yes",
            name=name,
        )
        with Progress(session, "rows removed:", leaves="the same command goes on") as bar:
            done = delete_mesh(node._engine, name, owed_too=owed_too, on_rows=bar.to)
        own_daemon.refresh(node.home)
        session.talk(f"deleted {name}: {done.rows} rows, {done.blobs} files of content")
        session.show(documents.plain(done), f"{name}\n")


def _show_plan(session: CommandSession, plan: DeletionPlan) -> None:
    document = {**documents.plain(plan), "owed": plan.debts.lines()}
    session.show(document, fields="mesh entries rows owed" if plan.debts else "mesh entries rows")


def _say(session: CommandSession, plan: DeletionPlan) -> None:
    held = ", ".join(f"{count} {name}" for name, count in plan.rows.items() if count)
    session.talk(f"{plan.mesh} holds {held or 'nothing'} and {plan.entries} entries of the log")
    for line in plan.debts.lines():
        session.talk(f"it owes: {line}")
