"""Nodes for tests: over a store in memory, or over a real home on the disk.

The rules are the same for both, so most tests run on both kinds (`KINDS`). A restart of a node in
memory keeps its store and nothing else, as a restart of a process keeps its disk.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import msgspec

from holdfast.node.core.context import NodeContext
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.metrics import Metrics
from holdfast.node.home.opening import Opened
from holdfast.node.library.node import Mesh, Node, open_node
from holdfast.rules.keys import card_of, public_key
from holdfast.service.clock import Clock
from holdfast.storage.files.blobs import FileBlobs, MemoryBlobs
from holdfast.storage.files.home import HomePaths
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.ports import Store
from holdfast.storage.sqlite.store import SqliteStore
from support.envelopes import MESH
from support.source import HandClock

KINDS = ("memory", "sqlite")


class MemoryHome(Opened):
    """What a node needs of an open home, without one."""

    def __init__(self, store: MemoryStore, peer: str, source: Clock, blobs: MemoryBlobs) -> None:
        self.paths = HomePaths(Path("in-memory"))
        # The library only drives it through the port and the writer, which both kinds have.
        self.store = cast(SqliteStore, store)
        self.engine = NodeEngine(store, NodeContext(peer, 1, source, blobs), Metrics())
        self.blobs = blobs
        self.open_ms = 0.0

    def close(self) -> None:
        self.store.stop()


class Nodes:
    """Opens nodes of one kind, and closes them all at the end."""

    def __init__(self, kind: str, folder: Path, clock: HandClock) -> None:
        self.kind = kind
        self.folder = folder
        self.clock = clock
        self._open: dict[str, Node] = {}
        self._count = 0

    def open(self, peer: str = "ana", *meshes: str, clock: HandClock | None = None) -> Node:
        """A new node; it takes part in `team` unless other meshes are named."""
        source = clock or self.clock
        if self.kind == "memory":
            home = MemoryHome(MemoryStore(), peer, source, MemoryBlobs(now_ms=source.now_ms))
            node = Node(home)
        else:
            self._count += 1
            folder = self.folder / f"home-{self._count}"
            node = open_node(folder, peer=peer, create=True, sync="normal", source=source)
        for slug in meshes or (MESH,):
            node.create_mesh(slug)
        self._open[peer] = node
        return node

    def reopen(self, node: Node, *, clock: HandClock | None = None) -> Node:
        """What a restart of its process leaves of a node."""
        source = clock or self.clock
        opened = node._opened
        if isinstance(opened, MemoryHome):
            store = cast(MemoryStore, opened.store)
            again = Node(MemoryHome(store, node.peer, source, opened.blobs))
        else:
            node.close()
            again = open_node(node.home, sync="normal", source=source)
        self._open[node.peer] = again
        return again

    def close(self) -> None:
        for node in self._open.values():
            node.close()


SHARED = {
    "kind": "shared_owner",
    "broker_url": "http://127.0.0.1:1",
    "broker_card": card_of("relay", public_key(b"a broker of tests, 32 bytes long")),
    "server_id": "0197f2a0-0000-7000-8000-000000000000",
    "broker_epoch": 1,
}


def share(node: Node, slug: str = MESH) -> Mesh:
    """The mesh as it is after it was published, with a broker that nobody has reached yet."""
    mesh = node.mesh(slug)
    row = msgspec.structs.replace(mesh.info(), **SHARED)
    node._engine.store.write(lambda tx: tx.mesh_change(row))
    return mesh


def store_of(node: Node) -> Store:
    return node._engine.store


def team(node: Node) -> Mesh:
    return node.mesh(MESH)


def deliver(source: Node, target: Node) -> None:
    """Everything in one node's log to another, blobs first, as every transport does."""
    for entry in source.log.range():
        carry_blob(source, target, entry.raw)
        target.apply([entry.raw])


def carry_blob(source: Node, target: Node, raw: bytes) -> None:
    """The content that an envelope names, where it travels beside it."""
    from holdfast.rules.bodies import FileShare, decode_body
    from holdfast.rules.envelope import decode

    body = decode_body(decode(raw))
    if isinstance(body, FileShare) and body.content is None:
        sha = body.sha256.hex()
        if source._engine.blobs.exists(sha):
            target.receive_blob(source._engine.blobs.read(sha))


def blob_names(node: Node) -> set[str]:
    """The blobs whose content is there."""
    return {found.sha for found in node._engine.blobs.scan() if hasattr(found, "sha")}


def grow_old(node: Node, sha: str, at_ms: int) -> None:
    """Makes a blob look as if it had been written at that time."""
    blobs = node._engine.blobs
    if isinstance(blobs, MemoryBlobs):
        blobs.mtimes_ms[sha] = at_ms
    else:
        assert isinstance(blobs, FileBlobs)
        os.utime(blobs.root / sha[:2] / sha, (at_ms / 1000, at_ms / 1000))
