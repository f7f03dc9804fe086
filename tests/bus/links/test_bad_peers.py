"""What strangers and bad peers get: a refusal that is counted, and nothing of anybody else's."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Literal

import pytest

from holdfast.bus.links import frame_connection, links, tls_net
from holdfast.bus.links.frame_connection import FrameConnection
from holdfast.bus.links.tls_net import TlsNet
from holdfast.protocol.bus_frames import (
    FRAME_BYTES_MAX,
    FRAME_HEAD,
    HELLO_FRAME_BYTES_MAX,
    CreditFrame,
    FrameKind,
    GoodbyeFrame,
    HelloFrame,
    PingFrame,
    ProofFrame,
    Stream,
    frame,
    read_told,
    told,
)
from holdfast.rules.errors import (
    AnotherConnection,
    BadAnswer,
    BadSignature,
    NotTrusted,
    OverLimit,
    PeerUnreachable,
    TooMany,
    UnsupportedProtocol,
)
from holdfast.rules.keys import HelloTranscript, prove, public_key
from holdfast.rules.limits import BUS_FAULTS_MAX, BUS_WINDOW_BYTES
from holdfast.transport.tls import client_context
from support.bus_links import ANYWHERE, LinkedPeer, in_loop, key_seeds, peer, two_peers
from support.raw_link import RawLink

LOW, HIGH, STRANGE = key_seeds(3)
_net: TlsNet | None = None


def net() -> TlsNet:
    """One certificate for all: making one takes longer than a link."""
    global _net
    _net = _net or TlsNet()
    return _net


@asynccontextmanager
async def ana_alone(knows: bytes = HIGH) -> AsyncIterator[LinkedPeer]:
    ana = await peer("ana", LOW, {public_key(knows): "bo"}, net())
    try:
        yield ana
    finally:
        await ana.links.close()


def code_of(link: RawLink) -> str:
    last = read_told(FrameKind.GOODBYE, link.frames[-1][2])
    assert isinstance(last, GoodbyeFrame)
    assert not last.message
    return last.code


async def hello_by_hand(ana: LinkedPeer, key: bytes, proof: bytes) -> RawLink:
    bad = (await RawLink(STRANGE, net()).connect(ana.address)).listen()
    hello = told(FrameKind.HELLO, HelloFrame(1, key, bytes(32)))
    bad.send(FrameKind.HELLO, Stream.CONTROL, hello)
    bad.send(FrameKind.PROOF, Stream.CONTROL, told(FrameKind.PROOF, ProofFrame(proof)))
    return bad


@contextmanager
def recorded(connection: FrameConnection) -> Iterator[list[bytes]]:
    """What is sent meanwhile, frame by frame."""
    frames: list[bytes] = []
    send = connection.send

    def record(kind: FrameKind, stream: Stream, body: bytes, *, at_once: bool = False) -> None:
        frames.append(frame(kind, stream, body))
        send(kind, stream, body, at_once=at_once)

    connection.send = record  # type: ignore[method-assign]
    yield frames
    connection.send = send  # type: ignore[method-assign]


class Middle(asyncio.Protocol):
    """Opens the encryption, passes everything on, and encrypts it anew."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._held = bytearray()
        self._far: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.near = transport
        self._task = asyncio.ensure_future(self._connect())

    async def _connect(self) -> None:
        host, _, port = self._target.rpartition(":")
        reader, writer = await asyncio.open_connection(
            host, int(port), ssl=client_context(), server_hostname=""
        )
        self._far = writer.transport
        writer.write(bytes(self._held))
        assert isinstance(self.near, asyncio.Transport)
        while data := await reader.read(1 << 16):
            self.near.write(data)
        self.near.close()
        writer.close()

    def data_received(self, data: bytes) -> None:
        if self._far is None:
            self._held += data
        else:
            self._far.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._far is not None:
            self._far.close()


@in_loop
async def test_B6_a_stranger_is_refused_and_told_nothing_but_a_key() -> None:
    async with ana_alone() as ana:
        with pytest.raises(NotTrusted):
            await RawLink(STRANGE, net()).link(ana.address, ana.key)
        bad = await hello_by_hand(ana, public_key(STRANGE), bytes(64))
        assert await bad.until_lost() == [FrameKind.HELLO, FrameKind.PROOF, FrameKind.GOODBYE]
        assert code_of(bad) == "not_trusted"
        assert ana.links.counts[NotTrusted.code] == 2
        assert not ana.told.up


