"""Requests and replies: answered, refused, cancelled, too late, asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from holdfast.bus import serving
from holdfast.bus.bus import Bus
from holdfast.bus.credit import Credit
from holdfast.bus.lane import Outgoing
from holdfast.bus.memory_store import MemoryMeshStore
from holdfast.bus.received import ReceivedRequest
from holdfast.protocol.bus_frames import FrameKind, Stream
from holdfast.rules.bus.mesh_store import ArrivalVerdict, SignedArrival
from holdfast.rules.bus.message import BusMessage, MessageKind
from holdfast.rules.errors import (
    BadValue,
    BusClosed,
    HandlerRefused,
    NoResponder,
    RequestCancelled,
    RequestRefused,
    RequestTimedOut,
)
from holdfast.service.clock import SystemClock
from support.bus_pairs import bound, join, run


async def _pair() -> tuple[Bus, Bus]:
    return await bound("ana", "ben"), await bound("ben", "ana")


def test_B5_a_request_gets_its_reply() -> None:
    async def story() -> None:
        ana, ben = await _pair()

        @ben.serve("shout")
        async def shout(request: ReceivedRequest) -> str:
            assert (request.sender, request.service) == ("ana", "shout")
            assert request.remaining_ms is not None
            assert 0 < request.remaining_ms <= 30_000
            return request.text.upper()

        await join(ana, ben)
        reply = await ana.request("ben", "shout", "hello")
        assert (reply.text, reply.peer) == ("HELLO", "ben")
        assert ana.status().asking == 0
        await ana.close()
        assert await ana.router.context.store.outbox_requests() == []
        await ben.close()

    run(story())


class _Noting(MemoryMeshStore):
    """Knows in which order messages came."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[MessageKind] = []

    async def accept(
        self,
        peer: bytes,
        arrivals: Sequence[SignedArrival],
        *,
        window: bool = False,
        name: str = "",
    ) -> list[ArrivalVerdict]:
        self.kinds.extend(arrival.message.kind for arrival in arrivals)
        return await super().accept(peer, arrivals, window=window, name=name)


def test_B4_a_request_that_could_go_at_once_overtakes_no_message_of_its_priority() -> None:
    async def story() -> None:
        store = _Noting()
        ana, ben = await bound("ana", "ben"), await bound("ben", "ana", store=store)

        @ben.serve("shout")
        async def shout(request: ReceivedRequest) -> str:
            return request.text.upper()

        await join(ana, ben)
        await ana.request("ben", "shout", "goes alone")
        store.kinds.clear()
        async with ben.subscribe():
            await asyncio.gather(ana.send("ben", "first"), ana.request("ben", "shout", "second"))
        assert store.kinds == [MessageKind.SEND, MessageKind.REQUEST]
        await ana.close()
        await ben.close()

    run(story())


def test_B5_nobody_serves_it_is_told_at_once_and_errors_come_with_their_code() -> None:
    async def story() -> None:
        ana, ben = await _pair()

        async def refuse(request: ReceivedRequest) -> bytes:
            raise BadValue("not like this")

        async def fail(request: ReceivedRequest) -> bytes:
            raise ZeroDivisionError("a secret")

        ben.serve("refuse", refuse)
        ben.serve("fail", fail)
        await join(ana, ben)
        with pytest.raises(NoResponder, match="does not serve nothing"):
            await ana.request("ben", "nothing", timeout_ms=60_000)
        with pytest.raises(RequestRefused, match="bad_value: not like this"):
            await ana.request("ben", "refuse")
        with pytest.raises(RequestRefused, match="handler_failed") as caught:
            await ana.request("ben", "fail")
        assert "secret" not in str(caught.value)
        await ana.ping("ben")
        assert ana.status().peers[0].sent == 3, "what was answered is not cancelled"
        await ana.close()
        await ben.close()

    run(story())


