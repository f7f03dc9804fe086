"""The order of a mesh for a member without a vote: it asks voters over the bus.

Any member may write and read (only deciding is for voters). So a proposal goes to a voter that this
node reaches, under the id that its origin gave it; if that voter does not answer in time, or has no
majority, the next one is asked with the same id. It is committed once, whoever is asked.

The answer names a commit. The member waits until its own fold has it (`fold_watch`): what it then
reads at home is what it wrote, or what was committed before it asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from holdfast.node.core.commit import Committed
from holdfast.node.core.committed_intake import commit_trouble
from holdfast.node.core.engine import NodeEngine
from holdfast.node.quorum.fold_watch import FoldWatch
from holdfast.node.quorum.ports import OrderMember, OrderStatus
from holdfast.protocol import forward_requests as wire
from holdfast.protocol.forward_requests import (
    CONFIRM,
    PROPOSE,
    ConfirmAsked,
    ConfirmGiven,
    ProposeAsked,
    ProposeGiven,
    decode,
)
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import (
    BadAnswer,
    BusError,
    HoldfastError,
    NoQuorum,
    NoResponder,
    NotFresh,
    NoVoters,
    OrderContested,
    OutcomeUnknown,
    OverLimit,
    RequestRefused,
    TooMany,
    UnknownPeer,
)
from holdfast.rules.limits import (
    CHUNK_ROWS,
    FORWARD_TRY_MS,
    FORWARDED_MAX,
    REQUEST_MS_MAX,
    SECOND_MS,
)
from holdfast.rules.quorum.commit_record import decode_stored_record, intent_of
from holdfast.storage.ports import Reader
from holdfast.transport.remote_errors import error_by_code

T = TypeVar("T", ProposeGiven, ConfirmGiven)
_ELSEWHERE: Final = (NoQuorum, TooMany, NoVoters, OverLimit, OrderContested)
"""What a voter says when another one may do it, and it itself has done nothing."""


class VoterAnswer(Protocol):
    @property
    def body(self) -> bytes: ...


class RequestBus(Protocol):
    """What is needed of a bus."""

    async def request(
        self, to: str, service: str, body: bytes, *, timeout_ms: int, wait_ms: int
    ) -> VoterAnswer: ...


class ForwardedOrder:
    """A `MeshOrder` that has no vote. Belongs to one event loop."""

    def __init__(
        self,
        engine: NodeEngine,
        watch: FoldWatch,
        bus: RequestBus,
        mesh: str,
        voters: Callable[[], Sequence[str]],
    ) -> None:
        """`voters` says whom to ask, those that are linked first: names or keys, as the bus takes
        them.
        """
        self.mesh = mesh
        self.on_change: Callable[[], None] = lambda: None
        self.on_folded: Callable[[Sequence[Committed]], None] = lambda results: None
        self._engine, self._watch, self._bus, self._voters = engine, watch, bus, voters
        self._answered = ""
        """Who answered last: it is asked first."""
        self._confirmed_at: float | None = None
        self._reached = False
        self._given: ConfirmGiven | None = None
        self._waiting = 0
        self._turns = {kind: asyncio.Semaphore(FORWARDED_MAX) for kind in (PROPOSE, CONFIRM)}
        """A voter works on so many requests of this node at a time: others wait here for theirs."""
        watch.follow(mesh, self._folded)

    def _folded(self, before: int, number: int) -> None:
        """Commits that came from a neighbour are folded here now."""
        while before < number:
            found = self._engine.read("quorum.folded", partial(committed_since, self.mesh, before))
            if not found:
                return
            before += len(found)
            self.on_folded(found)

    def voters_changed(self) -> None:
        """Links or voters have changed: what waits may be tried now."""
        self.on_change()

    # --- writes ------------------------------------------------------------------------------

    async def propose(self, id: bytes, raw: bytes, *, timeout_ms: int) -> Committed:
        until = self._now() + timeout_ms
        self._waiting += 1
        try:
            given = await self._in_turn(
                PROPOSE,
                lambda left: wire.encode(ProposeAsked(self.mesh, id, raw, left)),
                ProposeGiven,
                until,
            )
            if not await self._watch.reached(self.mesh, given.upto, until - self._now()):
                raise OutcomeUnknown(
                    f"a voter has folded it as commit {given.upto} of {self.mesh}, and this node "
                    f"has got only to {self._watch.number(self.mesh)} in time"
                )
        finally:
            self._waiting -= 1
        return self._made(id, raw, given)

    def _made(self, id: bytes, raw: bytes, given: ProposeGiven) -> Committed:
        """What became of it, with where it stands here. An intent that was given up stands
        nowhere.
        """
        envelope = decode_trusted(raw)
        commit = self._engine.read("quorum.commit", lambda tx: tx.commit_of(self.mesh, id))
        return Committed(
            id,
            given.outcome,
            given.reason,
            given.detail,
            given.number,
            None if commit is None else commit.offset,
            given.revisions,
            given.clashes,
            envelope.op,
            envelope.entity,
            None if commit is None else intent_of(commit.record).fence,
        )

    # --- reads -------------------------------------------------------------------------------

    async def confirm(self, *, timeout_ms: int) -> None:
        """As the port says; NotFresh on a node that has diverged from the voters, whatever it has
        folded.
        """
        asked_at = self._now()
        until = asked_at + timeout_ms
        self._waiting += 1
        try:
            given = await self._in_turn(
                CONFIRM,
                lambda left: wire.encode(ConfirmAsked(self.mesh, left)),
                ConfirmGiven,
                until,
            )
            self._hear(given)
            if not await self._watch.reached(self.mesh, given.number, until - self._now()):
                raise NoQuorum(
                    f"commits of {self.mesh} up to {given.number} were to come here, and "
                    f"{self._watch.number(self.mesh)} are here in time",
                    hint="see that a member that has them is linked: holdfast bus status",
                )
        finally:
            self._waiting -= 1
        trouble = self._engine.read("quorum.trouble", lambda tx: commit_trouble(tx, self.mesh))
        if trouble:
            first = trouble[0]
            raise NotFresh(
                f"{first.kind} at commit {first.number} of {self.mesh}: this node does not have "
                "what the voters have",
                hint="see: holdfast doctor",
            )
        self._confirmed_at = asked_at

    def _hear(self, given: ConfirmGiven) -> None:
        before, self._given = self._given, given
        if before is None or (before.lease_epoch, before.members) != (
            given.lease_epoch,
            given.members,
        ):
            self.on_change()

    async def heard(self) -> str:
        """The first member that takes part in the order itself and is there, whether a majority
        answers it or not; empty if none is. A node that follows an etcd which is gone has nothing
        that its neighbours lack, and does not count.
        """
        row = self._watch.standing(self.mesh)
        in_etcd = row is not None and row.engine == "etcd"
        asked = wire.encode(ConfirmAsked(self.mesh, FORWARD_TRY_MS // 2))

        async def takes_part(peer: str) -> bool:
            try:
                await self._bus.request(
                    peer, CONFIRM, asked, timeout_ms=FORWARD_TRY_MS, wait_ms=FORWARD_TRY_MS // 2
                )
            except RequestRefused as error:
                said = _said(error)
                return not isinstance(said, NoVoters) and not (
                    in_etcd and isinstance(said, NoQuorum)
                )
            except (BusError, UnknownPeer):
                return False  # silence cannot be told from absence
            return True

        voters = self._by_hope()
        found = await asyncio.gather(*map(takes_part, voters))
        return next((peer for peer, takes in zip(voters, found, strict=True) if takes), "")

    # --- asking ------------------------------------------------------------------------------

    async def _in_turn(
        self, service: str, body: Callable[[int], bytes], kind: type[T], until: float
    ) -> T:
        turn = self._turns[service]
        try:
            async with asyncio.timeout(max(0.0, until - self._now()) / SECOND_MS):
                await turn.acquire()
        except TimeoutError:
            raise NoQuorum(f"{FORWARDED_MAX} earlier requests of this node are under way") from None
        try:
            return await self._ask(service, body, kind, until)
        finally:
            turn.release()

    async def _ask(
        self, service: str, body: Callable[[int], bytes], kind: type[T], until: float
    ) -> T:
        """The answer of the first voter that gives one. NoQuorum if certainly nobody has done
        anything, OutcomeUnknown if somebody may have: of a confirmation that makes no difference.
        """
        maybe, last = False, "no voter of it is reached over the bus"
        for peer in self._by_hope():
            left = min(int(until - self._now()), REQUEST_MS_MAX)
            if left <= 0:
                last = f"no time is left to ask {peer}"
                break
            each = min(left, FORWARD_TRY_MS)
            try:
                # The voter gives up a moment before we do: its own word is worth more than silence.
                patience = max(1, each * 9 // 10)
                answer = await self._bus.request(
                    peer, service, body(patience), timeout_ms=each, wait_ms=each
                )
                given = decode(answer.body, kind)
            except RequestRefused as error:
                said = _said(error)
                last = f"{peer}: {said.message}"
                if isinstance(said, OutcomeUnknown):
                    maybe = True
                elif not isinstance(said, _ELSEWHERE):
                    # It refuses this one for good; but if an earlier voter may have it, it may be
                    # committed all the same.
                    if maybe:
                        break
                    raise said from None
            except (NoResponder, UnknownPeer) as error:
                last = f"{peer}: {error.message}"
            except (BusError, BadAnswer) as error:
                maybe, last = True, f"{peer}: {error.message}"
            else:
                self._heard(peer)
                return given
        self._missed()
        if maybe and kind is ProposeGiven:
            raise OutcomeUnknown(f"no voter of {self.mesh} has answered in time; {last}")
        raise NoQuorum(f"no voter of {self.mesh} could help in time; {last}")

    def _by_hope(self) -> list[str]:
        """Voters, the one that answered last first."""
        voters = list(dict.fromkeys(self._voters()))
        if self._answered in voters:
            voters.remove(self._answered)
            voters.insert(0, self._answered)
        return voters

    def _heard(self, peer: str) -> None:
        self._answered = peer
        if not self._reached:
            self._reached = True
            self.on_change()

    def _missed(self) -> None:
        self._answered, self._reached = "", False

    def _now(self) -> float:
        """Milliseconds that never run backwards."""
        return asyncio.get_running_loop().time() * SECOND_MS

    # --- how it stands -----------------------------------------------------------------------

    def status(self) -> OrderStatus:
        def read(tx: Reader) -> tuple[Any, list[Any]]:
            return tx.quorum_get(self.mesh), commit_trouble(tx, self.mesh)

        row, trouble = self._engine.read("quorum.standing", read)
        given = self._given
        fence = None if row is None else row.fence
        epoch = max(0 if fence is None else fence.lease_epoch, given.lease_epoch if given else 0)
        leads = "" if fence is None else fence.coordinator
        if given is not None and given.lease_epoch >= epoch:
            leads = given.coordinator
        since = None if self._confirmed_at is None else int(self._now() - self._confirmed_at)
        applied = 0 if row is None else row.applied
        return OrderStatus(
            mesh=self.mesh,
            engine="embedded" if row is None else row.engine,
            incarnation=0 if row is None else row.incarnation,
            part="member",
            lease_epoch=epoch,
            coordinator=leads,
            members=() if given is None else tuple(_member(one) for one in given.members),
            committed=applied,
            applied=applied,
            confirmed_ms=since,
            has_quorum=self._reached,
            waiting=self._waiting,
            problem=f"{trouble[0].kind} at commit {trouble[0].number}" if trouble else "",
        )


def _member(told: wire.MemberTold) -> OrderMember:
    place: Final = "voter" if told.votes else "learner"
    return OrderMember(id=told.id, peer=told.peer, place=place, leads=told.leads, linked=False)


def _said(error: RequestRefused) -> HoldfastError:
    """The error of the other side, as it was raised there."""
    code, _, message = error.message.partition(": ")
    return error_by_code(code, message)


def committed_since(mesh: str, number: int, tx: Reader) -> list[Committed]:
    """What became of the commits after this one, some of them, in commit order."""
    found = []
    for row in tx.commit_range(mesh, number + 1, CHUNK_ROWS):
        record, entry = decode_stored_record(row.record), tx.log_find(row.id)
        envelope = None if entry is None else decode_trusted(entry.raw)
        found.append(
            Committed(
                row.id,
                record.outcome,
                record.reason,
                number=row.number,
                offset=row.offset,
                revisions=record.revisions,
                op="" if envelope is None else envelope.op,
                entity="" if envelope is None else envelope.entity,
                fence=record.fence,
            )
        )
    return found
