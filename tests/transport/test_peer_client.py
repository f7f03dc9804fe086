"""The other node of a link, over real TLS: who is believed, what is sent, and to whom."""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.node.trust.trust import Trust
from holdfast.protocol.log_wire import (
    MSGPACK,
    Batch,
    Confirmation,
    Fetch,
    Registration,
    encode_batch,
)
from holdfast.rules.errors import (
    BadAnswer,
    BadInput,
    BadToken,
    EpochChanged,
    HoldfastError,
    KeyExpired,
    NotGranted,
    UnknownObject,
    Unreachable,
    ZoneNotTrusted,
)
from holdfast.rules.filters import Filter
from holdfast.rules.keys import bytes_of, card_of, public_key, text_of
from holdfast.rules.limits import DAY_MS, FETCH_BYTES_MAX
from holdfast.rules.rows import ZoneKey, ZoneRow
from holdfast.service.sessions import Sessions
from holdfast.storage.files import home as homes
from holdfast.transport.http_client import Client
from holdfast.transport.peer_client import PeerClient
from holdfast.transport.tls import certificate_digest, client_context
from support.nodes import Nodes
from support.source import START_MS, HandClock
from transport.conftest import Talking
from transport.talkers import Reply, Request, Talker, answering, error_reply

BO, BO_NEXT, EVE = b"b" * 32, b"n" * 32, b"e" * 32
BATCH = Batch(1, 1, 2, 1, 2, [1, 2], [b"one", b"two"])
SHA = "ab" * 32
CONTENT = bytes(range(256))


class Ana:
    """A node that answers, with real trust and sessions; the routes are the least that will do."""

    def __init__(self, trust: Trust, certificate: Path) -> None:
        self.trust = trust
        self.certificate = certificate_digest(certificate)
        self.seen: list[Request] = []
        self.reply: Callable[[Request], Reply] = self.usual
        self.forget()

    def forget(self) -> None:
        """As a restart does."""
        self.sessions = Sessions(self.trust, clock=lambda: 0.0, random=os.urandom)

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.seen]

    def row(self, **other: Any) -> ZoneRow:
        """What bo has pinned for ana."""
        key = public_key(self.trust.seed())
        row = ZoneRow(name="ana", keys=(ZoneKey(key=key, added_at=0),), added_at=0)
        return msgspec.structs.replace(row, **other)

    def answer(self, request: Request) -> Reply:
        self.seen.append(request)
        try:
            if request.path == "/v1/hello":
                return self._greet(request)
            if request.path == "/v1/hello/prove":
                return self._prove(request)
            if self.sessions.caller_of(request.headers["authorization"].split()[1]) is None:
                raise BadToken("no such session")
            return self.reply(request)
        except HoldfastError as error:
            return error_reply(error.http_status, error.code)

    def _greet(self, request: Request) -> Reply:
        asked = request.json
        key, nonce = bytes_of(asked["key"], 32), bytes_of(asked["nonce"], 32)
        said = self.sessions.greet(asked["zone"], key, nonce, self.certificate)
        document = {"zone": said.zone, "key": text_of(said.key), "nonce": text_of(said.nonce)}
        return Reply(body=msgspec.json.encode({**document, "proof": text_of(said.proof)}))

    def _prove(self, request: Request) -> Reply:
        asked = request.json
        session = self.sessions.prove(bytes_of(asked["nonce"], 32), bytes_of(asked["proof"], 64))
        document = {"session": session.token, "expires_in_ms": session.expires_in_ms}
        return Reply(body=msgspec.json.encode(document))

    def usual(self, request: Request) -> Reply:
        if request.path == "/v1/facts/fetch":
            return Reply(body=encode_batch(BATCH), kind=MSGPACK)
        if request.path != f"/v1/objects/{SHA}":
            return Reply() if request.path.startswith("/v1/") else error_reply(404, "no_route")
        if request.method == "HEAD":
            return Reply(headers={"Content-Length": str(len(CONTENT))})
        first, last = map(int, request.headers["range"].removeprefix("bytes=").split("-"))
        piece = CONTENT[first : last + 1]
        place = f"bytes {first}-{first + len(piece) - 1}/{len(CONTENT)}"
        return Reply(206, piece, "application/octet-stream", {"Content-Range": place})


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def ana(tmp_path: Path, clock: HandClock, certificate: Path) -> Ana:
    node = Nodes("memory", tmp_path, clock).open("ana")
    trust = Trust(node._engine, homes.create_home(tmp_path / "keys", "ana"))
    trust.trust(card_of("bo", public_key(BO)), reads=["team"])
    return Ana(trust, certificate)


