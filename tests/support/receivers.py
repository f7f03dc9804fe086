"""The three ways by which batches come into a node: a link, a broker's feed, a mesh snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import msgspec

from holdfast.node.broker_client.client import BrokerClient, Snapshot
from holdfast.node.library.node import Node
from holdfast.node.links.receive import receive_batch, start_over
from holdfast.node.snapshots.download import take_snapshot
from holdfast.node.sync.mesh_state import MeshState
from holdfast.node.sync.receive import decode_page, pieces, receive_page
from holdfast.protocol.broker_http import Standing
from holdfast.protocol.frames import Entries
from holdfast.protocol.log_wire import Batch
from holdfast.protocol.mesh_snapshot import pack_part, part_digest, whole_digest
from holdfast.rules.broker_rows import FeedRow
from holdfast.rules.filters import Filter
from holdfast.rules.outbox import lane_of
from holdfast.rules.rows import LinkRow, ZoneRow
from holdfast.storage.ports import Transaction
from support.envelopes import MESH
from support.nodes import share, store_of

Counts = tuple[int, int, int]
"""New, known, refused."""


class Receiver(Protocol):
    """One way in, for a node that has received nothing by it yet."""

    lane: str

    def __init__(self, node: Node) -> None: ...
    def bring(self, raws: Sequence[bytes]) -> Counts:
        """Brings a batch from the beginning of the source on."""

    def cursor(self) -> int:
        """How far the node has got."""

    def rewind(self) -> None:
        """As if nothing had come yet."""


class ByLink:
    lane = "from-bob"

    def __init__(self, node: Node) -> None:
        self._node = node
        row = LinkRow(
            name=self.lane, url="https://bob:1", zone="bob", filter=Filter(), epoch=1, added_at=0
        )

        def work(tx: Transaction) -> None:
            tx.zone_put(ZoneRow(name="bob", added_at=0))
            tx.link_put(row)

        store_of(node).write(work)

    def bring(self, raws: Sequence[bytes]) -> Counts:
        upto = len(raws)
        batch = Batch(1, 1, upto, 1, upto, list(range(1, upto + 1)), list(raws))
        done = receive_batch(self._node._engine, self.lane, batch)
        return done.new, done.known, done.quarantined

    def cursor(self) -> int:
        with store_of(self._node).read() as tx:
            row = tx.link_get(self.lane)
        assert row is not None
        return row.cursor

    def rewind(self) -> None:
        start_over(self._node._engine, self.lane, 1, 1)


class ByFeed:
    lane = lane_of(MESH)

    def __init__(self, node: Node) -> None:
        self._node = node
        share(node)

    def bring(self, raws: Sequence[bytes]) -> Counts:
        engine = self._node._engine
        state = MeshState(self._node.mesh(MESH).info())
        rows = [FeedRow(seq, "change", bytes(16), raw) for seq, raw in enumerate(raws, 1)]
        page = decode_page(Entries(MESH, 1, 0, len(rows), rows, len(rows)))
        done = [receive_page(engine, state, piece) for piece in pieces(page)]
        return (
            sum(piece.new for piece in done),
            sum(piece.known for piece in done),
            sum(piece.refused for piece in done),
        )

    def cursor(self) -> int:
        return self._node.mesh(MESH).info().broker_seq

    def rewind(self) -> None:
        row = msgspec.structs.replace(self._node.mesh(MESH).info(), broker_seq=0)
        store_of(self._node).write(lambda tx: tx.mesh_change(row))


class Shelf:
    """What a node asks of a broker that holds one snapshot and nothing else."""

    def __init__(self, parts: Sequence[Sequence[bytes]]) -> None:
        self._packed = [pack_part(MESH, 0, list(raws)) for raws in parts]
        digest = whole_digest([part_digest(packed) for packed in self._packed])
        self._rows = sum(map(len, parts))
        self._snapshot = Snapshot("one", 1, self._rows, len(parts), self._rows, digest)

    def snapshot(self, mesh: str) -> Snapshot:
        return self._snapshot

    def snapshot_part(self, mesh: str, id: str, number: int) -> bytes:
        return self._packed[number]

    def objects(self, mesh: str) -> None:
        """No part names an object."""

    def standing(self, mesh: str) -> Standing:
        seq = self._rows
        return Standing(mesh, mesh, "", 1, 0, seq + 1, seq, (), ())


class BySnapshot(ByFeed):
    def bring(self, raws: Sequence[bytes]) -> Counts:
        return self.take([raws])

    def take(self, parts: Sequence[Sequence[bytes]]) -> Counts:
        calls = cast(BrokerClient, Shelf(parts))
        done = take_snapshot(self._node._engine, calls, MESH)
        assert done is not None
        return done.new, done.rows - done.new - done.quarantined, done.quarantined


WAYS: tuple[type[Receiver], ...] = (ByLink, ByFeed, BySnapshot)
