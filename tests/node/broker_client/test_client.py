"""What a node asks a broker over HTTP, against a broker that serves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import holdfast
from holdfast.node.broker_client.client import BrokerClient, card_shown
from holdfast.node.broker_client.queues import QueueClient
from holdfast.node.library.node import Node
from holdfast.node.sync.run_once import wait_until_synced
from holdfast.node.trust.trust import Trust
from holdfast.rules.errors import LeaseEnded, Unreachable, ZoneNotTrusted
from holdfast.rules.keys import card_of, public_key
from holdfast.storage.files.home import HomePaths
from support.live_broker import LiveBroker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LiveBroker]:
    with LiveBroker(tmp_path / "hub") as up:
        yield up


@pytest.fixture
def ana(tmp_path: Path, broker: LiveBroker) -> Iterator[Node]:
    with holdfast.open(tmp_path / "ana", peer="ana", create=True, sync="normal") as node:
        node.mesh("team", create=True)
        node.sharing.publish("team", broker=broker.url)
        yield node


def trust_of(node: Node) -> Trust:
    return Trust(node._engine, HomePaths(node.home))


def client_of(node: Node, card: str | None = None) -> BrokerClient:
    row = node.mesh("team").info()
    assert row.broker_url is not None
    assert row.broker_card is not None
    return BrokerClient.of(trust_of(node), row.broker_url, card or row.broker_card)


def test_D15_a_client_speaks_only_with_the_broker_whose_key_it_was_given(ana: Node) -> None:
    other = card_of("hub", public_key(b"another key of 32 bytes, or so.."))
    with closing(client_of(ana, other)) as client, pytest.raises(ZoneNotTrusted):
        client.members("team")


def test_D15_the_card_of_an_unknown_broker_is_shown_after_it_has_proved_it(
    ana: Node, broker: LiveBroker
) -> None:
    trust = trust_of(ana)
    assert card_shown(broker.url, (trust.name, trust.seed)) == ana.mesh("team").info().broker_card


def test_D15_a_client_outlives_a_restart_of_its_broker(ana: Node, broker: LiveBroker) -> None:
    """Its session is forgotten there: it says hello again, and the call is made."""
    with closing(client_of(ana)) as client:
        before = client.members("team")
        broker.stop()
        with pytest.raises(Unreachable):
            client.members("team")
        broker.start()
        assert client.members("team") == before
        assert [member.name for member in before] == ["ana"]


def test_D5_a_queue_is_taken_from_and_settled(ana: Node) -> None:
    ana.sharing.declare("team", "queue", "work")
    ana.mesh("team").send("first", queue="work")
    trust, paths = trust_of(ana), HomePaths(ana.home)
    assert wait_until_synced(ana._engine, trust, paths, "team").done
    with closing(client_of(ana)) as client:
        queue = QueueClient(client, "team", "work")
        (taken,) = queue.take(5)
        assert taken.text == "first"
        assert queue.take(5) == [], "it is in our hands"
        assert queue.settle(taken.handle, "done")
        with pytest.raises(LeaseEnded):
            queue.settle(taken.handle, "done")
