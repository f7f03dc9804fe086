"""`holdfast batch`: several changes in one transaction, all of them or none."""

from __future__ import annotations

import click

from holdfast.apps.cli import inputs
from holdfast.apps.cli.declare import BATCH, command_of
from holdfast.apps.cli.output import receipt
from holdfast.apps.cli.session import CommandSession
from holdfast.node.library.batch import add_documents
from holdfast.rules.errors import BadInput


@command_of("batch", mesh=True, writes=BATCH)
@click.argument("file", default=inputs.STDIN)
def batch_(session: CommandSession, file: str) -> None:
    """Write the changes in FILE together: all of them, or none if one is refused.

    Each line is a change in JSON: {"op": "state.set", "entity": KEY, "value": VALUE}. It takes the
    fields that /v1/changes takes, `expect` among them; `mesh` and `id` may be left out. Without
    FILE, or with -, the lines are read from stdin. Prints the id of each change.
    """
    lines = inputs.json_lines_of(file)
    if not lines:
        raise BadInput(
            "there are no changes to write",
            hint='give a line for each: {"op": "state.set", "entity": "k", "value": 1}',
        )
    with session.mesh() as mesh:
        with mesh.batch(id=session.key) as batch:
            add_documents(batch, lines)
        receipts = batch.receipts
        again = all(one.duplicate for one in receipts)
        session.talk(
            f"wrote {len(receipts)} change{'s' if len(receipts) > 1 else ''} to {mesh.slug}, "
            f"{receipts[0].stamp} to {receipts[-1].stamp}"
            + (" (the same ids had done it before)" if again else "")
        )
        session.show(
            {
                "mesh": mesh.slug,
                "receipts": [receipt(one, mesh.slug) for one in receipts],
            },
            "".join(f"{one.id}\n" for one in receipts),
        )