@in_loop
async def test_B6_a_recorded_proof_is_worth_nothing_on_another_connection() -> None:
    async with ana_alone() as ana:
        good = RawLink(HIGH, net())
        with recorded(good.connection) as frames:
            await good.link(ana.address, ana.key)
        hello, proof, _ = frames
        replayed = (await RawLink(STRANGE, net()).connect(ana.address)).listen()
        replayed.write(hello + proof)
        await replayed.until_lost()
        assert code_of(replayed) == NotTrusted.code
        assert len(ana.told.up) == 1


@pytest.mark.parametrize("purpose", ["http", "bus"])
def test_B6_a_proof_for_http_is_worth_nothing_here(purpose: Literal["http", "bus"]) -> None:
    async def run() -> None:
        async with ana_alone() as ana:
            caller = (await RawLink(HIGH, net()).connect(ana.address)).listen()
            mine = HelloFrame(1, public_key(HIGH), bytes(32))
            caller.send(FrameKind.HELLO, Stream.CONTROL, told(FrameKind.HELLO, mine))
            await caller.until_frames(2)
            theirs = read_told(FrameKind.HELLO, caller.frames[0][2])
            assert isinstance(theirs, HelloFrame)
            transcript = HelloTranscript(
                client_zone="",
                client_key=mine.key,
                client_nonce=mine.nonce,
                server_zone="",
                server_key=theirs.key,
                server_nonce=theirs.nonce,
                certificate=caller.connection.certificate,
            )
            proof = ProofFrame(prove(HIGH, "client", transcript, purpose))
            caller.send(FrameKind.PROOF, Stream.CONTROL, told(FrameKind.PROOF, proof))
            # After a good proof a welcome belongs here.
            caller.send(FrameKind.PING, Stream.CONTROL, b"")
            await caller.until_lost()
            expected = NotTrusted.code if purpose == "http" else BadAnswer.code
            assert code_of(caller) == expected

    in_loop(run)()


@in_loop
async def test_B6_somebody_in_the_middle_who_opens_the_encryption_is_noticed_by_both() -> None:
    async with ana_alone() as ana:
        middle = await TlsNet().listen(ANYWHERE, lambda: Middle(ana.address))
        with pytest.raises(NotTrusted, match="does not prove"):
            await RawLink(HIGH, net()).link(middle.address, ana.key)
        assert not ana.told.up
        await middle.close()


@in_loop
async def test_B6_another_peer_at_the_address_and_this_peer_itself_are_not_the_wanted_one() -> None:
    async with ana_alone() as ana:
        with pytest.raises(NotTrusted, match="another peer"):
            await RawLink(HIGH, net()).link(ana.address, public_key(STRANGE))
        with pytest.raises(NotTrusted):
            await RawLink(LOW, net()).link(ana.address, ana.key)
        assert not ana.told.up


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (frame(FrameKind.HELLO, Stream.CONTROL, b"\xc1garbage"), BadAnswer.code),
        (FRAME_HEAD.pack(HELLO_FRAME_BYTES_MAX + 3, FrameKind.HELLO, 0), OverLimit.code),
        (FRAME_HEAD.pack(0, 0, 0), BadAnswer.code),
        (frame(FrameKind.PARCEL, Stream.NOW, b"early"), BadAnswer.code),
        (
            frame(
                FrameKind.HELLO,
                Stream.CONTROL,
                told(FrameKind.HELLO, HelloFrame(2, public_key(HIGH), bytes(32))),
            ),
            UnsupportedProtocol.code,
        ),
        (
            frame(
                FrameKind.HELLO,
                Stream.CONTROL,
                told(FrameKind.HELLO, HelloFrame(1, bytes(32), bytes(32))),
            ),
            NotTrusted.code,
        ),
    ],
    ids=["garbage", "oversized", "truncated", "too early", "other version", "weak key"],
)
def test_B6_a_bad_hello_is_refused_with_a_code_and_counted(raw: bytes, code: str) -> None:
    async def run() -> None:
        async with ana_alone() as ana:
            bad = (await RawLink(STRANGE, net()).connect(ana.address)).listen()
            bad.write(raw)
            assert await bad.until_lost() == [FrameKind.GOODBYE]
            assert code_of(bad) == code
            assert ana.links.counts == {code: 1}

    in_loop(run)()


