"""Nodes of a mesh that moves between engines: what tests write, and what must hold then."""

from __future__ import annotations

from holdfast.node.core.write_queue import queue_counts
from holdfast.node.quorum.api import StrongReceipt
from holdfast.node.quorum.ports import OrderStatus
from holdfast.rules.bodies import encode_body
from holdfast.rules.quorum.commit_record import CommitRecord, decode_record
from holdfast.rules.quorum.entities import read_fields
from holdfast.rules.quorum.intents import EntityChange, EntityOperation
from holdfast.rules.quorum.state_rows import QuorumRow
from support.envelopes import MESH
from support.etcd_server import HOST, etcd_server
from support.voter_nodes import VoterNode, until

SOON_MS = 20_000


def etcd_address(scope: str) -> str:
    port = etcd_server().ports[0]
    return f"etcd://{HOST}:{port}?allow-old-version=yes&scope={scope}"


async def write(node: VoterNode, id: str, title: str) -> StrongReceipt:
    return await node.host.quorum.intend(
        MESH, "entity.change", f"mission/{id}", mission_put(id, title), timeout_ms=SOON_MS
    )


async def status(node: VoterNode) -> OrderStatus:
    return await node.host.quorum.status(MESH)


def row_of(node: VoterNode) -> QuorumRow:
    row = node.node._engine.read("row", lambda tx: tx.quorum_get(MESH))
    assert row is not None
    return row


def title(node: VoterNode, id: str = "m") -> object:
    row = node.mission(id)
    return None if row is None else read_fields(row.fields)["title"]


def records(node: VoterNode) -> list[bytes]:
    rows = node.node._engine.read("commits", lambda tx: tx.commit_range(MESH, 1, 10_000))
    return [row.record for row in rows]


def decoded(node: VoterNode) -> list[CommitRecord]:
    return [decode_record(raw) for raw in records(node)]


async def same(*nodes: VoterNode) -> None:
    """Waits until all of them have the same commits."""
    await until(lambda: len({tuple(records(node)) for node in nodes}) == 1)
    assert all(
        not node.node._engine.read("trouble", lambda tx: tx.job_get(f"commits.trouble:{MESH}"))
        for node in nodes
    )


async def settled(node: VoterNode) -> None:
    """Until nothing of a node waits."""
    engine = node.node._engine
    await until(lambda: engine.read("queue", lambda tx: queue_counts(tx, MESH)).queue_depth == 0)


def check_fences(node: VoterNode) -> None:
    """Numbers have no gaps, fences and lease epochs never fall."""
    found = decoded(node)
    assert [one.number for one in found] == list(range(1, len(found) + 1))
    orders = [one.fence.order for one in found]
    assert orders == sorted(set(orders))
    epochs = [one.fence.lease_epoch for one in found]
    assert epochs == sorted(epochs), "the lease epoch never falls"


def mission_put(id: str, text: str) -> bytes:
    operation = EntityOperation("put", "mission", id, None, b'{"title":"%s"}' % text.encode())
    return encode_body(EntityChange((operation,)))
