"""`node.bus`, in the process that holds the bus and beside a daemon that does: the same verbs,
values and errors.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.bus.received import ReceivedRequest
from holdfast.node.library.bus import NodeBus
from holdfast.node.library.node import Node
from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    BusClosed,
    IdempotencyKeyReused,
    NoResponder,
    OverLimit,
    RequestRefused,
    RequestTimedOut,
    UnknownPeer,
    UnknownZone,
)
from holdfast.rules.keys import card_of, public_key, text_of
from holdfast.rules.limits import BUS_PAYLOAD_BYTES_MAX
from support.bus_homes import HOLDERS, PATIENCE_MS, Homes, befriend, trust_of
from support.waiting import until

NOWHERE = "127.0.0.1:1"


@pytest.fixture(params=HOLDERS)
def homes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Homes]:
    with Homes(tmp_path, request.param) as made:
        yield made


@pytest.fixture
def pair(homes: Homes) -> tuple[Node, Node]:
    return homes.pair()


def test_B4_U1_a_message_is_delivered_and_waits_for_somebody_who_listens(
    pair: tuple[Node, Node],
) -> None:
    ana, bo = pair
    sent = bo.bus.send("ana", "the build is green", topic="builds.linux", content_type="text/plain")
    assert sent.state == "delivered"
    with ana.bus.subscribe("builds.*") as messages:
        found = messages.take(PATIENCE_MS)
    assert found is not None
    assert (found.id, found.sender, found.topic) == (sent.id, "bo", "builds.linux")
    assert (found.text, found.content_type) == ("the build is green", "text/plain")
    assert trust_of(bo).card().endswith(text_of(found.key))


def test_B4_U1_bytes_arrive_as_they_were_sent(pair: tuple[Node, Node]) -> None:
    ana, bo = pair
    everything = bytes(range(256)) * 5
    with ana.bus.subscribe() as messages:
        for body in (everything, b"", "äö\n\n: x"):
            bo.bus.send("ana", body)
        found = [messages.take(PATIENCE_MS) for _ in range(3)]
    assert [one.body for one in found if one] == [everything, b"", "äö\n\n: x".encode()]


def test_B4_U1_a_message_that_was_not_finished_comes_again_and_a_finished_one_does_not(
    pair: tuple[Node, Node],
) -> None:
    ana, bo = pair
    for text in ("one", "two"):
        bo.bus.send("ana", text)
    taken = []

    def fail() -> None:
        with ana.bus.subscribe() as messages:
            taken.append(messages.take(PATIENCE_MS))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    (first,) = taken
    assert first is not None
    with ana.bus.subscribe() as messages:
        again = messages.take(PATIENCE_MS)
        assert again is not None
        assert (again.id, again.text) == (first.id, "one")
        assert messages.take(PATIENCE_MS) is not None
    with ana.bus.subscribe() as messages:
        assert messages.take(timeout_ms=200) is None


def test_B4_U1_a_send_to_a_peer_that_is_away_waits_and_arrives_when_it_appears(
    homes: Homes,
) -> None:
    ana, bo = homes.listening("ana"), homes.open("bo")
    befriend(ana, bo)
    bo.bus.close()
    bo.close()
    sent = [ana.bus.send("bo", text, wait_ms=10) for text in ("one", "two")]
    assert [receipt.state for receipt in sent] == ["spooled", "spooled"]
    assert {peer.peer: peer.waiting for peer in ana.bus.peers()} == {"bo": 2}
    back = homes.open("bo")
    with back.bus.subscribe() as messages:
        found = [messages.take(PATIENCE_MS) for _ in sent]
    assert [one.text for one in found if one] == ["one", "two"]
    assert [one.id for one in found if one] == [receipt.id for receipt in sent]


def test_B5_U1_a_request_gets_its_reply_and_each_failure_its_kind(pair: tuple[Node, Node]) -> None:
    ana, bo = pair

    @ana.bus.serve("double")
    def double(request: ReceivedRequest) -> str:
        if request.text == "boom":
            raise ZeroDivisionError("of a secret")
        if request.text == "no":
            raise UnknownZone("there is no zone of that name")
        return str(2 * int(request.text))

    with pytest.raises(NoResponder):
        bo.bus.request("ana", "dance")
    reply = bo.bus.request("ana", "double", "21", timeout_ms=PATIENCE_MS)
    assert (reply.text, reply.peer) == ("42", "ana")
    with pytest.raises(RequestRefused, match=r"^unknown_zone: there is no zone of that name$"):
        bo.bus.request("ana", "double", "no")
    with pytest.raises(RequestRefused, match=r"^handler_failed") as caught:
        bo.bus.request("ana", "double", "boom")
    assert "secret" not in caught.value.message
    assert bo.bus.request(None, "double", "4", timeout_ms=PATIENCE_MS).text == "8"


def test_B5_U1_a_service_ends_with_its_block(pair: tuple[Node, Node]) -> None:
    ana, bo = pair
    with ana.bus.serve("echo", lambda request: request.body):
        assert bo.bus.request("ana", "echo", b"\xff", timeout_ms=PATIENCE_MS).body == b"\xff"
        with pytest.raises(AlreadyExists):
            ana.bus.serve("echo", lambda request: b"")
    with pytest.raises(NoResponder):
        bo.bus.request("ana", "echo")


def test_B5_U1_a_request_that_is_too_late_ends_its_handler(pair: tuple[Node, Node]) -> None:
    ana, bo = pair
    begun, ended = threading.Event(), threading.Event()

    async def sleep(request: ReceivedRequest) -> bytes:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return b""

    ana.bus.serve("sleep", sleep)
    with pytest.raises(RequestTimedOut):
        bo.bus.request("ana", "sleep", timeout_ms=300)
    assert begun.is_set()
    assert ended.wait(PATIENCE_MS / 1000)


def test_B5_U1_who_listens_gets_what_is_published(pair: tuple[Node, Node]) -> None:
    ana, bo = pair
    assert bo.bus.publish("builds.linux", "nobody listens").peers == 0
    with ana.bus.subscribe("builds.>", durable=True) as messages:
        # That the link answers says nothing of what was told on it; the status does.
        until(lambda: bo.bus.peers()[0].durable == ["builds.>"])
        assert bo.bus.peers()[0].topics == ["builds.>"]
        done = bo.bus.publish("builds.linux.done", "green")
        assert (done.peers, done.kept) == (0, 1)
        bo.bus.publish("news", "not for this one")
        found = messages.take(PATIENCE_MS)
        assert found is not None
        assert (found.topic, found.text) == ("builds.linux.done", "green")
    assert bo.bus.publish("builds.linux", "later").kept == 1
    with ana.bus.subscribe("builds.>", durable=True) as messages:
        later = messages.take(PATIENCE_MS)
        assert later is not None
        assert later.text == "later"


def test_B6_U1_bad_input_is_refused_by_its_kind(pair: tuple[Node, Node]) -> None:
    ana, bo = pair
    for bus in (ana.bus, bo.bus):
        with pytest.raises(UnknownPeer):
            bus.send("eve", "hello")
        with pytest.raises(UnknownPeer):
            bus.ping("eve")
        with pytest.raises(BadInput):
            bus.send("ana" if bus is bo.bus else "bo", 3)  # type: ignore[arg-type]
        with pytest.raises(BadInput):
            bus.publish("builds..linux", "x")
        with pytest.raises(BadInput), bus.subscribe("a.>.b"):
            raise AssertionError("it opened")
        with pytest.raises(holdfast.errors.HoldfastError):
            bus.send("bo" if bus is ana.bus else "ana", "x", id="no id")
        with pytest.raises(OverLimit):
            bus.send("bo" if bus is ana.bus else "ana", b"x" * (BUS_PAYLOAD_BYTES_MAX + 1))


def test_B4_U1_the_same_id_arrives_once(pair: tuple[Node, Node]) -> None:
    ana, bo = pair
    id = "01900000-0000-7000-8000-000000000001"
    for _ in range(3):
        assert bo.bus.send("ana", "once", id=id).state == "delivered"
    with ana.bus.subscribe() as messages:
        assert messages.take(PATIENCE_MS) is not None
        assert messages.take(timeout_ms=200) is None


def _other_requests(bus: NodeBus, to: str, id: str) -> list[Callable[[], object]]:
    """All that differ in one thing from a message `first` of the topic `t`."""
    return [
        lambda: bus.send(to, "second", topic="t", id=id, wait_ms=1),
        lambda: bus.send(to, "first", topic="u", id=id, wait_ms=1),
        lambda: bus.send(to, "first", topic="t", priority="low", id=id, wait_ms=1),
        lambda: bus.send(to, "first", topic="t", content_type="text/x", id=id, wait_ms=1),
        lambda: bus.send("cleo", "first", topic="t", id=id, wait_ms=1),
        lambda: bus.publish("t", "first", id=id),
        lambda: bus.request(to, "t", "first", id=id),
    ]


def test_B4_U1_an_id_that_was_given_for_something_else_is_a_conflict(
    pair: tuple[Node, Node],
) -> None:
    ana, bo = pair
    for node in pair:
        trust_of(node).trust(card_of("cleo", public_key(b"c" * 32)))
    id = "01900000-0000-7000-8000-000000000001"
    for node, to in ((bo, "ana"), (ana, "bo")):  # in the process, and by way of a daemon
        assert node.bus.send(to, "first", topic="t", id=id, wait_ms=PATIENCE_MS).id
        for ask in _other_requests(node.bus, to, id):
            with pytest.raises(IdempotencyKeyReused):
                ask()
        assert node.bus.send(to, "first", topic="t", id=id).state == "delivered", "tried again"
    with ana.bus.subscribe("t") as messages:
        first = messages.take(PATIENCE_MS)
        assert first is not None
        assert first.text == "first"
        assert messages.take(timeout_ms=200) is None


def test_B6_U1_the_status_names_links_and_what_waits(pair: tuple[Node, Node]) -> None:
    ana, bo = pair
    assert 0 < bo.bus.ping("ana") < PATIENCE_MS
    until(lambda: ana.bus.peers()[0].link == "up")
    (peer,) = ana.bus.peers()
    assert (peer.peer, peer.trust, peer.link) == ("bo", "trusted", "up")
    assert peer.seen_at is not None, "it is seen now"
    standing = bo.bus.status()
    (other,) = standing.peers
    assert other.address == ana.bus.status().listening[0]
    assert other.rtt_ms is not None
    assert other.rtt_ms == round(other.rtt_ms, 3), "whole microseconds"
    assert (standing.name, standing.listening, standing.discovery) == ("bo", [], "off")
    assert other.seen_at is not None
    assert other.error is None
    trust_of(bo).trust(card_of("cleo", public_key(b"c" * 32)), at=[NOWHERE])
    bo.bus.refresh()
    until(lambda: any("cannot be reached" in (one.error or "") for one in bo.bus.peers()))


def test_B6_U1_a_program_that_holds_the_bus_takes_up_a_new_key(tmp_path: Path) -> None:
    with Homes(tmp_path) as homes:
        ana = homes.listening("ana")
        before = ana.bus.status().card
        other = homes.open("ana")  # as `holdfast peer rotate --switch` does in another process
        trust_of(other).make_next()
        card = trust_of(other).switch()
        assert before != card
        assert ana.bus.status().card == card


def test_B6_U1_what_a_program_shares_is_shared_at_once(homes: Homes) -> None:
    ana, bo = homes.pair()
    ana.mesh("plans", create=True).state.set("k", "v")
    ana.bus.sharing.share("plans")
    invite = ana.bus.sharing.invite("plans", addresses=ana.bus.status().listening)
    bo.bus.join(invite.text)
    until(lambda: bo.mesh("plans").state.get("k") == "v")


def test_B2_U1_a_bus_that_was_closed_says_so(pair: tuple[Node, Node]) -> None:
    _, bo = pair
    bo.bus.close()
    with pytest.raises(BusClosed):
        bo.bus.send("ana", "too late")
    bo.bus.close()


def test_B2_U1_bind_is_for_the_process_that_holds_the_bus(homes: Homes) -> None:
    ana = homes.listening("ana")
    other = homes.open("ana")
    with pytest.raises(AlreadyExists):
        other.bus.bind(listen="127.0.0.1:0")
    if homes.holder == "daemon":
        assert other.bus.status().name == "ana"
    with pytest.raises(AlreadyExists):
        ana.bus.bind(listen="127.0.0.1:0")


def test_U1_the_bus_for_coroutines(homes: Homes) -> None:
    ana, bo = homes.pair()
    ana.bus.status()

    async def talk() -> list[str]:
        async with holdfast.aopen(bo.home) as node:
            heard: list[str] = []
            async with node.bus.subscribe("to.bo") as messages:
                reply = asyncio.ensure_future(anext(messages))
                await asyncio.to_thread(ana.bus.send, "bo", "hello", topic="to.bo")
                heard.append((await reply).text)

            async def shout(request: ReceivedRequest) -> str:
                return request.text.upper()

            async with node.bus.serve("shout", shout):
                answer = await asyncio.to_thread(ana.bus.request, "bo", "shout", "hey")
                heard.append(answer.text)
            serving = await node.bus.serve("shout", shout)
            await serving.close()
            heard.append((await node.bus.send("ana", "bye")).state)
            return heard

    bo.close()
    assert asyncio.run(talk()) == ["hello", "HEY", "delivered"]
