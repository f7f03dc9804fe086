"""What a store holds, row by row, for programs that check it from outside: the simulator and tests.

The broker itself never reads a mesh as a whole, so these reads are no part of the port. They stand
here because SQL stands in `storage` only.
"""

from __future__ import annotations

from holdfast.storage.broker.sqlite.accept import KINDS
from holdfast.storage.broker.sqlite.database import SEQ_BITS, BrokerDatabase

Held = tuple[int, str, str, bytes, bytes, bytes]
"""A message: seq, kind, ref, sender, id, raw."""


def messages(store: BrokerDatabase, mesh: str, after: int = 0) -> list[Held]:
    """All messages of a mesh behind a seq, in order."""
    number = store.number_of(mesh)
    base = number << SEQ_BITS
    rows = store.connection.execute(
        "SELECT place, kind, ref, sender, id, raw FROM message WHERE place > ? AND place < ? "
        "ORDER BY place",
        (base + after, (number + 1) << SEQ_BITS),
    )
    return [
        (place - base, KINDS[kind], ref, sender, id, raw)
        for place, kind, ref, sender, id, raw in rows
    ]


def known_ids(store: BrokerDatabase, mesh: str) -> dict[int, bytes]:
    """The ids that a mesh remembers, by seq."""
    rows = store.connection.execute(
        "SELECT seq, id FROM dedupe WHERE mesh = ?", (store.number_of(mesh),)
    )
    return dict(rows)


def subscribers(store: BrokerDatabase, mesh: str, topic: str, seq: int) -> list[bytes]:
    """The keys of those who get the message at a seq of a topic."""
    rows = store.connection.execute(
        "SELECT key FROM subscription WHERE mesh = ? AND topic = ? AND since < ?",
        (store.number_of(mesh), topic, seq),
    )
    return [key for (key,) in rows]


def queued(store: BrokerDatabase, mesh: str) -> dict[int, bytes | None]:
    """What stands in the queues of a mesh, by seq: the lease of each that is taken."""
    number = store.number_of(mesh)
    rows = store.connection.execute(
        "SELECT place, CASE state WHEN 1 THEN lease END FROM queued WHERE mesh = ?", (number,)
    )
    return {place - (number << SEQ_BITS): lease for place, lease in rows}


def latest_lease_end(store: BrokerDatabase) -> int | None:
    """When the last lease of all queues ends; None if nothing is taken."""
    ends: int | None = store.connection.execute("SELECT max(until) FROM queued WHERE state = 1").get
    return ends