@pytest.fixture
def talker(talking: Talking, ana: Ana, context: ssl.SSLContext) -> Talker:
    return talking(answering(ana.answer), context=context)


def reach(talker: Talker, ana: Ana, seed: bytes = BO, **other: Any) -> PeerClient:
    row = ana.row(**other)
    return PeerClient(
        talker.address, us=("bo", seed), pinned=lambda: row, now_ms=lambda: START_MS, read_ms=20_000
    )


CONFIRM = Confirmation(consumer="zone:bo/x", offset=2, epoch=1)


# --- an honest pair ------------------------------------------------------------------------------


def test_Z8_a_link_asks_after_both_have_proved_themselves(talker: Talker, ana: Ana) -> None:
    remote = reach(talker, ana)
    remote.register(Registration(consumer="zone:bo/x", filter=Filter(meshes=("team",))))
    assert remote.fetch(Fetch(consumer="zone:bo/x", start=1, epoch=1, wait_ms=5)) == BATCH
    remote.confirm(CONFIRM)
    assert remote.object_size(SHA) == len(CONTENT)
    assert remote.object(SHA, 0, 100) == CONTENT[:100]
    assert remote.object(SHA, 200, 100) == CONTENT[200:]
    remote.retire("zone:bo/x y")
    remote.close()
    assert ana.paths == [
        *("/v1/hello", "/v1/hello/prove", "/v1/consumers", "/v1/facts/fetch", "/v1/facts/confirm"),
        *[f"/v1/objects/{SHA}"] * 3,
        "/v1/consumers/zone%3Abo%2Fx%20y",
    ]
    assert msgspec.json.decode(ana.seen[2].body, type=Registration).filter.meshes == ("team",)
    assert msgspec.json.decode(ana.seen[3].body, type=Fetch).start == 1
    assert ana.seen[3].headers["accept"] == MSGPACK
    assert msgspec.json.decode(ana.seen[4].body, type=Confirmation) == CONFIRM
    assert all("authorization" not in request.headers for request in ana.seen[:2])


def test_Z8_a_session_that_is_gone_is_made_anew_once(talker: Talker, ana: Ana) -> None:
    remote = reach(talker, ana)
    remote.confirm(CONFIRM)
    ana.forget()
    remote.confirm(CONFIRM)
    assert ana.paths.count("/v1/hello") == 2
    ana.reply = lambda request: error_reply(401, "bad_token")
    with pytest.raises(BadToken):
        remote.confirm(CONFIRM)
    assert ana.paths.count("/v1/hello") == 3
    remote.close()


