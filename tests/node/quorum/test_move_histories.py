"""What a mesh promises its users while it moves from one engine to the other: histories of clients,
reads that an order which has ended must not answer, and leases.
"""

from __future__ import annotations

import asyncio
import threading
from itertools import count
from pathlib import Path
from random import Random

import pytest

from holdfast.node.quorum.api import ReadDemand, StrongReceipt
from holdfast.node.quorum.etcd.orders import EtcdPlace
from holdfast.rules.bodies import Body, encode_body
from holdfast.rules.envelope import encode
from holdfast.rules.errors import HoldfastError, LeaseHeld, LeaseNotHeld, NoQuorum, NotFresh
from holdfast.rules.ids import parse_id
from holdfast.rules.quorum.intents import (
    MOVE,
    ORDER,
    Engine,
    LeaseAcquire,
    LeaseRelease,
    LeaseRenew,
    OrderMove,
)
from holdfast.rules.quorum.log_rows import TAG_BYTES
from holdfast.rules.quorum.order_move import has_not_begun
from holdfast.rules.quorum.view import LeaseRow
from holdfast.storage.ports import Transaction
from support.envelopes import MESH
from support.etcd_orders import new_scope
from support.linearizability import Call, Register, culprits, expect_linearizable, narrowed
from support.moved_nodes import (
    SOON_MS,
    check_fences,
    decoded,
    etcd_address,
    mission_put,
    refreshed,
    row_of,
    same,
    settled,
    title,
    write,
)
from support.quorum_state import intent
from support.seeds import seeds
from support.voter_nodes import VoterNode, until, voted

CLIENTS, KEYS, BETWEEN = 6, 2, 40
LONG_MS = 600_000


class MoveHistory:
    """Clients that read and write registers on all nodes, until they are told to stop."""

    def __init__(self, nodes: list[VoterNode], seed: int) -> None:
        self.nodes, self.random = nodes, Random(seed)
        self.calls: list[Call] = []
        self.ids: dict[bytes, int] = {}
        self.stop = asyncio.Event()
        self.refused = 0
        self._numbers = count()

    async def client(self, number: int) -> None:
        node = self.nodes[number % len(self.nodes)]
        while not self.stop.is_set():
            key = f"register-{self.random.randrange(KEYS)}"
            await (self._read if self.random.random() < 0.5 else self._write)(node, key)

    async def _read(self, node: VoterNode, key: str) -> None:
        clock, id = asyncio.get_running_loop().time, next(self._numbers)
        began = clock()
        try:
            await node.host.quorum.confirm(MESH, ReadDemand(), timeout_ms=1_000)
        except HoldfastError:
            self.refused += 1  # it says nothing, and so says nothing wrong
            return
        found = title(node, key)
        self.calls.append(Call(id, key, began, clock(), ("read",), found))

    async def _write(self, node: VoterNode, key: str) -> None:
        clock, id = asyncio.get_running_loop().time, next(self._numbers)
        began = clock()
        receipt = await write(node, key, f"{id}")
        self.ids[parse_id(receipt.id)] = id
        ended = clock() if receipt.state == "committed" else None
        call = Call(id, key, began, ended, ("write", f"{id}"), None, receipt.number)
        self.calls.append(call)

    async def goes_on(self) -> None:
        """Until everybody has done something again, and reads among it."""
        had = len(self.calls)
        await until(lambda: len(self.calls) > had + BETWEEN)

    def check(self, node: VoterNode) -> None:
        log = [(one.number, self.ids[one.id]) for one in decoded(node) if one.id in self.ids]
        committed = {id for _, id in log}
        expect_linearizable(narrowed(self.calls, committed), Register())
        writes = [call for call in self.calls if call.asked[0] == "write"]
        for key in {call.key for call in writes}:
            of_key = [call for call in writes if call.key == key]
            ids = {call.id for call in of_key}
            assert not culprits(of_key, [one for one in log if one[1] in ids], Register())


