"""`holdfast writes`: strong writes of this node that found no quorum, and conflicts to decide.

A broker's `queue` hands work to takers; the `outbox` has what is to be sent. This is neither: it is
what the voters of a mesh have not decided yet, or have refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from holdfast.apps.cli import short_ids
from holdfast.apps.cli.commands.entity import fields_of
from holdfast.apps.cli.commands.quorum import replay_writes
from holdfast.apps.cli.declare import noun, verb
from holdfast.apps.cli.quorum_calls import QuorumCalls, open_quorum
from holdfast.apps.cli.session import CommandSession
from holdfast.node.quorum.documents import (
    OperationAsked,
    SettleAsked,
    SettledConflict,
    Settlement,
    WriteDocument,
)
from holdfast.node.quorum.settling import (
    conflict_of,
    conflict_page,
    settle_conflict,
    settle_write,
    write_of,
    write_page,
)
from holdfast.rules.errors import BadInput
from holdfast.rules.id_prefix import as_number
from holdfast.rules.ids import parse_id
from holdfast.rules.limits import QUORUM_PAGE_ROWS
from holdfast.storage.ports import Reader

writes_ = noun(
    "writes",
    "Strong writes that wait for a quorum, or need a decision. An ID may be its first digits.",
)

_WRITE = (
    "id mesh number op entity target status attempts outcome reason detail fence earlier_fences "
    "created_at attempted_at ended_at resolved_by"
)


@verb(writes_, "list", lists="created_at")
@click.option("--failed", is_flag=True, help="Only those that failed and nobody has resolved.")
@click.option("--all", "everything", is_flag=True, help="Also those that have ended.")
def list_(session: CommandSession, failed: bool, everything: bool) -> None:
    """List the strong writes of this node that wait, or that failed and need somebody."""
    statuses = ("failed",) if failed else () if everything else ("pending", "replaying", "failed")
    with open_quorum(session) as quorum:
        found = [
            msgspec.to_builtins(one)
            for one in _every_write(quorum, statuses)
            if everything or not one.resolved_by
        ]
        session.rows(
            found,
            "id status attempts entity reason",
            empty=f"no strong write of {quorum.mesh} waits",
        )


@verb(writes_, "show")
@click.argument("id_", metavar="ID")
def show(session: CommandSession, id_: str) -> None:
    """Show one strong write that waited, with every fence under which it was tried."""
    with open_quorum(session) as quorum:
        id = _meant(quorum, id_)
        found = quorum.look("writes", lambda tx: write_of(tx, quorum.mesh, id))
        session.show(msgspec.to_builtins(found), fields=_WRITE)
        if found.status == "failed" and not found.resolved_by:
            session.talk(f"hint: holdfast writes resolve {id_} --take committed|intent|fields")


@verb(writes_, "resolve")
@click.argument("id_", metavar="ID|NUMBER")
@click.argument("fields", nargs=-1)
@click.option(
    "--take",
    type=click.Choice(["committed", "intent", "fields"]),
    required=True,
    help="What stands: what is committed, what the write wanted, or FIELDS of your own.",
)
@click.option("--by", default="", metavar="NAME", help="Who decides; this node if not given.")
@click.option("--note", default="", metavar="TEXT", help="Why.")
def resolve(
    session: CommandSession, id_: str, fields: tuple[str, ...], take: Settlement, by: str, note: str
) -> None:
    """Settle a write that failed, by its ID, or a conflict, by its NUMBER.

    `intent` and `fields` write again, on what stands now. If that has moved meanwhile they are
    refused (exit code 5), and nothing is lost: look again.
    """
    with open_quorum(session) as quorum:
        number = as_number(id_)
        if number is not None:
            about = conflict_of_number(quorum, number)
            asked = _asked(take, fields, about, by, note)
            work = settle_conflict(quorum.engine, quorum.api, quorum.mesh, number, asked)
        else:
            id = _meant(quorum, id_)
            found = quorum.look("writes", lambda tx: write_of(tx, quorum.mesh, id))
            asked = _asked(take, fields, found.entity, by, note)
            work = settle_write(quorum.engine, quorum.api, quorum.mesh, id, asked)
        done: SettledConflict = quorum.run(work)
        session.talk(f"settled: {done.resolution}")
        session.show(msgspec.to_builtins(done), "")


@verb(writes_, "conflicts", lists="")
@click.option("--all", "everything", is_flag=True, help="Also those that were settled.")
def conflicts(session: CommandSession, everything: bool) -> None:
    """List intents that need a decision: what each wanted, and what stands."""
    with open_quorum(session) as quorum:
        found = quorum.look(
            "conflicts",
            lambda tx: conflict_page(
                tx, quorum.mesh, 0, QUORUM_PAGE_ROWS, open_only=not everything
            ),
        )
        documents = [msgspec.to_builtins(one) for one in found]
        if not session.as_json:
            documents = [_brief(one) for one in documents]
        session.rows(
            documents,
            "number entity base stands wanted resolution",
            empty=f"nothing in {quorum.mesh} needs a decision",
        )


@verb(writes_, "replay")
@click.option("--node", metavar="PEER", help="Only writes that are for this node.")
def replay(session: CommandSession, node: str | None) -> None:
    """Try the strong writes that wait for a quorum now."""
    with open_quorum(session) as quorum:
        replay_writes(session, quorum, node)


# --- what they share -------------------------------------------------------------------------


def _meant(quorum: QuorumCalls, given: str) -> bytes:
    def words(id: str) -> str:
        found = quorum.look("writes", lambda tx: write_of(tx, quorum.mesh, parse_id(id)))
        return f"{found.status}  {found.op} {found.entity}"

    return parse_id(short_ids.strong_write(quorum.look, quorum.mesh, given, words))


def _every_write(quorum: QuorumCalls, statuses: tuple[str, ...]) -> Iterator[WriteDocument]:
    after: int | None = 0

    def page(tx: Reader) -> tuple[list[WriteDocument], int | None]:
        return write_page(tx, quorum.mesh, after or 0, QUORUM_PAGE_ROWS, statuses)

    while after is not None:
        found, after = quorum.look("writes", page)
        yield from found


def conflict_of_number(quorum: QuorumCalls, number: int) -> str:
    """The first entity of a conflict."""
    found = quorum.look("conflicts", lambda tx: conflict_of(tx, quorum.mesh, number))
    first = found.sides[0]
    return f"{first.type}/{first.id}"


def _asked(
    take: Settlement, fields: tuple[str, ...], about: str, by: str, note: str
) -> SettleAsked:
    if bool(fields) is not (take == "fields"):
        raise BadInput("FIELDS go with --take fields, and only with it")
    operations: tuple[OperationAsked, ...] = ()
    if fields:
        type, _, id = about.partition("/")
        operations = (OperationAsked(type=type, id=id, fields=fields_of(fields)),)
    return SettleAsked(take=take, operations=operations, by=by, note=note)


def _brief(document: dict[str, Any]) -> dict[str, Any]:
    side = document["sides"][0]
    stands = side["stands"]
    return {
        **document,
        "entity": f"{side['type']}/{side['id']}",
        "base": side["base"],
        "stands": None if stands is None else stands["revision"],
        "wanted": side["wanted"],
    }
