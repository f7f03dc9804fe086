"""A head that came before is not parsed again, and nobody can see a difference.

The same bytes, cut anywhere, go to a connection that remembers heads and to one that does not: what
they answer, and what the application gets, is the same to the byte.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from holdfast.rules.limits import HEADS_KNOWN_BYTES_MAX, HEADS_KNOWN_MAX
from holdfast.rules.web_access import WebAccess
from holdfast.transport.http_protocol import Done, Fronts, HttpConnection
from holdfast.transport.known_heads import Headers, KnownHeads, RequestHead

PATIENCE_S = 60
SECRET = b"authorization: Bearer s3cret\r\n"


TOLD: tuple[Headers, ...] = ((), ((b"epoch", b"1"),))
"""Headers of answers."""


class Afresh(Fronts):
    """Keeps no beginning of an answer."""

    def of(self, status: int, usual: Headers, headers: Headers) -> bytes:
        return Fronts().of(status, list(usual), headers)


class Nothing(KnownHeads):
    """Remembers no head."""

    def find(self, data: bytes) -> tuple[RequestHead, int] | None:
        return None


class Counting(KnownHeads):
    """Counts what it found."""

    hits = 0

    def find(self, data: bytes) -> tuple[RequestHead, int] | None:
        found = super().find(data)
        self.hits += found is not None
        return found


class Mirror:
    """A call on the fast path that answers with all that it was asked, at once or later."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, Headers, bytes]] = []
        self.later = False
        self.open = True

    def takes(self, url: bytes) -> bool:
        return self.open and url.startswith(b"/quick")

    def answer(self, head: RequestHead, body: bytes, done: Done) -> None:
        asked = head.url, tuple(head.headers), body
        self.asked.append(asked)
        granted = any(name == b"authorization" for name, _ in head.headers)
        said = repr(asked).encode()
        told = (201 if granted else 401, said, TOLD[len(body) % 2])
        if self.later:
            asyncio.get_running_loop().call_soon(done, *told)
        else:
            done(*told)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """What the fast path does not take."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
        if not message["more_body"]:
            break
    said = repr((scope["method"], scope["raw_path"], scope["headers"], body)).encode()
    head = [(b"content-length", b"%d" % len(said))]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": said})


class Line:
    """One connection, whose bytes come in pieces as the test cuts them."""

    def __init__(self, heads: KnownHeads, quick: Mirror, fronts: Fronts | None = None) -> None:
        self.heads, self.quick, self.fronts = heads, quick, fronts or Afresh()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        config = uvicorn.Config(app, lifespan="off", log_config=None)
        self.server = HttpConnection(config, ServerState(), {}, loop)
        self.server.kind, self.server.lines, self.server.web = "tcp", {}, WebAccess()
        self.server.quick, self.server.heads = self.quick, self.heads
        self.server.fronts = self.fronts
        await loop.connect_accepted_socket(lambda: self.server, theirs)
        self.reader, self.writer = await asyncio.open_connection(sock=ours)

    async def take(self, piece: bytes) -> None:
        """Hands over bytes as the transport does: not while reading has stopped."""
        transport = self.server.transport
        while not transport.is_reading() and not transport.is_closing():
            await asyncio.sleep(0)
        if not transport.is_closing() and piece:
            self.server.data_received(piece)

    async def close(self) -> bytes:
        """Ends it; what was answered."""
        for _ in range(20):
            await asyncio.sleep(0)  # answers that are under way
        self.server.transport.close()
        said = await self.reader.read()
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()
        return said


async def told(
    line: Line, pieces: Sequence[tuple[bytes, bool]]
) -> tuple[bytes, list[tuple[bytes, Headers, bytes]]]:
    await line.open()
    async with asyncio.timeout(PATIENCE_S):
        for piece, turn in pieces:
            await line.take(piece)
            if turn:
                await asyncio.sleep(0)
        return await line.close(), line.quick.asked


FIELDS = st.sampled_from(
    [
        b"",
        b"Content-Length: 4\r\n",
        b"content-length: 5\r\n",
        b"content-length: +4\r\n",
        b"content-length: 04\r\n",
        b"content-length : 4\r\n",
        b"content-length:\r\n 4\r\n",
        b"content-length: 4, 4\r\n",
        b"transfer-encoding: chunked\r\n",
        b"transfer-encoding: identity\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"x: y\r\n folded\r\n",
        b"x: y\nz: w\r\n",
        b"connection: close\r\n",
        b"connection: keep-alive\r\n",
        b"expect: 100-continue\r\n",
        b"upgrade: websocket\r\nconnection: upgrade\r\n",
        b"host: elsewhere\r\n",
        b"origin: http://elsewhere\r\n",
        b"x: \xff\x00\r\n",
    ]
)
FIRST_LINES = st.sampled_from(
    [
        b"POST /quick HTTP/1.1",
        b"POST /quick HTTP/1.0",
        b"GET /quick HTTP/1.1",
        b"POST /slow HTTP/1.1",
        b"POST  /quick HTTP/1.1",
        b"\r\nPOST /quick HTTP/1.1",
        b"POST http://localhost/quick HTTP/1.1",
        b"post /quick HTTP/1.1",
    ]
)
WHOLE = b"POST /quick HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4\r\n" + SECRET + b"\r\n"
BODIES = st.sampled_from([b"abcd", b"\r\n\r\n", b"0\r\n\r", b"abc", b"abcdPOST", b"", WHOLE])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Mostly the plain one, so that heads come again, and now and then a strange one."""
    body = draw(BODIES)
    if draw(st.booleans()):
        return WHOLE + draw(st.sampled_from([b"abcd", b"\r\n\r\n", body]))
    first = draw(FIRST_LINES)
    length = draw(st.sampled_from([b"", b"content-length: %d\r\n" % len(body)]))
    fields = draw(st.permutations([b"host: localhost\r\n", length, SECRET, draw(FIELDS)]))
    return first + b"\r\n" + b"".join(fields) + b"\r\n" + body


