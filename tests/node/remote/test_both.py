"""One suite for `holdfast.open` and `holdfast.connect`: every family, the same calls and errors."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.node.library import batch as holdfast_batch
from holdfast.rules.errors import (
    AlreadyExists,
    AlreadyResolved,
    BadId,
    BadInput,
    BadKey,
    BadPath,
    BadValue,
    BadVector,
    HoldfastError,
    IdReused,
    MeshOwes,
    NotShared,
    OverLimit,
    PastEnd,
    StampMoved,
    TaskEnded,
    TaskTaken,
    UnknownConflict,
    UnknownConsumer,
    UnknownFile,
    UnknownKey,
    UnknownMesh,
    UnknownMessage,
    UnknownModel,
    UnknownTask,
)
from holdfast.rules.limits import (
    CALL_PAGE_ROWS,
    CHUNK_ROWS,
    HISTORY_VERSIONS_MAX,
    INLINE_BYTES_MAX,
)
from holdfast.rules.rows import KnownMember, WarningRow
from holdfast.rules.vectors import Model
from node.remote.conftest import Seen
from support import envelopes as e

MODEL = Model(provider="p", name="m:v1", version="1", dim=2)
ID = "01a1effb-5a14-7544-9893-6c376cfe8516"


def test_U1_state_is_written_read_and_listed(mesh: holdfast.Mesh) -> None:
    receipt = mesh.state.set("a/ü?", {"n": [1, None, 1.5, "é"]}, meta={"why": "so"})
    assert (receipt.peer, receipt.lamport, receipt.duplicate) == ("ana", 1, False)
    assert mesh.state.get("a/ü?") == {"n": [1, None, 1.5, "é"]}
    assert mesh.state.get("none", 7) == 7
    assert mesh.state.entry("none") is None
    entry = mesh.state.entry("a/ü?")
    assert entry is not None
    assert (entry.key, entry.stamp, type(entry).__name__) == ("a/ü?", receipt.stamp, "StateEntry")
    mesh.state.set("b", None)
    assert mesh.state.get("b", 7) is None
    assert [row.key for row in mesh.state.list()] == ["a/ü?", "b"]
    assert [row.key for row in mesh.state.list("a")] == ["a/ü?"]
    assert [row.key for row in mesh.state.list(after="a/ü?")] == ["b"]
    mesh.state.delete("b")
    assert [row.key for row in mesh.state.list()] == ["a/ü?"]
    assert [row.value for row in mesh.state.as_of("b", offset=receipt.offset + 1)] == [None]
    assert mesh.state.as_of("b", lamport=1) == []
    assert len(mesh.state.as_of(at_ms=entry.updated_at + 1000)) == 1


def test_U3_a_key_has_its_versions_newest_first_also_those_that_arrived_late(
    mesh: holdfast.Mesh, seen: Seen
) -> None:
    first = mesh.state.set("a/ü?", {"n": 1})
    mesh.memory.set("a/ü?", "of memory", tags=("x",))
    mesh.state.set("a/ü?", None)
    mesh.state.set("other", 1)
    last = mesh.state.delete("a/ü?")
    late = {"mesh": mesh.slug, "lamport": 2, "origin": "bo", "id": e.make_id(_unique())}
    seen.inside.apply([e.state_set("a/ü?", "late", **late)])
    versions = mesh.state.history("a/ü?")
    assert [(one.value, one.deleted, str(one.stamp)) for one in versions] == [
        (None, True, "5@ana"),
        (None, False, "3@ana"),
        ("late", False, "2@bo"),
        ({"n": 1}, False, "1@ana"),
    ]
    assert versions[0].stamp == last.stamp
    assert [one.offset - first.offset for one in versions] == [4, 2, 5, 0]
    assert {one.key for one in versions} == {"a/ü?"}
    assert mesh.state.history("a/ü?", limit=2) == versions[:2]
    assert mesh.state.history("none") == []
    (own,) = mesh.memory.history("a/ü?")
    assert (own.value, own.tags, own.peer) == ("of memory", ("x",), "ana")
    assert mesh.memory.history("a/ü?", peer="bo") == []
    assert mesh.state.history("a/ü?", limit=HISTORY_VERSIONS_MAX) == versions
    for wrong in (0, HISTORY_VERSIONS_MAX + 1):
        with pytest.raises(OverLimit):
            mesh.state.history("a/ü?", limit=wrong)


def test_U1_a_list_of_many_pages_is_whole_and_can_be_written_to_meanwhile(
    mesh: holdfast.Mesh, seen: Seen
) -> None:
    keys = [f"{number:05}" for number in range(CALL_PAGE_ROWS + 5)]
    inside = seen.inside.mesh(mesh.slug)
    raws = [
        e.state_set(key, 1, mesh=mesh.slug, lamport=n, origin="bo", id=e.make_id(_unique()))
        for n, key in enumerate(keys, 1)
    ]
    seen.inside.apply(raws)
    found = []
    for row in mesh.state.list():
        found.append(row.key)
        if len(found) <= 2:
            mesh.state.delete(row.key)
    assert found == keys
    assert [row.key for row in inside.state.list()] == keys[2:]


_made = iter(range(1, 1_000_000))


def _unique() -> int:
    return next(_made)


def test_D3_a_write_with_an_id_is_written_once(mesh: holdfast.Mesh) -> None:
    ids = [f"01a1effb-5a14-7544-9893-{_unique():012x}" for _ in range(4)]
    writes: list[tuple[Callable[[str], Any], Callable[[str], Any]]] = [
        (lambda id: mesh.state.set("k", 1, id=id), lambda id: mesh.state.set("k", 2, id=id)),
        (lambda id: mesh.memory.set("k", 1, id=id), lambda id: mesh.memory.set("k", 2, id=id)),
        (
            lambda id: mesh.files.share("k", b"1" * 9, id=id),
            lambda id: mesh.files.share("k", b"2", id=id),
        ),
        (
            lambda id: mesh.facts.append("s", "p", 1, id=id),
            lambda id: mesh.facts.append("s", "p", 2, id=id),
        ),
    ]
    for write, other in writes:
        id = ids.pop()
        first, again = write(id), write(id)
        assert (first.id, first.duplicate, again.duplicate) == (id, False, True)
        assert (again.offset, again.stamp) == (first.offset, first.stamp)
        assert first.outcome != again.outcome
        with pytest.raises(IdReused):
            other(id)


def test_S6_compare_and_set(mesh: holdfast.Mesh) -> None:
    first = mesh.state.set("k", 1, expect=holdfast.ABSENT)
    with pytest.raises(StampMoved) as moved:
        mesh.state.set("k", 2, expect=holdfast.ABSENT)
    assert moved.value.present == first.stamp
    second = mesh.state.set("k", 2, expect=first.stamp)
    with pytest.raises(StampMoved):
        mesh.state.delete("k", expect=str(first.stamp))
    with pytest.raises(BadInput):
        mesh.state.set("k", 2, expect="12")
    mesh.state.delete("k", expect=second.stamp)
    mine = mesh.memory.set("k", 1)
    with pytest.raises(StampMoved):
        mesh.memory.forget("k", expect=second.stamp)
    mesh.memory.forget("k", expect=mine.stamp)


def test_S3_a_batch_is_written_whole_or_not_at_all(mesh: holdfast.Mesh) -> None:
    def block(name: str) -> holdfast_batch.WriteBatch:
        with mesh.batch(id=name) as b:
            b.state.set("k", {"n": None}, meta={"why": "so"}, expect="absent")
            b.memory.set("k", None, tags=["t"])
            b.vectors.store("v", [1, 0], model=MODEL, content="c", metadata=None)
            b.files.share("a.txt", b"content")
            task = b.tasks.create("paint")
            b.tasks.claim(task.id)
            b.facts.append("s", "is", None)
            b.audit.append("log", 7)
            with pytest.raises(BadInput):
                _ = task.receipt
        return b

    first, again = block(f"deploy {mesh.slug}"), block(f"deploy {mesh.slug}")
    assert [one.id for one in first.receipts] == [one.id for one in again.receipts]
    assert [one.duplicate for one in again.receipts] == [True] * 8
    assert [one.offset for one in again.receipts] == [one.offset for one in first.receipts]
    assert mesh.state.get("k", 7) == {"n": None}
    assert mesh.files.read("a.txt") == b"content"
    (task,) = mesh.tasks.list()
    assert (task.title, task.claimed_by) == ("paint", "ana")

    def refused() -> None:
        with mesh.batch() as b:
            b.state.set("other", 1)
            b.state.set("k", 2, expect="absent")

    with pytest.raises(StampMoved, match="2"):
        refused()
    assert mesh.state.get("other") is None
    with pytest.raises(ZeroDivisionError), mesh.batch() as b:
        b.state.set("other", 1 / 0)
    with pytest.raises(BadInput):
        b.state.set("late", 1)
    with mesh.batch() as b:
        b.state.delete("k")
        b.memory.forget("k")
        b.vectors.delete("v", model=MODEL)
        b.files.delete("a.txt")
    assert (mesh.state.get("k"), len(b.receipts)) == (None, 4)
    odd: list[tuple[type[HoldfastError], Callable[[], Any]]] = [
        (BadKey, lambda: mesh.batch().state.set("", 1)),
        (BadValue, lambda: mesh.batch().state.set("k", {1})),
        (BadPath, lambda: mesh.batch().files.share("../up", b"")),
    ]
    for error, wrong in odd:
        with pytest.raises(error):
            wrong()


def test_S7_memory_is_recalled_by_scope(mesh: holdfast.Mesh, seen: Seen) -> None:
    mesh.memory.set("tea", "milk", tags=("taste",))
    theirs = e.memory_set(
        "tea", "none", mesh=mesh.slug, lamport=9, origin="bo", id=e.make_id(_unique())
    )
    seen.inside.apply([theirs])
    own = mesh.memory.get("tea")
    assert own is not None
    assert (own.value, own.tags, own.peer) == ("milk", ("taste",), "ana")
    assert [row.peer for row in mesh.memory.recall("tea", scope="all")] == ["bo", "ana"]
    other = mesh.memory.get("tea", peer="bo")
    assert other is not None
    assert other.value == "none"
    assert [row.peer for row in mesh.memory.list()] == ["ana"]
    everyone = list(mesh.memory.list(scope="all"))
    assert [row.peer for row in everyone] == ["ana", "bo"]
    assert [row.peer for row in mesh.memory.list(scope="all", after=("ana", "tea"))] == ["bo"]
    assert len(mesh.memory.as_of("tea", lamport=1)) == 1
    mesh.memory.forget("tea")
    assert mesh.memory.get("tea") is None
    with pytest.raises(UnknownKey):
        mesh.memory.forget("tea")


def test_S8_vectors_of_bytes_and_bits_are_stored_and_searched_as_they_are(
    mesh: holdfast.Mesh,
) -> None:
    small = Model(provider="p", name="m:v1", version="1", dim=2, quantization="int8")
    bits = Model(provider="p", name="m:v1", version="1", dim=8, quantization="binary")
    mesh.vectors.store("near", [3, -128], model=small)
    mesh.vectors.store("packed", b"\x7f\x00", model=small)
    mesh.vectors.store("odd", [1, 0, 1, 0, 1, 0, 1, 0], model=bits)
    mesh.vectors.store("last", [False] * 7 + [True], model=bits)
    with mesh.batch() as b:
        b.vectors.store("whole", [2.0, 0.0], model=small, content="c", metadata=None)
    hits = mesh.vectors.search([0, 0], model=small)
    assert [(hit.key, hit.distance) for hit in hits] == [
        *(("whole", 2.0), ("packed", 127.0), ("near", pytest.approx(16393**0.5))),
    ]
    assert [(hit.key, hit.distance) for hit in mesh.vectors.search(b"\x01", model=bits)] == [
        *(("last", 0.0), ("odd", 5.0)),
    ]
    for model, wrong in (
        *((small, [1.5, 0]), (small, [128, 0]), (small, [1]), (small, bytes(8))),
        *((bits, [2] * 8), (bits, [1, 0]), (bits, bytes(8)), (small, ["1", "2"])),
    ):
        with pytest.raises(BadVector):
            mesh.vectors.store("wrong", wrong, model=model)
    mesh.vectors.delete("odd", model=bits)
    assert [hit.key for hit in mesh.vectors.search(b"\x01", model=bits)] == ["last"]
    assert {row.quantization for row in mesh.vectors.models()} >= {"int8", "binary"}


def test_S8_vectors_are_stored_searched_and_deleted(mesh: holdfast.Mesh) -> None:
    mesh.vectors.store("x", [1, 0], model=MODEL, content="one", metadata={"n": 1})
    mesh.vectors.store("y", memoryview(b"\0\0\0\0\0\0\x80?"), model=MODEL)
    hits = mesh.vectors.search([0.9, 0.1], model=MODEL, limit=1)
    assert [(hit.key, hit.content, hit.metadata) for hit in hits] == [("x", "one", {"n": 1})]
    assert len(mesh.vectors.search([1, 0], model=MODEL, exact=True, scope="self")) == 2
    assert mesh.vectors.search([1, 0], model=MODEL, scope="peer:bo") == []
    assert MODEL.fingerprint in [row.id for row in mesh.vectors.models()]
    mesh.vectors.delete("x", model=MODEL)
    with pytest.raises(UnknownKey):
        mesh.vectors.delete("x", model=MODEL)
    with pytest.raises(BadVector):
        mesh.vectors.store("z", [1, 2, 3], model=MODEL)
    with pytest.raises(OverLimit):
        mesh.vectors.search([1, 0], model=MODEL, limit=0)


def test_S8_vectors_move_to_another_model(mesh: holdfast.Mesh, seen: Seen) -> None:
    old = Model(provider="p", name=f"old {mesh.slug}", version="1", dim=2)
    new = Model(provider="p", name=f"new {mesh.slug}", version="1", dim=600, quantization="int8")
    with pytest.raises(UnknownModel):
        mesh.vectors.reembed(old, new, lambda texts: [])
    many = CHUNK_ROWS + 3
    for number in range(many):
        mesh.vectors.store(f"{number}", [1, 0], model=old, content=f"c{number}", metadata=[number])
    theirs = {"mesh": mesh.slug, "lamport": 5, "id": e.make_id(_unique())}
    seen.inside.apply([e.vector_store("theirs", [1, 0], model=old, content="theirs", **theirs)])
    told: list[tuple[int, int]] = []

    def embed(texts: list[str]) -> list[list[float]]:
        if "c1" in texts:
            mesh.vectors.store("1", [1, 0], model=old, content="changed meanwhile")
        return [[len(text)] * 600 for text in texts]

    moved = mesh.vectors.reembed(old, new, embed, progress=lambda *at: told.append(at))
    assert (moved, told) == (many, [(CHUNK_ROWS - 1, many), (many, many)])
    assert [hit.content for hit in mesh.vectors.search([1, 0], model=old)] == ["theirs"]
    found = {hit.key: hit for hit in mesh.vectors.search([7] * 600, model=new, limit=many)}
    assert len(found) == many
    assert (found["1"].content, found["2"].metadata) == ("changed meanwhile", [2])
    mesh.vectors.store("late", [1, 0], model=old)
    with pytest.raises(BadVector, match="gave 0 vectors for 1"):
        mesh.vectors.reembed(old, new, lambda texts: [])
    with pytest.raises(BadVector):
        mesh.vectors.reembed(old, new, lambda texts: [[1.0]])
    with pytest.raises(BadVector):
        mesh.vectors.reembed(old, old, lambda texts: [])
    assert mesh.vectors.reembed(old, new, lambda texts: [[3] * 600 for _ in texts]) == 1
    warned = seen.node.take_warnings(mesh.slug)  # others of this home count on finding none
    assert {one.type for one in warned} == {"vector_model_deprecated"}


@pytest.mark.parametrize("size", [0, 5, INLINE_BYTES_MAX, 400_000])
def test_S9_files_are_shared_read_and_deleted(
    mesh: holdfast.Mesh, tmp_path: Path, size: int
) -> None:
    content = bytes(n % 251 for n in range(size))
    place = tmp_path / "source"
    place.write_bytes(content)

    class Pipe(io.RawIOBase):
        """A stream that cannot be read twice."""

        def __init__(self) -> None:
            self._inner = io.BytesIO(content)

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            return self._inner.readinto(buffer)

    for given in (content, place, io.BytesIO(content), io.BufferedReader(Pipe())):
        receipt = mesh.files.share("a/b c.txt", given)
        assert receipt.peer == "ana"
        assert mesh.files.read("a/b c.txt") == content
        with mesh.files.open("a/b c.txt", peer="ana") as stream:
            assert stream.read(3) == content[:3]
    info = mesh.files.info("a/b c.txt")
    assert (info.size, info.here, info.path) == (size, True, "a/b c.txt")
    known = mesh.files.last_known("a/b c.txt")
    assert (known.status, known.content, known.sha256) == ("fresh", content, info.sha256)
    assert (known.lamport, known.updated_at) == (info.lamport, info.updated_at)
    assert list(mesh.files.list()) == [info]
    assert list(mesh.files.list(peer="bo")) == []
    assert list(mesh.files.list(after=("ana", "a/b c.txt"))) == []
    mesh.files.delete("a/b c.txt")
    for verb in (mesh.files.read, mesh.files.info, mesh.files.delete, mesh.files.last_known):
        with pytest.raises(UnknownFile):
            verb("a/b c.txt")


def test_S10_tasks_are_taken_on_and_ended(mesh: holdfast.Mesh, seen: Seen) -> None:
    task = mesh.tasks.create("paint", description="the fence")
    assert (task.title, task.status, task.claimed_by, task.known) == ("paint", "open", None, True)
    claimed = mesh.tasks.claim(task.task)
    assert (claimed.claimed_by, claimed.status) == ("ana", "claimed")
    assert claimed.holder is not None
    assert mesh.tasks.get(task.task) == claimed
    assert list(mesh.tasks.list(status="claimed")) == [claimed]
    assert list(mesh.tasks.list(after=task.task)) == []
    mesh.tasks.release(task.task)
    mesh.tasks.claim(task.task)
    done = mesh.tasks.complete(task.task)
    assert done.ended is not None
    with pytest.raises(TaskEnded):
        mesh.tasks.cancel(task.task)
    events = mesh.tasks.events(task.task)
    assert [row.kind for row in events] == ["create", "claim", "release", "claim", "complete"]
    assert events[0].title == "paint"
    theirs = f"01a1effb-5a14-7544-9893-{_unique():012x}"
    fields: dict[str, Any] = {"mesh": mesh.slug, "origin": "bo"}
    made = e.task_create(theirs, lamport=50, id=bytes.fromhex(theirs.replace("-", "")), **fields)
    taken = e.task_claim(theirs, lamport=51, id=e.make_id(_unique()), **fields)
    seen.inside.apply([made, taken])
    with pytest.raises(TaskTaken):
        mesh.tasks.claim(theirs)
    with pytest.raises(UnknownTask):
        mesh.tasks.claim(ID)


def test_Q14_audit_streams_are_appended_read_and_verified(mesh: holdfast.Mesh) -> None:
    first = mesh.audit.append("activityLog", {"did": "deploy"})
    again = mesh.audit.append("activityLog", {"did": "deploy"}, id=first.id)
    assert (first.duplicate, again.duplicate, again.stamp) == (False, True, first.stamp)
    mesh.audit.append("activityLog", 2)
    assert [row.payload for row in mesh.audit.list("activityLog")] == [{"did": "deploy"}, 2]
    assert list(mesh.audit.list("activityLog", origin="bo")) == []
    assert [(row.stream, row.events) for row in mesh.audit.streams()] == [("activityLog", 2)]
    assert [row.sound for row in mesh.audit.verify()] == [True]


def test_Q1_telemetry_is_kept_here(mesh: holdfast.Mesh) -> None:
    entry = mesh.telemetry.set("heart", "a/b", {"pid": 7}, ttl_ms=60_000)
    assert mesh.telemetry.entry("heart", "a/b") == entry
    assert mesh.telemetry.get("heart", "none", 3) == 3
    mesh.telemetry.set("live", "x", None)
    assert [row.key for row in mesh.telemetry.list()] == ["a/b", "x"]
    assert [row.key for row in mesh.telemetry.list("live")] == ["x"]
    assert [row.key for row in mesh.telemetry.list(after=("heart", "a/b"))] == ["x"]
    mesh.telemetry.delete("live", "x")
    with pytest.raises(UnknownKey):
        mesh.telemetry.delete("live", "x")


def test_S21_peers_say_who_they_are(mesh: holdfast.Mesh) -> None:
    mesh.presence.set(display_name="Ana", status="here")
    mesh.presence.set(summary="builds")
    own = mesh.presence.get()
    assert (own.display_name, own.status, own.summary) == ("Ana", "here", "builds")
    assert mesh.presence.list() == [own]
    assert mesh.presence.get("bo").display_name == ""


def test_U1_meshes_are_made_and_looked_at(node: holdfast.Node, slug: str) -> None:
    mesh = node.create_mesh(slug, name="A Team")
    with pytest.raises(AlreadyExists):
        node.create_mesh(slug)
    assert (mesh.slug, mesh.info().name, node.peer) == (slug, "A Team", "ana")
    mesh.state.set("k", 1)
    assert slug in [row.slug for row in node.meshes()]
    assert node.mesh(slug).clock().lamport == 1
    assert mesh.counts()["state"] == 1
    assert mesh.peers() == []
    assert mesh.restamp(1).state == 1
    with pytest.raises(UnknownMesh):
        node.mesh("none")
    with pytest.raises(NotShared):
        node.sharing.leave(slug)
    with pytest.raises(NotShared):
        node.sharing.members(slug)
    assert node.sharing.known_members(slug) == []


def test_S20_a_mesh_is_deleted_if_it_owes_nothing(
    mesh: holdfast.Mesh, node: holdfast.Node, slug: str
) -> None:
    mesh.state.set("k", 1)
    plan = node.deletion_plan(slug)
    assert (plan.rows["state"], plan.entries) == (1, 1)
    node.log.add_consumer(slug)
    with pytest.raises(MeshOwes):
        node.delete_mesh(slug)
    deleted = node.delete_mesh(slug, owed_too=True)
    node.log.retire(slug)
    assert deleted.mesh == slug
    with pytest.raises(UnknownMesh):
        node.mesh(slug)


def test_S21_a_peer_is_blocked_and_heard_again(node: holdfast.Node, slug: str) -> None:
    peer = f"bo/{slug}"
    blocked = node.block_peer(peer)
    assert (blocked.peer, blocked.dropped) == (peer, 0)
    assert peer in [row.peer for row in node.blocked_peers()]
    assert node.unblock_peer(peer).peer == peer
    assert peer not in [row.peer for row in node.blocked_peers()]
    with pytest.raises(HoldfastError):
        node.unblock_peer(peer)


def test_S18_what_a_merge_lost_is_shown_and_restored(mesh: holdfast.Mesh, seen: Seen) -> None:
    mesh.state.set("k", "mine")
    mesh.memory.set("k", 1)
    theirs = {"mesh": mesh.slug, "origin": "bo", "id": e.make_id(_unique())}
    seen.inside.apply([e.state_set("k", "theirs", lamport=9, **theirs)])
    (row,) = seen.node.conflicts(mesh.slug)
    inside = seen.inside.conflict(row.number)
    assert row == inside
    assert seen.node.conflict(row.number) == inside
    receipt = seen.node.restore_conflict(row.number)
    assert mesh.state.get("k") == "mine"
    assert receipt.peer == "ana"
    with pytest.raises(AlreadyResolved):
        seen.node.restore_conflict(row.number)
    seen.node.dismiss_conflict(row.number)
    assert list(seen.node.conflicts(mesh.slug)) == []
    assert len(list(seen.node.conflicts(mesh.slug, open_only=False))) == 1
    assert list(seen.node.conflicts(mesh.slug, open_only=False, after=row.number)) == []
    with pytest.raises(UnknownConflict):
        seen.node.conflict(10**6)


def test_D15_members_that_are_known_are_told_without_a_broker(
    mesh: holdfast.Mesh, seen: Seen
) -> None:
    row = KnownMember(mesh=mesh.slug, key=bytes(range(32)), name="bo", grants=("read",), seen_at=7)
    seen.inside._engine.write("test", lambda tx: tx.known_members_put(mesh.slug, [row]))
    assert seen.node.sharing.known_members(mesh.slug) == [row]


def test_S10_warnings_wait_for_who_takes_them(mesh: holdfast.Mesh, seen: Seen) -> None:
    row = WarningRow(mesh=mesh.slug, type="superseded", entity="t", by_peer="bo", at_lamport=1)
    seen.inside._engine.write("test", lambda tx: tx.warning_add(row))
    mesh.state.set("k", 1)
    assert seen.node.take_warnings(mesh.slug) == [row]
    assert seen.node.take_warnings() == []


def test_S17_the_log_is_read_by_ranges_and_by_readers(
    mesh: holdfast.Mesh, seen: Seen, slug: str
) -> None:
    log = seen.node.log
    receipts = [mesh.facts.append(f"s/{n}", "is", n) for n in range(3)]
    head = log.head()
    assert head == seen.inside.log.head()
    start = receipts[0].offset
    entries = list(log.range(start))
    assert entries == list(seen.inside.log.range(start))
    assert [row.entity for row in entries] == ["s/0", "s/1", "s/2"]
    assert list(log.range(start, start + 1)) == entries[:1]
    assert log.tail(2) == entries[1:]
    reader = log.add_consumer(slug, start)
    assert (reader.name, reader.lag) == (slug, 3)
    with pytest.raises(AlreadyExists):
        log.add_consumer(slug)
    assert log.fetch(slug, 2) == entries[:2]
    batch = log.batch(slug)
    assert (batch.offsets, batch.raws) == ([r.offset for r in entries], [r.raw for r in entries])
    assert log.confirm(slug, start).lag == 2
    assert log.confirm(slug, ranges=[(start + 2, start + 3)]).beyond == ((start + 2, start + 3),)
    assert slug in [row.name for row in log.consumers()]
    with pytest.raises(PastEnd):
        log.confirm(slug, head.offset + 100)
    log.retire(slug)
    with pytest.raises(UnknownConsumer):
        log.fetch(slug)


def test_Z2_objects_are_put_before_the_fact_that_names_them(
    mesh: holdfast.Mesh, node: holdfast.Node
) -> None:
    digest = node.receive_blob(io.BytesIO(b"x" * 100_000))
    with node.open_blob(digest) as content:
        assert content.read() == b"x" * 100_000
    assert (digest, 100_000, True) in [(row.sha256, row.size, row.here) for row in node.objects()]
    mesh.facts.append("s", "has", None, objects=[digest])


def test_D13_messages_that_are_not_there(mesh: holdfast.Mesh, node: holdfast.Node) -> None:
    assert list(mesh.inbox.list(unread=True, text="x")) == []
    assert node.inbox.counts() == (0, 0)
    assert list(node.outbox.list(failed=True)) == []
    assert list(node.outbox.lanes()) == []
    for verb in (node.inbox.get, node.inbox.read, node.outbox.get, node.outbox.retry):
        with pytest.raises(UnknownMessage):
            verb(ID)
    with pytest.raises(NotShared):
        mesh.send("hello", topic="news")
    with pytest.raises(BadInput):
        mesh.send("hello", topic="news", dm="bo")


def _wrong(mesh: holdfast.Mesh) -> list[tuple[type[HoldfastError], Callable[[], Any]]]:
    surrogate, state, memory, tasks = "\ud800", mesh.state, mesh.memory, mesh.tasks
    anything: Any = 3
    return [
        (BadKey, lambda: state.set("", 1)),
        (BadKey, lambda: state.set(anything, 1)),
        (BadKey, lambda: state.get(surrogate)),
        (OverLimit, lambda: state.set("k" * 10_000, 1)),
        (BadValue, lambda: state.set("k", float("nan"))),
        (BadValue, lambda: state.set("k", {1, 2})),
        (BadValue, lambda: state.set("k", "\ud800")),
        (BadId, lambda: state.set("k", 1, id="x")),
        (BadInput, lambda: list(state.list(anything))),
        (BadInput, lambda: state.as_of("k")),
        (BadInput, lambda: state.as_of("k", offset=1, lamport=1)),
        (UnknownKey, lambda: state.delete("none")),
        (BadInput, lambda: memory.set("k", 1, tags="one")),
        (BadInput, lambda: memory.recall("k", scope="mine")),
        (BadInput, lambda: list(memory.list(scope="mine"))),
        (BadPath, lambda: mesh.files.share("../up", b"")),
        (BadValue, lambda: mesh.files.share("a", anything)),
        (BadInput, lambda: tasks.create("")),
        (BadInput, lambda: list(tasks.list(status="odd"))),
        (BadInput, lambda: mesh.facts.append("s", "", 1)),
        (BadInput, lambda: mesh.vectors.search([1], model=anything)),
    ]


def test_U1_what_is_wrong_is_refused_by_the_same_errors(
    mesh: holdfast.Mesh, node: holdfast.Node
) -> None:
    head = node.log.head()
    for number, (error, call) in enumerate(_wrong(mesh)):
        with pytest.raises(error) as caught:
            call()
        assert caught.value.message, number
    assert node.log.head() == head
    verb: Any = mesh.state.set
    for call in (
        lambda: verb("k"),
        lambda: verb("k", 1, 2),
        lambda: verb("k", 1, typo=2),
        lambda: verb("k", 1, key="k"),
    ):
        with pytest.raises(TypeError):
            call()
