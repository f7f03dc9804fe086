"""Committed entries for a store, as an engine would bring them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.node.core.commit import CommitRun, Committed, CommittedEntry
from holdfast.node.core.context import NodeContext
from holdfast.node.core.fold_tasks import task_of
from holdfast.rules.data_classes import ENTITY_TYPES
from holdfast.rules.envelope import Envelope, encode
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.view import EntityRow
from holdfast.rules.rows import MeshRow
from holdfast.storage.files.blobs import MemoryBlobs
from holdfast.storage.ports import Reader, Store, Transaction
from support.committed_rows import quorum_row
from support.envelopes import MESH
from support.quorum_state import QuorumState, fence
from support.source import START_MS, HandClock

_ALL = 1 << 40


def context(peer: str = "dan") -> NodeContext:
    return NodeContext(peer, 1, HandClock(), MemoryBlobs())


def with_quorum(store: Store, **fields: object) -> Store:
    """Gives a store the mesh, with voters."""

    def work(tx: Transaction) -> None:
        tx.mesh_add(MeshRow(slug=MESH, name=MESH, created_at=1, updated_at=1))
        tx.quorum_put(quorum_row(**fields))

    store.write(work)
    return store


def entries_of(order: Iterable[tuple[Envelope, FenceToken]]) -> list[CommittedEntry]:
    """The entries of a random order of the model, which commits one each millisecond."""
    return [
        CommittedEntry(encode(envelope), token, 1_000 + step, step + 1)
        for step, (envelope, token) in enumerate(order)
    ]


def entry(
    envelope: Envelope, index: int, token: FenceToken | None = None, committed_at: int = START_MS
) -> CommittedEntry:
    return CommittedEntry(encode(envelope), token or fence(index), committed_at, index)


def commit(
    store: Store, entries: Sequence[CommittedEntry], ctx: NodeContext | None = None
) -> list[Committed]:
    return list(store.write(CommitRun(ctx or context(), MESH, entries)))


def _entities(tx: Reader) -> list[EntityRow]:
    return [
        row
        for type in ENTITY_TYPES
        for row in tx.entity_list(MESH, type, "", _ALL, live_only=False)
    ]


def committed_state(tx: Reader) -> dict[str, object]:
    """Everything that was committed, as a store tells it."""
    entities = _entities(tx)
    commits = tx.commit_range(MESH, 0, _ALL)
    return {
        "quorum": tx.quorum_list(),
        "entities": entities,
        "revisions": [tx.entity_revisions(MESH, row.type, row.id, 0, _ALL) for row in entities],
        "commits": commits,
        "intents": tx.intents_known(MESH, [row.id for row in commits]),
        "leases": tx.lease_list(MESH, "", _ALL),
        "nodes": tx.node_list(MESH),
        "conflicts": tx.waiting_conflicts(MESH, 0, _ALL, open_only=False),
        "tasks": tx.task_scan(MESH, None, "", _ALL, known_only=False),
        "turns": [
            tx.task_events(MESH, row.task)
            for row in tx.task_scan(MESH, None, "", _ALL, known_only=False)
        ],
        "log": tx.log_range(0, _ALL, _ALL),
        "clock": tx.mesh_get(MESH),
    }


def assert_holds(tx: Reader, state: QuorumState) -> None:
    """The store holds exactly what the fold in dictionaries holds."""
    entities = tx.entity_many(MESH, list(state.entities))
    assert entities == state.entities
    assert len(_entities(tx)) == len(state.entities)
    assert tx.intents_known(MESH, list(state.intents)) == state.intents
    assert [row.record for row in tx.commit_range(MESH, 0, _ALL)] == state.records
    assert {row.name: row for row in tx.lease_list(MESH, "", _ALL)} == state.leases
    assert {row.peer: row for row in tx.node_list(MESH)} == state.nodes
    tasks = tx.task_scan(MESH, None, "", _ALL, known_only=False)
    assert {row.task: task_of(row) for row in tasks} == state.tasks
    history = {
        row.task: [(one.turn, one.event, one.against) for one in tx.task_events(MESH, row.task)]
        for row in tasks
    }
    assert history == {
        id: [(one.turn, one.event, one.against) for one in judged]
        for id, judged in state.history.items()
    }
    standing = tx.quorum_get(MESH)
    assert standing is not None
    assert (standing.fence, standing.number) == (state.fence, len(state.records))
