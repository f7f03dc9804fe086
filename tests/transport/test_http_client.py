"""The HTTP client against peers that hang, drip, pour, lie and hang up. Real sockets, real TLS."""

from __future__ import annotations

import gzip
import inspect
import logging
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest

from holdfast.rules import errors
from holdfast.rules.errors import (
    BadAnswer,
    BadInput,
    BadToken,
    BodyTooLarge,
    EpochChanged,
    HoldfastError,
    NotFound,
    OutcomeUnknown,
    TooMany,
    Truncated,
    Unreachable,
    ZoneNotTrusted,
)
from holdfast.rules.limits import KIB, LINE_BYTES_PER_S_MIN, MIB
from holdfast.transport.deadline_socket import Address, DeadlineSocket
from holdfast.transport.http_client import Client
from holdfast.transport.tls import certificate_digest, client_context
from transport.conftest import Talking
from transport.talkers import (
    Reply,
    Request,
    Talk,
    Talker,
    answering,
    error_reply,
    read_request,
    saying,
)

SECRET = "hf_3x4mpl3-T0k3n-that-nobody-may-ever-see-0000000"
SOON_S = 30.0
"""Far more than anything here takes; a hang would last for ever."""


def client_of(talker: Talker, **how: object) -> Client:
    context = client_context() if talker.address.startswith("https") else None
    return Client(talker.address, context=context, **how)  # type: ignore[arg-type]


def echo(request: Request) -> Reply:
    return Reply(body=request.body, headers={"X-Path": request.path})


@pytest.fixture(params=["unix", "http", "https"])
def how(
    request: pytest.FixtureRequest, tmp_path: Path, context: ssl.SSLContext
) -> dict[str, object]:
    """Each way to reach a node."""
    if request.param == "unix":
        return {"unix": tmp_path / "s"}
    return {"context": context} if request.param == "https" else {}


# --- calls ---------------------------------------------------------------------------------------


def test_D10_a_call_is_answered_on_every_kind_of_line(
    talking: Talking, how: dict[str, object]
) -> None:
    talker = talking(answering(echo), **how)
    client = client_of(talker)
    for body in (b"", b"[1]", b"x" * (3 * MIB)):
        answer = client.call("POST", "/v1/x?y=1", body=body)
        assert (answer.status, answer.body) == (200, body)
        assert answer.headers["x-path"] == "/v1/x?y=1"
    assert talker.connections == 1, "it is kept open"
    client.close()
    assert client.call("POST", "/again", body=b"1").body == b"1"
    client.close()


def test_D10_a_token_travels_in_its_header_and_nowhere_else(talking: Talking) -> None:
    seen: list[Request] = []

    def answer(request: Request) -> Reply:
        seen.append(request)
        return Reply()

    talker = talking(answering(answer))
    client = client_of(talker, token=SECRET)
    client.call("GET", "/v1/log")
    client.close()
    assert seen[0].headers["authorization"] == f"Bearer {SECRET}"
    assert seen[0].path == "/v1/log"


def test_D10_a_connection_that_was_closed_meanwhile_is_made_anew(talking: Talking) -> None:
    talker = talking(answering(echo))
    client = client_of(talker)
    client.call("GET", "/")
    talker.hang_up()
    client.call("GET", "/")
    assert talker.connections == 2
    client.close()


def one_each(talker: Talker, conn: socket.socket) -> None:
    """Answers once, and hangs up when the second request is there: too late to be noticed."""
    read_request(conn)
    conn.sendall(Reply().encode())
    read_request(conn)


def test_D10_a_connection_that_closes_under_a_call_is_tried_once_more(talking: Talking) -> None:
    talker = talking(one_each)
    client = client_of(talker)
    for _ in range(3):
        client.call("GET", "/")
    assert talker.connections == 3
    client.close()


def test_D10_what_must_not_happen_twice_is_not_tried_again(talking: Talking) -> None:
    talker = talking(one_each)
    client = client_of(talker)
    client.call("POST", "/v1/facts/append", body=b"{}")
    with pytest.raises(OutcomeUnknown):
        client.call("POST", "/v1/facts/append", body=b"{}")
    assert talker.connections == 1
    client.close()


