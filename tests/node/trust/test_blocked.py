"""A peer that is blocked: what it sends is dropped at the door, counted, and not told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.node.core.receive import ReceivedPiece, receive_arrivals
from holdfast.node.library.bus import MessageFeed
from holdfast.node.library.node import Node
from holdfast.rules.arrivals import read_arrivals
from holdfast.rules.errors import BadInput, RequestTimedOut, SenderBlocked, UnknownPeer
from holdfast.storage.ports import Transaction
from support import envelopes as e
from support.bus_homes import PATIENCE_MS, Homes
from support.envelopes import MESH
from support.nodes import store_of, team


def bring(node: Node, *raws: bytes) -> ReceivedPiece:
    """As a broker brings a page: messages among it are for this node."""

    def take(tx: Transaction) -> ReceivedPiece:
        return receive_arrivals(
            node._engine,
            tx,
            read_arrivals(raws),
            lane=f"broker:{MESH}",
            epoch=1,
            offsets=range(1, len(raws) + 1),
            mesh=MESH,
            delivered={one: b"B" * 16 for one in raws},
        )

    return store_of(node).write(take)


def test_S21_messages_of_a_blocked_peer_are_dropped_and_counted_and_its_changes_stay(
    node: Node,
) -> None:
    node.block_peer("bob")
    piece = bring(
        node,
        e.message_send("topic", "news", b"psst", lamport=1, origin="bob"),
        e.message_send("topic", "news", b"hear", lamport=2, origin="bob"),
        e.state_set("k", 1, lamport=3, origin="bob"),
        e.message_send("topic", "news", b"hello", lamport=4, origin="cyd"),
    )
    assert [type(one.error) for one in piece.applied[:2]] == [SenderBlocked] * 2
    assert (piece.new, piece.dropped, piece.refused) == (2, 2, 0)
    assert [row.sender for row in node.inbox.list()] == ["cyd"]
    assert team(node).state.get("k") == 1, "the nodes of a mesh do not differ by it"
    assert [(row.peer, row.dropped) for row in node.blocked_peers()] == [("bob", 2)]
    with store_of(node).read() as tx:
        assert tx.quarantine_count(f"broker:{MESH}") == 0
        assert tx.log_bounds() == (1, 2), "not even the log has them"


def test_S21_one_that_is_unblocked_is_heard_again_and_what_came_before_stays(node: Node) -> None:
    first = e.message_send("topic", "news", b"before", lamport=1, origin="bob")
    bring(node, first)
    node.block_peer("bob")
    assert node.block_peer("bob") == node.blocked_peers()[0], "twice is once"
    assert bring(node, first).known == 1, "it is here, whoever is blocked now"
    bring(node, e.message_send("topic", "news", b"meanwhile", lamport=2, origin="bob"))
    assert node.unblock_peer("bob").dropped == 1
    bring(node, e.message_send("topic", "news", b"after", lamport=3, origin="bob"))
    assert [node.inbox.read(row.id).content for row in node.inbox.list()] == [b"before", b"after"]
    with pytest.raises(UnknownPeer):
        node.unblock_peer("bob")
    with pytest.raises(BadInput):
        node.block_peer(node.peer)


@pytest.fixture(params=["process", "daemon"])
def homes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Homes]:
    with Homes(tmp_path, request.param) as made:
        yield made


def test_S21_over_the_bus_the_sender_is_not_told(homes: Homes) -> None:
    ana, bo = homes.pair()
    with ana.bus.serve("echo", lambda request: request.body), ana.bus.subscribe() as inbox:
        before = bo.bus.send("ana", "before")
        assert _next(inbox) == b"before"
        assert bo.bus.request("ana", "echo", b"1", timeout_ms=PATIENCE_MS).body == b"1"
        ana.block_peer("bo")
        assert bo.bus.send("ana", "unwanted").state == before.state == "delivered"
        with pytest.raises(RequestTimedOut):
            bo.bus.request("ana", "echo", b"2", timeout_ms=300)
        assert ana.unblock_peer("bo") is not None
        assert bo.bus.request("ana", "echo", b"3", timeout_ms=PATIENCE_MS).body == b"3"
        bo.bus.send("ana", "after")
        assert _next(inbox) == b"after", "and nothing between"


def _next(inbox: MessageFeed) -> bytes:
    found = inbox.take(PATIENCE_MS)
    assert found is not None
    return found.body
