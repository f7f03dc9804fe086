"""Blocking a peer for oneself: what it sends to this node is dropped at the door.

Blocking is about what is *sent to* this node: messages over a broker, and over the bus messages,
requests and what is published to topics. They are counted, and the sender is not told: a broker
and the bus hear that they arrived. Changes of a mesh are not sent to anybody: they stay, or the
nodes of the mesh would differ. What keeps a mesh together (joining, votes) stays too.
"""

from __future__ import annotations

from holdfast.node.core.engine import NodeEngine
from holdfast.rules.errors import BadInput, UnknownPeer
from holdfast.rules.names import check_peer
from holdfast.rules.rows import BlockedPeer
from holdfast.storage.ports import Transaction


def block_peer(engine: NodeEngine, peer: str) -> BlockedPeer:
    """From now on. One that is blocked already stays as it is."""
    check_peer(peer)
    if peer == engine.ctx.peer:
        raise BadInput("a node cannot block itself")

    def work(tx: Transaction) -> BlockedPeer:
        found = tx.blocked_get(peer)
        if found is None:
            found = BlockedPeer(peer=peer, since=engine.ctx.now_ms())
            tx.blocked_put(found)
        return found

    return engine.write("peer.block", work)


def unblock_peer(engine: NodeEngine, peer: str) -> BlockedPeer:
    """What was dropped meanwhile does not come again."""

    def work(tx: Transaction) -> BlockedPeer:
        found = tx.blocked_get(peer)
        if found is None:
            raise UnknownPeer(f"{peer!r} is not blocked", hint="see: holdfast peer blocked")
        tx.blocked_drop(peer)
        return found

    return engine.write("peer.block", work)


def blocked_peers(engine: NodeEngine) -> list[BlockedPeer]:
    """By name."""
    return engine.read("peer.blocked", lambda tx: tx.blocked_list())
