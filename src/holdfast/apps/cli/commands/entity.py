"""`holdfast entity`: records that a quorum decides: missions, tasks, agents, settings."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from holdfast.apps.cli import inputs, times
from holdfast.apps.cli.declare import DRY, noun, verb
from holdfast.apps.cli.quorum_calls import (
    QuorumCalls,
    demand_of,
    open_quorum,
    reads,
    say_how_fresh,
    written,
)
from holdfast.apps.cli.session import CommandSession
from holdfast.node.log.entity_history import entity_history
from holdfast.node.quorum.documents import (
    EntityDocument,
    FenceShown,
    OperationAsked,
    PastRevisionDocument,
)
from holdfast.node.quorum.entity_writes import change_entities
from holdfast.rules.data_classes import ENTITY_TYPES
from holdfast.rules.errors import BadInput, BadValue, UnknownEntity
from holdfast.rules.limits import QUORUM_PAGE_ROWS
from holdfast.rules.quorum.degraded_read import DegradedRead
from holdfast.rules.quorum.entities import check_type
from holdfast.rules.quorum.intents import OperationKind
from holdfast.rules.quorum.view import EntityRow
from holdfast.storage.ports import Reader

entity_ = noun(
    "entity", f"Records that the voters of a mesh decide: {', '.join(sorted(ENTITY_TYPES))}."
)

_BASE = click.option(
    "--base", type=click.IntRange(min=0), metavar="N", help="The revision that you saw; 0: none."
)
_EPOCH = click.option(
    "--expected-epoch", type=click.IntRange(min=0), metavar="N", help="Only under this lease epoch."
)
_FENCE = click.option(
    "--fence",
    metavar="LEASE@FENCE",
    help='Only while this lease is held under this fence: "deploy@$HOLDFAST_FENCE".',
)
_WITHIN = click.option("--timeout", metavar="SPAN", help="How long to wait for a quorum: 5s.")


@verb(entity_, "put", writes=True)
@click.argument("type_", metavar="TYPE")
@click.argument("id_", metavar="ID")
@click.argument("fields", nargs=-1)
@_BASE
@_EPOCH
@_FENCE
@_WITHIN
def put(
    session: CommandSession, type_: str, id_: str, fields: tuple[str, ...], **options: Any
) -> int:
    """Write all FIELDS of an entity: KEY=TEXT, KEY:=JSON, one JSON object, or - for stdin.

    With --base it is compare-and-set: refused (exit code 5) if somebody else was faster. Without a
    quorum it waits on this node's disk, and the exit code is 6.
    """
    return _change(session, "put", type_, id_, fields_of(fields), (), options)


@verb(entity_, "patch", writes=True)
@click.argument("type_", metavar="TYPE")
@click.argument("id_", metavar="ID")
@click.argument("fields", nargs=-1)
@click.option("--remove", "removed", multiple=True, metavar="KEY", help="Take this field away.")
@_BASE
@_EPOCH
@_FENCE
@_WITHIN
def patch(
    session: CommandSession,
    type_: str,
    id_: str,
    fields: tuple[str, ...],
    removed: tuple[str, ...],
    **options: Any,
) -> int:
    """Change some FIELDS of an entity and leave the others as they are."""
    return _change(session, "patch", type_, id_, fields_of(fields), removed, options)


@verb(entity_, "delete", writes=True, removes=DRY)
@click.argument("type_", metavar="TYPE")
@click.argument("id_", metavar="ID")
@_BASE
@_EPOCH
@_FENCE
@_WITHIN
def delete(session: CommandSession, type_: str, id_: str, **options: Any) -> int:
    """Delete an entity. One that others have as their parent stays."""
    if session.dry_run:
        with open_quorum(session) as quorum:
            how = {"linearizable": False, "max_staleness": None, "local": False}
            row, _ = _live(session, quorum, type_, id_, **how)
            what = f"delete the {type_} {id_!r} of {quorum.mesh} at revision {row.revision}"
            session.goes_on(what, **_document(quorum.mesh, row))
        return 0
    return _change(session, "delete", type_, id_, {}, (), options)


@verb(entity_, "get")
@click.argument("type_", metavar="TYPE")
@click.argument("id_", metavar="ID")
@reads
def get(session: CommandSession, type_: str, id_: str, **fresh: Any) -> None:
    """Show the fields of one entity, and say on stderr how fresh they are."""
    check_type(type_)
    with open_quorum(session) as quorum:
        mesh = quorum.mesh
        row, read = _live(session, quorum, type_, id_, **fresh)
        document = _document(mesh, row)
        if session.as_json:
            session.show({**document, "read": msgspec.to_builtins(read)})
            return
        session.talk(f"revision {row.revision}, by {row.origin} at {times.iso(row.committed_at)}")
        text = msgspec.json.format(msgspec.json.encode(document["fields"]), indent=2).decode()
        session.show(document, f"{text}\n")


@verb(entity_, "list", lists="committed_at")
@click.argument("type_", metavar="TYPE")
@reads
def list_(session: CommandSession, type_: str, **fresh: Any) -> None:
    """List the live entities of a TYPE, by id."""
    check_type(type_)
    with open_quorum(session) as quorum:
        mesh = quorum.mesh

        def look(tx: Reader) -> list[EntityRow]:
            found: list[EntityRow] = []
            while page := tx.entity_list(
                mesh, type_, found[-1].id if found else "", QUORUM_PAGE_ROWS
            ):
                found += page
            return found

        rows, read = quorum.read(demand_of(**fresh), "entity.list", look)
        say_how_fresh(session, read)
        if session.as_json:
            shown = [_document(mesh, row) for row in rows]
            session.show({"mesh": mesh, "entities": shown, "read": msgspec.to_builtins(read)})
            return
        session.rows(
            (_brief(mesh, row) for row in rows),
            "id revision origin committed_at title",
            empty=f"no {type_} in {mesh}",
        )


@verb(entity_, "history", lists="committed_at")
@click.argument("type_", metavar="TYPE")
@click.argument("id_", metavar="ID")
@reads
def history(session: CommandSession, type_: str, id_: str, **fresh: Any) -> None:
    """List every revision of an entity, and the commit that made it."""
    check_type(type_)
    with open_quorum(session) as quorum:
        mesh = quorum.mesh

        def look(tx: Reader) -> list[PastRevisionDocument]:
            found: list[PastRevisionDocument] = []
            after = 0
            while page := entity_history(tx, mesh, type_, id_, after, QUORUM_PAGE_ROWS):
                found += [PastRevisionDocument.of(one) for one in page]
                after = page[-1].revision
            return found

        past, read = quorum.read(demand_of(**fresh), "entity.history", look)
        say_how_fresh(session, read)
        rows = [msgspec.to_builtins(one) for one in past]
        if session.as_json:
            about = {"mesh": mesh, "type": type_, "id": id_}
            session.show({**about, "revisions": rows, "read": msgspec.to_builtins(read)})
            return
        for row in rows:
            row["made_by"] = row["fence"].partition("@")[2]
            row["change"] = "delete" if row["deleted"] else "put" if row["whole"] else "patch"
        session.rows(rows, "revision change number made_by committed_at", empty="")


# --- what they share -------------------------------------------------------------------------


def fields_of(words: tuple[str, ...]) -> dict[str, Any]:
    """Fields from words: `title=Sail`, `steps:=[]`, one JSON object, or a dash for stdin."""
    found: dict[str, Any] = {}
    for word in words:
        for name, value in _fields(word).items():
            if name in found:
                raise BadInput(f"the field {name!r} is given twice")
            found[name] = value
    return found


def _fields(word: str) -> dict[str, Any]:
    if word == inputs.STDIN or word.startswith("{"):
        value = inputs.json_of(inputs.text_of(word), "the fields")
        if not isinstance(value, dict):
            raise BadValue("the fields of an entity are a JSON object")
        return value
    name, mark, text = word.partition("=")
    if not mark or not name:
        raise BadInput(f"{word!r} is no field", hint="write KEY=TEXT, KEY:=JSON or a JSON object")
    if name.endswith(":"):
        return {name[:-1]: inputs.json_of(text, f"the field {name[:-1]!r}")}
    return {name: text}


def _live(
    session: CommandSession, quorum: QuorumCalls, type: str, id: str, **fresh: Any
) -> tuple[EntityRow, DegradedRead]:
    """An entity that is there, once it was said how fresh that is."""
    check_type(type)
    row, read = quorum.read(
        demand_of(**fresh), "entity.get", lambda tx: tx.entity_get(quorum.mesh, type, id)
    )
    say_how_fresh(session, read)
    if row is None or row.deleted:
        raise UnknownEntity(
            f"there is no {type} {id!r} in {quorum.mesh!r}",
            hint=f"see: holdfast entity list {type} --mesh {quorum.mesh}",
        )
    return row, read


def _change(
    session: CommandSession,
    kind: OperationKind,
    type: str,
    id: str,
    fields: dict[str, Any],
    removed: tuple[str, ...],
    options: dict[str, Any],
) -> int:
    asked = OperationAsked(
        kind=kind,
        type=type,
        id=id,
        fields=fields,
        removed=removed,
        base=options["base"],
        expected_epoch=options["expected_epoch"],
        fence=fence_of(options["fence"]),
    )
    timeout = options["timeout"]
    timeout_ms = None if timeout is None else times.parse_span(timeout)
    operation = asked.operation
    with open_quorum(session) as quorum:
        receipt = quorum.run(
            change_entities(
                quorum.api, quorum.mesh, [operation], id=session.id, timeout_ms=timeout_ms
            )
        )
        made = f" at revision {receipt.revisions[0].revision}" if receipt.revisions else ""
        return written(session, receipt, f"{_DONE[kind]} {type} {id} in {quorum.mesh}{made}")


_DONE = {"put": "wrote", "patch": "changed", "delete": "deleted"}


def fence_of(text: str | None) -> FenceShown | None:
    if text is None:
        return None
    lease, mark, fence = text.rpartition("@")
    if not (mark and lease):
        raise BadInput(
            f"{text!r} names no lease and its fence",
            hint='inside of `holdfast lease run deploy`: --fence "deploy@$HOLDFAST_FENCE"',
        )
    return FenceShown(lease=lease, fence=fence)


def _document(mesh: str, row: EntityRow) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(EntityDocument.of(mesh, row))
    return document


def _brief(mesh: str, row: EntityRow) -> dict[str, Any]:
    document = _document(mesh, row)
    fields = document["fields"]
    return {**document, "title": fields.get("title") or fields.get("name") or fields}
