"""`holdfast state`: one value per key, shared by the whole mesh."""

from __future__ import annotations

import click

from holdfast.apps.cli import documents, inputs, output, tables
from holdfast.apps.cli.declare import noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.apps.cli.times import parse_as_of

AS_OF = click.option(
    "--as-of", metavar="POINT", help="As it was: offset:N, lamport:N or a time (UTC)."
)
JSON_VALUE = click.option("--json-value", is_flag=True, help="The value is JSON, not text.")

state_ = noun("state", "One value per key, shared by the whole mesh. The last writer wins.")


@verb(state_, "set", writes=True)
@click.argument("key")
@click.argument("value")
@JSON_VALUE
def set_(session: CommandSession, key: str, value: str, json_value: bool) -> None:
    """Set KEY to VALUE: text, or with --json-value any JSON. A VALUE of - reads stdin."""
    with session.mesh() as mesh:
        done = mesh.state.set(key, inputs.value_of(value, json_value), id=session.id)
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
            raise output.no_state(mesh.slug, key)
        session.show(documents.in_mesh(entry, mesh.slug), value_text(entry.value))


@verb(state_, "delete", writes=True)
@click.argument("key")
def delete(session: CommandSession, key: str) -> None:
    """Delete KEY."""
    with session.mesh() as mesh:
        done = mesh.state.delete(key, id=session.id)
        session.receipt(mesh, done, "state.delete", f"deleted {key!r} from", key=key)


@verb(state_, "list")
@click.option("--prefix", default="", metavar="TEXT", help="Only keys that begin with it.")
@AS_OF
def list_(session: CommandSession, prefix: str, as_of: str | None) -> None:
    """List keys and values. Long ones are cut; `get` and --json show them whole."""
    with session.mesh() as mesh:
        if as_of is None:
            entries = mesh.state.list(prefix)
        else:
            past = mesh.state.as_of(**parse_as_of(as_of))
            entries = (entry for entry in past if entry.key.startswith(prefix))
        session.rows(
            (documents.in_mesh(entry, mesh.slug) for entry in entries),
            "key value lamport peer updated_at",
            empty=f"{mesh.slug} has no state here",
        )


def value_text(value: object) -> str:
    """A stored value for people and pipes."""
    return output.value_line(value if isinstance(value, str) else tables.encode(value).decode())
