"""A member without a vote writes and reads through voters, and says honestly what it knows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import msgspec
import pytest

from holdfast.node.core.context import NodeContext
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.metrics import Metrics
from holdfast.node.quorum.fold_watch import FoldWatch
from holdfast.node.quorum.forwarding import ForwardedOrder
from holdfast.node.quorum.voter_service import VoterService
from holdfast.protocol import forward_requests as wire
from holdfast.rules.bodies import Nothing
from holdfast.rules.bus.meshes.membership import MemberStanding
from holdfast.rules.envelope import Envelope, encode
from holdfast.rules.errors import (
    BadAnswer,
    BadEnvelope,
    DiskFull,
    ForgedOrigin,
    HoldfastError,
    NoQuorum,
    NoResponder,
    NotAMember,
    NotFresh,
    NotGranted,
    NoVoters,
    OutcomeUnknown,
    RequestRefused,
    RequestTimedOut,
    TooMany,
)
from holdfast.rules.ids import id_text
from holdfast.rules.limits import FORWARDED_ALL_MAX, FORWARDED_BYTES_MAX, FORWARDED_MAX
from holdfast.rules.quorum.intents import IntentAbandon
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import MeshRow
from holdfast.storage.files.blobs import MemoryBlobs
from holdfast.storage.memory.store import MemoryStore
from support.commit_pages import mission, page_of, take, with_record
from support.envelopes import MESH, state_set
from support.quorum_state import intent
from support.sole_voter import SoleVoter, give_voters
from support.source import HandClock

PATIENCE_MS = 60_000


def in_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Runs a test in an event loop of its own."""

    @wraps(test)
    def run() -> None:
        async def story() -> None:
            await test()

        asyncio.run(story())

    return run


def engine_of(peer: str) -> NodeEngine:
    store = MemoryStore()
    row = MeshRow(slug=MESH, name=MESH, created_at=1, updated_at=1)
    store.write(lambda tx: tx.mesh_add(row))
    return NodeEngine(store, NodeContext(peer, 1, HandClock(), MemoryBlobs()), Metrics())


class Asked(msgspec.Struct):
    key: bytes
    body: bytes


class Said(msgspec.Struct):
    body: bytes