def test_B5_timeout_and_cancellation_of_the_caller_cancel_the_handler() -> None:
    async def story() -> None:
        ana, ben = await _pair()
        began, ended = asyncio.Queue[bytes](), asyncio.Queue[bytes]()

        async def sleep(request: ReceivedRequest) -> bytes:
            began.put_nowait(request.id)
            try:
                await asyncio.Event().wait()
            finally:
                ended.put_nowait(request.id)
            return b""

        ben.serve("sleep", sleep)
        await join(ana, ben)
        caller = asyncio.create_task(ana.request("ben", "sleep"))
        first = await began.get()
        caller.cancel()
        assert await ended.get() == first
        with pytest.raises(asyncio.CancelledError):
            await caller
        caller = asyncio.create_task(ana.request("ben", "sleep"))
        second = await began.get()
        ana.cancel(second)
        with pytest.raises(RequestCancelled):
            await caller
        assert await ended.get() == second
        with pytest.raises(RequestTimedOut):
            await ana.request("ben", "sleep", timeout_ms=30)
        assert await ended.get() == await began.get()
        while ben.status().handling:
            await asyncio.sleep(0)
        await ana.close()
        await ben.close()

    run(story())


def test_B5_a_request_whose_link_is_lost_is_asked_again_and_done_once() -> None:
    async def story() -> None:
        ana, ben = await _pair()
        done: list[bytes] = []
        go = asyncio.Event()

        async def count(request: ReceivedRequest) -> str:
            done.append(request.id)
            await go.wait()
            return f"{len(done)} times"

        ben.serve("count", count)
        link = await join(ana, ben)
        caller = asyncio.create_task(ana.request("ben", "count"))
        while not done or ana.status().peers[0].under_way:
            await asyncio.sleep(0)  # until it is acknowledged
        await ana.router.context.tidy()
        assert len(await ana.router.context.store.outbox_requests()) == 1
        link.cut()
        link = await join(ana, ben)
        while not ben.status().counts.get("requests_again"):
            await asyncio.sleep(0)
        link.other.is_held = True  # the reply is lost too
        go.set()
        while ben.status().counts.get("replies", 0) < 1:
            await asyncio.sleep(0)
        link.cut()
        await join(ana, ben)
        assert (await caller).text == "1 times"
        assert len(done) == 1
        assert (await ana.request("ben", "count", id=done[0])).text == "1 times"
        await ana.close()
        await ben.close()

    run(story())


def test_B5_outstanding_requests_are_known_after_a_restart_and_asked_again_with_their_id() -> None:
    async def story() -> None:
        store, done = MemoryMeshStore(), list[bytes]()
        ben = await bound("ben", "ana")
        ana = await bound("ana", "ben", store=store)
        caller = asyncio.create_task(ana.request("ben", "work", b"data"))
        while not await store.outbox_requests():
            await asyncio.sleep(0)
        await ana.close()
        with pytest.raises(BusClosed):
            await caller

        async def work(request: ReceivedRequest) -> bytes:
            done.append(request.id)
            return request.body[::-1]

        ben.serve("work", work)
        ana = await bound("ana", "ben", store=store)
        await join(ana, ben)
        assert (await ana.send("ben", "see that the link works")).state == "delivered"
        (request,) = ana.outstanding()
        assert (request.peer, request.service, request.body) == ("ben", "work", b"data")
        assert done == []  # nobody has asked for it again
        assert (await ana.reissue(request.id)).body == b"atad"
        assert done == [request.id]
        assert ana.outstanding() == []
        await ana.close()
        assert await store.outbox_requests() == []
        await ben.close()

    run(story())


def test_B5_any_peer_that_serves_it_answers_and_another_one_when_it_is_lost() -> None:
    async def story() -> None:
        ana = await bound("ana", "ben", "cat", "dan")
        others = {name: await bound(name, "ana") for name in ("ben", "cat", "dan")}
        asked: list[str] = []
        stuck = asyncio.Event()

        def serve(bus: Bus) -> None:
            async def work(request: ReceivedRequest) -> str:
                asked.append(bus.name)
                if request.text == "stuck" and not stuck.is_set():
                    stuck.set()
                    await asyncio.Event().wait()
                return bus.name

            bus.serve("work", work)

        serve(others["ben"])
        serve(others["cat"])
        links = {name: await join(ana, bus) for name, bus in others.items()}
        for _ in range(10):
            await ana.request(None, "work")
        assert sorted(asked) == ["ben"] * 5 + ["cat"] * 5  # fair, and never dan
        caller = asyncio.create_task(ana.request(None, "work", "stuck"))
        await stuck.wait()
        lost = asked[-1]
        links[lost].cut()
        assert (await caller).peer == {"ben": "cat", "cat": "ben"}[lost]
        with pytest.raises(NoResponder):
            await ana.request(None, "nothing", wait_ms=1)
        for bus in (ana, *others.values()):
            await bus.close()

    run(story())


