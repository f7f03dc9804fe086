"""What every part of the desk works with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.rules.errors import UnknownMesh

if TYPE_CHECKING:
    from holdfast.storage.broker.postgres.connections import PostgresConnections
    from holdfast.storage.broker.postgres.notify import PostgresNotify


class PostgresPart:
    """A desk is made of these; each has its own calls."""

    _connections: PostgresConnections
    _news: PostgresNotify


async def number_of(con: Any, slug: str, *, lock: bool = False) -> int:
    """What tables call a mesh. `lock`: nobody accepts into it until the transaction ends."""
    found: int | None = await con.fetchval(
        f"SELECT number FROM mesh WHERE slug = $1{' FOR NO KEY UPDATE' if lock else ''}", slug
    )
    if found is None:
        raise no_mesh(slug)
    return found


def no_mesh(slug: str) -> UnknownMesh:
    return UnknownMesh(f"this broker has no mesh {slug}", hint="see: holdfast mesh list")


def touched(status: str) -> int:
    """How many rows a command has changed, by the word of the server: `DELETE 3`."""
    return int(status.rpartition(" ")[2])