class Wires:
    """Requests that reach their service at once, or do not. Errors go by code, as on a bus."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.services: dict[str, dict[str, Callable[[Any], Awaitable[bytes]]]] = {}
        self.lost: set[str] = set()
        self.asked: list[str] = []

    def host(self, peer: str) -> Wires:
        self._at = peer
        return self

    def serve(self, service: str, handler: Callable[[Any], Awaitable[bytes]], *, most: int) -> None:
        assert most == FORWARDED_ALL_MAX
        self.services.setdefault(self._at, {})[service] = handler

    async def request(
        self, to: str, service: str, body: bytes, *, timeout_ms: int, wait_ms: int
    ) -> Said:
        self.asked.append(to)
        if to not in self.services:
            raise NoResponder(f"{to} does not serve {service}")
        try:
            work = self.services[to][service](Asked(self.key, body))
            said = await asyncio.wait_for(work, timeout_ms / 1000)
        except TimeoutError:
            raise RequestTimedOut(f"{to} took too long") from None
        except HoldfastError as error:
            raise RequestRefused(f"{error.code}: {error.message}") from None
        if to in self.lost:
            raise RequestTimedOut(f"the answer of {to} was lost")
        return Said(said)


class World:
    """Two voters that share a store, as if each were the other's follower, and dan, who has no
    vote and gets pages.
    """

    def __init__(self, grants: tuple[str, ...] = ("read", "write")) -> None:
        voters = engine_of("ana")
        give_voters(voters, MESH)
        self.orders = {name: SoleVoter(voters, MESH) for name in ("ana", "bo")}
        self.wires = Wires(b"dan")
        self.engine = engine_of("dan")
        self.standing: MemberStanding | None = MemberStanding("dan", grants)
        for name, order in self.orders.items():
            service = VoterService(
                voters,
                lambda mesh, order=order: order if mesh == MESH else None,  # type: ignore[misc]
                lambda key, mesh: self.standing if key in (b"dan", b"eve") else None,
            )
            service.start(self.wires.host(name))
        self.watch = FoldWatch(self.engine)
        self.member = ForwardedOrder(
            self.engine, self.watch, self.wires, MESH, lambda: ["ana", "bo"]
        )
        self.changes = 0
        self.member.on_change = self.changed

    def changed(self) -> None:
        self.changes += 1

    def page(self) -> None:
        """What was committed comes to dan."""
        first = self.watch.number(MESH) + 1
        take(self.engine.store, page_of(self.orders["ana"].engine.store, first))

    async def when(self, work: Awaitable[Any], done: Callable[[], bool]) -> asyncio.Task[Any]:
        """Begins work, and returns when it has got so far."""
        task = asyncio.ensure_future(work)
        while not done():
            await asyncio.sleep(0)
        return task


def mine(id: str, **fields: Any) -> Envelope:
    return mission(id, origin="dan", **fields)


async def propose(world: World, envelope: Envelope, timeout_ms: int = PATIENCE_MS) -> Any:
    return await world.member.propose(envelope.id, encode(envelope), timeout_ms=timeout_ms)


@in_loop
async def test_Q3_a_member_without_a_vote_writes_and_reads_its_own_write_at_home() -> None:
    world = World()
    voter = world.orders["ana"]
    task = await world.when(propose(world, mine("a")), lambda: voter.proposed > 0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()  # committed, and not here yet
    world.page()
    made = await task
    assert (made.outcome, made.number, made.offset) == (Outcome.APPLIED, 1, 1)
    assert [one.id for one in made.revisions] == ["a"]
    assert (made.op, made.entity) == ("entity.change", "mission/a")
    assert made.fence is not None
    assert made.fence.coordinator == "ana"
    assert world.engine.store.write(lambda tx: tx.entity_get(MESH, "mission", "a")) is not None
    status = world.member.status()
    assert (status.part, status.has_quorum, status.coordinator) == ("member", True, "ana")


@in_loop
async def test_Q3_the_next_voter_is_asked_with_the_same_id_and_it_is_committed_once() -> None:
    world = World()
    world.wires.lost = {"ana"}
    envelope = mine("a")
    task = await world.when(propose(world, envelope), lambda: "bo" in world.wires.asked)
    world.page()
    made = await task
    # bo finds it committed, and dan learns that it was applied.
    assert (made.outcome, made.number) == (Outcome.NOOP_ALREADY_APPLIED, None)
    assert [one.proposed for one in world.orders.values()] == [1, 1]
    assert world.watch.number(MESH) == 1
    # Who has answered is asked first from now on.
    world.wires.asked.clear()
    task = await world.when(propose(world, mine("b")), lambda: world.orders["bo"].proposed > 1)
    assert world.wires.asked == ["bo"]
    world.page()
    await task


@in_loop
async def test_Q3_nobody_has_it_and_somebody_may_have_it_are_told_apart() -> None:
    world = World()
    for order in world.orders.values():
        order.fails_with = NoQuorum("the others are away")
    with pytest.raises(NoQuorum, match="bo: the others are away"):
        await propose(world, mine("a"))
    assert world.wires.asked == ["ana", "bo"]
    assert not world.member.status().has_quorum
    world.orders["ana"].fails_with = OutcomeUnknown("time is over")
    with pytest.raises(OutcomeUnknown):
        await propose(world, mine("a"))
    world.orders["ana"].fails_with = None
    world.orders["ana"].hangs = True
    with pytest.raises(OutcomeUnknown):
        await propose(world, mine("a"), timeout_ms=50)
    world.wires.services.clear()
    with pytest.raises(NoQuorum, match="does not serve"):
        await propose(world, mine("a"))


@in_loop
async def test_Q3_a_refusal_for_good_is_raised_unless_an_earlier_voter_may_have_it() -> None:
    world = World()
    world.orders["ana"].fails_with = DiskFull("no room")
    with pytest.raises(DiskFull):
        await propose(world, mine("a"))
    assert world.wires.asked == ["ana"]
    world.wires.asked.clear()
    world.orders["ana"].fails_with = OutcomeUnknown("time is over")
    world.orders["bo"].fails_with = DiskFull("no room")
    with pytest.raises(OutcomeUnknown, match="no room"):
        await propose(world, mine("a"))


@in_loop
async def test_Q3_what_is_committed_and_does_not_come_here_in_time_is_not_denied() -> None:
    world = World()
    with pytest.raises(OutcomeUnknown, match="commit 1"):
        await propose(world, mine("a"), timeout_ms=50)
    world.page()
    assert world.watch.number(MESH) == 1


@in_loop
async def test_Q7_an_intent_that_was_given_up_is_told_as_such() -> None:
    world = World()
    envelope = mine("a")
    gone = intent("intent.abandon", id_text(envelope.id), IntentAbandon(envelope.id), origin="dan")
    world.orders["ana"].commit(encode(gone))
    world.page()
    made = await propose(world, envelope)
    assert (made.outcome, made.reason, made.number) == (None, "intent_abandoned", None)


@in_loop
async def test_Q9_a_confirmed_read_waits_until_everything_before_it_is_folded_here() -> None:
    world = World()
    world.orders["ana"].commit(encode(mine("a")))
    asked = world.when(
        world.member.confirm(timeout_ms=PATIENCE_MS), lambda: bool(world.watch._waiting)
    )
    task = await asked
    assert not task.done()
    world.page()
    await task
    status = world.member.status()
    assert status.confirmed_ms is not None
    assert [(one.peer, one.place, one.leads) for one in status.members] == [("ana", "voter", True)]
    assert world.changes == 2  # a voter answered, and said who coordinates
    world.orders["ana"].commit(encode(mine("b")))
    with pytest.raises(NoQuorum, match="1 are here in time"):
        await world.member.confirm(timeout_ms=50)


@in_loop
async def test_Q9_a_node_that_has_diverged_never_says_that_it_is_fresh() -> None:
    world = World()
    world.orders["ana"].commit(encode(mine("a")))
    page = page_of(world.orders["ana"].engine.store)
    take(world.engine.store, with_record(page, 0, outcome=Outcome.SUPERSEDED, revisions=()))
    with pytest.raises(NotFresh, match="commit_diverged at commit 1"):
        await world.member.confirm(timeout_ms=PATIENCE_MS)
    assert world.member.status().problem == "commit_diverged at commit 1"


# --- the voter's side ----------------------------------------------------------------------------


@in_loop
async def test_Q11_only_members_with_the_right_may_ask_a_voter() -> None:
    world = World(grants=("read",))
    with pytest.raises(NotGranted):
        await propose(world, mine("a"))
    await world.member.confirm(timeout_ms=PATIENCE_MS)
    world.standing = MemberStanding("dan", ("write",))
    with pytest.raises(NotGranted):
        await world.member.confirm(timeout_ms=PATIENCE_MS)
    world.standing = None
    with pytest.raises(NotAMember):
        await propose(world, mine("a"))
    assert world.orders["ana"].proposed == 0


@in_loop
async def test_Q4_a_voter_proposes_only_what_its_asker_wrote_as_an_intent_of_this_mesh() -> None:
    world = World()
    with pytest.raises(ForgedOrigin):
        await propose(world, mission("a", origin="eve"))
    envelope = mine("a")
    for id, raw in (
        (b"x" * 16, encode(envelope)),
        (envelope.id, encode(msgspec.structs.replace(envelope, mesh="other"))),
        (envelope.id, encode(msgspec.structs.replace(envelope, state="committed"))),
        (envelope.id, b"\x90"),
    ):
        with pytest.raises(BadEnvelope):
            await world.member.propose(id, raw, timeout_ms=PATIENCE_MS)
    plain = state_set("k", "v")
    with pytest.raises(BadEnvelope):
        await world.member.propose(b"y" * 16, plain, timeout_ms=PATIENCE_MS)
    strange = intent("entity.unknown", "a", Nothing(), origin="dan")
    with pytest.raises(BadEnvelope):
        await propose(world, strange)
    assert [one.proposed for one in world.orders.values()] == [0, 0]
    world.standing = MemberStanding("dan", ("read", "write", "relay"))
    task = await world.when(
        propose(world, mission("a", origin="eve")), lambda: world.orders["ana"].proposed == 1
    )
    world.page()
    assert (await task).outcome is Outcome.APPLIED


@in_loop
async def test_Q4_a_voter_answers_no_more_at_a_time_than_it_has_room_for() -> None:
    world = World()
    world.orders["ana"].hangs = True
    service = world.wires.services["ana"][wire.CONFIRM]
    body = wire.encode(wire.ConfirmAsked(MESH, 1000))
    many = [asyncio.ensure_future(service(Asked(b"dan", body))) for _ in range(FORWARDED_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(TooMany):
        await service(Asked(b"dan", body))
    other = asyncio.ensure_future(service(Asked(b"eve", body)))
    await asyncio.sleep(0)
    assert not other.done(), "another member has room of its own"
    for one in (*many, other):
        one.cancel()
    await asyncio.gather(*many, other, return_exceptions=True)
    world.orders["ana"].hangs = False
    await service(Asked(b"dan", body))


def test_Q3_proposals_of_one_member_are_bounded_by_their_bytes() -> None:
    service = VoterService(engine_of("ana"), lambda mesh: None, lambda key, mesh: None)
    half, counts = FORWARDED_BYTES_MAX // 2, service._proposals
    with service._room(counts, b"dan", half), service._room(counts, b"dan", half):
        with pytest.raises(TooMany), service._room(counts, b"dan", 1):
            raise AssertionError("there is no room")
        with service._room(counts, b"eve", half), service._room(counts, b"dan", 0):
            pass
    with service._room(counts, b"dan", FORWARDED_BYTES_MAX):
        pass
    assert not service._bytes
    assert not counts


@in_loop
async def test_Q3_a_member_asks_a_voter_for_no_more_at_a_time_than_that_has_room_for() -> None:
    world = World()
    world.orders["ana"].hangs = True
    many = [
        asyncio.ensure_future(propose(world, mine(f"m{number}")))
        for number in range(FORWARDED_MAX + 10)
    ]
    while len(world.wires.asked) < FORWARDED_MAX:
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert world.wires.asked == ["ana"] * FORWARDED_MAX
    with pytest.raises(NoQuorum, match="earlier requests"):
        await propose(world, mine("late"), timeout_ms=1)
    many[0].cancel()
    while len(world.wires.asked) == FORWARDED_MAX:
        await asyncio.sleep(0)
    for one in many:
        one.cancel()
    await asyncio.gather(*many, return_exceptions=True)


@in_loop
async def test_Q4_a_node_that_takes_no_part_in_an_order_says_so_and_broken_words_are_refused() -> (
    None
):
    world = World()
    service = world.wires.services["ana"][wire.CONFIRM]
    with pytest.raises(NoVoters):
        await service(Asked(b"dan", wire.encode(wire.ConfirmAsked("other", 1000))))
    for body in (b"", b"\x90", wire.encode(["team", 0]), wire.encode(["team", 10**9])):
        with pytest.raises(BadAnswer):
            await service(Asked(b"dan", body))
