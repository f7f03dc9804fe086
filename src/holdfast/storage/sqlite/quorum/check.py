"""Reads every row of the Raft logs, after an end that was not a clean one.

What SQLite itself finds damaged says nothing certain about any group, so that is raised. What only
our sums find damaged is told group by group: the others are not concerned.
"""

from __future__ import annotations

from typing import Final

import apsw

from holdfast.rules.errors import EntryDamaged, StoreCorrupt
from holdfast.rules.limits import QUORUM_SWEEP_BYTES
from holdfast.rules.quorum.log_rows import TAKES_PART
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.integrity import check
from holdfast.storage.sqlite.quorum.rows import Card, QuorumRows

PACKAGE: Final = "holdfast.storage.sqlite.quorum"
"""Where the scripts of the schema are."""


def damaged_groups(connection: apsw.Connection) -> dict[str, str]:
    """By scope what is wrong with a group. Raises StoreCorrupt for a damaged file."""
    problems = check(connection)
    if problems:
        raise StoreCorrupt(f"{connection.filename} does not pass its check: {problems[0]}")
    if _schema(connection) != _expected_schema():
        # It is text in the file, and a flipped bit in it changes what all rows mean.
        raise StoreCorrupt(f"the schema in {connection.filename} is not what was written")
    rows = QuorumRows(connection)
    found = {}
    for scope, card in rows.cards().items():
        if card.group.standing in TAKES_PART and (problem := _problem(rows, card)):
            found[scope] = problem
    return found


def _schema(connection: apsw.Connection) -> list[tuple[object, ...]]:
    query = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name"
    return list(connection.execute(query))


def _expected_schema() -> list[tuple[object, ...]]:
    connection = apsw.Connection(":memory:")
    try:
        for step in migrations.load(PACKAGE):
            for _ in connection.execute(step.up):
                pass
        return _schema(connection)
    finally:
        connection.close()


def _problem(rows: QuorumRows, card: Card) -> str | None:
    try:
        rows.boundary(card)
        rows.configs(card)
        start = card.head.first
        while start <= card.head.last:
            part = rows.entries(card, start, card.head.last + 1, QUORUM_SWEEP_BYTES)
            start = part[-1].index + 1
            if start > card.head.last and part[-1].term != card.head.last_term:
                return "the end of its Raft log is not what was written"
    except EntryDamaged as error:
        return error.message
    if rows.reaches_beyond(card):
        return "its Raft log has entries after its end"
    return None
