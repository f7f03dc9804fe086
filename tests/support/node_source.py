"""The other end of a link in the same process: a real node, asked without a line between."""

from __future__ import annotations

from collections.abc import Callable
from os import SEEK_END
from typing import Any

from holdfast.node.library.node import Node
from holdfast.node.log import serve
from holdfast.node.snapshots.link_export import give_part
from holdfast.protocol.commit_page import StateObject
from holdfast.protocol.link_snapshot import (
    LinkSnapshotPart,
    SnapshotPartAsked,
    decode_part,
    encode_part,
)
from holdfast.protocol.log_wire import Batch, Confirmation, Fetch, Registration
from holdfast.service.caller import Caller


class NodeSource:
    """Answers as a daemon does. `on_call` is called before every answer."""

    def __init__(self, node: Node, reader: str, reads: frozenset[str] | None = None) -> None:
        self.node, self.caller = node, Caller("zone", reader, reads)
        self.on_call: Callable[[str, Any], None] = lambda call, what: None

    def register(self, registration: Registration) -> int:
        self.on_call("register", registration)
        serve.register(self.node._engine, self.caller, registration)
        return self.node.log.head().offset

    def fetch(self, fetch: Fetch) -> Batch:
        self.on_call("fetch", fetch)
        return serve.serve_batch(self.node._engine, self.caller, fetch)

    def confirm(self, confirmation: Confirmation) -> None:
        self.on_call("confirm", confirmation)
        serve.confirm(self.node._engine, self.caller, confirmation)

    def snapshot_part(self, asked: SnapshotPartAsked) -> LinkSnapshotPart:
        self.on_call("snapshot", asked)
        return decode_part(encode_part(give_part(self.node._engine, self.caller, asked)))

    def commits_held(self) -> dict[str, int]:
        return {}

    def commits_page(self, mesh: str, first: int) -> bytes:
        raise AssertionError("nothing is committed here")

    def committed_state(self, mesh: str, have: int) -> StateObject:
        raise AssertionError("nothing is committed here")

    def retire(self, consumer: str) -> None:
        serve.retire(self.node._engine, self.caller, consumer)

    def object_size(self, sha: str) -> int | None:
        self.on_call("object_size", sha)
        blobs = self.node._engine.blobs
        if not blobs.exists(sha):
            return None
        with blobs.open_unchecked(sha) as content:
            return content.seek(0, SEEK_END)

    def object(self, sha: str, start: int, size: int) -> bytes:
        self.on_call("object", sha)
        with self.node._engine.blobs.open_unchecked(sha) as content:
            content.seek(start)
            return content.read(size)

    def abort(self) -> None: ...
    def close(self) -> None: ...
