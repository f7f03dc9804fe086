"""Forgetting entries of an order, and what that means for those who come late."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.node.quorum.etcd import transactions
from holdfast.node.quorum.etcd.follower import OrderFollower
from holdfast.node.quorum.etcd.forgetting import OrderForgetting
from holdfast.protocol.etcd_json import TXN, TxnAnswer
from holdfast.rules.errors import PastEnd, TooOld
from holdfast.rules.etcd.entry import START, StoredEntry
from holdfast.rules.ids import uuid8
from holdfast.rules.limits import ETCD_DELETES_MAX
from support.etcd_orders import ENOUGH_MS, MADE_MS, OrderNode, new_id, order_nodes, run, take
from support.etcd_server import etcd_server


async def _forget(node: OrderNode, upto: int, ids_before_ms: int) -> list[int]:
    forgetting = OrderForgetting(node.gateway, node.order, step_ms=ENOUGH_MS)
    return [count async for count in forgetting.forget(upto, ids_before_ms)]


def test_Q3_old_entries_are_forgotten_in_bounded_steps_and_the_order_goes_on() -> None:
    async def story() -> None:
        async with order_nodes(etcd_server().address()) as (node,):
            count = ETCD_DELETES_MAX + 20
            old = [new_id(MADE_MS + number) for number in range(count)]
            computed = uuid8(new_id()[::-1])
            await asyncio.gather(*(node.append(b"old", id) for id in old))
            middle = (await node.append(b"computed", computed)).position
            young = new_id(MADE_MS + count)
            last = await node.append(b"young", young)
            seen = (await take(OrderFollower(node.gateway, node.order, START), count + 2))[-1]
            steps = await _forget(node, middle, MADE_MS + count)
            assert max(steps) <= ETCD_DELETES_MAX
            assert sum(steps) == count
            assert sum(await _forget(node, middle, MADE_MS + count)) == 0
            for id, stays in ((old[0], False), (old[-1], False), (computed, True), (young, True)):
                found = await node.order.find(id, timeout_ms=ENOUGH_MS)
                assert (found is not None) is stays
            added = await node.append(b"more", new_id(MADE_MS + count))
            entries = await take(OrderFollower(node.gateway, node.order, seen.point), 1)
            assert seen.point.position == last.position
            assert entries[0].point == (added.position, count + 3)

    run(story)


def test_Q3_an_id_that_was_forgotten_is_refused_and_not_appended_twice() -> None:
    async def story() -> None:
        async with order_nodes(etcd_server().address(), etcd_server().address()) as (node, other):
            id = new_id()
            state = (await other.order.end(timeout_ms=ENOUGH_MS)).state
            entry = StoredEntry(1, state.incarnation, state.epoch, "n0", "entry", b"of x", b"x")
            at = (await node.append(b"x", id)).position
            assert await _forget(node, at, MADE_MS + 1) == [1]
            for late in (other, node):  # the first one has not heard of it
                with pytest.raises(TooOld):
                    await late.append(b"x", id)
            # The very bytes that were sent before, arriving again.
            request = transactions.append(other.order.keys, id, entry, state)
            until = asyncio.get_running_loop().time() + 30
            answer = await other.gateway.call(TXN, request, TxnAnswer, until=until, writes=True)
            assert not answer.succeeded
            assert (await node.order.end(timeout_ms=ENOUGH_MS)).point.number == 1
            # Younger ids are appended by whoever has not heard of it too.
            await other.append(b"y", new_id(MADE_MS + 1))

    run(story)


def test_Q3_compacting_twice_is_compacting_once_and_never_beyond_the_end() -> None:
    async def story() -> None:
        async with order_nodes(etcd_server().address()) as (node,):
            at = (await node.append(b"x")).position
            forgetting = OrderForgetting(node.gateway, node.order, step_ms=ENOUGH_MS)
            await forgetting.compact(at)
            await forgetting.compact(at)
            with pytest.raises(PastEnd):
                await forgetting.compact(at + 1)
            with pytest.raises(PastEnd):
                await _forget(node, at + 1, MADE_MS)

    run(story)