def test_D10_an_answer_may_come_before_the_request_was_read(talking: Talking) -> None:
    def refusing(talker: Talker, conn: socket.socket) -> None:
        conn.recv(1024)
        reply = error_reply(413, "body_too_large")
        conn.sendall(Reply(413, reply.body, headers={"Connection": "close"}).encode())
        conn.shutdown(socket.SHUT_WR)
        while conn.recv(65536):
            pass

    client = client_of(talking(refusing))
    with pytest.raises(BodyTooLarge):
        client.call("POST", "/v1/x", body=b"x" * (4 * MIB))


# --- what the other side tells of --------------------------------------------------------------


LEAVES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, HoldfastError) and not kind.__subclasses__()
]


@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.code)
def test_D10_an_error_arrives_as_itself(talking: Talking, kind: type[HoldfastError]) -> None:
    reply = error_reply(kind.http_status, kind.code, first_available=7, epoch=3)
    client = client_of(talking(answering(lambda _: reply)))
    for _ in range(2):
        with pytest.raises(kind) as caught:
            client.call("GET", "/")
        assert (caught.value.message, caught.value.hint) == (f"about {kind.code}", "do this")
    if isinstance(caught.value, Truncated):
        assert caught.value.first_available == 7
    if isinstance(caught.value, EpochChanged):
        assert caught.value.epoch == 3
    client.close()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.BadInput),
        (401, errors.NotTrusted),
        (403, errors.NotAllowed),
        (404, NotFound),
        (409, errors.Conflict),
        (429, TooMany),
        (507, errors.DiskFull),
        (418, BadAnswer),
        (500, BadAnswer),
    ],
)
def test_D10_a_code_of_a_later_version_is_known_by_its_family(
    talking: Talking, status: int, kind: type[HoldfastError]
) -> None:
    client = client_of(talking(answering(lambda _: error_reply(status, "not_invented_yet"))))
    with pytest.raises(kind) as caught:
        client.call("GET", "/")
    assert "about not_invented_yet" in caught.value.message
    client.close()


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(502, b"<html>", "text/html"), Unreachable),
        (Reply(503, b"", "text/plain"), Unreachable),
        (Reply(500, b"<html>", "text/html"), BadAnswer),
        (Reply(404, b"<html>", "text/html"), NotFound),
        (Reply(302, b"", headers={"Location": "https://elsewhere"}), BadAnswer),
        (Reply(400, b'{"error": 1}'), BadInput),
        (Reply(410, b"\xff\xfe"), BadAnswer),
        (Reply(410, b'{"error":{"code":"truncated"}}'), BadAnswer),
        (Reply(409, b'{"error":{"code":"epoch_changed"}}'), BadAnswer),
        (Reply(400, b'{"error":' + b"[" * 100_00), BadInput),
    ],
)
def test_D10_an_error_that_is_told_in_another_way_is_understood_as_far_as_it_goes(
    talking: Talking, reply: Reply, kind: type[HoldfastError]
) -> None:
    client = client_of(talking(answering(lambda _: reply)))
    with pytest.raises(kind):
        client.call("GET", "/")
    client.close()


def test_D10_what_a_stranger_says_is_safe_to_show(talking: Talking) -> None:
    reply = Reply(
        400, b'{"error":{"code":"bad_input","message":"\\u001b[2Jx' + b"y" * 9000 + b'"}}'
    )
    client = client_of(talking(answering(lambda _: reply)))
    with pytest.raises(BadInput) as caught:
        client.call("GET", "/")
    assert "\x1b" not in caught.value.message
    assert len(caught.value.message) < 1000
    client.close()