@st.composite
def pieces(draw: st.DrawFn) -> list[tuple[bytes, bool]]:
    """Requests behind each other, cut between them, or anywhere."""
    asked = draw(st.lists(requests(), min_size=1, max_size=6))
    if draw(st.booleans()):
        cut = asked
    else:
        sent = b"".join(asked)
        places = sorted(draw(st.lists(st.integers(0, len(sent)), max_size=8)))
        cut = [sent[a:b] for a, b in zip([0, *places], [*places, len(sent)], strict=True)]
    return [(piece, draw(st.booleans())) for piece in cut]


def mirror(*, later: bool) -> Mirror:
    made = Mirror()
    made.later = later
    return made


@given(pieces(), st.booleans())
@settings(max_examples=300)
def test_D10_a_known_head_is_answered_as_if_it_were_parsed_however_bytes_are_cut(
    sent: list[tuple[bytes, bool]], later: bool
) -> None:
    async def main() -> None:
        known, fronts = Counting(), Fronts()
        warm = Line(known, Mirror(), fronts)
        await told(warm, [(WHOLE + b"abcd", True)])
        assert len(known._heads) == 1
        with_heads = await told(Line(known, mirror(later=later), fronts), sent)
        without = await told(Line(Nothing(), mirror(later=later)), sent)
        assert with_heads == without

    asyncio.run(main())


def test_D10_the_second_request_with_a_head_is_a_look_up_cut_at_no_byte_else() -> None:
    async def main() -> None:
        raw = WHOLE + b"abcd"
        for at in range(len(raw) + 1):
            known = Counting()
            halves = [(raw, True), (raw[:at], True), (raw[at:], True), (raw, True)]
            said, asked = await told(Line(known, Mirror()), halves)
            assert said.count(b"HTTP/1.1 201 ") == 3
            assert [body for _, _, body in asked] == [b"abcd"] * 3
            assert known.hits == (2 if at in (0, len(raw)) else 1)

    asyncio.run(main())


def test_D10_a_body_of_another_length_is_no_request_with_a_known_head() -> None:
    """A whole request hides in the body, or a second one comes along."""

    async def main() -> None:
        for more in (b"abc", b"abcde", b"abcd" + WHOLE, b"abcd" + WHOLE + b"abcd"):
            known = Counting()
            await told(Line(known, Mirror()), [(WHOLE + b"abcd", True)])
            before = known.hits
            said = await told(Line(known, Mirror()), [(WHOLE + more, True)])
            assert known.hits == before
            assert said == await told(Line(Nothing(), Mirror()), [(WHOLE + more, True)])

    asyncio.run(main())


def test_D10_a_request_that_begins_with_the_last_byte_of_another_waits_for_its_answer() -> None:
    """A byte of the next head comes with the body before, which has no answer yet."""

    async def main() -> None:
        raw = WHOLE + b"abcd"
        for heads in (Counting(), Nothing()):
            for more in range(1, len(raw)):
                sent = [raw + raw[:more], raw[more:]]
                line = Line(heads, mirror(later=True))
                said, asked = await told(line, [(piece, False) for piece in sent])
                assert said.count(b"HTTP/1.1 201 ") == 2
                assert [body for _, _, body in asked] == [b"abcd", b"abcd"]

    asyncio.run(main())