def test_B5_only_the_peer_that_was_asked_may_answer() -> None:
    async def story() -> None:
        ana = await bound("ana", "ben", "cat")
        ben, cat = await bound("ben", "ana"), await bound("cat", "ana")
        go = asyncio.Event()

        async def work(request: ReceivedRequest) -> bytes:
            await go.wait()
            return b"honest"

        ben.serve("work", work)
        await join(ana, ben)
        await join(ana, cat)
        id = SystemClock().new_id()
        caller = asyncio.create_task(ana.request("ben", "work", id=id))
        forged = BusMessage(
            id=SystemClock().new_id(), kind=MessageKind.REPLY, correlation=id, body=b"forged"
        )
        while not ana.status().asking or not await cat.connected("ana"):
            await asyncio.sleep(0)
        cat.router.lane_of("ana").put_passing(Outgoing(forged, None))
        while not ana.status().counts.get("unknown_replies"):
            await asyncio.sleep(0)
        go.set()
        assert (await caller).body == b"honest"
        late = BusMessage(
            id=SystemClock().new_id(), kind=MessageKind.REPLY, correlation=id, body=b"late"
        )
        ben.router.lane_of("ana").put_passing(Outgoing(late, None))
        while not ana.status().counts.get("late_replies"):
            await asyncio.sleep(0)
        for bus in (ana, ben, cat):
            await bus.close()

    run(story())


def test_B5_another_peer_cannot_answer_a_request_of_an_earlier_life() -> None:
    async def story() -> None:
        store = MemoryMeshStore()
        ana = await bound("ana", "ben", "cat", store=store)
        ben, cat = await bound("ben", "ana"), await bound("cat", "ana")
        caller = asyncio.create_task(ana.request("ben", "work", timeout_ms=3000))
        while not await store.outbox_requests():
            await asyncio.sleep(0)
        await ana.close()
        with pytest.raises(BusClosed):
            await caller

        async def work(request: ReceivedRequest) -> bytes:
            return b"honest"

        ben.serve("work", work)
        ana = await bound("ana", "ben", "cat", store=store)
        await join(ana, ben)
        await join(ana, cat)
        (request,) = ana.outstanding()
        forged = BusMessage(
            id=SystemClock().new_id(),
            kind=MessageKind.REPLY,
            correlation=request.id,
            body=b"forged",
        )
        assert (await cat.send("ana", "see that the link works")).state == "delivered"
        cat.router.lane_of("ana").put_passing(Outgoing(forged, None))
        while not ana.status().counts.get("late_replies"):
            await asyncio.sleep(0)
        assert (await ana.reissue(request.id)).body == b"honest"
        for bus in (ana, ben, cat):
            await bus.close()

    run(story())


