"""What this node has of a committed order, as pages for those who have no vote.

Any node that has folded an order can hand it on, voter or not: the records are the same everywhere.
"""

from __future__ import annotations

from holdfast.protocol.commit_page import CommitLine, CommitPage
from holdfast.rules.errors import NoVoters, Truncated
from holdfast.rules.limits import COMMIT_PAGE_BYTES, COMMIT_PAGE_ROWS
from holdfast.storage.ports import Reader


def commits_page(tx: Reader, mesh: str, first: int, limit: int = COMMIT_PAGE_ROWS) -> CommitPage:
    """Commits of a mesh from a number on; none if there are none yet. NoVoters if the mesh has no
    quorum as far as this node knows; Truncated if the log no longer has the envelope of the first.
    """
    standing = tx.quorum_get(mesh)
    if standing is None:
        raise NoVoters(f"the mesh {mesh!r} has no voters, as far as this node knows")
    lines: list[CommitLine] = []
    size = 0
    for commit in tx.commit_range(mesh, first, min(limit, COMMIT_PAGE_ROWS)):
        entry = tx.log_get(commit.offset)
        if entry is None:
            if not lines:
                raise _truncated(tx, mesh, commit.number)
            break
        lines.append(CommitLine(commit.record, entry.raw))
        size += len(commit.record) + len(entry.raw)
        if size >= COMMIT_PAGE_BYTES:
            break
    return CommitPage(
        mesh=mesh,
        engine=standing.engine,
        incarnation=standing.incarnation,
        tag=standing.tag,
        first=first,
        rows=tuple(lines),
        end=max(standing.number, first + len(lines) - 1),
    )


def _truncated(tx: Reader, mesh: str, number: int) -> Truncated:
    """The log was truncated. Records stay, and grow with the log: a search by halves finds the
    first whose envelope is here. Intents that waited stand before their heads, so it is a bound.
    """
    standing = tx.quorum_get(mesh)
    assert standing is not None
    begin = tx.log_bounds()[0]
    low, high = number, standing.number + 1
    while low < high:
        middle = (low + high) // 2
        found = tx.commit_range(mesh, middle, 1)
        if found and found[0].offset < begin:
            low = middle + 1
        else:
            high = middle
    return Truncated(
        f"the envelopes of commits before {low} of {mesh} are no longer here",
        first_available=low,
        hint="ask a node that still has them, or restore this one from a backup of such a node",
    )