@in_loop
async def test_B6_bytes_that_are_no_tls_and_a_hello_that_ends_in_the_middle_cost_nothing() -> None:
    async with ana_alone() as ana:
        host, _, port = ana.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 100)
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        half = await RawLink(STRANGE, net()).connect(ana.address)
        half.write(FRAME_HEAD.pack(100, FrameKind.HELLO, 0) + b"half")
        half.transport.close()
        await (await RawLink(HIGH, net()).link(ana.address, ana.key)).until_frames(0)
        assert len(ana.told.up) == 1


def test_B6_a_flood_of_silent_strangers_does_not_keep_a_peer_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "BUS_STRANGERS_MAX", 4)
    monkeypatch.setattr(tls_net, "BUS_STRANGERS_MAX", 4)

    async def run() -> None:
        async with ana_alone() as ana:
            host, _, port = ana.address.rpartition(":")
            silent = [await asyncio.open_connection(host, int(port)) for _ in range(12)]
            mute = [await RawLink(STRANGE, net()).connect(ana.address) for _ in range(12)]
            await RawLink(HIGH, net()).link(ana.address, ana.key)
            assert len(ana.told.up) == 1
            assert ana.links.counts[TooMany.code] >= 8
            assert len(ana.links._strangers) <= 4
            for _, writer in silent:
                writer.close()
            for one in mute:
                one.transport.abort()

    in_loop(run)()


def test_B6_strangers_that_are_refused_and_never_close_have_only_so_many_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "BUS_STRANGERS_MAX", 4)

    def refused(address: str) -> ssl.SSLSocket:
        """A connection whose refusal has come and is not answered."""
        host, _, port = address.rpartition(":")
        one = client_context().wrap_socket(socket.create_connection((host, int(port))))
        one.sendall(frame(FrameKind.HELLO, Stream.CONTROL, b"no hello"))
        assert one.recv(FRAME_HEAD.size)[4] == FrameKind.GOODBYE
        return one

    async def run() -> None:
        async with ana_alone() as ana:
            rude = [await asyncio.to_thread(refused, ana.address) for _ in range(12)]
            assert ana.links.counts[BadAnswer.code] == 12
            assert len(ana.links._open) <= 5, "four wait for the end, one may be on its way there"
            await RawLink(HIGH, net()).link(ana.address, ana.key)
            for one in rude:
                one.close()

    in_loop(run)()


@in_loop
async def test_B6_a_peer_may_make_a_few_faults_and_is_kept_out_after_too_many() -> None:
    async with ana_alone() as ana:
        bad = await RawLink(HIGH, net()).link(ana.address, ana.key)
        (link,) = ana.told.up
        wrong = [
            (FrameKind.PARCEL, Stream.CONTROL, b"x"),
            (FrameKind.PARCEL, Stream.MESH, b"x"),
            (FrameKind.PARCEL, Stream.NOW, b""),
            (FrameKind.WELCOME, Stream.CONTROL, b"x"),
            (FrameKind.PING, Stream.CONTROL, b"\xc1"),
            (FrameKind.PING, Stream.NOW, told(FrameKind.PING, PingFrame(1))),
            (
                FrameKind.CREDIT,
                Stream.CONTROL,
                told(FrameKind.CREDIT, CreditFrame(Stream.CONTROL, 1)),
            ),
            (FrameKind.CREDIT, Stream.CONTROL, told(FrameKind.CREDIT, CreditFrame(Stream.LOW, 1))),
        ]
        for number in range(BUS_FAULTS_MAX):
            bad.send(*wrong[number % len(wrong)])
        bad.send(FrameKind.PARCEL, Stream.NOW, b"good")
        await ana.told.until(lambda: bool(ana.told.frames))
        assert ana.told.frames == [(FrameKind.PARCEL, Stream.NOW, b"good")]
        assert ana.links.counts[BadAnswer.code] == BUS_FAULTS_MAX
        link.blame(BadSignature("one more"))
        await bad.until_lost()
        assert code_of(bad) == TooMany.code
        with pytest.raises(TooMany):
            await RawLink(HIGH, net()).link(ana.address, ana.key)
        assert ana.links.counts[BadSignature.code] == 1


