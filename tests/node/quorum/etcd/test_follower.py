"""Following an order in a real etcd: across compactions, restarts, and watches that go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
import pytest

from holdfast.node.quorum.etcd.follower import OrderFollower
from holdfast.node.quorum.etcd.forgetting import OrderForgetting
from holdfast.protocol.etcd_json import (
    COMPACTION,
    RANGE,
    WATCH,
    CompactionAnswer,
    CompactionRequest,
    RangeAnswer,
    RangeRequest,
)
from holdfast.rules.errors import QuorumSetBack, Truncated, UnknownMesh, Unreachable
from holdfast.rules.etcd.entry import START, OrderedEntry, OrderPoint
from holdfast.rules.limits import ETCD_FETCH_MAX, ETCD_LINE_BYTES_MAX
from support.etcd_orders import (
    ENOUGH_MS,
    MADE_MS,
    OrderNode,
    first_point,
    forward_lines,
    new_scope,
    order_nodes,
    run,
    take,
)
from support.etcd_server import etcd_server
from support.fake_etcd import FakeEtcd

QUIET_MS = 200


def _forgetting(node: OrderNode) -> OrderForgetting:
    return OrderForgetting(node.gateway, node.order, step_ms=ENOUGH_MS)


def test_Q9_a_follower_goes_on_from_the_point_that_it_has_seen() -> None:
    async def story() -> None:
        async with order_nodes(etcd_server().address()) as (node,):
            point = await first_point(node)
            await asyncio.gather(*(node.append(b"%d" % number) for number in range(20)))
            whole = await take(OrderFollower(node.gateway, node.order, point), 20)
            for at in (0, 7, 18):
                follower = OrderFollower(node.gateway, node.order, whole[at].point)
                assert await take(follower, 19 - at) == whole[at + 1 :]
                assert follower.seen == whole[-1].point
                assert follower.listings == 0

    run(story)


def test_Q9_large_entries_that_were_missed_come_in_lines_of_bounded_size() -> None:
    server, sizes = etcd_server(), list[int]()

    def measure(line: bytes) -> bytes:
        sizes.append(len(line))
        return line

    async def story() -> None:
        async with (
            order_nodes(server.address()) as (node,),
            FakeEtcd(forward_lines(server.ports[0], measure)) as fake,
        ):
            point = await first_point(node)
            bodies = [bytes([number]) * 200_000 for number in range(20)]
            for body in bodies:
                await node.append(body)
            address = f"etcd://127.0.0.1:{fake.port}?allow-old-version=yes"
            other = OrderNode(address, node.order.keys.scope, "ben")
            follower = OrderFollower(other.gateway, other.order, point)
            found = await take(follower, len(bodies))
            assert [entry.body for entry in found] == bodies
            assert follower.listings == 0
            assert max(sizes) < ETCD_LINE_BYTES_MAX // 4
            await other.gateway.close()

    run(story)


def test_Q9_behind_a_compaction_a_follower_lists_and_then_watches() -> None:
    async def story() -> None:
        async with order_nodes(etcd_server().address()) as (node,):
            count = 2 * ETCD_FETCH_MAX + 3
            await asyncio.gather(*(node.append(b"%d" % number) for number in range(count)))
            whole = await take(OrderFollower(node.gateway, node.order, START), count)
            # Something else moves the revision on, so that the last entry is older than it.
            await node.order.coordinate(timeout_ms=ENOUGH_MS)
            await node.order.coordinate(timeout_ms=ENOUGH_MS)
            await _compact_all(node)
            for point in (START, whole[4].point, whole[-1].point):
                follower = OrderFollower(node.gateway, node.order, point, quiet_ms=QUIET_MS)
                async with aclosing(follower.pieces()) as pieces:
                    rest = asyncio.ensure_future(_count(pieces, count - point.number + 1))
                    while not follower.listings:
                        await asyncio.sleep(0.005)
                    added = await node.append(b"after %d" % point.number)
                    entries = await rest
                assert entries[:-1] == whole[point.number :]
                assert entries[-1].point.position == added.position
                assert follower.listings == 1
                whole.append(entries[-1])
                count += 1
                await _compact_all(node)

    run(story)


async def _compact_all(node: OrderNode) -> None:
    """Up to the revision of the store, beyond the last entry."""
    until = asyncio.get_running_loop().time() + 30
    now = await node.gateway.call(RANGE, RangeRequest(key=b"k"), RangeAnswer, until=until)
    request = CompactionRequest(revision=str(now.header.revision))
    await node.gateway.call(COMPACTION, request, CompactionAnswer, until=until, writes=True)


async def _next(pieces: AsyncGenerator[tuple[OrderedEntry, ...], None]) -> list[OrderedEntry]:
    return list(await anext(pieces))


async def _count(
    pieces: AsyncGenerator[tuple[OrderedEntry, ...], None], count: int
) -> list[OrderedEntry]:
    found: list[OrderedEntry] = []
    while len(found) < count:
        found += await anext(pieces)
    return found


def test_Q9_a_follower_that_lags_behind_what_was_forgotten_needs_a_snapshot() -> None:
    async def story() -> None:
        async with order_nodes(etcd_server().address()) as (node,):
            points = [(await node.append(b"%d" % number)).position for number in range(6)]
            whole = await take(OrderFollower(node.gateway, node.order, START), 6)
            async for _ in _forgetting(node).forget(points[3], MADE_MS + 1):
                pass
            behind = OrderFollower(node.gateway, node.order, whole[2].point)
            with pytest.raises(Truncated) as gone:
                await take(behind, 1)
            assert gone.value.first_available == points[3] + 1
            await _compact_all(node)
            level = OrderFollower(node.gateway, node.order, whole[3].point)
            assert await take(level, 2) == whole[4:]
            assert level.listings == 1

    run(story)


def test_Q9_an_etcd_that_has_lost_entries_is_not_followed() -> None:
    async def story() -> None:
        async with order_nodes(etcd_server().address()) as (node,):
            at = (await node.append(b"x")).position
            for point in (OrderPoint(at + 1, 1), OrderPoint(at, 2)):
                with pytest.raises(QuorumSetBack):
                    await take(OrderFollower(node.gateway, node.order, point), 1)

    run(story)


def test_Q9_following_goes_on_when_the_member_that_is_watched_is_killed() -> None:
    """A follower of the leader: no write is under way, so that nothing can be lost."""
    server = etcd_server()

    async def story() -> None:
        first = next(at for at in range(3) if at != server.leader())
        others = [at for at in range(3) if at != first]
        async with order_nodes(server.address(first, *others), server.address(*others)) as nodes:
            follower = OrderFollower(nodes[0].gateway, nodes[0].order, START)
            async with aclosing(follower.pieces()) as pieces:
                await nodes[1].append(b"before")
                assert [entry.body for entry in await anext(pieces)] == [b"before"]
                server.kill(first)
                try:
                    await nodes[1].append(b"during")
                    assert [entry.body for entry in await anext(pieces)] == [b"during"]
                finally:
                    server.start_again(first)
                await nodes[1].append(b"after")
                assert [entry.body for entry in await anext(pieces)] == [b"after"]

    run(story)


def test_Q9_a_watch_that_falls_silent_is_left_for_another_member() -> None:
    server = etcd_server()
    swallowed = 0

    def swallow(line: bytes) -> bytes | None:
        nonlocal swallowed
        swallowed += b"events" in line
        return None if b"events" in line else line

    async def story() -> None:
        async with (
            order_nodes(server.address()) as (node,),
            FakeEtcd(forward_lines(server.ports[0], swallow)) as fake,
        ):
            places = f"127.0.0.1:{fake.port},127.0.0.1:{server.ports[1]}"
            address = f"etcd://{places}?allow-old-version=yes"
            other = OrderNode(address, node.order.keys.scope, "ben")
            point = await first_point(node)
            await node.append(b"x")
            follower = OrderFollower(other.gateway, other.order, point, quiet_ms=QUIET_MS)
            assert [entry.body for entry in await take(follower, 1)] == [b"x"]
            assert swallowed
            assert follower.listings == 0
            assert fake.paths.count(WATCH) == 1
            await other.gateway.close()

    run(story)


def test_Q9_a_watch_that_leaves_an_entry_out_is_replaced_by_a_listing() -> None:
    server = etcd_server()

    def thin_out(line: bytes) -> bytes | None:
        """Without the second entry, as if it had never been."""
        said = msgspec.json.decode(line)
        events = said["result"].get("events", [])
        second = {event["kv"]["mod_revision"] for event in events[2:4]}
        kept = [event for event in events if event["kv"]["mod_revision"] not in second]
        said["result"]["events"] = kept
        return msgspec.json.encode(said)

    async def story() -> None:
        async with (
            order_nodes(server.address()) as (node,),
            FakeEtcd(forward_lines(server.ports[0], thin_out)) as fake,
        ):
            point = await first_point(node)
            for number in range(5):
                await node.append(b"%d" % number)
            address = f"etcd://127.0.0.1:{fake.port}?allow-old-version=yes"
            other = OrderNode(address, node.order.keys.scope, "ben")
            follower = OrderFollower(other.gateway, other.order, point)
            found = await take(follower, 5)
            assert [entry.body for entry in found] == [b"%d" % number for number in range(5)]
            assert follower.listings == 1
            await other.gateway.close()

    run(story)


def test_Q9_a_follower_that_reaches_nobody_says_so() -> None:
    async def story() -> None:
        async with order_nodes(etcd_server().address()) as (node,):
            scope, point = node.order.keys.scope, await first_point(node)
        async with FakeEtcd(forward_lines(etcd_server().ports[0], lambda line: line)) as fake:
            address = f"etcd://127.0.0.1:{fake.port}?allow-old-version=yes"
            other = OrderNode(address, scope, "ben")
            follower = OrderFollower(other.gateway, other.order, point, patience_ms=300)
            async with aclosing(follower.pieces()) as pieces:
                coming = asyncio.ensure_future(_next(pieces))
                while WATCH not in fake.paths:
                    await asyncio.sleep(0.005)
                await fake.__aexit__(None, None, None)
                with pytest.raises(Unreachable):
                    await coming
            await other.gateway.close()

    run(story)


def test_Q9_an_order_that_nobody_began_cannot_be_followed() -> None:
    async def story() -> None:
        node = OrderNode(etcd_server().address(), new_scope(), "ana")
        with pytest.raises(UnknownMesh):
            await take(OrderFollower(node.gateway, node.order, START), 1)
        await node.gateway.close()

    run(story)