def test_Z8_threads_share_one_session(talker: Talker, ana: Ana) -> None:
    remote = reach(talker, ana)
    threads = [threading.Thread(target=remote.confirm, args=(CONFIRM,)) for _ in range(6)]
    threads += [
        threading.Thread(target=remote.fetch, args=(Fetch(consumer="zone:bo/x"),)) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ana.paths.count("/v1/hello") == 1
    assert len(ana.seen) == 10
    remote.close()


def test_Z8_a_confirmation_does_not_wait_for_the_long_poll(
    talking: Talking, ana: Ana, context: ssl.SSLContext
) -> None:
    waiting, confirmed = threading.Event(), threading.Event()

    def reply(request: Request) -> Reply:
        if request.path == "/v1/facts/fetch":
            waiting.set()
            assert confirmed.wait(30)
        return ana.usual(request)

    ana.reply = reply
    remote = reach(talking(answering(ana.answer), context=context), ana)
    thread = threading.Thread(target=remote.fetch, args=(Fetch(consumer="c", wait_ms=30_000),))
    thread.start()
    assert waiting.wait(30)
    remote.confirm(CONFIRM)
    confirmed.set()
    thread.join()
    remote.close()


def test_Z8_an_abort_wakes_the_long_poll(
    talking: Talking, ana: Ana, context: ssl.SSLContext
) -> None:
    waiting, over = threading.Event(), threading.Event()

    def reply(request: Request) -> Reply:
        waiting.set()
        assert over.wait(30)
        return ana.usual(request)

    ana.reply = reply
    remote = reach(talking(answering(ana.answer), context=context), ana)
    caught: list[HoldfastError] = []

    def fetch() -> None:
        try:
            remote.fetch(Fetch(consumer="c", wait_ms=60_000))
        except HoldfastError as error:
            caught.append(error)

    thread = threading.Thread(target=fetch)
    thread.start()
    assert waiting.wait(30)
    remote.abort()
    thread.join(30)
    over.set()
    assert isinstance(caught[0], Unreachable)
    with pytest.raises(Unreachable):
        remote.confirm(CONFIRM)


# --- who is not believed -------------------------------------------------------------------------


def refused(remote: PeerClient, kind: type[HoldfastError] = ZoneNotTrusted) -> HoldfastError:
    with pytest.raises(kind) as caught:
        remote.confirm(CONFIRM)
    remote.close()
    return caught.value


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"keys": (ZoneKey(key=public_key(EVE), added_at=0),)}, id="another key"),
        pytest.param({"keys": ()}, id="no key"),
        pytest.param({"name": "cy"}, id="another zone"),
    ],
)
def test_Z8_a_node_that_is_not_the_pinned_one_gets_no_proof_of_ours(
    talker: Talker, ana: Ana, other: dict[str, Any]
) -> None:
    error = refused(reach(talker, ana, **other))
    assert "holdfast peer card" in error.hint
    assert ana.paths == ["/v1/hello"]


def test_Z8_a_pinned_key_that_has_ended_proves_nothing(talker: Talker, ana: Ana) -> None:
    key = public_key(ana.trust.seed())
    refused(reach(talker, ana, keys=(ZoneKey(key=key, added_at=0, expires_at=START_MS),)))
    assert ana.paths == ["/v1/hello"]


def test_Z8_a_zone_that_is_blocked_here_is_not_even_asked(talker: Talker, ana: Ana) -> None:
    refused(reach(talker, ana, blocked_at=1))
    assert talker.connections == 0


def test_Z8_a_node_that_does_not_trust_us_says_so(
    talker: Talker, ana: Ana, clock: HandClock
) -> None:
    error = refused(reach(talker, ana, seed=EVE))
    assert error.message == "about zone_not_trusted"
    ana.trust.trust(card_of("bo", public_key(BO_NEXT)), days=1)
    clock.advance(DAY_MS)
    refused(reach(talker, ana, seed=BO_NEXT), KeyExpired)
    ana.trust.block("bo")
    refused(reach(talker, ana))


def test_Z8_a_session_is_refused_after_the_zone_is_blocked_there(talker: Talker, ana: Ana) -> None:
    remote = reach(talker, ana)
    remote.confirm(CONFIRM)
    ana.trust.block("bo")
    refused(remote)


@pytest.mark.parametrize(
    "change",
    [
        {"proof": text_of(bytes(64))},
        {"proof": "x"},
        {"nonce": text_of(b"x" * 32)},
        {"key": "garbage"},
        {"key": 5},
        {"zone": ""},
    ],
)
def test_Z8_a_hello_that_was_tampered_with_is_refused(
    talking: Talking, ana: Ana, context: ssl.SSLContext, change: dict[str, object]
) -> None:
    def tamper(request: Request) -> Reply:
        reply = ana.answer(request)
        return Reply(body=msgspec.json.encode({**msgspec.json.decode(reply.body), **change}))

    talker = talking(answering(tamper), context=context)
    remote = reach(talker, ana)
    with pytest.raises((ZoneNotTrusted, BadAnswer)):
        remote.confirm(CONFIRM)
    remote.close()
    assert ana.paths == ["/v1/hello"]