def test_D10_only_granted_heads_are_kept_and_only_so_many() -> None:
    async def main() -> None:
        known = KnownHeads()
        stranger = WHOLE.replace(SECRET, b"")
        await told(Line(known, Mirror()), [(stranger + b"abcd", True)] * 3)
        assert not known._heads
        long = WHOLE.replace(SECRET, SECRET + b"x: %b\r\n" % (b"y" * HEADS_KNOWN_BYTES_MAX))
        await told(Line(known, Mirror()), [(long + b"abcd", True)] * 3)
        assert not known._heads
        line = Line(known, Mirror())
        many = [WHOLE.replace(b"/quick", b"/quick/%d" % n) for n in range(HEADS_KNOWN_MAX + 10)]
        await told(line, [(head + b"abcd", False) for head in many])
        assert len(known._heads) == HEADS_KNOWN_MAX
        assert many[0] not in known._heads
        assert many[-1] in known._heads

    asyncio.run(main())


def test_D10_a_call_that_the_fast_path_no_longer_takes_goes_the_long_way() -> None:
    async def main() -> None:
        known, quick = Counting(), Mirror()
        await told(Line(known, quick), [(WHOLE + b"abcd", True)])
        quick.open = False
        said, asked = await told(Line(known, quick), [(WHOLE + b"abcd", True)])
        assert b"'/quick'" in said
        assert b"HTTP/1.1 200 " in said
        assert len(asked) == 1

    asyncio.run(main())


def test_D10_an_answer_begins_like_the_last_one_only_if_nothing_of_it_is_different() -> None:
    fronts = Fronts()
    first = [(b"date", b"now")]
    epoch = ((b"epoch", b"1"),)
    for status, usual, headers in (
        *((201, first, epoch), (201, first, epoch), (200, first, epoch), (200, first, ())),
        *((200, [(b"date", b"later")], ()), (200, [(b"date", b"now")], ()), (201, first, epoch)),
    ):
        assert fronts.of(status, usual, headers) == Afresh().of(status, usual, headers)


def test_D10_what_was_worked_out_of_a_head_comes_again_with_its_bytes_alone() -> None:
    class Noting(Mirror):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[tuple[bytes, object]] = []

        def answer(self, head: RequestHead, body: bytes, done: Done) -> None:
            self.seen.append((body, head.meaning))
            head.meaning = head.meaning or dict(head.headers)[b"authorization"]
            super().answer(head, body, done)

    async def main() -> None:
        known, quick = KnownHeads(), Noting()
        other = WHOLE.replace(b"s3cret", b"s4cret")
        sent = [WHOLE + b"abcd", other + b"efgh", WHOLE + b"ijkl", other + b"mnop"]
        await told(Line(known, quick), [(one, True) for one in sent])
        assert quick.seen == [
            *((b"abcd", None), (b"efgh", None)),
            *((b"ijkl", b"Bearer s3cret"), (b"mnop", b"Bearer s4cret")),
        ]

    asyncio.run(main())


async def _answered(line: Line, alive_s: float, times: int) -> list[object]:
    """The timers that were set while so many requests were answered."""
    await line.open()
    loop = asyncio.get_running_loop()
    line.server.timeout_keep_alive = alive_s  # type: ignore[assignment]
    timers: list[object] = []
    later = loop.call_later

    def noting(after_s: float, call: Any, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        timers.append(call)
        return later(after_s, call, *args, **kwargs)

    loop.call_later = noting  # type: ignore[assignment,method-assign]
    for _ in range(times):
        await line.take(WHOLE + b"abcd")
    loop.call_later = later  # type: ignore[method-assign]
    return timers


def test_D10_one_timer_serves_all_answers_and_ends_no_connection_too_early() -> None:
    async def main() -> None:
        line = Line(KnownHeads(), Mirror())
        assert len(await _answered(line, 3600, 50)) == 1
        first = line.server._idle_timer
        line.server._look_idle()  # as the timer of the first answer would
        assert not line.server.transport.is_closing()
        assert line.server._idle_timer is not first, "it waits for what is left"
        await line.close()
        assert line.server._idle_timer is None

    asyncio.run(main())


def test_D10_a_connection_ends_when_it_was_idle_for_so_long() -> None:
    async def main() -> None:
        line = Line(KnownHeads(), Mirror())
        await _answered(line, 0.05, 3)
        loop = asyncio.get_running_loop()
        answered = line.server._idle_since or loop.time()
        async with asyncio.timeout(PATIENCE_S):
            await line.reader.read()
        assert loop.time() - answered >= 0.05
        line.writer.close()

    asyncio.run(main())
