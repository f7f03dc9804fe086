"""`holdfast state`: one value per key, shared by the whole mesh."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from shlex import quote

import click

from holdfast.apps.cli import documents, inputs, output, suggest, tables
from holdfast.apps.cli.declare import DRY, noun, verb
from holdfast.apps.cli.lists.watching import watch_verb
from holdfast.apps.cli.session import CommandSession
from holdfast.apps.cli.times import iso, parse_as_of
from holdfast.node.core.views import KeyVersion, StateEntry
from holdfast.node.library.node import Mesh
from holdfast.node.log.history import AsOf, first_set, is_after
from holdfast.rules.errors import UnknownKey
from holdfast.rules.limits import HISTORY_VERSIONS_MAX

AS_OF = click.option(
    "--as-of", metavar="POINT", help="As it was: offset:N, lamport:N or a time (UTC)."
)
JSON_VALUE = click.option("--json-value", is_flag=True, help="The value is JSON, not text.")

state_ = noun("state", "One value per key, shared by the whole mesh. The last writer wins.")

watch_verb(
    state_,
    lambda mesh, prefix, **terms: mesh.state.watch(prefix, **terms),
    "Show changes of keys that begin with PREFIX as they come.",
)


@verb(state_, "set", writes=True)
@click.argument("key")
@click.argument("value")
@JSON_VALUE
@inputs.EXPECT
@inputs.CREATE_ONLY
def set_(
    session: CommandSession,
    key: str,
    value: str,
    json_value: bool,
    expect: str | None,
    create_only: bool,
) -> None:
    """Set KEY to VALUE: text, or with --json-value any JSON. A VALUE of - reads stdin."""
    expected = inputs.expected(expect, create_only)
    with session.mesh() as mesh, inputs.told_stamp("state", key, mesh.slug):
        stored = inputs.value_of(value, json_value)
        done = mesh.state.set(key, stored, id=session.id, expect=expected)
        session.receipt(mesh, done, "state.set", f"set {key!r} in", key=key)


@verb(state_, "get")
@click.argument("key")
@AS_OF
def get(session: CommandSession, key: str, as_of: str | None) -> None:
    """Print the value of KEY: text as it is, anything else as JSON."""
    with session.mesh() as mesh:
        if as_of is None:
            entry = mesh.state.entry(key)
        else:
            entry = next(iter(mesh.state.as_of(key, **parse_as_of(as_of))), None)
        if entry is None:
            missing = missing_state(session, mesh, key)
            raise missing if as_of is None else past_of(session, mesh, key, as_of, None) or missing
        session.show(documents.in_mesh(entry, mesh.slug), value_text(entry.value))


@verb(state_, "edit", writes=True)
@click.argument("key")
def edit_(session: CommandSession, key: str) -> None:
    """Change the value of KEY in $VISUAL or $EDITOR: text as it is, anything else as JSON.

    What others write meanwhile is merged with it, field by field, or you are told.
    """
    from holdfast.apps.cli.commands.edit import Edited, edit

    with session.mesh() as mesh:

        def read() -> Edited | None:
            entry = mesh.state.entry(key)
            return None if entry is None else Edited(entry.value, entry.stamp)

        if read() is None:
            raise missing_state(session, mesh, key)
        done = edit(
            session, read, lambda value, on: mesh.state.set(key, value, id=session.id, expect=on)
        )
        if done is not None:
            session.receipt(mesh, done, "state.set", f"set {key!r} in", key=key)


@verb(state_, "delete", writes=True, removes=DRY)
@click.argument("key")
@inputs.EXPECT
def delete(session: CommandSession, key: str, expect: str | None) -> None:
    """Delete KEY."""
    with session.mesh() as mesh, inputs.told_stamp("state", key, mesh.slug, deletes=True):
        if session.dry_run:
            entry = mesh.state.entry(key)
            if entry is None:
                raise missing_state(session, mesh, key)
            session.goes_on(
                f"delete {key!r} from {mesh.slug}", **documents.in_mesh(entry, mesh.slug)
            )
            return
        try:
            done = mesh.state.delete(key, id=session.id, expect=expect)
        except UnknownKey:
            raise missing_state(session, mesh, key) from None
        session.receipt(mesh, done, "state.delete", f"deleted {key!r} from", key=key)


@verb(state_, "list", lists="updated_at")
@click.option("--prefix", default="", metavar="TEXT", help="Only keys that begin with it.")
@AS_OF
def list_(session: CommandSession, prefix: str, as_of: str | None) -> None:
    """List keys and values. Long ones are cut; `get` and --json show them whole."""
    with session.mesh() as mesh:
        if as_of is None:
            entries: Iterable[StateEntry] = mesh.state.list(prefix)
        else:
            past = mesh.state.as_of(**parse_as_of(as_of))
            entries = (entry for entry in past if entry.key.startswith(prefix))
        session.rows(
            (documents.in_mesh(entry, mesh.slug) for entry in entries),
            " ".join(output.STATE_FIELDS),
            empty=output.empty_state(mesh.slug),
        )


@verb(state_, "history", lists="updated_at")
@click.argument("key")
def history(session: CommandSession, key: str) -> None:
    """List the versions of KEY that the log still holds, newest first."""
    with session.mesh() as mesh:
        found = mesh.state.history(key, limit=HISTORY_VERSIONS_MAX)
        if not found:
            raise missing_state(session, mesh, key)
        show_versions(session, mesh, found)


def show_versions(session: CommandSession, mesh: Mesh, found: Sequence[KeyVersion]) -> None:
    """Versions of a key, each with what it did."""
    if len(found) == HISTORY_VERSIONS_MAX:
        session.talk(f"no more than the newest {HISTORY_VERSIONS_MAX} versions are looked at")
    rows = (documents.in_mesh(version, mesh.slug) for version in found)
    session.rows(
        ({**row, "change": "delete" if row["deleted"] else "set"} for row in rows),
        "change value lamport peer offset updated_at",
        empty="",
    )


def missing_state(session: CommandSession, mesh: Mesh, key: str) -> UnknownKey:
    near = suggest.state_keys(session.opened, mesh.slug, key)
    return output.no_state(mesh.slug, key, near)


def past_of(
    session: CommandSession, mesh: Mesh, key: str, as_of: str, owner: str | None
) -> UnknownKey | None:
    """Why a key that was once there was not at that time; None if it never was. `owner` is given
    for memory: whose it is.
    """
    op, noun_ = ("state.set", "state") if owner is None else ("memory.set", "memory")
    point = AsOf(**parse_as_of(as_of))
    first = session.opened._engine.read(
        "log.first", lambda tx: first_set(tx, mesh.slug, key, op, owner)
    )
    if first is None:
        return None
    scope = "" if owner in (None, session.peer) else f"--scope peer:{owner} "
    then = f"holdfast {noun_} get {quote(key)} {scope}--mesh {mesh.slug} --as-of offset:"
    begun = f"at offset {first.offset} (lamport {first.lamport}, {iso(first.recorded_at)})"
    if is_after(first, point):
        return UnknownKey(
            f"{key!r} did not exist at {as_of}: it was first set {begun}",
            hint=f"see it as it began: {then}{first.offset}",
        )
    return UnknownKey(
        f"{key!r} had been deleted by {as_of}; it was first set {begun}",
        hint=f"see it as it began: {then}{first.offset}",
    )


def value_text(value: object) -> str:
    """A stored value for people and pipes."""
    return output.value_line(value if isinstance(value, str) else tables.encode(value).decode())
