"""What a bad peer gets: a refusal that is counted, no state change, and nobody else notices."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from nacl.signing import SigningKey

from holdfast.bus.bus import Bus
from holdfast.bus.memory_store import MemoryMeshStore
from holdfast.protocol.bus_frames import AckFrame, FrameKind, InterestFrame, Stream, told
from holdfast.rules.bus.mesh_store import ArrivalVerdict, PeerKey, SignedArrival
from holdfast.rules.bus.message import BusMessage, MessageKind, encode_message
from holdfast.rules.bus.signed_envelope import NONCE_BYTES, Recipient, SigningMode, sign_parcel
from holdfast.rules.errors import BadSequence, BusStoreFailed, HoldfastError, MessageRefused
from holdfast.rules.limits import (
    BUS_BLOCK,
    BUS_INTERESTS_MAX,
    BUS_LEAP_AGAIN_MAX,
    BUS_LEAP_MAX,
)
from holdfast.service.clock import SystemClock
from support.bus_pairs import MemoryLink, bound, join, run, seed_of

ANA = SigningKey(seed_of("ana"))
EVE = SigningKey(seed_of("eve"))


def message(body: bytes = b"x", kind: MessageKind = MessageKind.SEND) -> bytes:
    return encode_message(BusMessage(id=SystemClock().new_id(), kind=kind, body=body, durable=True))


def parcel(
    to: Bus, payloads: Sequence[bytes], first: int = 5000, key: SigningKey = ANA, life: bytes = b""
) -> bytes:
    recipient = Recipient.direct(to.key, life or to.router.context.incarnation)
    nonces = bytes(range(NONCE_BYTES)) * len(payloads)
    return sign_parcel(key, recipient, payloads, first, nonces, SigningMode.BATCH)


async def _settled(bus: Bus, link: MemoryLink) -> None:
    """Until a bus has taken what came over a link, or ended it."""
    intake = bus.router.intakes.get(link.name)
    while link.is_up and intake is not None and intake.is_busy:
        await asyncio.sleep(0)
    await asyncio.sleep(0)


async def _state(bus: Bus, key: PeerKey) -> tuple[int | None, int]:
    store = bus.router.context.store
    return await store.last_seq(key), len(await store.pending_inbox(0, 100))


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("garbage", "bad_envelope"),
        ("truncated", "bad_envelope"),
        ("signed by another", "bad_signature"),
        ("changed payload", "bad_payload_id"),
        ("changed signature", "bad_signature"),
        ("a parcel of another peer", "bad_signature"),
    ],
)
def test_B1_what_a_peer_cannot_have_signed_ends_its_link_and_changes_nothing(
    what: str, code: str
) -> None:
    async def story() -> None:
        ana, ben = await bound("ana", "ben"), await bound("ben", "ana", "cat")
        cat = await bound("cat", "ben")
        await join(cat, ben)
        link = (await join(ana, ben)).other
        await ana.send("ben", "an honest one")
        before = await _state(ben, ana.key)
        good = parcel(ben, [message(b"body")])
        bad = {
            "garbage": b"\x01\x02" + bytes(200),
            "truncated": good[:-1],
            "signed by another": good[:2] + bytes(EVE.verify_key) + good[34:],
            "changed payload": good[:-12] + bytes([good[-12] ^ 1]) + good[-11:],
            "changed signature": good[:100] + bytes([good[100] ^ 1]) + good[101:],
            "a parcel of another peer": parcel(ben, [message()], key=EVE),
        }[what]
        ben.router.frame(link, FrameKind.PARCEL, Stream.NEXT, bad)
        ben.router.frames_end(link)
        await _settled(ben, link)
        assert not link.is_up
        assert [error.code for error in link.faults] == [code]
        assert await _state(ben, ana.key) == before
        assert ben.status().counts[f"refused_{code}"] == 1
        assert (await cat.send("ben", "nobody else notices")).state == "delivered"
        for bus in (ana, ben, cat):
            await bus.close()

    run(story())


def test_B1_a_flipped_bit_of_any_byte_of_a_parcel_changes_nothing_that_is_kept() -> None:
    async def story() -> None:
        ana, ben = await bound("ana", "ben"), await bound("ben", "ana")
        link = (await join(ana, ben)).other
        await ana.send("ben", "an honest one")
        good = parcel(ben, [message(b"body")])
        before = await _state(ben, ana.key)
        for at in range(len(good)):
            bad = bytearray(good)
            bad[at] ^= 1 << at % 8
            if not link.is_up:
                link = (await join(ana, ben)).other
            ben.router.frame(link, FrameKind.PARCEL, Stream.NEXT, bytes(bad))
            ben.router.frames_end(link)
            await _settled(ben, link)
            assert await _state(ben, ana.key) == before, f"byte {at}"
        if not link.is_up:
            link = (await join(ana, ben)).other
        link.other.credit[Stream.NEXT] -= len(good)  # what its sender would have paid
        ben.router.frame(link, FrameKind.PARCEL, Stream.NEXT, good)
        ben.router.frames_end(link)
        await _settled(ben, link)
        assert await _state(ben, ana.key) == (5000, before[1] + 1), "the one that was signed"
        await ana.close()
        await ben.close()

    run(story())


@pytest.mark.parametrize("what", ["for another", "an earlier life", "no message", "an old number"])
def test_B1_a_message_that_is_refused_is_named_in_the_acknowledgement(what: str) -> None:
    async def story() -> None:
        ana, ben = await bound("ana", "ben"), await bound("ben", "ana")
        near = await join(ana, ben)
        link = near.other
        await ana.send("ben", "an honest one")
        link.credit[Stream.NEXT] -= 1000  # what is handed over below was not sent by the other end
        near.credit[Stream.NEXT] -= 10_000
        before = await _state(ben, ana.key)
        sent, code = len(link.sent), "wrong_recipient"
        if what == "for another":
            body = parcel(ana, [message()])
        elif what == "an earlier life":
            body = parcel(ben, [message()], life=bytes(16))
        elif what == "no message":
            body, code = parcel(ben, [b"no message"]), "bad_envelope"
        else:
            body, code = parcel(ben, [message()], first=1), "bad_sequence"
        ben.router.frame(link, FrameKind.PARCEL, Stream.NEXT, body)
        ben.router.frames_end(link)
        await _settled(ben, link)
        (ack,) = [told for kind, _, told in link.sent[sent:] if kind is FrameKind.ACK]
        assert code.encode() in ack
        assert len(link.faults) == 1
        assert await _state(ben, ana.key) == before
        assert ben.status().peers[0].refused == {code: 1}
        for bus in (ana, ben):
            await bus.close()

    run(story())


def test_B3_a_captured_parcel_is_refused_before_and_after_a_restart() -> None:
    async def story() -> None:
        store = MemoryMeshStore()
        ana, ben = await bound("ana", "ben"), await bound("ben", "ana", store=store)
        near = await join(ana, ben)
        for number in range(3):
            await ana.send("ben", str(number))
        captured = [body for kind, _, body in near.sent if kind is FrameKind.PARCEL]
        before = await _state(ben, ana.key)
        for _ in range(2):
            near.other.sent.clear()
            near.credit[Stream.NEXT] -= 10_000
            for body in (*captured, *reversed(captured)):
                ben.router.frame(near.other, FrameKind.PARCEL, Stream.NEXT, body)
                ben.router.frames_end(near.other)
            await _settled(ben, near.other)
            refused = b"".join(body for kind, _, body in near.other.sent if kind is FrameKind.ACK)
            assert refused.count(b"bad_sequence") == 6
            assert await _state(ben, ana.key) == before
            near.cut()
            await ben.close()
            ben = await bound("ben", "ana", store=store)
            near = await join(ana, ben)
        for bus in (ana, ben):
            await bus.close()

    run(story())


def test_B4_a_message_that_is_refused_for_good_is_given_up_and_told() -> None:
    async def story() -> None:
        ana, ben = await bound("ana", "ben"), await bound("ben", "ana")
        near = await join(ana, ben)
        near.other.drops = lambda kind: kind is FrameKind.ACK
        sending = asyncio.create_task(ana.send("ben", "not this"))
        while not (number := ana.router.lane_of("ben").last_number):
            await asyncio.sleep(0)
        ack = told(FrameKind.ACK, AckFrame(number, [(number, "bad_value", "not like this")]))
        ana.router.frame(near, FrameKind.ACK, Stream.CONTROL, ack)
        with pytest.raises(MessageRefused, match="bad_value: not like this"):
            await sending
        await ana.close()
        assert await ana.router.context.store.outbox_peers() == []
        await ben.close()

    run(story())


def test_B4_what_was_signed_for_an_earlier_life_is_signed_anew_on_the_next_link() -> None:
    async def story() -> None:
        ana, ben = await bound("ana", "ben"), await bound("ben", "ana")
        near = await join(ana, ben)
        ben.router.context.incarnation = b"a new life of it"
        sending = asyncio.create_task(ana.send("ben", "for whom?"))
        while near.is_up:
            await asyncio.sleep(0)
        assert near.goodbye == "wrong_recipient"
        await join(ana, ben)
        async with ben.subscribe() as messages:
            assert (await sending).state == "delivered"  # after a backoff
            assert (await anext(messages)).text == "for whom?"
        for bus in (ana, ben):
            await bus.close()

    run(story())


def test_B3_a_peer_whose_store_was_set_back_leaps_and_one_that_lies_is_not_believed() -> None:
    async def story() -> None:
        ben = await bound("ben", "ana")
        ana = await bound("ana", "ben")
        await join(ana, ben)
        for _ in range(3):
            await ana.send("ben", b"x")
        await ana.close()
        ana = await bound("ana", "ben")  # counts from 1
        near = await join(ana, ben)
        assert (await ana.send("ben", "above")).state == "delivered"
        assert ana.status().counts["leaps"] == 1
        near.cut()
        near.welcome = type(near.welcome)(
            name="ben", incarnation=bytes(16), seen=BUS_LEAP_MAX + (1 << 40)
        )
        near.is_up = True
        ana.router.link_up(near)
        while near.is_up:
            await asyncio.sleep(0)
        assert near.goodbye == "bad_sequence"
        for bus in (ana, ben):
            await bus.close()

    run(story())


def test_B3_a_liar_makes_a_peer_leap_far_once_and_cannot_wear_its_numbers_out() -> None:
    async def story() -> None:
        ana = await bound("ana")
        eve, ben, far = b"e" * 32, b"b" * 32, BUS_LEAP_MAX - 2 * BUS_BLOCK
        leap = ana.router.numbers.leap
        await leap(eve, far)
        await leap(eve, far + BUS_LEAP_AGAIN_MAX // 2)  # as a copy of ana's home explains it
        with pytest.raises(BadSequence):
            await leap(eve, 2 * far)
        await leap(eve, far)  # below what is given: nothing to do
        await leap(ben, 2 * far)
        assert ana.status().counts["leaps"] == 3
        await ana.close()

    run(story())


def test_B4_what_a_peer_says_about_a_refusal_is_short_and_safe_to_show() -> None:
    async def story() -> None:
        ana, ben = await bound("ana", "ben"), await bound("ben", "ana")
        near = await join(ana, ben)
        ben.router.intakes["ana"].end()  # it answers nothing by itself
        sent = asyncio.create_task(ana.send("ben", b"x"))
        lane = ana.router.lane_of("ben")
        while not lane.under_way:
            await asyncio.sleep(0)
        number = lane.last_number
        bad = AckFrame(number, [(number, "\x1b[2J" * 10**5, "\x1b]0;\n" * 10**5)])
        ana.router.frame(near, FrameKind.ACK, Stream.CONTROL, told(FrameKind.ACK, bad))
        with pytest.raises(MessageRefused) as refused:
            await sent
        assert refused.value.message.isprintable()
        assert len(refused.value.message) < 1000
        for bus in (ana, ben):
            await bus.close()

    run(story())


def test_B4_acknowledgements_and_interests_that_cannot_be_end_the_link() -> None:
    async def story() -> None:
        ana, ben = await bound("ana", "ben"), await bound("ben", "ana")
        near = await join(ana, ben)
        await ana.send("ben", b"x")
        far_ahead = told(FrameKind.ACK, AckFrame(10**6))
        with pytest.raises(HoldfastError, match="was not sent"):
            ana.router.frame(near, FrameKind.ACK, Stream.CONTROL, far_ahead)
        many = [f"t{n}" for n in range(BUS_INTERESTS_MAX + 1)]
        for interest in (
            InterestFrame(["a..b"]),
            InterestFrame(many),
            InterestFrame([], many),
            InterestFrame([], [], ["\x1b[2J"]),
            InterestFrame([], [], ["s" * 129]),
        ):
            bad = told(FrameKind.INTEREST, interest)
            ana.router.frame(near, FrameKind.INTEREST, Stream.CONTROL, bad)
            while near.is_up:
                await asyncio.sleep(0)
            assert near.faults[-1].code == "bad_answer"
            near = await join(ana, ben)
            await ana.send("ben", b"x")  # then ben has told what he listens to
        for bus in (ana, ben):
            await bus.close()

    run(story())


class BrokenStore(MemoryMeshStore):
    """Fails where it is told to."""

    breaks = False

    async def accept(
        self,
        peer: PeerKey,
        arrivals: Sequence[SignedArrival],
        *,
        window: bool = False,
        name: str = "",
    ) -> list[ArrivalVerdict]:
        if self.breaks:
            raise OSError("the disk is gone")
        return await super().accept(peer, arrivals, window=window, name=name)

    async def enqueue_outbox(self, item: object) -> int:
        if self.breaks:
            raise OSError("the disk is gone")
        return await super().enqueue_outbox(item)  # type: ignore[arg-type]


def test_B2_errors_of_a_store_reach_callers_as_errors_of_the_bus_and_nothing_is_acknowledged() -> (
    None
):
    async def story() -> None:
        store = BrokenStore()
        ana, ben = await bound("ana", "ben"), await bound("ben", "ana", store=store)
        near = await join(ana, ben)
        store.breaks = True
        with pytest.raises(BusStoreFailed, match="the disk is gone"):
            await ben.send("ana", b"x")
        sending = asyncio.create_task(ana.send("ben", "keep it"))
        while near.other.is_up:
            await asyncio.sleep(0)
        assert not sending.done()
        store.breaks = False
        await join(ana, ben)
        assert (await sending).state == "delivered"
        assert ben.status().peers[0].received == 1
        for bus in (ana, ben):
            await bus.close()

    run(story())


def test_B4_a_flood_of_one_peer_leaves_others_their_share() -> None:
    async def story() -> None:
        ben = await bound("ben", "ana", "cat")
        ana, cat = await bound("ana", "ben"), await bound("cat", "ben")
        await join(ana, ben)
        await join(cat, ben)
        flood = [asyncio.create_task(ana.send("ben", b"x" * 4096)) for _ in range(2000)]
        async with ben.subscribe(buffer=4096) as messages:
            while not any(one.done() for one in flood):
                await asyncio.sleep(0)
            done_before = sum(one.done() for one in flood)
            assert (await cat.send("ben", "and me?")).state == "delivered"
            done_after = sum(one.done() for one in flood)
            assert done_after - done_before < 1000
            await asyncio.gather(*flood)
            came = [(await anext(messages)).sender for _ in range(2001)]
        assert came.count("cat") == 1
        for bus in (ana, ben, cat):
            await bus.close()

    run(story())