class _SlowToReserve(MemoryMeshStore):
    """Its disk takes a while to hand out numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = asyncio.Event()

    async def reserve(self, count: int, above: int = 0) -> range:
        await self.ready.wait()
        return await super().reserve(count, above)


def test_B5_a_request_that_comes_before_we_can_answer_is_answered_afterwards() -> None:
    async def story() -> None:
        store = _SlowToReserve()
        ana, ben = await bound("ana", "ben"), await bound("ben", "ana", store=store)
        await join(ana, ben)
        asked = asyncio.ensure_future(ana.request("ben", "dance", timeout_ms=20_000))
        await asyncio.sleep(0.05)
        assert not asked.done()
        store.ready.set()
        with pytest.raises(NoResponder):
            await asked
        await ana.close()
        await ben.close()

    run(story())


def test_B5_a_handler_refuses_with_a_code_of_its_own() -> None:
    async def story() -> None:
        ana, ben = await _pair()

        @ben.serve("count")
        async def count(request: ReceivedRequest) -> bytes:
            raise HandlerRefused("x is no number", code="no_number")

        await join(ana, ben)
        with pytest.raises(RequestRefused, match=r"^no_number: x is no number$"):
            await ana.request("ben", "count", "x")
        await ana.close()
        await ben.close()

    run(story())


def test_B5_a_request_whose_time_ran_out_in_the_queue_is_not_begun() -> None:
    async def story() -> None:
        ana, ben = await _pair()
        begun: list[str] = []
        go_on = asyncio.Event()

        async def one_by_one(request: ReceivedRequest) -> str:
            begun.append(request.text)
            await go_on.wait()
            return "done"

        ben.serve("slow", one_by_one, most=1)
        near = await join(ana, ben)
        first = asyncio.create_task(ana.request("ben", "slow", "first"))
        while not begun:
            await asyncio.sleep(0)
        second = asyncio.create_task(ana.request("ben", "slow", "second", timeout_ms=50))
        while ben.status().peers[0].received != 2:
            await asyncio.sleep(0)
        over_at = asyncio.get_running_loop().time() + 0.05  # it came before now, with less left
        near.drops = lambda kind: kind is FrameKind.PARCEL  # so that no cancel comes
        with pytest.raises(RequestTimedOut):
            await second
        while asyncio.get_running_loop().time() <= over_at:
            await asyncio.sleep(0.01)
        go_on.set()
        while ben.status().handling:
            await asyncio.sleep(0)
        assert begun == ["first"]
        assert ben.status().counts["handlers_too_late"] == 1
        await join(ana, ben)
        assert (await first).text == "done"
        for bus in (ana, ben):
            await bus.close()

    run(story())


def test_B5_a_handler_ends_when_the_time_of_an_asker_that_is_gone_is_over() -> None:
    async def story() -> None:
        ana, ben = await _pair()
        begun, ended = asyncio.Event(), asyncio.Event()

        @ben.serve("dig")
        async def dig(request: ReceivedRequest) -> bytes:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return b""

        @ben.serve("late")
        async def late(request: ReceivedRequest) -> bytes:
            raise TimeoutError

        await join(ana, ben)
        with pytest.raises(RequestRefused, match="handler_failed"):
            await ana.request("ben", "late")
        asking = asyncio.create_task(ana.request("ben", "dig", timeout_ms=500))
        await begun.wait()
        await ana.close()  # without a word about the request: it may be asked again
        with pytest.raises(BusClosed):
            await asking
        assert not ended.is_set()
        await ended.wait()
        while ben.status().handling:
            await asyncio.sleep(0)
        counts = ben.status().counts
        assert counts["handlers_too_late"] == 1
        assert (counts.get("handlers_cancelled", 0), counts["handlers_failed"]) == (0, 1)
        await ben.close()

    run(story())


def test_B5_an_asker_that_floods_a_service_leaves_others_their_turn() -> None:
    async def story() -> None:
        ana, ben = await bound("ana", "ben"), await bound("ben", "ana", "eve")
        eve = await bound("eve", "ben")
        await join(ana, ben)
        await join(eve, ben)
        asked: list[str] = []
        gate = asyncio.Semaphore(0)

        async def slow(request: ReceivedRequest) -> bytes:
            asked.append(request.sender)
            await gate.acquire()
            return b"done"

        ben.serve("slow", slow, most=1)
        flood = [asyncio.ensure_future(eve.request("ben", "slow", b"x")) for _ in range(200)]
        while len(ben.router.serving._queued) < 199:
            await asyncio.sleep(0)
        mine = [asyncio.ensure_future(ana.request("ben", "slow", b"y")) for _ in range(2)]
        while len(ben.router.serving._queued) < 201:
            await asyncio.sleep(0)
        for _ in range(5):
            gate.release()
        await asyncio.gather(*mine)
        assert asked[:5] == ["eve", "eve", "ana", "eve", "ana"]
        flood[-1].cancel()  # one that waits
        while len(ben.router.serving._queued) > 195:
            await asyncio.sleep(0)
        for one in flood:
            one.cancel()
        for bus in (ana, ben, eve):
            await bus.close()

    run(story())


class _CountingId(bytes):
    """An id that counts how often it is compared with another."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        type(self).compared += 1
        return super().__eq__(other)

    __hash__ = bytes.__hash__


