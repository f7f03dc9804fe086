"""`holdfast memory`: what each peer remembers, under its own name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from holdfast.apps.cli import documents, inputs, output, suggest
from holdfast.apps.cli.commands.state import (
    AS_OF,
    JSON_VALUE,
    past_of,
    show_versions,
    value_text,
)
from holdfast.apps.cli.declare import DRY, noun, verb
from holdfast.apps.cli.lists.watching import watch_verb
from holdfast.apps.cli.session import CommandSession
from holdfast.apps.cli.times import parse_as_of
from holdfast.node.core.change import Receipt
from holdfast.node.core.views import Memory
from holdfast.node.library.node import Mesh
from holdfast.rules.errors import BadInput, UnknownKey
from holdfast.rules.limits import HISTORY_VERSIONS_MAX
from holdfast.rules.names import check_peer
from holdfast.rules.order import Stamp

SCOPE = click.option(
    "--scope", default="self", metavar="SCOPE", help="self (the default), peer:ID or all."
)

memory_ = noun("memory", "What each peer remembers, under its own name.")

watch_verb(
    memory_,
    lambda mesh, prefix, **terms: mesh.memory.watch(prefix, **terms),
    "Show what is remembered and forgotten under keys that begin with PREFIX, as it comes.",
    scoped=True,
)


@verb(memory_, "set", writes=True)
@click.argument("key")
@click.argument("value")
@JSON_VALUE
@click.option("--tag", "tags", multiple=True, metavar="TEXT", help="May be given several times.")
@inputs.EXPECT
@inputs.CREATE_ONLY
def set_(
    session: CommandSession,
    key: str,
    value: str,
    json_value: bool,
    tags: tuple[str, ...],
    expect: str | None,
    create_only: bool,
) -> None:
    """Remember VALUE under KEY; with --json-value any JSON. A VALUE of - reads stdin."""
    expected = inputs.expected(expect, create_only)
    with session.mesh() as mesh, inputs.told_stamp("memory", key, mesh.slug):
        stored = inputs.value_of(value, json_value)
        done = mesh.memory.set(key, stored, tags=tags, id=session.id, expect=expected)
        session.receipt(mesh, done, "memory.set", f"remembered {key!r} in", key=key)


@verb(memory_, "get")
@click.argument("key")
@SCOPE
@AS_OF
def get(session: CommandSession, key: str, scope: str, as_of: str | None) -> None:
    """Print what is remembered under KEY. With --scope all it is a table, newest first."""
    with session.mesh() as mesh:
        found: list[Memory]
        if as_of is None:
            found = mesh.memory.recall(key, scope=scope)
        else:
            found = _past(session, mesh, scope, as_of, key)
        if not found:
            owner = session.peer if scope in ("self", "all") else scope.removeprefix("peer:")
            near = suggest.memory_keys(session.opened, mesh.slug, owner, key)
            missing = output.no_memory(mesh.slug, key, _whose(session, scope), near)
            past = None
            if as_of is not None and scope != "all":
                past = past_of(session, mesh, key, as_of, owner)
            raise past or missing
        if scope == "all":
            session.rows(
                (documents.in_mesh(memory, mesh.slug) for memory in found),
                "peer value tags lamport updated_at",
                empty="",
            )
        else:
            session.show(documents.in_mesh(found[0], mesh.slug), value_text(found[0].value))


@verb(memory_, "edit", writes=True)
@click.argument("key")
def edit_(session: CommandSession, key: str) -> None:
    """Change what this peer remembers under KEY in $VISUAL or $EDITOR; see `state edit`."""
    from holdfast.apps.cli.commands.edit import Edited, edit

    with session.mesh() as mesh:
        memory = mesh.memory.get(key)
        if memory is None:
            near = suggest.memory_keys(session.opened, mesh.slug, session.peer, key)
            raise output.no_memory(mesh.slug, key, session.peer, near)
        tags = memory.tags

        def read() -> Edited | None:
            found = mesh.memory.get(key)
            return None if found is None else Edited(found.value, found.stamp)

        def write(value: Any, on: Stamp) -> Receipt:
            return mesh.memory.set(key, value, tags=tags, id=session.id, expect=on)

        done = edit(session, read, write)
        if done is not None:
            session.receipt(mesh, done, "memory.set", f"remembered {key!r} in", key=key)


@verb(memory_, "forget", writes=True, removes=DRY)
@click.argument("key")
@inputs.EXPECT
def forget(session: CommandSession, key: str, expect: str | None) -> None:
    """Forget what this peer remembers under KEY."""
    with session.mesh() as mesh, inputs.told_stamp("memory", key, mesh.slug, deletes=True):
        if session.dry_run:
            for memory in mesh.memory.recall(key):
                session.goes_on(
                    f"forget {key!r} in {mesh.slug}", **documents.in_mesh(memory, mesh.slug)
                )
                return
        try:
            done = mesh.memory.forget(key, id=session.id, expect=expect)
        except UnknownKey:
            near = suggest.memory_keys(session.opened, mesh.slug, session.peer, key)
            raise output.no_memory(mesh.slug, key, session.peer, near) from None
        session.receipt(mesh, done, "memory.forget", f"forgot {key!r} in", key=key)


@verb(memory_, "list", lists="updated_at")
@SCOPE
@click.option("--tag", metavar="TEXT", help="Only memories with this tag.")
@AS_OF
def list_(session: CommandSession, scope: str, tag: str | None, as_of: str | None) -> None:
    """List memories. Long values are cut; `get` and --json show them whole."""
    with session.mesh() as mesh:
        if as_of is None:
            found: Iterator[Memory] = mesh.memory.list(scope=scope)
        else:
            found = iter(_past(session, mesh, scope, as_of))
        session.rows(
            (
                documents.in_mesh(memory, mesh.slug)
                for memory in found
                if tag is None or tag in memory.tags
            ),
            "peer key value tags lamport updated_at",
            empty=f"{_whose(session, scope)} remembers nothing of that in {mesh.slug}",
        )


@verb(memory_, "history", lists="updated_at")
@click.argument("key")
@click.option("--peer", metavar="PEER", help="Of this peer's memory; else of this node's own.")
def history(session: CommandSession, key: str, peer: str | None) -> None:
    """List the versions of the memory KEY that the log still holds, newest first."""
    with session.mesh() as mesh:
        found = mesh.memory.history(key, peer=peer, limit=HISTORY_VERSIONS_MAX)
        if not found:
            owner = session.peer if peer is None else peer
            near = suggest.memory_keys(session.opened, mesh.slug, owner, key)
            raise output.no_memory(mesh.slug, key, owner, near)
        show_versions(session, mesh, found)


def _past(
    session: CommandSession, mesh: Mesh, scope: str, as_of: str, key: str | None = None
) -> list[Memory]:
    owner = _owner(session, scope)
    memories = mesh.memory.as_of(key, **parse_as_of(as_of))
    found = [memory for memory in memories if owner is None or memory.peer == owner]
    if key is not None:
        found.sort(key=lambda memory: (-memory.lamport, memory.peer.encode()))
    return found


def _owner(session: CommandSession, scope: str) -> str | None:
    if scope == "all":
        return None
    if scope == "self":
        return session.peer
    if scope.startswith("peer:"):
        return check_peer(scope.removeprefix("peer:"))
    raise BadInput(f"scope {scope!r} is not known", hint="use self, all or peer:<id>")


def _whose(session: CommandSession, scope: str) -> str:
    return _owner(session, scope) or "nobody"
