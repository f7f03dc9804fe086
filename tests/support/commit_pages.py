"""Pages of commits, as a node that has folded an order hands them on."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.node.core.committed_intake import CommitPageIntake, PageTaken
from holdfast.node.core.context import NodeContext
from holdfast.node.core.following.committed_pages import commits_page
from holdfast.protocol.commit_page import (
    CommitLine,
    CommitPage,
    check_page,
    decode_page,
    encode_page,
)
from holdfast.rules.envelope import Envelope
from holdfast.rules.quorum.commit_record import CommitRecord, decode_record, encode_record
from holdfast.rules.rows import MeshRow
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.ports import Store
from support.commits import commit, context, entry, with_quorum
from support.envelopes import MESH
from support.quorum_state import change, operation
from support.stores import read


def with_mesh(store: Store) -> Store:
    """A member that has heard nothing of voters yet."""
    row = MeshRow(slug=MESH, name=MESH, created_at=1, updated_at=1)
    store.write(lambda tx: tx.mesh_add(row))
    return store


def mission(id: str, title: str = "t", *, base: int | None = None, **fields: object) -> Envelope:
    return change(operation("put", "mission", id, {"title": title}, base=base), **fields)


def voter_with(envelopes: Sequence[Envelope]) -> MemoryStore:
    """A voter that has folded these, in this order."""
    store = MemoryStore()
    with_quorum(store)
    commit(store, [entry(one, at) for at, one in enumerate(envelopes, 1)])
    return store


def page_of(store: Store, first: int = 1, limit: int = 512) -> CommitPage:
    return read(store, lambda tx: commits_page(tx, MESH, first, limit))


def take(
    store: Store, page: CommitPage, source: str = "ana", ctx: NodeContext | None = None
) -> PageTaken:
    """Brings a page to a store, by its bytes."""
    checked = decode_page(encode_page(page))
    return store.write(CommitPageIntake(ctx or context(), checked, source))


def with_record(page: CommitPage, at: int, **changed: object) -> CommitPage:
    """The page with another record at a place."""
    record = decode_record(page.rows[at].record)
    return with_line(page, at, msgspec.structs.replace(record, **changed))


def with_line(
    page: CommitPage, at: int, record: CommitRecord, raw: bytes | None = None
) -> CommitPage:
    rows = list(page.rows)
    rows[at] = CommitLine(encode_record(record), rows[at].raw if raw is None else raw)
    return msgspec.structs.replace(page, rows=tuple(rows))


__all__ = ["check_page", "mission", "page_of", "take", "voter_with", "with_line", "with_mesh"]
