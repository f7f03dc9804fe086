"""Two voters of a mesh that are not of one group: do they have the same order?

The members of a group hear each other by their own messages, and groups do not. If two survivors
have both recovered, each of them is a group that is sure of itself. So a voter also compares: when
a neighbour tells how far it is, it asks for the page that begins with the last commit that both
have. The page names the group and its incarnation too. Nothing is taken from it
(`node/core/committed_intake.py`); what another order means is a rule
(`rules/two_orders.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from holdfast.node.bus.meshes.grants import MeshGrants, MeshPeer
from holdfast.node.bus.meshes.mesh_context import MeshContext
from holdfast.node.core.committed_intake import CommitPageIntake, PageTaken, tell_trouble
from holdfast.node.core.engine import NodeEngine
from holdfast.protocol.bus_mesh import CommitsAsked, StateTold
from holdfast.protocol.commit_page import CheckedPage
from holdfast.rules.errors import UnknownMesh
from holdfast.rules.limits import COMMIT_COMPARE_MS, SECOND_MS
from holdfast.storage.ports import Reader, Transaction

if TYPE_CHECKING:
    from holdfast.node.bus.meshes.mesh_link import MeshLink


class ComparedOrders:
    """What was compared on one link."""

    def __init__(self) -> None:
        self.voting: frozenset[str] = frozenset()
        """The meshes in which the peer may vote."""
        self.asked: dict[str, int] = {}
        """By mesh: from which number on a page was asked for."""
        self.rests: dict[str, asyncio.TimerHandle] = {}
        """Meshes that were compared just now."""
        self.again: set[str] = set()
        """Those of which more was heard since."""

    def end(self) -> None:
        for timer in self.rests.values():
            timer.cancel()
        self.rests.clear()
        self.asked.clear()


class OrderCompare:
    """Compares the orders of the meshes in which this node votes. Belongs to one event loop."""

    def __init__(self, context: MeshContext, numbers: Mapping[str, int]) -> None:
        """`numbers` says how far this node is, by mesh."""
        self._context, self._numbers = context, numbers
        self.votes: set[str] = set()
        """The meshes in which this node is a voter, or was."""
        self.on_compared: Callable[[str], None] = lambda mesh: None
        """Hears that another order of a mesh was found, or is no other one any more."""

    def heard(self, link: MeshLink, mesh: str) -> None:
        """A neighbour has told how far it is, or this node is further than when it did."""
        talk = link.commits
        if (
            mesh not in self.votes
            or mesh not in talk.theirs
            or mesh not in talk.compared.voting
            or link.refused
        ):
            return
        if mesh in talk.compared.rests:
            talk.compared.again.add(mesh)
            return
        rest = COMMIT_COMPARE_MS / SECOND_MS
        timer = asyncio.get_running_loop().call_later(rest, self._rested, link, mesh)
        talk.compared.rests[mesh] = timer
        self._ask(link, mesh, max(1, min(self._numbers.get(mesh, 0), talk.theirs.get(mesh, 0))))

    def _rested(self, link: MeshLink, mesh: str) -> None:
        compared = link.commits.compared
        del compared.rests[mesh]
        if mesh in compared.again:
            compared.again.discard(mesh)
            self.heard(link, mesh)

    def _ask(self, link: MeshLink, mesh: str, first: int) -> None:
        link.commits.compared.asked[mesh] = first
        link.say(CommitsAsked(mesh, first))

    def truncated(self, link: MeshLink, told: StateTold) -> bool:
        """The neighbour no longer has the envelope of that commit. Beyond its last one there is
        nothing to lack, and an empty page still names the group. False if nothing was asked.
        """
        first = link.commits.compared.asked.pop(told.mesh, None)
        if first is not None and first <= told.number:
            self._ask(link, told.mesh, told.number + 1)
        return first is not None

    async def took(self, link: MeshLink, page: CheckedPage) -> str:
        """Compares a page; returns what people should know, if there is something."""
        mesh = page.mesh
        if link.commits.compared.asked.pop(mesh, None) != page.first or mesh not in link.shared:
            return ""
        context = self._context
        compare = partial(compare_commits, context.engine, context.grants, link.who, page)
        taken = await context.run(compare)
        if taken is None:
            return ""
        self.on_compared(mesh)
        if taken.outcome != "forked":
            return ""
        return f"{link.peer} has another order of {mesh}: see holdfast quorum status"


def voting_of(
    engine: NodeEngine, grants: MeshGrants, peer: MeshPeer, meshes: Sequence[str]
) -> frozenset[str]:
    """The meshes in which a peer may vote."""

    def read(tx: Reader) -> frozenset[str]:
        return frozenset(mesh for mesh in meshes if grants.may_vote(tx, peer, mesh))

    return engine.read("bus.meshes", read)


def compare_commits(
    engine: NodeEngine, grants: MeshGrants, peer: MeshPeer, page: CheckedPage
) -> PageTaken | None:
    """Compares a page of a peer that may vote with what this voter has. None if it may not: then
    its word counts for nothing.
    """

    def work(tx: Transaction) -> PageTaken | None:
        row = tx.quorum_get(page.mesh)
        if row is None or row.voter is None or not grants.may_vote(tx, peer, page.mesh):
            return None
        return CommitPageIntake(engine.ctx, page, peer.name, by_voter=True)(tx)

    try:
        taken = engine.write("bus.take", work)
    except UnknownMesh:
        return None
    if taken is not None:
        tell_trouble(page.mesh, taken.trouble)
    return taken