@pytest.mark.parametrize("seed", seeds(1))
def test_Q3_Q9_a_history_across_moves_in_both_directions_is_linearizable(
    tmp_path: Path, seed: int
) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        ana, bo, _, dee = nodes  # dee has no vote
        await ana.host.quorum.init(MESH, ("bo", "cy"))
        await write(ana, "begun", "yes")
        await until(lambda: title(dee, "begun") == "yes")
        history = MoveHistory(nodes, seed)
        clients = [asyncio.create_task(history.client(number)) for number in range(CLIENTS)]
        await history.goes_on()
        await bo.host.quorum.move(MESH, engine=etcd_address(new_scope()))
        await history.goes_on()
        await bo.host.quorum.move(MESH, ("ana", "cy"), engine="embedded")
        await history.goes_on()
        history.stop.set()
        await asyncio.gather(*clients)
        for node in nodes:
            await settled(node)
        await same(*nodes)
        history.check(dee)
        check_fences(dee)
        engines = {one.fence.incarnation for one in decoded(dee) if one.id in history.ids}
        assert engines == {1, 2, 3}, "each of the three orders has decided some of it"

    voted(tmp_path, story, "ana", "bo", "cy", "dee")


@pytest.mark.parametrize("engine", ["embedded", "etcd"])
def test_Q9_a_linearizable_read_is_refused_by_an_order_that_has_ended(
    tmp_path: Path, engine: str
) -> None:
    """Whoever asks after the end was committed gets no answer, because the next order may have
    come further: also if the end is folded only while the read waits.
    """

    async def story(nodes: list[VoterNode]) -> None:
        (ana,) = nodes
        named = "embedded" if engine == "embedded" else etcd_address(new_scope())
        await ana.host.quorum.init(MESH, (), engine=named)
        await write(ana, "m", "of the old order")
        order = ana.host._orders.own_order(MESH)
        assert order is not None
        await order.confirm(timeout_ms=SOON_MS)
        let_on, held = threading.Event(), threading.Event()

        def hold(tx: Transaction) -> None:
            held.set()
            assert let_on.wait(60)

        # Another write of this home has the store: nothing is folded meanwhile.
        holding = asyncio.create_task(asyncio.to_thread(ana.node._engine.write, "test", hold))
        reading = None
        try:
            await asyncio.to_thread(held.wait, 60)
            had = order.status().committed
            to: Engine = "etcd" if engine == "embedded" else "embedded"
            end = intent(MOVE, ORDER, OrderMove(1, to, b"t" * TAG_BYTES), origin="ana")
            ending = asyncio.create_task(order.propose(end.id, encode(end), timeout_ms=SOON_MS))
            await until(lambda: order.status().committed > had)
            waiting = order.status().waiting
            reading = asyncio.create_task(order.confirm(timeout_ms=SOON_MS))
            await until(lambda: order.status().waiting > waiting)
        finally:
            let_on.set()
            await holding
        assert (await ending).ends_order
        with pytest.raises(NoQuorum, match="another engine"):
            await reading
        with pytest.raises(NoQuorum):
            await order.confirm(timeout_ms=500)

    voted(tmp_path, story, "ana")


def lease_of(node: VoterNode) -> LeaseRow:
    row = node.node._engine.read("lease", lambda tx: tx.lease_get(MESH, "deploy"))
    return row or LeaseRow(name="deploy")


async def lease(node: VoterNode, verb: str, body: Body) -> StrongReceipt:
    return await node.host.quorum.intend(
        MESH, f"lease.{verb}", "deploy", encode_body(body), timeout_ms=SOON_MS
    )