# --- garbage -------------------------------------------------------------------------------------


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"", Unreachable),
        (b"HTTP/1.1 200", BadAnswer),
        (HEAD + b"Content-Length: 10\r\n\r\n12345", Unreachable),
        (HEAD + b"Content-Length: 10\r\n\r\n", Unreachable),
        (CHUNKED + b"5\r\n123", Unreachable),
        (CHUNKED + b"5\r\n12345\r\n", Unreachable),
        (b"garbage\r\n\r\n", BadAnswer),
        (b"\x00" * 100, BadAnswer),
        (b"SSH-2.0-OpenSSH_9.9\r\n", BadAnswer),
        (b"HTTP/1.1 999999 X\r\n\r\n", BadAnswer),
        (HEAD + b"\r\n{}", BadAnswer),
        (HEAD + b"Content-Length: 1048577\r\n\r\n", BadAnswer),
        (CHUNKED + b"100001\r\n" + b"x" * 1048577, BadAnswer),
        (CHUNKED + b"-1\r\n" + b"x" * (4 * MIB), BadAnswer),
        (b"HTTP/1.1 200 OK\r\n" + b"X-Y: z\r\n" * 200 + b"\r\n", BadAnswer),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000, BadAnswer),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 200_000, BadAnswer),
        (HEAD + b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\n{}", BadAnswer),
        (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", BadAnswer),
    ],
)
def test_Z8_half_answers_and_garbage_are_told_apart(
    talking: Talking, raw: bytes, kind: type[HoldfastError]
) -> None:
    client = client_of(talking(saying(raw)))
    with pytest.raises(kind):
        client.call("GET", "/", bytes_max=MIB)
    again = client_of(talking(saying(raw)))
    with pytest.raises(OutcomeUnknown):
        again.call("POST", "/v1/facts/append", body=b"{}", bytes_max=MIB)


def test_Z8_an_answer_of_another_kind_is_not_believed(talking: Talking) -> None:
    client = client_of(
        talking(answering(lambda request: Reply(body=request.body, kind="text/html")))
    )
    with pytest.raises(BadAnswer):
        client.call("POST", "/", body=b"{}").json(dict)
    with pytest.raises(BadAnswer):
        client.call("POST", "/", body=b"{}").msgpack()
    client.close()
    client = client_of(talking(answering(echo)))
    for body in (b"", b"{", b"[]", b"\xff", b'{"a":' * 20_000):
        with pytest.raises(BadAnswer):
            client.call("POST", "/", body=body).json(dict[str, int])
    assert client.call("POST", "/", body=b'{"a":1}').json(dict[str, int]) == {"a": 1}
    client.close()


@pytest.mark.parametrize("size", [MIB, MIB + 1])
def test_Z8_an_answer_is_cut_at_its_size(talking: Talking, size: int) -> None:
    client = client_of(talking(answering(lambda _: Reply(body=b"x" * size))))
    if size == MIB:
        assert len(client.call("GET", "/", bytes_max=MIB).body) == MIB
    else:
        with pytest.raises(BadAnswer):
            client.call("GET", "/", bytes_max=MIB)
    client.close()


# --- time ----------------------------------------------------------------------------------------


def in_time(client: Client, kind: type[HoldfastError], path: str = "/") -> str:
    begun = time.monotonic()
    with pytest.raises(kind) as caught:
        client.call("POST", path, body=b"{}")
    assert time.monotonic() - begun < SOON_S
    return caught.value.message


def hanging(talker: Talker, conn: socket.socket) -> None:
    talker.over.wait()


def silent(talker: Talker, conn: socket.socket) -> None:
    read_request(conn)
    talker.heard.set()
    talker.over.wait()


def dripping(talker: Talker, conn: socket.socket) -> None:
    """A byte now and then, for ever: no read ever takes long."""
    read_request(conn)
    conn.sendall(HEAD + b"Content-Length: 1000000\r\n\r\n")
    while not talker.over.wait(0.01):
        conn.sendall(b"x")


def dripping_head(talker: Talker, conn: socket.socket) -> None:
    read_request(conn)
    conn.sendall(b"HTTP/1.1 200 OK\r\n")
    while not talker.over.wait(0.01):
        conn.sendall(b"X")


@pytest.mark.parametrize("talk", [silent, dripping, dripping_head])
def test_Z8_a_peer_that_hangs_or_drips_is_cut_off(
    talking: Talking, talk: Talk, how: dict[str, object]
) -> None:
    client = client_of(talking(talk, **how), read_ms=300)
    assert "too long" in in_time(client, Unreachable)
    assert "too long" in in_time(client, OutcomeUnknown, "/v1/facts/append")


def test_Z8_a_peer_that_never_shakes_hands_is_cut_off(talking: Talking) -> None:
    talker = talking(hanging)
    client = Client(f"https://127.0.0.1:{talker.port}", context=client_context(), connect_ms=300)
    in_time(client, Unreachable)


