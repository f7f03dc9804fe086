"""What a log has truncated that nothing else shows any more.

Most of what a log forgets stands in the tables, and is told again from there. Facts do not: the log
is their table. Nor do deletions whose tombstone is gone as well. So a node keeps in mind up to
where it has forgotten such, and whoever reads on from an earlier place must not be told that a
snapshot makes up for what it lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from holdfast.rules.bodies import OPS
from holdfast.rules.filters import Filter

FACT: Final = "fact.append"
_SHOWN: Final = frozenset(OPS) - {FACT}


class LogGone(msgspec.Struct, frozen=True):
    """Of one mesh. Offsets of the node's log; 0 if there was nothing of that kind."""

    facts: int = 0
    """The last one of a fact, or of an op that this version does not know, that was truncated."""
    deletions: int = 0
    """Up to where deletions may have been whose tombstone is gone."""

    def and_facts(self, offset: int) -> LogGone:
        return msgspec.structs.replace(self, facts=max(self.facts, offset))

    def and_deletions(self, offset: int) -> LogGone:
        return msgspec.structs.replace(self, deletions=max(self.deletions, offset))


def is_shown(op: str) -> bool:
    """Whether what a change made stands in a table when its log entry is gone."""
    return op in _SHOWN


def last_unshown(entries: Iterable[tuple[int, str, str]]) -> dict[str, int]:
    """By mesh: the last of these entries (offset, mesh, op) that nothing else shows."""
    return {mesh: offset for offset, mesh, op in entries if not is_shown(op)}


def lacks(gone: LogGone, cursor: int, filter: Filter) -> str:
    """What a reader that has the log up to its cursor would never get; empty if that is nothing."""
    ops: Collection[str] | None = filter.wanted_ops
    if gone.facts > cursor and (ops is None or FACT in ops):
        return f"facts up to offset {gone.facts}"
    if gone.deletions > cursor and (ops is None or any(op != FACT for op in ops)):
        return f"deletions up to offset {gone.deletions}"
    return ""