def test_Q4_a_lease_stays_with_its_holder_across_a_move_and_fences_grow(tmp_path: Path) -> None:
    async def story(nodes: list[VoterNode]) -> None:
        ana, bo = nodes
        await ana.host.quorum.init(MESH, ("bo",))
        session = parse_id((await lease(bo, "acquire", LeaseAcquire(LONG_MS))).id)
        await same(ana, bo)
        held = lease_of(ana)
        grants, renewals = [held.grant], [held.renewed]
        for voters, engine in (((), etcd_address(new_scope())), (("bo",), "embedded")):
            await ana.host.quorum.move(MESH, voters, engine=engine)
            with pytest.raises(LeaseHeld):
                await lease(ana, "acquire", LeaseAcquire(LONG_MS))
            await lease(bo, "renew", LeaseRenew(session, LONG_MS))
            await same(ana, bo)
            kept = lease_of(ana)
            assert (kept.holder, kept.session) == ("bo", session)
            grants.append(kept.grant)
            renewals.append(kept.renewed)
        assert len(set(grants)) == 1, "what its holder shows to others is as it was"
        orders = [one.order for one in renewals if one is not None]
        assert [one.incarnation for one in orders] == [1, 2, 3]
        assert orders == sorted(orders)
        await lease(bo, "release", LeaseRelease(session))
        await lease(ana, "acquire", LeaseAcquire(LONG_MS))
        taken, first = lease_of(ana).grant, grants[0]
        assert taken is not None
        assert first is not None
        assert (lease_of(ana).holder, taken.order > first.order) == ("ana", True)
        with pytest.raises(LeaseNotHeld):
            await lease(bo, "renew", LeaseRenew(session, LONG_MS))

    voted(tmp_path, story, "ana", "bo")


def test_Q4_Q9_leases_and_reads_between_two_orders_wait_for_the_next(tmp_path: Path) -> None:
    """The old order has ended everywhere, and the node that begins the next one is held up."""

    async def story(nodes: list[VoterNode]) -> None:
        ana, bo = nodes
        await ana.host.quorum.init(MESH, ("bo",))
        session = parse_id((await lease(bo, "acquire", LeaseAcquire(LONG_MS))).id)
        etcd, go_on = ana.host._orders._etcd, asyncio.Event()
        keep_place = etcd.keep_place

        async def held_up(mesh: str, address: str, *, nonce: bytes | None = None) -> EtcdPlace:
            await go_on.wait()
            return await keep_place(mesh, address, nonce=nonce)

        etcd.keep_place = held_up  # type: ignore[method-assign]
        move = ana.host.quorum.move(MESH, engine=etcd_address(new_scope()))
        moving = asyncio.create_task(move)
        await until(lambda: all(has_not_begun(row_of(node)) for node in nodes))
        calls = [
            asyncio.create_task(call)
            for node in nodes
            for call in (
                lease(bo, "renew", LeaseRenew(session, LONG_MS)),
                node.host.quorum.confirm(MESH, ReadDemand(), timeout_ms=SOON_MS),
            )
        ]
        with pytest.raises(NotFresh):  # whoever has no time for it hears so
            await bo.host.quorum.confirm(MESH, ReadDemand(), timeout_ms=1)
        assert not any(call.done() for call in calls)
        go_on.set()
        await moving
        await asyncio.gather(*calls)
        await same(ana, bo)
        renewed = lease_of(bo).renewed
        assert renewed is not None
        assert renewed.order.incarnation == 2

    voted(tmp_path, story, "ana", "bo")


def test_Q6_a_write_of_a_member_without_a_vote_is_tried_again_when_voters_are_back(
    tmp_path: Path,
) -> None:
    """It hears of them only by asking, and nobody else asks here."""

    async def story(nodes: list[VoterNode]) -> None:
        ana, bo = nodes  # bo has no vote
        await refreshed(ana, bo)
        await ana.host.quorum.init(MESH, ())
        await write(ana, "m", "begun")
        await until(lambda: title(bo) == "begun")
        await ana.down()
        receipt = await bo.host.quorum.intend(
            MESH, "entity.change", "mission/m", mission_put("m", "waited"), timeout_ms=300
        )
        assert receipt.state == "queued"
        await ana.up()
        await settled(bo)
        assert title(bo) == "waited"

    voted(tmp_path, story, "ana", "bo")
