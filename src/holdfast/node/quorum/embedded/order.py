"""The order of one mesh whose voters this node is among: a `MeshOrder` on a `GroupDriver`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from holdfast.node.core.commit import Committed
from holdfast.node.core.committed_intake import CommitTrouble
from holdfast.node.quorum.embedded.group_driver import GroupDriver
from holdfast.node.quorum.embedded.open_proposals import (
    AppliedProposal,
    ProposalAnswer,
    ProposalEnd,
)
from holdfast.node.quorum.embedded.ports import CommitFold
from holdfast.node.quorum.embedded.store_fold import FoldedEnvelope
from holdfast.node.quorum.embedded.voter_links import VoterLinks
from holdfast.node.quorum.ports import OrderMember, OrderPart, OrderStatus, order_moved
from holdfast.rules.errors import NoQuorum, OrderContested, OutcomeUnknown
from holdfast.rules.limits import QUORUM_TICK_MS, SECOND_MS
from holdfast.rules.quorum.raft.messages import Proposal
from holdfast.rules.two_orders import is_contested


class EmbeddedOrder:
    """Belongs to one event loop."""

    def __init__(self, mesh: str, driver: GroupDriver, fold: CommitFold, links: VoterLinks) -> None:
        self.mesh = mesh
        self.driver = driver
        self.fold = fold
        self.on_change: Callable[[], None] = lambda: None
        self.on_folded: Callable[[Sequence[Committed]], None] = lambda results: None
        self.problem = ""
        self.closed = False
        """This node has folded the end of the order: it goes on with another engine."""
        self.late_ms = 0
        self.claims: Sequence[CommitTrouble] = ()
        """What others that may vote have shown of another order of this mesh."""
        self._links = links
        self._confirmed: float | None = None

    async def propose(self, id: bytes, raw: bytes, *, timeout_ms: int) -> Committed:
        self._check_uncontested()
        loop = asyncio.get_running_loop()
        until, left_ms = loop.time() + timeout_ms / SECOND_MS, timeout_ms
        while isinstance(end := await self._proposed(Proposal(id, raw), left_ms), AppliedProposal):
            assert isinstance(end.result, FoldedEnvelope), "the fold of a store gives these"
            if end.result.raw == raw:
                return end.result.committed
            # Somebody has used the id for something else: what becomes of ours is not said yet.
            left_ms = max(0, round((until - loop.time()) * SECOND_MS))
        if end is ProposalEnd.CLOSED:
            raise order_moved(self.mesh)
        if end is ProposalEnd.UNKNOWN:
            raise OutcomeUnknown(
                f"the quorum of {self.mesh!r} did not answer within {timeout_ms} ms; the write may "
                "still be committed"
            )
        if end is ProposalEnd.REFUSED:
            raise NoQuorum(
                f"this node takes no part in the quorum of {self.mesh!r}: "
                f"{self.problem or 'its vote was taken, or its disk has failed'}"
            )
        raise no_quorum(self.mesh, timeout_ms)

    def _proposed(self, proposal: Proposal, timeout_ms: int) -> asyncio.Future[ProposalAnswer]:
        answer: asyncio.Future[ProposalAnswer] = asyncio.get_running_loop().create_future()

        def answered(end: ProposalAnswer) -> None:
            if not answer.done():
                answer.set_result(end)

        self.driver.propose(proposal, ticks_of(timeout_ms), answered)
        return answer

    async def confirm(self, *, timeout_ms: int) -> None:
        self._check_uncontested()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[int | None] = loop.create_future()
        begun = loop.time()

        def answered(index: int | None) -> None:
            if not answer.done():
                answer.set_result(index)

        self.driver.read(ticks_of(timeout_ms), answered)
        if await answer is None:
            raise order_moved(self.mesh) if self.closed else no_quorum(self.mesh, timeout_ms)
        if self.closed:
            raise order_moved(self.mesh)  # the next order may have come further by now
        self._check_uncontested()  # it may have been found out meanwhile
        # Everything committed before the call is here: it was confirmed as of then.
        self._confirmed = max(begun, self._confirmed or begun)

    def status(self) -> OrderStatus:
        state = self.driver.state
        leader = state.log.config.member(state.leader)
        return OrderStatus(
            mesh=self.mesh,
            engine="embedded",
            incarnation=state.incarnation,
            part=self.part,
            lease_epoch=state.term,
            coordinator="" if leader is None else leader.peer,
            members=self._members(),
            committed=state.commit,
            applied=self.fold.applied,
            confirmed_ms=_age_ms(self._confirmed),
            has_quorum=self.has_quorum,
            waiting=len(self.driver.proposals) + len(self.driver.reads),
            late_ms=self.late_ms,
            problem=self.problem or self._claimed() or _words(self.driver),
        )

    @property
    def is_contested(self) -> bool:
        return is_contested(len(self.claims), len(self.driver.state.log.config.voters))

    def _check_uncontested(self) -> None:
        if self.claims and self.is_contested:
            raise OrderContested(f"{self.mesh!r}: {self._claimed()}")

    def _claimed(self) -> str:
        if not self.claims:
            return ""
        who = ", ".join(one.source for one in self.claims)
        then = (
            "nothing is decided here until somebody says which one counts"
            if self.is_contested
            else "this group goes on, with a majority"
        )
        return f"two groups claim this mesh: {who}: {self.claims[0].detail}; {then}"

    @property
    def part(self) -> OrderPart:
        state = self.driver.state
        if state.removed:
            return "removed"
        if state.barred:
            return "must_rejoin"
        if state.disk == "failed":
            return "failed"
        if state.role == "leader":
            return "coordinator"
        return "voter" if state.log.config.is_voter(state.me) else "learner"

    @property
    def has_quorum(self) -> bool:
        """A leader that hears no majority steps down, and a follower that hears no leader forgets
        it: so one that is known is one that a majority follows, as far as we can tell.
        """
        state = self.driver.state
        if self.is_contested:
            return False
        if state.role == "leader":
            return state.leads_settled
        return state.leader != 0 and (state.asleep or state.elapsed < 2 * state.timing.election)

    def _members(self) -> tuple[OrderMember, ...]:
        state = self.driver.state
        found = []
        for member in state.log.config.members:
            progress = state.peer(member.id)
            is_me = member.id == state.me
            leads = state.role == "leader"
            heard = None if is_me else self._links.heard_at(member.key)
            match = state.durable if is_me else progress.match if progress is not None else None
            found.append(
                OrderMember(
                    id=member.id,
                    peer=member.peer,
                    place=member.place,
                    leads=member.id == state.leader,
                    linked=is_me or self._links.is_linked(member.key),
                    match=match if leads or is_me else None,
                    heard_ms=_age_ms(heard),
                    disk=state.disk if is_me else progress.disk if progress else "fine",
                )
            )
        return tuple(found)


def no_quorum(mesh: str, timeout_ms: int) -> NoQuorum:
    return NoQuorum(f"no majority of the voters of {mesh!r} answered within {timeout_ms} ms")


def ticks_of(timeout_ms: int) -> int:
    """How many ticks a caller waits; one more than it asked for, because a tick may come soon."""
    return 1 + -(-timeout_ms // QUORUM_TICK_MS)


def _age_ms(at: float | None) -> int | None:
    if at is None:
        return None
    return max(0, round((asyncio.get_running_loop().time() - at) * SECOND_MS))


def _words(driver: GroupDriver) -> str:
    state = driver.state
    if driver.fold_error is not None:
        return f"committed entries cannot be applied: {driver.fold_error.message}"
    if state.terms_are_used:
        return (
            "the terms of this incarnation are used up, and no voter does that by itself: find the "
            "one that lied; then recover on a node that you trust"
        )
    if state.disk == "full":
        return "the disk is full: nothing new is taken into the log"
    if state.disk == "failed":
        return "the disk has failed under the votes of this node: restart it, and look at the disk"
    return ""
