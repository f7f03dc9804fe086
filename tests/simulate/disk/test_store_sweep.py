"""Every disk call of every operation fails in turn; every promise is kept."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from holdfast.node.exchange.export import export
from holdfast.node.exchange.import_rows import import_
from holdfast.node.library.node import Node
from holdfast.node.recovery.backup import backup
from holdfast.node.recovery.backup_manifest import read_manifest, verify
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.errors import AlreadyExists, UnknownConsumer, UnknownFile
from holdfast.simulate.disk.workload import scratch
from support import envelopes
from support.envelopes import MESH, MODEL, make_id
from support.faults import (
    ID,
    Operation,
    expect_no_failures,
    sweep_operation,
)
from support.nodes import team
from support.used_homes import (
    BIG,
    OTHER,
    TASK,
    apply_all,
    claimed,
    disputed,
    few_rows,
    released,
    some_rows,
    superseded,
)

pytestmark = [pytest.mark.faults, pytest.mark.sim]

MODEL_2 = type(MODEL)(provider="test", name="other", dim=2)


def file_is(node: Node, path: str, content: bytes | None) -> bool:
    try:
        return team(node).files.read(path) == content
    except UnknownFile:
        return content is None


def status_is(node: Node, *statuses: str) -> bool:
    return team(node).tasks.get(TASK).status in statuses


def keys_of(node: Node) -> set[str]:
    return {hit.key for hit in team(node).vectors.search([0.0, 1.0], model=MODEL)}


WRITES = [
    Operation(
        name="state.set of a new key",
        act=lambda node: team(node).state.set("new", [1, "x"], id=ID),
        happened=lambda node: team(node).state.get("new") == [1, "x"],
    ),
    Operation(
        name="state.set over an old value",
        before=some_rows,
        act=lambda node: team(node).state.set("old", 2, id=ID),
        happened=lambda node: team(node).state.get("old") == 2,
    ),
    Operation(
        name="state.delete",
        before=some_rows,
        act=lambda node: team(node).state.delete("old", id=ID),
        happened=lambda node: team(node).state.entry("old") is None,
    ),
    Operation(
        name="memory.set",
        before=some_rows,
        act=lambda node: team(node).memory.set("old", 2, tags=["y"], id=ID),
        happened=lambda node: [m.value for m in team(node).memory.recall("old")] == [2],
    ),
    Operation(
        name="memory.forget",
        before=some_rows,
        act=lambda node: team(node).memory.forget("old", id=ID),
        happened=lambda node: team(node).memory.get("old") is None,
    ),
    Operation(
        name="vectors.store of the first of a model",
        act=lambda node: team(node).vectors.store("new", [0.0, 1.0], model=MODEL, id=ID),
        happened=lambda node: "new" in keys_of(node),
    ),
    Operation(
        name="vectors.store over an old one",
        before=some_rows,
        act=lambda node: team(node).vectors.store(
            "old", [0.0, 1.0], model=MODEL, content="new", id=ID
        ),
        happened=lambda node: (
            [hit.content for hit in team(node).vectors.search([0.0, 1.0], model=MODEL)] == ["new"]
        ),
    ),
    Operation(
        name="vectors.delete",
        before=some_rows,
        act=lambda node: team(node).vectors.delete("old", model=MODEL, id=ID),
        happened=lambda node: keys_of(node) == set(),
    ),
    Operation(
        name="facts.append",
        act=lambda node: team(node).facts.append("sky", "is", "blue", id=ID),
        happened=lambda node: any(entry.entity == "sky" for entry in node.log.range()),
    ),
    Operation(
        name="create_mesh",
        act=lambda node: node.create_mesh("second"),
        happened=lambda node: "second" in {row.slug for row in node.meshes()},
        id=None,
        again=(AlreadyExists,),
    ),
]

FOREIGN_FILE = envelopes.file_share("b.bin", OTHER, lamport=40, id=make_id(1_000_000))
FOREIGN = [
    envelopes.state_set("old", "bob's", lamport=30),
    envelopes.state_set("theirs", 1, lamport=31),
    envelopes.memory_set("old", "bob's", lamport=32),
    envelopes.vector_store("theirs", [1.0, 1.0], lamport=33),
    envelopes.file_share("b.txt", b"bob's", lamport=34),
    envelopes.task_claim(TASK, lamport=2),
    envelopes.fact_append("sea", "is", "wet", lamport=35),
    envelopes.state_set("last", 1, lamport=36, id=make_id(1_000_000)),
]
LATE = [
    envelopes.state_set("old", "late", lamport=1, origin="Bob", id=make_id(1_000_000)),
]


FILES = [
    Operation(
        name="files.share of a small file",
        before=some_rows,
        act=lambda node: team(node).files.share("new.txt", b"tiny", id=ID),
        happened=lambda node: file_is(node, "new.txt", b"tiny"),
    ),
    Operation(
        name="files.share of the first large file",
        act=lambda node: team(node).files.share("new.bin", BIG, id=ID),
        happened=lambda node: file_is(node, "new.bin", BIG),
    ),
    Operation(
        name="files.share of a stream over a large file",
        before=some_rows,
        act=lambda node: team(node).files.share("old.bin", io.BytesIO(OTHER), id=ID),
        happened=lambda node: file_is(node, "old.bin", OTHER),
    ),
    Operation(
        name="files.share of a small stream",
        before=some_rows,
        act=lambda node: team(node).files.share("new.txt", io.BytesIO(b"tiny"), id=ID),
        happened=lambda node: file_is(node, "new.txt", b"tiny"),
    ),
    Operation(
        name="files.share of content that is there under another path",
        before=some_rows,
        act=lambda node: team(node).files.share("twin.bin", BIG, id=ID),
        happened=lambda node: file_is(node, "twin.bin", BIG) and file_is(node, "old.bin", BIG),
    ),
    Operation(
        name="files.share of what waits for unlinking",
        before=released,
        act=lambda node: team(node).files.share("again.bin", BIG, id=ID),
        happened=lambda node: file_is(node, "again.bin", BIG),
    ),
    Operation(
        name="files.delete of a large file",
        before=some_rows,
        act=lambda node: team(node).files.delete("old.bin", id=ID),
        happened=lambda node: file_is(node, "old.bin", None),
    ),
    Operation(
        name="receive_blob and the envelope that names it",
        before=some_rows,
        act=lambda node: apply_all(node, [FOREIGN_FILE], OTHER),
        happened=lambda node: any(info.peer == "bob" for info in team(node).files.list()),
    ),
]

TASKS = [
    Operation(
        name="tasks.create",
        act=lambda node: team(node).tasks.create("work", description="hard", id=ID),
        happened=lambda node: [task.title for task in team(node).tasks.list()] == ["work"],
    ),
    Operation(
        name="tasks.claim",
        before=some_rows,
        act=lambda node: team(node).tasks.claim(TASK, id=ID),
        happened=lambda node: status_is(node, "claimed"),
    ),
    Operation(
        name="tasks.release",
        before=claimed,
        act=lambda node: team(node).tasks.release(TASK, id=ID),
        happened=lambda node: status_is(node, "open"),
    ),
    Operation(
        name="tasks.complete",
        before=claimed,
        act=lambda node: team(node).tasks.complete(TASK, id=ID),
        happened=lambda node: status_is(node, "completed"),
    ),
    Operation(
        name="tasks.cancel",
        before=claimed,
        act=lambda node: team(node).tasks.cancel(TASK, id=ID),
        happened=lambda node: status_is(node, "cancelled"),
    ),
]


def restored(node: Node) -> bool:
    return team(node).state.get("old") == 1 and not list(node.conflicts())


MERGES = [
    Operation(
        name="apply of a batch of everything",
        before=claimed,
        act=lambda node: apply_all(node, FOREIGN),
        happened=lambda node: team(node).state.get("last") == 1,
    ),
    Operation(
        name="apply of what comes too late to win",
        before=some_rows,
        act=lambda node: apply_all(node, LATE),
        happened=lambda node: len(list(node.conflicts())) == 1,
    ),
    Operation(
        name="restore_conflict",
        before=disputed,
        act=lambda node: node.restore_conflict(1, id=ID),
        happened=restored,
    ),
    Operation(
        name="dismiss_conflict",
        before=disputed,
        act=lambda node: node.dismiss_conflict(1),
        happened=lambda node: not list(node.conflicts()),
        id=None,
    ),
    Operation(
        name="take_warnings",
        before=superseded,
        act=lambda node: node.take_warnings(),
        id=None,
        looks_first=True,
    ),
]


def read_to(offset: int) -> Callable[[Node], None]:
    def before(node: Node) -> None:
        some_rows(node)
        node.log.add_consumer("reader")
        node.log.confirm("reader", offset)

    return before


def position_of(node: Node) -> int | None:
    return next((row.frontier for row in node.log.consumers() if row.name == "reader"), None)


def dead_rows(node: Node) -> None:
    some_rows(node)
    mesh = team(node)
    mesh.state.delete("old")
    mesh.memory.forget("old")
    mesh.vectors.delete("old", model=MODEL)
    mesh.files.delete("old.bin")
    mesh.files.share("kept.bin", OTHER)
    node.receive_blob(BIG + OTHER)  # which no row will name


def dead_rows_behind(node: Node) -> None:
    dead_rows(node)
    node.log.add_consumer("reader", 5)


def embed(texts: list[str]) -> list[list[float]]:
    return [[2.0, 2.0] for _ in texts]


UPKEEP = [
    Operation(
        name="log.add_consumer",
        before=some_rows,
        act=lambda node: node.log.add_consumer("reader"),
        happened=lambda node: position_of(node) == 0,
        id=None,
        again=(AlreadyExists,),
    ),
    Operation(
        name="log.confirm",
        before=read_to(2),
        act=lambda node: node.log.confirm("reader", 4),
        happened=lambda node: position_of(node) == 4,
        id=None,
    ),
    Operation(
        name="log.retire",
        before=read_to(2),
        act=lambda node: node.log.retire("reader"),
        happened=lambda node: position_of(node) is None,
        id=None,
        again=(UnknownConsumer,),
    ),
    Operation(
        name="sweep of everything that is old",
        before=dead_rows,
        act=lambda node: node.sweep(Ttl(orphan_ms=-(10**15))),
        days_later=300,
        id=None,
    ),
    Operation(
        name="sweep with a reader that is behind",
        before=dead_rows_behind,
        act=lambda node: node.sweep(Ttl(orphan_ms=-(10**15))),
        days_later=300,
        id=None,
    ),
    Operation(
        name="vectors.reembed",
        before=some_rows,
        act=lambda node: team(node).vectors.reembed(MODEL, MODEL_2, embed),
        id=None,
    ),
]


def read_everything(node: Node) -> None:
    mesh = team(node)
    assert mesh.state.get("old") == 1
    assert [memory.value for memory in mesh.memory.recall("old", scope="all")] == [{"a": 1}]
    assert keys_of(node) == {"old"}
    assert mesh.files.read("old.txt") == b"small"
    assert mesh.files.read("old.bin") == BIG
    assert [task.task for task in mesh.tasks.list()] == [TASK]
    assert len(list(node.log.range())) == 6
    assert len(mesh.state.as_of(offset=6)) == 1


def exported(node: Node) -> bytes:
    out = io.BytesIO()
    export(node, out)
    return out.getvalue()


def backed_up(node: Node) -> None:
    """On another disk, which does not fail: what is left there is a whole backup or none."""
    with scratch() as elsewhere:
        try:
            backup(node, elsewhere / "backup")
        finally:
            left = [path.name for path in elsewhere.iterdir()]
            assert left in ([], ["backup"]), left
            if left:
                verify(elsewhere / "backup", read_manifest(elsewhere / "backup"))


EXCHANGE = [
    Operation(name="export", before=some_rows, act=exported, id=None),
    Operation(
        name="import of an export into another mesh",
        before=few_rows,
        act=lambda node: import_(node, io.BytesIO(exported(node)), mesh_map={MESH: "other"}),
        id=None,
    ),
    Operation(name="backup", before=some_rows, act=backed_up, id=None),
]

READS = [
    Operation(name="reading everything", before=some_rows, act=read_everything, id=None, warm=False)
]


@pytest.mark.parametrize(
    "operation",
    [*WRITES, *FILES, *TASKS, *MERGES, *UPKEEP, *EXCHANGE, *READS],
    ids=lambda operation: operation.name.replace(" ", "-"),
)
def test_R2_every_disk_call_of_an_operation_may_fail(operation: Operation) -> None:
    expect_no_failures(sweep_operation(operation))