# --- somebody in the middle ----------------------------------------------------------------------


def test_Z8_somebody_in_the_middle_with_a_certificate_of_his_own_learns_nothing(
    talking: Talking, ana: Ana, talker: Talker, other_context: ssl.SSLContext
) -> None:
    passed: list[Request] = []
    line = Client(talker.address, context=client_context())

    def pass_on(request: Request) -> Reply:
        """Word for word, in both directions."""
        passed.append(request)
        answer = line.call(request.method, request.path, body=request.body)
        return Reply(answer.status, answer.body)

    middle = talking(answering(pass_on), context=other_context)
    error = refused(reach(middle, ana))
    assert "cannot prove it on this connection" in error.message
    assert [request.path for request in passed] == ["/v1/hello"], "our proof was never sent"
    line.close()


def test_Z8_a_session_is_not_shown_to_another_certificate(
    talking: Talking, ana: Ana, context: ssl.SSLContext, other_context: ssl.SSLContext
) -> None:
    """The address leads somewhere else from one call to the next, as in a hijacked network."""
    heard: list[Request] = []

    def attacker(request: Request) -> Reply:
        heard.append(request)
        return error_reply(401, "bad_token")

    honest = talking(answering(ana.answer), context=context)
    remote = reach(honest, ana)
    remote.confirm(CONFIRM)
    hijacked = talking(answering(attacker), context=other_context)
    for client in (remote._reading, remote._export):
        client.close()
        client.address = msgspec.structs.replace(client.address, port=hijacked.port)
    for call in (lambda: remote.confirm(CONFIRM), lambda: remote.fetch(Fetch(consumer="c"))):
        with pytest.raises(BadToken):
            call()
    assert {request.path for request in heard} == {"/v1/hello"}
    assert all("authorization" not in request.headers for request in heard)
    remote.close()


def test_Z8_a_node_with_a_new_certificate_is_believed_after_a_new_hello(
    talking: Talking,
    ana: Ana,
    context: ssl.SSLContext,
    other_context: ssl.SSLContext,
    other_certificate: Path,
) -> None:
    remote = reach(talking(answering(ana.answer), context=context), ana)
    remote.confirm(CONFIRM)
    ana.certificate = certificate_digest(other_certificate)
    moved = talking(answering(ana.answer), context=other_context)
    for client in (remote._reading, remote._export):
        client.close()
        client.address = msgspec.structs.replace(client.address, port=moved.port)
    remote.confirm(CONFIRM)
    assert ana.paths.count("/v1/hello") == 2
    remote.close()


# --- keys that change ----------------------------------------------------------------------------


def test_Z8_either_side_changes_its_key_without_a_pause(talker: Talker, ana: Ana) -> None:
    seeds, row = [BO], ana.row()
    remote = PeerClient(talker.address, us=("bo", lambda: seeds[-1]), pinned=lambda: row)
    remote.confirm(CONFIRM)
    # Ours: the other side knows both keys for a while.
    ana.trust.trust(card_of("bo", public_key(BO_NEXT)))
    seeds.append(BO_NEXT)
    ana.forget()
    remote.confirm(CONFIRM)
    # Theirs: we know both keys for a while.
    added = ZoneKey(key=bytes_of(ana.trust.make_next().rpartition(":")[2], 32), added_at=0)
    row = msgspec.structs.replace(row, keys=(*row.keys, added))
    remote.confirm(CONFIRM)
    ana.trust.switch()
    ana.forget()
    remote.confirm(CONFIRM)
    row = msgspec.structs.replace(row, keys=(added,))
    remote.hello()
    remote.confirm(CONFIRM)
    remote.close()


# --- addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "token", "may"),
    [
        ("https://example.com", None, True),
        ("http://example.com", None, False),
        ("http://127.0.0.1:1", None, False),
        ("unix:/s", None, False),
        ("http://127.0.0.1:1", "hf_x", True),
        ("unix:/s", "hf_x", True),
        ("http://example.com", "hf_x", False),
        ("https://example.com", "hf_x", False),
    ],
)
def test_Z8_a_link_is_encrypted_or_stays_on_this_machine(
    url: str, token: str | None, may: bool, ana: Ana
) -> None:
    def make() -> PeerClient:
        return PeerClient(url, us=("bo", BO), pinned=ana.row, token=token)

    if may:
        make()
    else:
        with pytest.raises(BadInput):
            make()