@pytest.mark.parametrize(
    "raw",
    [
        FRAME_HEAD.pack(FRAME_BYTES_MAX + 3, FrameKind.PARCEL, Stream.NOW),
        frame(FrameKind.PARCEL, Stream.LOW, bytes(BUS_WINDOW_BYTES))
        + frame(FrameKind.PARCEL, Stream.LOW, b"x"),
    ],
    ids=["oversized", "over credit"],
)
def test_B6_a_peer_that_sends_more_than_it_may_loses_its_link(raw: bytes) -> None:
    async def run() -> None:
        async with ana_alone() as ana:
            ana.told.takes = False
            bad = await RawLink(HIGH, net()).link(ana.address, ana.key)
            bad.write(raw)
            assert (await bad.until_lost())[-1] is FrameKind.GOODBYE
            assert code_of(bad) == OverLimit.code
            await ana.told.until(lambda: bool(ana.told.ended))
            assert isinstance(ana.told.ended[0][1], OverLimit)
            assert sum(len(body) for _, _, body in ana.told.frames) <= BUS_WINDOW_BYTES

    in_loop(run)()


@in_loop
async def test_B6_a_peer_that_does_not_handle_what_it_gets_stops_its_sender() -> None:
    ana, bo = await two_peers(net)
    bo.told.takes = False
    ana.want(bo)
    link = await ana.link_to(bo)
    sent = 0
    while sent < BUS_WINDOW_BYTES:
        await link.room(Stream.LOW)
        link.send(FrameKind.PARCEL, Stream.LOW, bytes(100_000))
        sent += 100_000
    await bo.told.until(lambda: sum(len(body) for *_, body in bo.told.frames) == sent)
    assert not link.has_room(Stream.LOW)
    assert link.available(Stream.LOW) == 0
    # The others have their own credit.
    await link.room(Stream.NOW)
    link.send(FrameKind.PARCEL, Stream.NOW, b"urgent")
    await bo.told.until(lambda: bo.told.frames[-1] == (FrameKind.PARCEL, Stream.NOW, b"urgent"))
    waiting = asyncio.ensure_future(link.room(Stream.LOW))
    bo.told.up[0].taken(Stream.LOW, sent)
    await waiting
    await asyncio.gather(ana.links.close(), bo.links.close())


def test_B6_a_peer_that_asks_and_does_not_read_loses_its_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frame_connection, "BUS_UNREAD_BYTES_MAX", 200_000)

    async def run() -> None:
        async with ana_alone() as ana:
            bad = await RawLink(HIGH, net()).link(ana.address, ana.key)
            (link,) = ana.told.up
            bad.transport.pause_reading()
            interest = bytes(1_000_000)
            for _ in range(100):
                with suppress(PeerUnreachable):
                    link.send(FrameKind.INTEREST, Stream.CONTROL, interest)
                    await asyncio.sleep(0)
            await ana.told.until(lambda: bool(ana.told.ended))
            assert "does not read" in str(ana.told.ended[0][1])
            bad.transport.abort()

    in_loop(run)()


@in_loop
async def test_B6_a_second_link_of_the_same_peer_replaces_the_first_which_is_not_read() -> None:
    async with ana_alone() as ana:
        first = await RawLink(HIGH, net()).link(ana.address, ana.key)
        second = RawLink(HIGH, net())
        linked = asyncio.ensure_future(second.link(ana.address, ana.key))
        while not linked.done():
            first.send(FrameKind.PARCEL, Stream.NEXT, b"old")
            await asyncio.sleep(0)
        first.send(FrameKind.PARCEL, Stream.NEXT, b"old")
        second.send(FrameKind.PARCEL, Stream.NEXT, b"new")
        await ana.told.until(lambda: (FrameKind.PARCEL, Stream.NEXT, b"new") in ana.told.frames)
        await first.until_lost()
        after = ana.told.seen[ana.told.seen.index("down bo") :]
        assert after == ["down bo", "up bo in", "frame PARCEL 3"]
        assert ana.told.frames[-1][2] == b"new"
        assert isinstance(ana.told.ended[0][1], AnotherConnection)
