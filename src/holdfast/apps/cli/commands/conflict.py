"""`holdfast conflict`: what merges discarded, and how to get it back."""

from __future__ import annotations

import click

from holdfast.apps.cli import documents, output
from holdfast.apps.cli.declare import DRY, FILTER, noun, verb
from holdfast.apps.cli.session import CommandSession

conflict_ = noun("conflict", "What merges discarded; any of it can be written again.")


@verb(conflict_, "list", mesh=FILTER, lists="found_at")
@click.option("--all", "everything", is_flag=True, help="Also those that are settled.")
def list_(session: CommandSession, everything: bool) -> None:
    """List what was discarded, oldest first."""
    with session.warning_node() as node:
        session.rows(
            (
                documents.conflict(row)
                for row in node.conflicts(session.named_mesh, open_only=not everything)
            ),
            "number mesh family entity winner loser reason found_at resolution",
            empty="nothing was discarded" if everything else "nothing waits for a decision",
        )


@verb(conflict_, "show", mesh=False)
@click.argument("number", type=int)
def show(session: CommandSession, number: int) -> None:
    """Show one conflict with what it discarded."""
    with session.warning_node() as node:
        session.show(
            documents.conflict(node.conflict(number)),
            fields="number mesh family owner entity reason winner loser loser_op loser_body "
            "found_at resolved_at resolution",
        )


@verb(conflict_, "restore", mesh=False, writes=True)
@click.argument("number", type=int)
def restore(session: CommandSession, number: int) -> None:
    """Write the discarded version again, as a new change that wins."""
    with session.warning_node() as node:
        mesh = node.conflict(number).mesh
        done = node.restore_conflict(number, id=session.id)
        session.wrote(
            output.receipt(done, mesh, op="conflict.restore", number=number),
            f"restored the loser of conflict {number} at {done.stamp}",
        )


@verb(conflict_, "dismiss", mesh=False, removes=DRY)
@click.argument("number", type=int)
def dismiss(session: CommandSession, number: int) -> None:
    """Keep the outcome as it is and close the conflict."""
    with session.warning_node() as node:
        if session.dry_run:
            document = documents.conflict(node.conflict(number))
            session.goes_on(f"close conflict {number} over {document['entity']!r}", **document)
            return
        node.dismiss_conflict(number)
        session.talk(f"conflict {number} is settled")
        session.show(documents.conflict(node.conflict(number)), f"{number}\n")
