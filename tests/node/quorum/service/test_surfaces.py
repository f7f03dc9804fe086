"""The methods that the source document names, by the letter."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from holdfast.node.quorum.service.surfaces import (
    MeshWriteApplyResult,
    MeshWriteFilter,
    SharedMeshStore,
)
from holdfast.rules.envelope import encode
from holdfast.rules.errors import AlreadyResolved, UnknownMesh, UnknownMessage
from holdfast.rules.ids import id_text
from holdfast.rules.quorum.write_queue import WriteFailure, WriteStatus
from holdfast.rules.reconcile import Outcome
from support.envelopes import MESH, make_id
from support.nodes import KINDS, Nodes
from support.quorum_state import change, fence, operation
from support.source import HandClock

OUTAGE = WriteFailure(503, "no_quorum")
PENDING, REPLAYING = WriteStatus.PENDING, WriteStatus.REPLAYING


@pytest.fixture(params=KINDS)
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Nodes:
    return Nodes(str(request.param), tmp_path, HandClock())


def test_Q6_writes_are_enqueued_listed_and_marked_by_the_names_of_the_source(nodes: Nodes) -> None:
    node = nodes.open("ana")
    store = SharedMeshStore(node._engine, MESH)
    ids = []
    for number, target in ((1, "bob"), (2, "cyd"), (3, "bob")):
        put = operation("put", "mission", f"m{number}", {"title": "t"})
        made = change(put, origin="ana", id=make_id(number))
        row = store.enqueue_mesh_write(encode(made), OUTAGE, target)
        assert (row.status, row.attempts, row.reason) == (PENDING, 0, "no_quorum")
        ids.append(id_text(row.id))
    listed = store.list_pending_mesh_writes(MeshWriteFilter(target="bob"))
    assert [id_text(row.id) for _, row in listed] == [ids[0], ids[2]]
    begun = store.mark_mesh_write_replay_started(ids[0], fence(4))
    assert (begun.status, begun.attempts, begun.fence) == (REPLAYING, 1, fence(4))
    assert store.mark_mesh_write_failed(ids[0], OUTAGE).status is PENDING
    store.mark_mesh_write_replay_started(ids[0], fence(9))
    ended = store.mark_mesh_write_applied(ids[0], MeshWriteApplyResult())
    assert (ended.status, ended.attempts) == (WriteStatus.APPLIED, 2)
    assert ended.earlier_fences == (fence(4),)
    conflict = MeshWriteApplyResult(outcome=Outcome.CONFLICT_REQUIRES_MERGE)
    assert store.mark_mesh_write_applied(ids[1], conflict).status is WriteStatus.FAILED
    gone = store.mark_mesh_write_failed(ids[2], WriteFailure(422, "bad_entity"))
    assert (gone.status, gone.reason) == (WriteStatus.FAILED, "bad_entity")
    assert store.list_pending_mesh_writes() == []
    failed = store.list_pending_mesh_writes(MeshWriteFilter(statuses=(WriteStatus.FAILED,)))
    assert [id_text(row.id) for _, row in failed] == ids[1:]
    with pytest.raises(AlreadyResolved):
        store.mark_mesh_write_replay_started(ids[0], fence(10))
    with pytest.raises(UnknownMessage):
        store.mark_mesh_write_failed(id_text(make_id(99)), OUTAGE)
    nodes.close()


def test_Q9_the_last_snapshot_is_kept_with_the_digest_of_its_payload(nodes: Nodes) -> None:
    node = nodes.open("ana")
    store = SharedMeshStore(node._engine, MESH)
    assert store.get_latest_mesh_snapshot() is None
    first = store.record_mesh_snapshot({"b": 1, "a": [2]})
    assert first.payload == b'{"a":[2],"b":1}'
    assert first.version == sha256(first.payload).hexdigest()
    nodes.clock.advance(5)
    second = store.record_mesh_snapshot({})
    assert store.get_latest_mesh_snapshot() == store.get_latest_mesh_snapshot("ana") == second
    assert store.get_latest_mesh_snapshot("bob") is None
    with pytest.raises(UnknownMesh):
        SharedMeshStore(node._engine, "other")
    nodes.close()