def test_B5_a_cancel_is_no_search_through_all_that_waits() -> None:
    async def story() -> None:
        ana, ben = await _pair()
        await join(ana, ben)
        gate = asyncio.Event()

        async def slow(request: ReceivedRequest) -> bytes:
            await gate.wait()
            return b""

        ben.serve("slow", slow, most=1)
        link, mine, clock = ben.router.intakes["ana"].link, ben.router.serving, SystemClock()
        ids = [_CountingId(clock.new_id()) for _ in range(1000)]
        for id in ids:
            asked = BusMessage(id=id, kind=MessageKind.REQUEST, topic="slow")
            mine.asked(link, asked, Credit(link, Stream.NEXT, 0))
        assert len(mine._queued) == 999
        _CountingId.compared = 0
        for given_up in (
            clock.new_id(),
            ids[500],
            ids[500],
        ):  # nobody's, one that waits, and it again
            cancel = BusMessage(id=clock.new_id(), kind=MessageKind.CANCEL, correlation=given_up)
            mine.cancelled(link, cancel)
        assert len(mine._queued) == 998
        assert _CountingId.compared < 30
        await ana.close()
        await ben.close()

    run(story())


def test_B5_requests_that_nobody_has_begun_go_with_their_link_and_are_asked_again() -> None:
    async def story() -> None:
        ana, ben = await _pair()
        link = await join(ana, ben)
        begun: list[str] = []
        gate = asyncio.Semaphore(0)

        async def slow(request: ReceivedRequest) -> bytes:
            begun.append(request.text)
            await gate.acquire()
            return request.body

        ben.serve("slow", slow, most=1)
        asking = [asyncio.ensure_future(ana.request("ben", "slow", str(n))) for n in range(20)]
        while len(ben.router.serving._queued) < 19:
            await asyncio.sleep(0)
        for _ in range(5):  # an asker that comes back again and again
            link.cut()
            while "ana" in ben.router.intakes:
                await asyncio.sleep(0)
            assert not ben.router.serving._queued, "what an asker that is gone waits for"
            link = await join(ana, ben)
            while len(ben.router.serving._queued) < 19:
                await asyncio.sleep(0)
        for _ in asking:
            gate.release()
        assert [reply.text for reply in await asyncio.gather(*asking)] == [
            str(n) for n in range(20)
        ]
        assert sorted(begun, key=int) == [str(n) for n in range(20)], "each was done once"
        await ana.close()
        await ben.close()

    run(story())


def test_B6_a_service_handles_only_so_many_bytes_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "BUS_BUFFER_BYTES", 100)

    async def story() -> None:
        ana, ben = await _pair()
        await join(ana, ben)
        gate = asyncio.Semaphore(0)
        most = 0

        async def slow(request: ReceivedRequest) -> bytes:
            nonlocal most
            most = max(most, ben.status().handling)
            await gate.acquire()
            return b""

        ben.serve("slow", slow)
        large = [asyncio.ensure_future(ana.request("ben", "slow", b"x" * 60)) for _ in range(10)]
        while len(ben.router.serving._queued) < 8:
            await asyncio.sleep(0)
        assert ben.status().handling == 2, "each is smaller than what may be handled at a time"
        for _ in large:
            gate.release()
        await asyncio.gather(*large)
        assert most == 2
        small = [asyncio.ensure_future(ana.request("ben", "slow", b"x")) for _ in range(10)]
        while ben.status().handling < 10:
            await asyncio.sleep(0)
        for _ in small:
            gate.release()
        await asyncio.gather(*small)
        await ana.close()
        await ben.close()

    run(story())
