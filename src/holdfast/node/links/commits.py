"""What quorums have committed at the source of a link, taken in beside its log.

A batch of the log has strong envelopes without their records, and those are passed over. They come
here again, in commit order: the link asks its source by number, and takes pages in as every node
without a vote does. Its place is the number up to which the node has folded; nothing else has to be
remembered, and it does not matter which link brought the last one.

Only a link that takes everything of a mesh follows its order: one that leaves out some origins,
classes or subjects would have to leave out commits, and an order with holes is none.
"""

from __future__ import annotations

import logging

from holdfast.node.core.committed_intake import CommitPageIntake, PageTaken, tell_trouble
from holdfast.node.core.engine import NodeEngine
from holdfast.node.links.source import LinkSource
from holdfast.protocol.commit_page import decode_page
from holdfast.rules.arrivals import Arrival, Arrivals
from holdfast.rules.errors import (
    BadAnswer,
    BadCommitPage,
    NotCommitted,
    NotGranted,
    NoVoters,
    Truncated,
    UnknownMesh,
)
from holdfast.rules.rows import LinkRow
from holdfast.storage.ports import Reader

log = logging.getLogger("holdfast")


def has_strong(arrivals: Arrivals) -> bool:
    """Whether a batch has envelopes that come again with their records."""
    return any(isinstance(one, Arrival) and isinstance(one.error, NotCommitted) for one in arrivals)


def follows_orders(row: LinkRow) -> bool:
    filter = row.filter
    return not (filter.origins or filter.classes or filter.subjects)


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
            new += _take_mesh(engine, source, row, mesh, number)
        except (UnknownMesh, NoVoters, NotGranted, Truncated) as error:
            log.warning("link %s: commits of %s are not taken: %s", row.name, mesh, error.message)
    return new


def _take_mesh(engine: NodeEngine, source: LinkSource, row: LinkRow, mesh: str, number: int) -> int:
    new = 0
    while (have := _standing(engine, mesh)) is not None and have < number:
        try:
            page = decode_page(source.commits_page(mesh, have + 1))
        except BadCommitPage as error:
            raise BadAnswer(f"{row.zone}: {error.message}") from None
        if page.mesh != mesh or page.first != have + 1:
            raise BadAnswer(f"{row.zone} was asked for commits of {mesh} from {have + 1} on")
        taken: PageTaken = engine.write(
            "link.take", CommitPageIntake(engine.ctx, page, f"link {row.name}")
        )
        tell_trouble(mesh, taken)
        new += taken.new
        if not taken.new:
            break
    return new


def _standing(engine: NodeEngine, mesh: str) -> int | None:
    """How far this node is; None if an engine of its own brings the order, or the mesh is not
    here.
    """

    def read(tx: Reader) -> int | None:
        row = tx.quorum_get(mesh)
        if tx.mesh_get(mesh) is None or (row is not None and row.voter is not None):
            return None
        return 0 if row is None else row.number

    return engine.read("quorum.standing", read)
