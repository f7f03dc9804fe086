"""`holdfast memory`: what each peer remembers, under its own name."""

from __future__ import annotations

import click

from holdfast.apps.cli import documents, inputs, output
from holdfast.apps.cli.commands.state import AS_OF, JSON_VALUE, value_text
from holdfast.apps.cli.declare import noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.apps.cli.times import parse_as_of
from holdfast.node.core.views import Memory
from holdfast.node.library.node import Mesh
from holdfast.rules.errors import BadInput
from holdfast.rules.names import check_peer

SCOPE = click.option(
    "--scope", default="self", metavar="SCOPE", help="self (the default), peer:ID or all."
)

memory_ = noun("memory", "What each peer remembers, under its own name.")


@verb(memory_, "set", writes=True)
@click.argument("key")
@click.argument("value")
@JSON_VALUE
@click.option("--tag", "tags", multiple=True, metavar="TEXT", help="May be given several times.")
def set_(
    session: CommandSession, key: str, value: str, json_value: bool, tags: tuple[str, ...]
) -> None:
    """Remember VALUE under KEY; with --json-value any JSON. A VALUE of - reads stdin."""
    with session.mesh() as mesh:
        stored = inputs.value_of(value, json_value)
        done = mesh.memory.set(key, stored, tags=tags, id=session.id)
        session.receipt(mesh, done, "memory.set", f"remembered {key!r} in", key=key)


@verb(memory_, "get")
@click.argument("key")
@SCOPE
@AS_OF
def get(session: CommandSession, key: str, scope: str, as_of: str | None) -> None:
    """Print what is remembered under KEY. With --scope all it is a table, newest first."""
    with session.mesh() as mesh:
        if as_of is None:
            found = mesh.memory.recall(key, scope=scope)
        else:
            found = _past(session, mesh, scope, as_of, key)
        if not found:
            raise output.no_memory(mesh.slug, key, _whose(session, scope))
        if scope == "all":
            session.rows(
                (documents.in_mesh(memory, mesh.slug) for memory in found),
                "peer value tags lamport updated_at",
                empty="",
            )
        else:
            session.show(documents.in_mesh(found[0], mesh.slug), value_text(found[0].value))


@verb(memory_, "forget", writes=True)
@click.argument("key")
def forget(session: CommandSession, key: str) -> None:
    """Forget what this peer remembers under KEY."""
    with session.mesh() as mesh:
        done = mesh.memory.forget(key, id=session.id)
        session.receipt(mesh, done, "memory.forget", f"forgot {key!r} in", key=key)


@verb(memory_, "list")
@SCOPE
@click.option("--tag", metavar="TEXT", help="Only memories with this tag.")
@AS_OF
def list_(session: CommandSession, scope: str, tag: str | None, as_of: str | None) -> None:
    """List memories. Long values are cut; `get` and --json show them whole."""
    with session.mesh() as mesh:
        if as_of is None:
            found = mesh.memory.list(scope=scope)
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
