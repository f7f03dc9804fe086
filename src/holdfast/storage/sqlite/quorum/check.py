"""Reads every row of the Raft logs, after an end that was not a clean one.

What SQLite itself finds damaged says nothing certain about any group, so that is raised. What only
our sums find damaged is told group by group: the others are not concerned.
"""

from __future__ import annotations

import apsw

from holdfast.rules.errors import EntryDamaged, StoreCorrupt
from holdfast.rules.limits import QUORUM_SWEEP_BYTES
from holdfast.rules.quorum_rows import TAKES_PART
from holdfast.storage.sqlite.integrity import check
from holdfast.storage.sqlite.quorum.rows import Card, QuorumRows


def damaged_groups(connection: apsw.Connection) -> dict[str, str]:
    """By scope what is wrong with a group. Raises StoreCorrupt for a damaged file."""
    problems = check(connection)
    if problems:
        raise StoreCorrupt(f"{connection.filename} does not pass its check: {problems[0]}")
    rows = QuorumRows(connection)
    found = {}
    for scope, card in rows.cards().items():
        if card.group.standing in TAKES_PART and (problem := _problem(rows, card)):
            found[scope] = problem
    return found


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
    return None
