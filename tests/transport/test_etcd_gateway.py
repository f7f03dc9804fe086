"""Calls to an etcd, with gateways that fail, lie and pour."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import pytest

from holdfast.protocol.etcd_json import (
    AUTHENTICATE,
    RANGE,
    TXN,
    RangeAnswer,
    RangeRequest,
    TxnAnswer,
    TxnRequest,
    WatchAnswer,
    WatchCreate,
    WatchRequest,
    put,
)
from holdfast.rules.errors import (
    BadAnswer,
    BodyTooLarge,
    DiskFull,
    EtcdDenied,
    EtcdTooOld,
    HoldfastError,
    OutcomeUnknown,
    StoreClosed,
    TooMany,
    Unreachable,
)
from holdfast.rules.limits import (
    ETCD_CONNECTIONS_MAX,
    ETCD_LINE_BYTES_MAX,
    MIB,
)
from holdfast.transport.etcd_address import parse_etcd_address
from holdfast.transport.etcd_gateway import EtcdGateway
from holdfast.transport.http_stream import HttpStream
from support.fake_etcd import OK, Answering, Asked, FakeEtcd, Said, error
from support.hostile import counted

WRITE = TxnRequest(success=(put(b"k", b"v"),))
WATCH = WatchRequest(create_request=WatchCreate(key=b"a", range_end=b"b", start_revision="1"))
TRY_MS = 1000
ENOUGH_S = 20.0


@asynccontextmanager
async def fakes(
    *answering: Answering, options: str = "", version: str = "3.6.9", try_ms: int = TRY_MS
) -> AsyncGenerator[tuple[EtcdGateway, list[FakeEtcd]], None]:
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(FakeEtcd(a, version=version)) for a in answering]
        places = ",".join(f"127.0.0.1:{fake.port}" for fake in made)
        gateway = EtcdGateway(parse_etcd_address(f"etcd://{places}{options}"), try_ms=try_ms)
        stack.push_async_callback(gateway.close)
        yield gateway, made


def says(*answers: Said) -> Answering:
    """One after the other, the last one for ever."""
    left = list(answers)

    async def answering(asked: Asked, writer: asyncio.StreamWriter) -> Said | None:
        return left.pop(0) if len(left) > 1 else left[0]

    return answering


def raw(data: bytes, *, ends: bool = True) -> Answering:
    async def answering(asked: Asked, writer: asyncio.StreamWriter) -> Said | None:
        writer.write(data)
        await writer.drain()
        if not ends:
            await asyncio.Event().wait()
        return None

    return answering


async def silent(asked: Asked, writer: asyncio.StreamWriter) -> Said | None:
    await asyncio.Event().wait()
    return None


def soon(s: float = ENOUGH_S) -> float:
    return asyncio.get_running_loop().time() + s


async def write(gateway: EtcdGateway, s: float = ENOUGH_S) -> TxnAnswer:
    return await gateway.call(TXN, WRITE, TxnAnswer, until=soon(s), writes=True)


async def read(gateway: EtcdGateway, s: float = ENOUGH_S) -> RangeAnswer:
    return await gateway.call(RANGE, RangeRequest(key=b"k"), RangeAnswer, until=soon(s))


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await story()

    asyncio.run(bounded())


# --- tries -------------------------------------------------------------------------------------


def test_Q3_a_write_without_an_answer_is_sent_again_to_the_next_member_byte_for_byte() -> None:
    async def story() -> None:
        cut = raw(b"")
        timeout = says(error(500, 2, "context deadline exceeded"))
        async with fakes(cut, timeout, silent, says(OK)) as (gateway, made):
            assert await write(gateway) == TxnAnswer()
            bodies = {asked.body for fake in made for asked in fake.asked}
            # The first one twice: it may only have closed a connection that was idle for long.
            assert [len(fake.asked) for fake in made] == [2, 1, 1, 1]
            assert len(bodies) == 1
            await write(gateway)
            assert len(made[3].asked) == 2, "calls stay with the member that answered"

    run(story)


def test_Q3_a_write_that_nobody_answers_is_unknown_at_its_deadline() -> None:
    async def story() -> None:
        for answering in (silent, raw(b""), says(error(503, 14, "etcdserver: no leader"))):
            async with fakes(answering) as (gateway, _):
                with pytest.raises(OutcomeUnknown):
                    await write(gateway, 0.3)
                with pytest.raises(Unreachable):
                    await read(gateway, 0.3)

    run(story)


def test_Q3_a_write_that_never_left_is_not_unknown() -> None:
    async def story() -> None:
        async with fakes(says(OK)) as (gateway, (fake,)):
            port = fake.port
        gateway = EtcdGateway(parse_etcd_address(f"etcd://127.0.0.1:{port}"), try_ms=TRY_MS)
        with pytest.raises(Unreachable):
            await write(gateway, 0.2)

    run(story)


def test_Q3_a_refusal_after_a_lost_answer_does_not_say_that_nothing_happened() -> None:
    async def story() -> None:
        full = error(429, 8, "etcdserver: mvcc: database space exceeded")
        async with fakes(raw(b""), says(full)) as (gateway, _):
            with pytest.raises(OutcomeUnknown):
                await write(gateway)
        async with fakes(says(full)) as (gateway, _):
            with pytest.raises(DiskFull):
                await write(gateway)
        async with fakes(raw(b""), says(full)) as (gateway, _):
            with pytest.raises(DiskFull):
                await read(gateway)

    run(story)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (error(429, 8, "etcdserver: too many requests"), TooMany),
        (error(400, 3, "etcdserver: request is too large"), BodyTooLarge),
        (error(403, 7, "etcdserver: permission denied"), EtcdDenied),
        (error(401, 16, "etcdserver: invalid auth token"), EtcdDenied),
    ],
)
def test_Q3_what_repeating_does_not_change_is_refused_at_once(
    said: Said, kind: type[HoldfastError]
) -> None:
    async def story() -> None:
        async with fakes(says(said)) as (gateway, (fake,)):
            with pytest.raises(kind):
                await write(gateway)
            assert len(fake.asked) == 1

    run(story)


def test_Q3_every_call_tells_the_member_how_long_it_may_take() -> None:
    async def story() -> None:
        async with fakes(says(OK), try_ms=15_000) as (gateway, (fake,)):
            await write(gateway)
            await write(gateway, 10.0)
            first, second = (int(a.headers["Grpc-Timeout"].removesuffix("m")) for a in fake.asked)
            assert first == 15_000
            assert 0 < second <= 10_000

    run(story)


# --- connections -------------------------------------------------------------------------------


def test_Q3_connections_are_kept_bounded_and_replaced() -> None:
    async def story() -> None:
        async with fakes(says(OK), try_ms=20_000) as (gateway, (fake,)):
            await read(gateway)
            await read(gateway)
            assert fake.connections == 1
            fake.cut()
            await read(gateway)
            assert fake.connections == 2
            await asyncio.gather(*(read(gateway) for _ in range(3 * ETCD_CONNECTIONS_MAX)))
            assert fake.connections <= 2 + ETCD_CONNECTIONS_MAX

    run(story)


def test_Q3_calls_that_wait_for_each_other_are_not_held_against_the_member() -> None:
    async def story() -> None:
        go_on = asyncio.Event()

        async def held(asked: Asked, writer: asyncio.StreamWriter) -> Said | None:
            await go_on.wait()
            return OK

        async with fakes(held, silent, try_ms=20_000) as (gateway, (fake, other)):
            calls = [asyncio.ensure_future(read(gateway)) for _ in range(ETCD_CONNECTIONS_MAX)]
            while len(fake.asked) < ETCD_CONNECTIONS_MAX:
                await asyncio.sleep(0.001)
            with pytest.raises(TooMany):
                await write(gateway, 0.1)
            go_on.set()
            await asyncio.gather(*calls)
            await read(gateway)
            assert other.connections == 0
            assert fake.connections == ETCD_CONNECTIONS_MAX

    run(story)


def test_Q3_what_comes_unasked_is_not_taken_for_the_next_answer() -> None:
    async def story() -> None:
        arrived = asyncio.Event()

        async def twice(asked: Asked, writer: asyncio.StreamWriter) -> Said | None:
            if len(asked.body) > 20:  # a write
                return Said(200, b'{"succeeded":true}')

            async def later() -> None:
                await asyncio.sleep(0)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                await writer.drain()
                arrived.set()

            sending.append(asyncio.ensure_future(later()))
            return OK

        sending: list[asyncio.Task[None]] = []
        async with fakes(twice) as (gateway, (fake,)):
            await read(gateway)
            await arrived.wait()
            while gateway._members[0]._idle[0].is_open:
                await asyncio.sleep(0.001)
            assert (await write(gateway)).succeeded
            assert fake.connections == 2

    run(story)


def test_Q3_closing_ends_calls_and_watches() -> None:
    async def story() -> None:
        async with fakes(silent) as (gateway, (fake,)):
            call = asyncio.ensure_future(read(gateway))
            while not fake.asked:
                await asyncio.sleep(0)
            await gateway.close()
            with pytest.raises((StoreClosed, Unreachable)):
                await call
            with pytest.raises(StoreClosed):
                await read(gateway)

    run(story)


def test_Q3_a_connection_that_is_being_made_when_all_are_closed_is_not_left_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        made, closed = asyncio.Event(), asyncio.Event()
        streams: list[HttpStream] = []
        real = HttpStream.open

        async def slow(host: str, port: int, context: ssl.SSLContext | None) -> HttpStream:
            streams.append(await real(host, port, context))
            made.set()
            await closed.wait()
            return streams[-1]

        monkeypatch.setattr(HttpStream, "open", slow)
        async with fakes(says(OK)) as (gateway, _):
            call = asyncio.ensure_future(read(gateway))
            await made.wait()
            await gateway.close()
            closed.set()
            with pytest.raises((StoreClosed, Unreachable)):
                await call
            assert [one.is_open for one in streams] == [False]

    run(story)


# --- versions ----------------------------------------------------------------------------------


def test_Q3_an_etcd_that_is_too_old_gets_no_call() -> None:
    async def story() -> None:
        async with fakes(says(OK), version="3.5.27") as (gateway, (fake,)):
            for call in (write, read):
                with pytest.raises(EtcdTooOld):
                    await call(gateway)
            with pytest.raises(EtcdTooOld):
                await anext(gateway.watch(WATCH))
            assert fake.asked == []
        async with fakes(says(OK), version="3.5.27", options="?allow-old-version=yes") as (g, _):
            await write(g)

    run(story)


def test_Q3_a_member_that_failed_is_asked_for_its_version_again() -> None:
    async def story() -> None:
        async with fakes(says(OK)) as (gateway, (fake,)):
            await read(gateway)
            fake._version = "3.5.1"
            await read(gateway)
            gateway.suspect()
            with pytest.raises(EtcdTooOld):
                await read(gateway)

    run(story)


# --- tokens ------------------------------------------------------------------------------------


class Guard:
    """Answers whoever has the newest token, and gives tokens out."""

    def __init__(self) -> None:
        self.given = 0
        self.good = ""

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> Said | None:
        if asked.path == AUTHENTICATE:
            assert asked.body == b'{"name":"ana","password":"sesame"}'
            assert "Authorization" not in asked.headers
            self.given += 1
            self.good = f"token.{self.given}"
            return Said(200, b'{"token":"%s"}' % self.good.encode())
        if asked.headers.get("Authorization") != self.good:
            return error(401, 16, "etcdserver: invalid auth token")
        return OK


@pytest.fixture
def credentials(tmp_path: Path) -> str:
    place = tmp_path / "password"
    place.write_text("sesame\n")
    return f"?user=ana&password-file={place}"


def test_Q11_one_call_gets_the_token_for_all_and_renews_it_when_it_ends(credentials: str) -> None:
    async def story() -> None:
        guard = Guard()
        async with fakes(guard, options=credentials) as (gateway, _):
            await asyncio.gather(*(read(gateway) for _ in range(50)))
            assert guard.given == 1
            guard.good = "another"
            await asyncio.gather(*(write(gateway) for _ in range(50)))
            assert guard.given == 2

    run(story)


def test_Q11_a_token_that_does_not_help_is_renewed_once(credentials: str) -> None:
    async def story() -> None:
        async def never(asked: Asked, writer: asyncio.StreamWriter) -> Said | None:
            if asked.path == AUTHENTICATE:
                return Said(200, b'{"token":"t"}')
            return error(401, 16, "etcdserver: invalid auth token")

        async with fakes(never, options=credentials) as (gateway, (fake,)):
            with pytest.raises(EtcdDenied):
                await write(gateway)
            assert fake.paths == [AUTHENTICATE, TXN, AUTHENTICATE, TXN]

    run(story)


@pytest.mark.parametrize(
    "said",
    [
        error(400, 3, "etcdserver: authentication failed, invalid user ID or password"),
        error(400, 9, "etcdserver: authentication is not enabled"),
    ],
)
def test_Q11_a_wrong_password_is_told_without_showing_it(credentials: str, said: Said) -> None:
    async def story() -> None:
        async with fakes(says(said), options=credentials) as (gateway, _):
            with pytest.raises(EtcdDenied) as refused:
                await read(gateway)
            assert "sesame" not in refused.value.message

    run(story)


def test_Q11_a_token_that_would_add_a_header_is_not_sent(credentials: str) -> None:
    async def story() -> None:
        bad = says(Said(200, b'{"token":"a\\r\\nHost: b"}'))
        async with fakes(bad, options=credentials) as (gateway, _):
            with pytest.raises(BadAnswer):
                await read(gateway)

    run(story)


# --- hostile answers ---------------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "answering",
    [
        raw(b"\x00\xff garbage\r\n\r\n"),
        raw(b"SSH-2.0-OpenSSH_9\r\n", ends=False),
        raw(b"HTTP/1.1 100 Continue\r\n\r\n", ends=False),
        raw(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", ends=False),
        raw(HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}{}{}", ends=False),
        raw(HEAD + b"\r\nhalf of it"),
        raw(HEAD + b"Content-Length: 100\r\n\r\nhalf of it"),
        raw(CHUNKED + b"zz\r\n"),
        raw(CHUNKED + b"5\r\nhel"),
        says(Said(200, b"")),
        says(Said(200, b"[]")),
        says(Said(200, b'{"header":7}')),
        says(Said(200, b'{"kvs":[{"key":"%%"}],"responses":[7]}')),
        says(Said(200, b'{"header":{"revision":"%s"}}' % (b"9" * 100_000))),
        says(Said(418, b"\xff\xfe")),
        says(Said(500, b'{"error":' * 50_000)),
    ],
)
def test_Q3_whatever_a_gateway_answers_becomes_an_error_of_ours(answering: Answering) -> None:
    async def story() -> None:
        async with fakes(answering) as (gateway, _):
            with pytest.raises(HoldfastError) as refused:
                await read(gateway, 0.3)
            assert isinstance(refused.value, BadAnswer | Unreachable)
            with pytest.raises(OutcomeUnknown):
                await write(gateway, 0.3)

    run(story)


def pouring(head: bytes, piece: bytes, pieces: int) -> Answering:
    """Sends so much, and then nothing, but does not end."""

    async def answering(asked: Asked, writer: asyncio.StreamWriter) -> Said | None:
        writer.write(head)
        for _ in range(pieces):
            writer.write(piece)
            await writer.drain()
        await asyncio.Event().wait()
        return None

    return answering


@pytest.mark.parametrize(
    ("answering", "bytes_max"),
    [
        (pouring(HEAD + b"Content-Length: 99999999999\r\n\r\n", b"x" * MIB, 40), 32 * MIB),
        (pouring(b"HTTP/1.1 500 x\r\nContent-Length: 9999999\r\n\r\n", b"x" * MIB, 2), MIB),
        (pouring(HEAD + b"X: ", b"y" * MIB, 2), MIB),
        (pouring(HEAD, b"X: y\r\n" * 10_000, 20), MIB),
        (pouring(CHUNKED, b"1;" + b"y" * MIB, 2), MIB),
    ],
)
def test_Q3_an_answer_without_end_is_cut(answering: Answering, bytes_max: int) -> None:
    async def story() -> None:
        async with fakes(answering, try_ms=20_000) as (gateway, _):
            with counted() as held:
                with pytest.raises(BadAnswer):
                    await read(gateway)
                assert held.now() < bytes_max + 4 * MIB

    run(story)


# --- watches -----------------------------------------------------------------------------------


def lines(*sent: bytes, ends: bool = False) -> Answering:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(line), line) for line in sent)
    return raw(CHUNKED + chunks, ends=ends)


CREATED = b'{"result":{"created":true}}\n'


async def watched(answering: Answering, try_ms: int = TRY_MS) -> list[WatchAnswer]:
    """What a watch brings until it ends; raises its error if it brings nothing."""
    found: list[WatchAnswer] = []
    async with (
        fakes(answering, try_ms=try_ms) as (gateway, made),
        aclosing(gateway.watch(WATCH)) as watch,
    ):
        try:
            async for said in watch:
                found.append(said)
        except Unreachable:
            if not found:
                raise
        assert all(fake.asked[0].headers["Grpc-Metadata-hasleader"] == "true" for fake in made)
    return found


def test_Q9_lines_of_a_watch_are_put_together_from_pieces() -> None:
    async def story() -> None:
        half = b'{"result":{"compact_rev'
        found = await watched(lines(CREATED + half, b'ision":"7"}}', b"\n\n", ends=True))
        assert [(said.created, said.compact_revision) for said in found] == [(True, 0), (False, 7)]

    run(story)


@pytest.mark.parametrize(
    ("answering", "kind"),
    [
        (lines(b'{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}\n'), Unreachable),
        (lines(b'{"result":{"canceled":true,"cancel_reason":"no leader"}}\n'), Unreachable),
        (lines(b'{"result":{"canceled":true,"cancel_reason":"permission denied"}}\n'), EtcdDenied),
        (says(error(503, 14, "etcdserver: no leader")), Unreachable),
        (says(error(403, 7, "etcdserver: permission denied")), EtcdDenied),
        (lines(b"garbage\n"), BadAnswer),
        (lines(b'{"neither":1}\n'), BadAnswer),
        (lines(b'{"result":{"events":[{"type":"MAYBE"}]}}\n'), BadAnswer),
        (lines(b"", ends=True), Unreachable),
        (silent, Unreachable),
    ],
)
def test_Q9_a_watch_ends_with_an_error_that_tells_what_to_do(
    answering: Answering, kind: type[HoldfastError]
) -> None:
    async def story() -> None:
        with pytest.raises(kind):
            await watched(answering)

    run(story)


def test_Q9_a_line_without_end_is_cut() -> None:
    async def story() -> None:
        piece = b"100000\r\n" + b"x" * MIB + b"\r\n"
        endless = pouring(CHUNKED, piece, ETCD_LINE_BYTES_MAX // MIB + 2)
        with counted() as held:
            with pytest.raises(BadAnswer):
                await watched(endless, try_ms=20_000)
            assert held.now() < ETCD_LINE_BYTES_MAX + 4 * MIB

    run(story)


def test_Q11_a_watch_renews_its_token_too(credentials: str) -> None:
    async def story() -> None:
        guard = Guard()

        async def guarded(asked: Asked, writer: asyncio.StreamWriter) -> Said | None:
            said = await guard(asked, writer)
            return said if said is not OK else await lines(CREATED)(asked, writer)

        async with fakes(guarded, options=credentials) as (gateway, _):
            await write_token(gateway)
            guard.good = "another"
            async with aclosing(gateway.watch(WATCH)) as watch:
                assert (await anext(watch)).created
            assert guard.given == 2

    async def write_token(gateway: EtcdGateway) -> None:
        assert gateway.tokens is not None
        await gateway.tokens.token()

    run(story)
