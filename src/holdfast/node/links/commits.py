"""What quorums have committed at the source of a link, taken in beside its log.

A batch of the log has strong envelopes without their records, and those are passed over. They come
here again, in commit order: the link asks its source by number, and takes pages in as every node
without a vote does. What the source has truncated comes as its committed state
(`node/core/following/committed_source.py`).

Only a link that takes everything of a mesh follows its order: one that leaves out some origins,
classes or subjects would have to leave out commits, and an order with holes is none.
"""

from __future__ import annotations

import logging
from typing import Final

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.following.committed_source import follow_order
from holdfast.node.links.source import LinkSource
from holdfast.rules.arrivals import Arrival, Arrivals, not_in_columns
from holdfast.rules.errors import (
    CommitForked,
    LogMismatch,
    NotCommitted,
    NotFound,
    NotGranted,
    NoVoters,
)
from holdfast.rules.rows import LinkRow

log = logging.getLogger("holdfast")

_NOT_TAKEN: Final = (CommitForked, LogMismatch, NotFound, NotGranted, NoVoters)


def has_strong(arrivals: Arrivals) -> bool:
    """Whether a batch has envelopes that come again with their records."""
    return any(
        isinstance(one, Arrival) and isinstance(one.error, NotCommitted)
        for one in not_in_columns(arrivals)
    )


def follows_orders(row: LinkRow) -> bool:
    filter = row.filter
    return not (filter.origins or filter.classes or filter.ops or filter.subjects)


def take_commits(engine: NodeEngine, source: LinkSource, row: LinkRow) -> int:
    """Takes in what the source has committed and this node lacks, of the meshes of a link; returns
    how many commits were new. A mesh that forks or is no longer there whole does not stop the
    others, nor the link: it is told, and tried again with the next strong entry.
    """
    if not follows_orders(row):
        return 0
    wanted = set(row.filter.meshes)
    new = 0
    for mesh, number in sorted(source.commits_held().items()):
        if wanted and mesh not in wanted:
            continue
        try:
            new += follow_order(engine, source, mesh, number, f"link {row.name}")
        except _NOT_TAKEN as error:
            log.warning("link %s: commits of %s are not taken: %s", row.name, mesh, error.message)
    return new