def test_Z8_a_peer_that_does_not_read_is_cut_off(talking: Talking) -> None:
    client = client_of(talking(hanging), read_ms=300)
    with pytest.raises(Unreachable):
        client.call("POST", "/", body=b"x" * (64 * MIB))


def test_Z8_nobody_there_is_told_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    for address in (f"http://127.0.0.1:{port}", f"unix:{tmp_path / 'none'}"):
        in_time(Client(address), Unreachable)
        in_time(Client(address), Unreachable, "/v1/facts/append")  # nothing was sent


def test_Z8_a_peer_without_tls_is_told(talking: Talking) -> None:
    def plain(talker: Talker, conn: socket.socket) -> None:
        conn.recv(1024)
        conn.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        talker.over.wait()

    talker = talking(plain)
    client = Client(f"https://127.0.0.1:{talker.port}", context=client_context())
    in_time(client, BadAnswer)


class Hands:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_Z8_a_slow_line_that_keeps_its_pace_gets_through() -> None:
    clock = Hands()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = DeadlineSocket(clock)
        line._sock = ours
        line.allow(1000, MIB)
        buffer = memoryview(bytearray(LINE_BYTES_PER_S_MIN))
        for _ in range(60):  # a minute, at just the pace that is asked for
            theirs.sendall(b"x" * LINE_BYTES_PER_S_MIN)
            assert line.readinto(buffer) == LINE_BYTES_PER_S_MIN
            clock.now += 0.99
        theirs.sendall(b"x")
        assert line.readinto(buffer) == 1  # in time, but it buys next to nothing
        clock.now += 0.02
        with pytest.raises(TimeoutError):
            line.readinto(buffer)


def test_Z8_a_gush_buys_no_long_silence() -> None:
    clock = Hands()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = DeadlineSocket(clock)
        line._sock = ours
        line.allow(1000, MIB)
        theirs.sendall(bytes(64 * KIB))
        assert line.readinto(memoryview(bytearray(64 * KIB)))
        theirs.sendall(b"x")  # late: a line that still waited would take it
        clock.now += 1.01
        with pytest.raises(TimeoutError):
            line.readinto(memoryview(bytearray(1)))


# --- abort ---------------------------------------------------------------------------------------


def woken(client: Client, talker: Talker, path: str = "/v1/facts/fetch") -> HoldfastError:
    """What a call that waits without end gets when another thread aborts it."""
    caught: list[HoldfastError] = []

    def call() -> None:
        try:
            client.call("POST", path, body=b"{}", read_ms=10 * 60 * 1000)
        except HoldfastError as error:
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert talker.heard.wait(SOON_S)
    client.abort()
    thread.join(SOON_S)
    assert not thread.is_alive()
    return caught[0]


def test_Z8_an_abort_wakes_a_call_that_waits(talking: Talking, how: dict[str, object]) -> None:
    talker = talking(silent, **how)
    client = client_of(talker)
    assert isinstance(woken(client, talker), Unreachable)
    with pytest.raises(Unreachable, match="broken off"):
        client.call("GET", "/")
    assert talker.connections == 1, "nothing is asked after it"


def test_Z8_an_abort_of_what_was_sent_leaves_it_unknown(talking: Talking) -> None:
    talker = talking(silent)
    assert isinstance(woken(client_of(talker), talker, "/v1/facts/append"), OutcomeUnknown)


def test_Z8_an_abort_wakes_a_handshake(talking: Talking) -> None:
    def half_a_hand(talker: Talker, conn: socket.socket) -> None:
        conn.recv(1)
        talker.heard.set()
        talker.over.wait()

    talker = talking(half_a_hand)
    client = Client(
        f"https://127.0.0.1:{talker.port}", context=client_context(), connect_ms=600_000
    )
    assert isinstance(woken(client, talker), Unreachable)


def test_Z8_an_abort_before_the_call_is_not_forgotten(talking: Talking) -> None:
    talker = talking(answering(echo))
    client = client_of(talker)
    client.abort()
    with pytest.raises(Unreachable):
        client.call("GET", "/")
    assert talker.connections == 0


# --- gzip ----------------------------------------------------------------------------------------


def packed(body: bytes) -> Reply:
    return Reply(body=body, headers={"Content-Encoding": "gzip"})


