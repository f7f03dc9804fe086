"""What every part of the store on PostgreSQL works with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.storage.broker.refusals import no_mesh

if TYPE_CHECKING:
    from holdfast.storage.broker.postgres.connections import PostgresConnections
    from holdfast.storage.broker.postgres.notify import PostgresNotify


class PostgresPart:
    """The store is made of these; each has calls of its own."""

    _connections: PostgresConnections
    _news: PostgresNotify


async def number_of(con: Any, slug: str, *, lock: bool = False) -> int:
    """The number of a mesh in the tables. `lock`: no process accepts into it until the transaction
    ends.
    """
    found: int | None = await con.fetchval(
        f"SELECT number FROM mesh WHERE slug = $1{' FOR NO KEY UPDATE' if lock else ''}", slug
    )
    if found is None:
        raise no_mesh(slug)
    return found


def columns(kind: type[msgspec.Struct], table: str = "") -> str:
    """The columns of a row, which are its fields, as they stand in a statement."""
    return ", ".join(f"{table}{name}" for name in kind.__struct_fields__)


def touched(status: str) -> int:
    """How many rows a command has changed, by the word of the server: `DELETE 3`."""
    return int(status.rpartition(" ")[2])