def test_Z8_with_a_token_there_is_no_hello(talking: Talking, ana: Ana) -> None:
    seen: list[Request] = []

    def answer(request: Request) -> Reply:
        seen.append(request)
        return ana.usual(request) if len(seen) < 3 else error_reply(401, "bad_token")

    talker = talking(answering(answer))
    remote = PeerClient(talker.address, us=("bo", BO), pinned=ana.row, token="hf_x")
    remote.hello()
    remote.confirm(CONFIRM)
    remote.fetch(Fetch(consumer="c"))
    with pytest.raises(BadToken):
        remote.confirm(CONFIRM)
    assert {request.headers["authorization"] for request in seen} == {"Bearer hf_x"}
    assert "/v1/hello" not in [request.path for request in seen]
    remote.close()


# --- answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (error_reply(409, "epoch_changed", epoch=4), EpochChanged),
        (error_reply(403, "not_granted"), NotGranted),
        (error_reply(507, "disk_full"), Unreachable),
        (error_reply(500, "store_corrupt"), Unreachable),
        (error_reply(503, "store_closed"), Unreachable),
        (error_reply(500, "outcome_unknown"), Unreachable),
        (Reply(body=b"{}"), BadAnswer),
        (Reply(body=b"garbage", kind=MSGPACK), BadAnswer),
        (Reply(body=b"x" * (2 * FETCH_BYTES_MAX), kind=MSGPACK), BadAnswer),
    ],
)
def test_Z8_trouble_of_the_other_node_is_not_taken_for_ours(
    talker: Talker, ana: Ana, reply: Reply, kind: type[HoldfastError]
) -> None:
    ana.reply = lambda request: reply
    remote = reach(talker, ana)
    with pytest.raises(kind):
        remote.fetch(Fetch(consumer="c"))
    remote.close()


def test_Z8_an_object_comes_as_asked_for_or_not_at_all(talker: Talker, ana: Ana) -> None:
    remote = reach(talker, ana)
    assert remote.object_size("cd" * 32) == 2  # what the usual route answers for anything
    ana.reply = lambda request: error_reply(404, "unknown_object")
    assert remote.object_size(SHA) is None
    with pytest.raises(UnknownObject):
        remote.object(SHA, 0, 10)
    for reply in (
        Reply(206, b"x" * 10, headers={"Content-Range": "bytes 0-9/20"}),
        Reply(206, b"x" * 10),
        Reply(200, b"x" * 10),
        Reply(206, b"x" * 11, headers={"Content-Range": "bytes 5-15/20"}),
    ):
        ana.reply = lambda request, reply=reply: reply  # type: ignore[misc]
        with pytest.raises(BadAnswer):
            remote.object(SHA, 5, 10)
    ana.reply = lambda request: Reply(200, b"whole")
    assert remote.object(SHA, 0, 10) == b"whole"
    for size in ("-1", "9" * 5000):
        ana.reply = lambda request, size=size: Reply(  # type: ignore[misc]
            headers={"Content-Length": size}
        )
        with pytest.raises((BadAnswer, Unreachable)):
            remote.object_size(SHA)
    remote.close()


def test_Z8_no_secret_of_a_link_is_shown(
    talker: Talker, ana: Ana, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    remote = reach(talker, ana)
    remote.confirm(CONFIRM)
    session = ana.seen[-1].headers["authorization"].split()[1]
    ana.reply = lambda request: error_reply(403, "not_granted")
    with pytest.raises(NotGranted) as caught:
        remote.confirm(CONFIRM)
    said = f"{caught.value!r}{caught.value.hint}{remote!r}{remote._calls._session!r}{caplog.text}"
    for hidden in (session, session[3:], text_of(BO), BO.hex(), BO.decode()):
        assert hidden not in said
    remote.close()
