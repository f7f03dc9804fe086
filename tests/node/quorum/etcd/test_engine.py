"""An order in a real etcd of three members."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from holdfast.node.quorum.etcd import transactions
from holdfast.node.quorum.etcd.follower import OrderFollower
from holdfast.protocol.etcd_json import TXN, TxnAnswer
from holdfast.rules.errors import (
    AlreadyExists,
    BadId,
    BodyTooLarge,
    EtcdRefused,
    IdReused,
    OutcomeUnknown,
    UnknownMesh,
    Unreachable,
)
from holdfast.rules.etcd.entry import (
    START,
    HeldKey,
    StoredEntry,
    StoredEpoch,
    StoredIncarnation,
    pack,
)
from holdfast.rules.etcd.outcome import EntryAbandoned, EntryAppended, EntryFenced
from holdfast.rules.limits import ETCD_ENTRY_BYTES_MAX
from support.etcd_orders import (
    ENOUGH_MS,
    OrderNode,
    forward,
    new_id,
    new_scope,
    order_nodes,
    run,
    take,
)
from support.etcd_server import etcd_server
from support.fake_etcd import Asked, FakeEtcd, Said

APPENDERS = 64
EACH = 4


def test_Q3_an_order_is_begun_once_and_led_before_it_is_written() -> None:
    async def story() -> None:
        node = OrderNode(etcd_server().address(), new_scope(), "ana")
        order = node.order
        with pytest.raises(UnknownMesh):
            await order.end(timeout_ms=ENOUGH_MS)
        await order.begin(7, epoch_base=100, timeout_ms=ENOUGH_MS)
        with pytest.raises(AlreadyExists):
            await order.begin(8, timeout_ms=ENOUGH_MS)
        with pytest.raises(EtcdRefused):
            await node.append(b"nobody leads")
        led = await order.coordinate(timeout_ms=ENOUGH_MS)
        assert (led.incarnation, led.epoch, led.coordinator) == (7, 101, "ana")
        got = await node.append(b"first")
        assert (got.incarnation, got.epoch, got.coordinator) == (7, 101, "ana")
        assert (await order.end(timeout_ms=ENOUGH_MS)).point == (got.position, 1)
        await node.gateway.close()

    run(story)


def test_Q3_an_entry_is_appended_once_however_often_it_is_sent() -> None:
    async def story() -> None:
        async with order_nodes(etcd_server().address(), etcd_server().address(1)) as (a, b):
            id = new_id()
            first = await a.append(b"x", id)
            again = await b.append(b"x", id)
            assert (first.already, again.already) == (False, True)
            assert again.position == first.position
            with pytest.raises(IdReused):
                await b.append(b"other", id)
            assert (await a.order.end(timeout_ms=ENOUGH_MS)).point.number == 1
            found = await b.order.find(id, timeout_ms=ENOUGH_MS)
            assert found is not None
            assert (found.body, found.point.position) == (b"x", first.position)

    run(story)


def test_Q4_a_coordinator_that_was_replaced_appends_nothing_any_more() -> None:
    async def story() -> None:
        async with order_nodes(etcd_server().address(), etcd_server().address(2)) as (old, new):
            before = (await old.order.end(timeout_ms=ENOUGH_MS)).state
            after = await new.order.coordinate(timeout_ms=ENOUGH_MS)
            assert after.epoch == before.epoch + 1
            id = new_id()
            got = await old.order.append(id, b"f", b"late", timeout_ms=ENOUGH_MS, under=before)
            assert got == EntryFenced(after)
            assert await new.order.find(id, timeout_ms=ENOUGH_MS) is None
            # Whoever does not coordinate appends under the epoch that there is.
            assert (await old.append(b"x", id)).coordinator == "n1"

    run(story)


def test_Q4_a_write_that_was_under_way_when_the_epoch_changed_never_commits() -> None:
    """The bytes that a paused node sends when it wakes up."""

    async def story() -> None:
        async with order_nodes(etcd_server().address(), etcd_server().address()) as (old, new):
            state = (await old.order.end(timeout_ms=ENOUGH_MS)).state
            entry = StoredEntry(1, state.incarnation, state.epoch, "n0", "entry", b"f", b"late")
            id = new_id()
            late = transactions.append(old.order.keys, id, entry, state)
            await new.order.coordinate(timeout_ms=ENOUGH_MS)
            until = asyncio.get_running_loop().time() + 30
            answer = await old.gateway.call(TXN, late, TxnAnswer, until=until, writes=True)
            assert not answer.succeeded
            assert await new.order.find(id, timeout_ms=ENOUGH_MS) is None

    run(story)


def test_Q4_an_etcd_that_fences_without_end_is_left_at_the_deadline() -> None:
    born = pack(StoredIncarnation(1, 1, 0, b"n"))
    led = pack(StoredEpoch(1, "ana", b"n"))

    def said(count: int) -> Said:
        held = (
            HeldKey(b"n", born, 1, 1),
            HeldKey(b"f", led, count, count),
            None,
        )
        keys = [
            {"kvs": [{"key": k.key, "value": k.value, "version": str(k.version)}]} if k else {}
            for k in held
        ]
        ranges = [{"response_range": key} for key in keys]
        return Said(200, msgspec.json.encode({"responses": [*ranges, {"response_range": {}}]}))

    async def story() -> None:
        count = 0

        async def fencing(asked: Asked, writer: asyncio.StreamWriter) -> Said | None:
            nonlocal count
            count += 1
            # An append reads its own key first, the end of the order its last one last.
            answer = said(count)
            if b"request_put" not in asked.body:
                return answer
            found = msgspec.json.decode(answer.body)["responses"]
            return Said(200, msgspec.json.encode({"responses": [found[-1], *found[:-1]]}))

        async with FakeEtcd(fencing) as fake:
            node = OrderNode(f"etcd://127.0.0.1:{fake.port}", new_scope(), "ana")
            with pytest.raises((Unreachable, OutcomeUnknown)):
                await node.order.append(new_id(), b"f", b"x", timeout_ms=300)
            assert count > 2
            await node.gateway.close()

    run(story)


def test_Q6_an_id_that_was_given_up_is_void_for_ever_unless_it_was_committed() -> None:
    async def story() -> None:
        async with order_nodes(etcd_server().address(), etcd_server().address()) as (a, b):
            void, kept = new_id(), new_id()
            given_up = await a.order.give_up(void, timeout_ms=ENOUGH_MS)
            assert isinstance(given_up, EntryAbandoned)
            late = await b.order.append(void, b"f", b"late", timeout_ms=ENOUGH_MS)
            assert late == given_up
            stands = await a.append(b"x", kept)
            too_late = await b.order.give_up(kept, timeout_ms=ENOUGH_MS)
            assert isinstance(too_late, EntryAppended)
            assert too_late.position == stands.position
            entries = await take(OrderFollower(a.gateway, a.order, START), 2)
            assert [(entry.id, entry.kind) for entry in entries] == [
                (void, "abandoned"),
                (kept, "entry"),
            ]

    run(story)


def test_Q3_a_lost_answer_is_made_up_for_by_asking_again() -> None:
    """A member does what it was asked for, and its answers are lost."""
    server = etcd_server()

    async def story() -> None:
        lost = forward(server.ports[0], lose=lambda asked: asked.path == TXN)
        async with FakeEtcd(lost) as fake:
            places = f"127.0.0.1:{fake.port},127.0.0.1:{server.ports[1]}"
            node = OrderNode(f"etcd://{places}?allow-old-version=yes", new_scope(), "ana")
            await node.order.begin(1, timeout_ms=ENOUGH_MS)
            node.gateway.suspect()
            led = await node.order.coordinate(timeout_ms=ENOUGH_MS)
            assert led.epoch == 1
            node.gateway.suspect()
            got = await node.append(b"x")
            assert got.already
            assert (await node.order.end(timeout_ms=ENOUGH_MS)).point == (got.position, 1)
            assert len(fake.asked) >= 3
            await node.gateway.close()

    run(story)


def test_Q3_a_raised_epoch_whose_answer_was_lost_is_not_raised_again() -> None:
    server = etcd_server()

    async def story() -> None:
        raised = 0

        def is_raise(asked: Asked) -> bool:
            nonlocal raised
            raised += b"request_put" in asked.body
            return b"request_put" in asked.body

        async with (
            order_nodes(server.address()) as (node,),
            FakeEtcd(forward(server.ports[0], lose=is_raise)) as fake,
        ):
            places = f"127.0.0.1:{fake.port},127.0.0.1:{server.ports[1]}"
            address = f"etcd://{places}?allow-old-version=yes"
            second = OrderNode(address, node.order.keys.scope, "ben")
            led = await second.order.coordinate(timeout_ms=ENOUGH_MS)
            assert (led.epoch, led.coordinator) == (2, "ben")
            assert raised >= 1
            assert (await node.order.end(timeout_ms=ENOUGH_MS)).state == led
            await second.gateway.close()

    run(story)


def test_Q3_many_appenders_at_many_members_make_one_order_that_all_see() -> None:
    server = etcd_server()

    async def story() -> None:
        async with order_nodes(*(server.address(at) for at in range(3))) as nodes:
            followers = [
                asyncio.ensure_future(
                    take(OrderFollower(node.gateway, node.order, START), APPENDERS * EACH)
                )
                for node in nodes
            ]

            async def appender(number: int) -> list[int]:
                node = nodes[number % 3]
                return [
                    (await node.append(b"%d.%d" % (number, turn))).position for turn in range(EACH)
                ]

            places = await asyncio.gather(*(appender(number) for number in range(APPENDERS)))
            orders = await asyncio.gather(*followers)
            assert orders[0] == orders[1] == orders[2]
            assert [entry.point.number for entry in orders[0]] == list(
                range(1, APPENDERS * EACH + 1)
            )
            by_place = {entry.point.position: entry.body for entry in orders[0]}
            assert len(by_place) == APPENDERS * EACH
            for number, positions in enumerate(places):
                assert positions == sorted(positions)
                assert [by_place[at] for at in positions] == [
                    b"%d.%d" % (number, turn) for turn in range(EACH)
                ]

    run(story)


def test_Q9_whoever_reads_at_the_end_of_the_order_sees_what_was_acknowledged_before() -> None:
    server = etcd_server()

    async def story() -> None:
        async with order_nodes(server.address(0), server.address(1)) as (writer, reader):
            for turn in range(10):
                got = await writer.append(b"%d" % turn)
                end = await reader.order.end(timeout_ms=ENOUGH_MS)
                assert end.point == (got.position, turn + 1)

    run(story)


def test_Q3_what_cannot_be_appended_is_refused_before_it_is_sent() -> None:
    async def story() -> None:
        async with order_nodes(etcd_server().address()) as (node,):
            with pytest.raises(BodyTooLarge):
                await node.append(bytes(ETCD_ENTRY_BYTES_MAX + 1))
            for id in (b"", bytes(16), b"x" * 17):
                with pytest.raises(BadId):
                    await node.order.append(id, b"", b"", timeout_ms=ENOUGH_MS)
            with pytest.raises(Unreachable):
                await node.order.append(new_id(), b"f", b"too late", timeout_ms=0)
            await node.append(bytes(ETCD_ENTRY_BYTES_MAX))
            assert (await node.order.end(timeout_ms=ENOUGH_MS)).point.number == 1

    run(story)
