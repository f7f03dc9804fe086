"""What operators do with the voters of a mesh: begin, add, remove, hand over, recover.

Changes are the coordinator's to make. A node that does not coordinate asks the one that does, over
the bus; the caller need not know who that is. Only nodes with the right `vote` in the mesh are
heard, and only they can be added: the owner of a mesh gives it, here by itself if this node is the
owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol, TypeVar

from holdfast.node.quorum.embedded.group import Group
from holdfast.node.quorum.embedded.groups import EmbeddedGroups
from holdfast.node.quorum.embedded.order import no_quorum, ticks_of
from holdfast.protocol.quorum_requests import (
    OPERATE,
    OperateAsked,
    OperatorVerb,
    decode_operate,
    encode_operate,
)
from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    Conflict,
    HoldfastError,
    NoQuorum,
    NotAllowed,
    NotAMember,
    NotShared,
    OutcomeUnknown,
    OverLimit,
    TooMany,
)
from holdfast.rules.keys import text_of
from holdfast.rules.limits import (
    QUORUM_CHANGE_MS,
    QUORUM_TICK_MS,
    QUORUM_VOTERS_MAX,
    SECOND_MS,
)
from holdfast.rules.quorum.raft.effects import ChangeOutcome
from holdfast.rules.quorum.raft.events import ChangeMembers
from holdfast.rules.quorum.state_rows import QuorumRow

T = TypeVar("T")
_WORDS: Final[dict[str, tuple[type[HoldfastError], str]]] = {
    "too_many_members": (OverLimit, "the group has as many members as it may have"),
    "too_many_voters": (OverLimit, f"a mesh has {QUORUM_VOTERS_MAX} voters at most"),
    "already_a_member": (AlreadyExists, "it is a member of the group already"),
    "already_a_voter": (AlreadyExists, "it votes already"),
    "unknown_member": (NotAMember, "it is no voter"),
    "last_voter": (
        Conflict,
        "it is the only voter: nobody would be left to decide (on that node, --last takes it too)",
    ),
    "no_live_majority": (Conflict, "too few voters would be left that can be reached"),
    "not_caught_up": (Conflict, "it has not caught up yet"),
    "bad_member": (BadInput, "its name or key is too long"),
}
_AGAIN: Final = frozenset(
    {"change_in_flight", "term_not_settled", "transferring", "leader_changed"}
)
"""Refusals that end by themselves."""


class VoterTrust(Protocol):
    """What operators need to know of the members of meshes, and may change."""

    async def voter_key(self, mesh: str, peer: str) -> bytes:
        """The key of a member that may vote; gives it the right to if this node owns the mesh.
        NotAMember or NotAllowed if that cannot be.
        """

    async def ask(self, peer: str, service: str, body: bytes, timeout_ms: int) -> bytes:
        """Asks another node, by its name or the text of its key; raises what it raised."""


class OperatorRequest(Protocol):
    @property
    def key(self) -> bytes: ...
    @property
    def body(self) -> bytes: ...


class EmbeddedOperators:
    """Belongs to one event loop."""

    def __init__(
        self,
        groups: EmbeddedGroups,
        trust: VoterTrust,
        may_vote: Callable[[str, Sequence[bytes]], bool],
    ) -> None:
        self._groups, self._trust, self._may_vote = groups, trust, may_vote

    async def init(
        self, mesh: str, voters: Sequence[str], *, timeout_ms: int | None = None
    ) -> None:
        """Begins a group with this node and lets others be voters too. Those that are not there
        yet become voters when they are.
        """
        await self.check_voters(mesh, voters)
        group = await self._groups.beginnings.found(mesh)
        limit_ms = QUORUM_CHANGE_MS if timeout_ms is None else timeout_ms
        await self._until(group, lambda: group.driver.state.leads_settled, limit_ms)
        for peer in voters:
            await self._add(group, peer, limit_ms, wait=False)
        await self._settle(group, voters, limit_ms)

    async def check_voters(self, mesh: str, voters: Sequence[str]) -> None:
        """Raises unless these may vote beside this node: before anything is begun."""
        if len(set(voters)) != len(voters):
            raise BadInput("a voter is named twice")
        if len(voters) + 1 > QUORUM_VOTERS_MAX:
            raise OverLimit(f"a mesh has {QUORUM_VOTERS_MAX} voters at most")
        await self.check_own(mesh)
        for peer in voters:
            await self._trust.voter_key(mesh, peer)

    async def check_own(self, mesh: str) -> None:
        """NotAllowed if this node may not vote in a mesh: nobody would follow what it decides."""
        with suppress(NotShared):  # then there is nobody else
            await self._trust.voter_key(mesh, self._groups.peer)

    async def take_over(self, row: QuorumRow, begins: bool) -> bool:
        """Begins the group that goes on behind the order of another engine, unless it has begun.
        Returns whether this node leads it, and so has to do what is left.
        """
        group = self._groups.of_mesh(row.mesh)
        if group is None and begins:
            group = await self._groups.beginnings.found_behind(row)
        if group is None:
            return False
        await self._until(group, lambda: group.driver.state.leader != 0, QUORUM_CHANGE_MS)
        return group.leads

    async def add_all(self, mesh: str, voters: Sequence[str]) -> None:
        """Those that are not members yet become voters as soon as they have caught up."""
        group = self._groups.require(mesh)
        known = {one.peer for one in group.driver.state.log.config.members}
        for peer in voters:
            if peer not in known:
                await self._add(group, peer, QUORUM_CHANGE_MS, wait=False)
        await self._settle(group, voters, QUORUM_CHANGE_MS)

    async def recover_behind(self, mesh: str) -> None:
        """This node had no vote, and nobody is left who has one."""
        group = await self._groups.beginnings.recover_behind(mesh)
        await self._until(group, lambda: group.driver.state.leads_settled, QUORUM_CHANGE_MS)

    async def add(self, mesh: str, peer: str, *, timeout_ms: int | None = None) -> None:
        await self._do(mesh, "add", peer, timeout_ms)

    async def remove(
        self, mesh: str, peer: str, *, timeout_ms: int | None = None, last: bool = False
    ) -> None:
        group = self._groups.of_mesh(mesh)
        if last and group is not None and self._is_alone(group, peer):
            await self._groups.retire(group)
            return
        await self._do(mesh, "remove", peer, timeout_ms)

    def _is_alone(self, group: Group, peer: str) -> bool:
        """Whether the peer is this node, and the only voter. A vote of nobody else decides that."""
        config = group.driver.state.log.config
        voters = [member.id for member in config.members if member.place == "voter"]
        return peer == self._groups.peer and voters == [group.driver.state.me]

    async def transfer(self, mesh: str, to: str | None, *, timeout_ms: int | None = None) -> None:
        await self._do(mesh, "transfer", to or "", timeout_ms)

    async def step_down(self, mesh: str, *, timeout_ms: int | None = None) -> None:
        await self._do(mesh, "step_down", "", timeout_ms)

    async def recover(self, mesh: str) -> None:
        """Conflict while a majority is heard: there would be two groups of one mesh."""
        group = self._groups.require(mesh)
        if group.order.has_quorum and len(group.driver.state.log.config.voters) > 1:
            raise Conflict(
                f"a majority of the voters of {mesh!r} is there: nothing is to be recovered",
                hint=f"to take the vote from one that is gone: holdfast quorum remove {mesh} PEER",
            )
        group = await self._groups.beginnings.recover(mesh)
        await self._until(group, lambda: group.driver.state.leads_settled, QUORUM_CHANGE_MS)

    # --- here, or at the coordinator -----------------------------------------------------------

    async def operate_asked(self, asked: OperatorRequest) -> bytes:
        """Another voter's operator wants something. Raises what is answered."""
        wanted = decode_operate(asked.body)
        if not self._may_vote(wanted.mesh, (asked.key,)):
            raise NotAllowed(f"this key may not vote in {wanted.mesh!r}")
        group = self._groups.require(wanted.mesh)
        if not group.leads:
            raise NoQuorum("this node does not coordinate")
        await self._act(group, wanted.verb, wanted.peer, wanted.timeout_ms)
        return b""

    async def _do(self, mesh: str, verb: OperatorVerb, peer: str, timeout_ms: int | None) -> None:
        limit_ms = QUORUM_CHANGE_MS if timeout_ms is None else timeout_ms
        group = self._groups.require(mesh)
        if verb == "add":
            await self._trust.voter_key(mesh, peer)
        loop = asyncio.get_running_loop()
        until = loop.time() + limit_ms / SECOND_MS
        while True:
            left = max(0, round((until - loop.time()) * SECOND_MS))
            await self._until(group, lambda: group.driver.state.leader != 0, left)
            left = max(QUORUM_TICK_MS, round((until - loop.time()) * SECOND_MS))
            if group.leads:
                await self._act(group, verb, peer, left)
                return
            leader = group.driver.state.log.config.member(group.driver.state.leader)
            if leader is None:
                raise no_quorum(mesh, limit_ms)
            asked = OperateAsked(mesh, verb, peer, left)
            try:
                await self._trust.ask(text_of(leader.key), OPERATE, encode_operate(asked), left)
                return
            except NoQuorum:
                if loop.time() >= until:
                    raise
                await self._groups.next_tick()  # it was deposed just now

    async def _act(self, group: Group, verb: OperatorVerb, peer: str, timeout_ms: int) -> None:
        mesh = group.row.scope
        if verb == "add":
            await self._add(group, peer, timeout_ms)
        elif verb == "remove":
            await self._remove(group, peer, timeout_ms)
        elif verb == "step_down":
            group.driver.step_down()
        else:
            to = self._id_of(group, peer) if peer else 0
            handed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            group.driver.transfer(to, ticks_of(timeout_ms), _answer(handed))
            if not await handed:
                raise NoQuorum(
                    f"{peer or 'no other voter'} has not taken over in {mesh!r}",
                    hint="see who is linked and caught up: holdfast quorum status",
                )

    # --- members -------------------------------------------------------------------------------

    async def _add(self, group: Group, peer: str, timeout_ms: int, *, wait: bool = True) -> None:
        mesh = group.row.scope
        key = await self._trust.voter_key(mesh, peer)
        config = group.driver.state.log.config
        if not any(one.peer == peer for one in config.members):
            await self._change(group, ChangeMembers("add", peer=peer, key=key), peer, timeout_ms)
        elif _is_voter(group, peer):
            raise AlreadyExists(f"{peer!r} votes in {mesh!r} already")
        if wait:
            await self._settle(group, (peer,), timeout_ms)

    async def _settle(self, group: Group, peers: Sequence[str], timeout_ms: int) -> None:
        """Waits until they vote; who does not come in time does so later, by itself."""
        try:
            await self._until(
                group, lambda: all(_is_voter(group, peer) for peer in peers), timeout_ms
            )
        except NoQuorum:
            late = [peer for peer in peers if not _is_voter(group, peer)]
            raise TooMany(
                f"{', '.join(late)} has not caught up with {group.row.scope!r} within "
                f"{timeout_ms} ms; it will vote as soon as it has",
                hint="start its daemon, and see: holdfast quorum status",
            ) from None

    async def _remove(self, group: Group, peer: str, timeout_ms: int) -> None:
        id = self._id_of(group, peer)
        await self._change(group, ChangeMembers("remove", id), peer, timeout_ms)

    async def _change(
        self, group: Group, change: ChangeMembers, peer: str, timeout_ms: int
    ) -> ChangeOutcome:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_ms / SECOND_MS
        while True:
            done: asyncio.Future[ChangeOutcome | None] = loop.create_future()
            left = max(QUORUM_TICK_MS, round((until - loop.time()) * SECOND_MS))
            group.driver.change(change, ticks_of(left), _answer(done))
            outcome = await done
            if outcome is None:
                raise OutcomeUnknown(
                    f"whether {peer!r} was changed in {group.row.scope!r} is not known",
                    hint="see: holdfast quorum members",
                )
            if outcome.index:
                return outcome
            if outcome.reason not in _AGAIN or loop.time() >= until:
                raise _refusal(outcome.reason, peer, group.row.scope)
            await self._groups.next_tick()  # which may have settled it

    def _id_of(self, group: Group, peer: str) -> int:
        for member in group.driver.state.log.config.members:
            if member.peer == peer:
                return member.id
        raise NotAMember(
            f"{peer!r} is no voter of {group.row.scope!r}", hint="see: holdfast quorum members"
        )

    async def _until(self, group: Group, holds: Callable[[], bool], timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / SECOND_MS):
                while not holds():
                    await self._groups.changed(group)
        except TimeoutError:
            raise no_quorum(group.row.scope, timeout_ms) from None


def _is_voter(group: Group, peer: str) -> bool:
    config = group.driver.state.log.config
    return any(one.peer == peer and one.place == "voter" for one in config.members)


def _answer(future: asyncio.Future[T]) -> Callable[[T], None]:
    def answered(value: T) -> None:
        if not future.done():
            future.set_result(value)

    return answered


def _refusal(reason: str, peer: str, mesh: str) -> HoldfastError:
    if reason in _WORDS:
        kind, words = _WORDS[reason]
        return kind(f"{peer!r} in {mesh!r}: {words}")
    return NoQuorum(f"{peer!r} in {mesh!r} was not changed: {reason}")