def test_D10_packed_answers_come_only_when_asked_for(talking: Talking) -> None:
    seen: list[Request] = []

    def answer(request: Request) -> Reply:
        seen.append(request)
        return packed(gzip.compress(b'{"a":1}'))

    client = client_of(talking(answering(answer)))
    assert client.call("GET", "/", gzip=True).json(dict) == {"a": 1}
    client.call("GET", "/")
    assert [request.headers["accept-encoding"] for request in seen] == ["gzip", "identity"]
    client.close()


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(gzip.compress(bytes(64 * MIB), 1), id="bomb"),
        pytest.param(gzip.compress(b"x" * 1000)[:-5], id="half"),
        pytest.param(gzip.compress(b"x") + b"more", id="more"),
        pytest.param(b"no gzip at all", id="none"),
    ],
)
def test_Z8_a_packed_answer_cannot_grow_without_end(talking: Talking, body: bytes) -> None:
    assert len(body) < MIB
    client = client_of(talking(answering(lambda _: packed(body))))
    with pytest.raises(BadAnswer):
        client.call("GET", "/", bytes_max=MIB, gzip=True)
    client.close()


# --- streams -------------------------------------------------------------------------------------


def test_D10_a_stream_comes_piece_by_piece(talking: Talking, how: dict[str, object]) -> None:
    def talk(talker: Talker, conn: socket.socket) -> None:
        while request := read_request(conn):
            conn.sendall(CHUNKED + b"5\r\nfirst\r\n")
            if request.path == "/wait":
                talker.heard.wait(SOON_S)
            conn.sendall(b"4\r\nlast\r\n0\r\n\r\n")

    talker = talking(talk, **how)
    client = client_of(talker)
    stream = client.stream("GET", "/wait")
    assert next(stream) == b"first", "before the rest is sent"
    talker.heard.set()
    assert list(stream) == [b"last"]
    assert b"".join(client.stream("GET", "/")) == b"firstlast"
    assert talker.connections == 1
    client.close()


def test_D10_a_large_stream_is_whole(talking: Talking) -> None:
    body = bytes(range(256)) * (16 * KIB)
    client = client_of(talking(answering(lambda _: Reply(body=body))))
    assert b"".join(client.stream("GET", "/")) == body
    client.close()
    client = client_of(talking(answering(lambda _: packed(gzip.compress(body)))))
    pieces = list(client.stream("GET", "/", gzip=True))
    assert b"".join(pieces) == body
    assert max(map(len, pieces)) <= 64 * KIB
    client.close()


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (HEAD + b"Content-Length: 10\r\n\r\n12345", Unreachable),
        (CHUNKED + b"5\r\n12345\r\n", Unreachable),
        (HEAD + b"\r\n12345", BadAnswer),
        (packed(gzip.compress(b"x" * 9999)[:-9]).encode(), Unreachable),
        (packed(b"garbage").encode(), BadAnswer),
        (error_reply(404, "no_route").encode(), NotFound),
    ],
)
def test_Z8_a_stream_that_breaks_off_is_told(
    talking: Talking, raw: bytes, kind: type[HoldfastError]
) -> None:
    client = client_of(talking(saying(raw)))
    with pytest.raises(kind):
        list(client.stream("GET", "/"))


def test_Z8_a_stream_that_stops_is_cut_off(talking: Talking) -> None:
    def stopping(talker: Talker, conn: socket.socket) -> None:
        read_request(conn)
        conn.sendall(CHUNKED + b"5\r\nfirst\r\n")
        talker.over.wait()

    stream = client_of(talking(stopping)).stream("GET", "/", read_ms=300)
    assert next(stream) == b"first"
    with pytest.raises(Unreachable):
        next(stream)


def test_D10_a_stream_that_is_left_does_not_spoil_the_next_call(talking: Talking) -> None:
    talker = talking(answering(lambda _: Reply(body=b"x" * MIB)))
    client = client_of(talker)
    stream = client.stream("GET", "/")
    next(stream)
    stream.close()
    assert len(client.call("GET", "/").body) == MIB
    assert talker.connections == 2
    client.close()


# --- certificates --------------------------------------------------------------------------------


def test_Z8_a_certificate_that_was_not_proved_is_not_spoken_to(
    talking: Talking, context: ssl.SSLContext, other_context: ssl.SSLContext, certificate: Path
) -> None:
    said: list[bytes] = []

    def listening(talker: Talker, conn: socket.socket) -> None:
        said.append(conn.recv(1024))
        talker.heard.set()

    pin = certificate_digest(certificate)
    honest = client_of(talking(answering(echo), context=context))
    answer = honest.call("POST", "/", body=b"secret", pin=pin)
    assert (answer.body, answer.certificate) == (b"secret", pin)
    honest.call("POST", "/", body=b"secret", pin=pin)
    with pytest.raises(ZoneNotTrusted):
        honest.call("POST", "/", body=b"secret", pin=b"x" * 32)
    honest.close()
    talker = talking(listening, context=other_context)
    with pytest.raises(ZoneNotTrusted):
        client_of(talker).call("POST", "/", body=b"secret", pin=pin)
    assert talker.heard.wait(SOON_S)
    assert said == [b""]


def test_Z8_without_a_proof_a_certificate_must_be_vouched_for(
    talking: Talking, context: ssl.SSLContext
) -> None:
    talker = talking(answering(echo), context=context)
    with pytest.raises(BadAnswer):
        Client(talker.address, token=SECRET).call("GET", "/")


# --- what is not sent ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "",
        "127.0.0.1:8080",
        "ftp://host",
        "https://",
        "https://host:0x",
        "https://host:99999",
        f"https://user:{SECRET}@host",
        "https://host/path",
        "https://host?x",
        "https://ho st",
        "https://[::1",
        "unix:",
    ],
)
def test_D10_what_is_no_address_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(BadInput) as caught:
        Client(address)
    assert SECRET not in f"{caught.value.message}{caught.value.hint}"


def test_D10_addresses_are_read_as_people_write_them() -> None:
    assert str(Address.parse("https://Host.example/")) == "https://host.example:443"
    assert str(Address.parse("http://[::1]:80")) == "http://[::1]:80"
    assert str(Address.parse("unix:/a b/s")) == "unix:/a b/s"


@pytest.mark.parametrize(
    ("address", "may"),
    [
        ("http://127.0.0.1:1", True),
        ("http://localhost:1", True),
        ("http://[::1]:1", True),
        ("unix:/s", True),
        ("https://example.com", True),
        ("http://example.com", False),
        ("http://127.example.com", False),
        ("http://10.0.0.1", False),
    ],
)
def test_D10_a_token_does_not_travel_over_a_network_as_it_is(address: str, may: bool) -> None:
    if may:
        Client(address, token=SECRET)
    else:
        with pytest.raises(BadInput):
            Client(address, token=SECRET)


@pytest.mark.parametrize("path", ["/a b", "/a\r\nX: y", "/é", "/a\n"])
def test_D10_nothing_is_smuggled_into_a_request(talking: Talking, path: str) -> None:
    talker = talking(answering(echo))
    client = client_of(talker)
    with pytest.raises(BadInput):
        client.call("GET", path)
    with pytest.raises(BadInput) as caught:
        client.call("GET", "/", headers={"X": f"{SECRET}\r\nY: z"})
    assert SECRET not in str(caught.value)
    assert talker.connections == 0


def test_D10_a_token_is_never_shown(
    talking: Talking, caplog: pytest.LogCaptureFixture, context: ssl.SSLContext
) -> None:
    caplog.set_level(logging.DEBUG)
    said: list[str] = []
    for raw in (b"", b"garbage\r\n\r\n", error_reply(401, "bad_token").encode(), CHUNKED):
        for how in ({}, {"context": context}):
            talker = talking(saying(raw), **how)
            client = client_of(talker, token=SECRET)
            for path in ("/", "/v1/facts/append"):
                with pytest.raises(HoldfastError) as caught:
                    client.call("POST", path, body=b"{}")
                said += [repr(caught.value), caught.value.message, caught.value.hint, repr(client)]
                cause = caught.value.__cause__
                said += [repr(cause), str(cause)]
            client.close()
    with pytest.raises(BadToken) as refused:
        Client("unix:/s", token=f"{SECRET}\n")
    assert SECRET not in "\n".join([*said, caplog.text, str(refused.value)])
