"""Writing together: all changes of a batch, or none."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.node.library.batch import BatchedChange, Collected, WriteBatch
from holdfast.node.library.node import Mesh, Node
from holdfast.rules.bodies import OPS
from holdfast.rules.errors import (
    BadId,
    BadInput,
    BadKey,
    DiskFull,
    HasVoters,
    HoldfastError,
    IdReused,
    OverLimit,
    StampMoved,
    TaskTaken,
    UnknownFile,
    UnknownKey,
)
from holdfast.rules.limits import BATCH_BYTES_MAX, BATCH_CHANGES_MAX, INLINE_BYTES_MAX
from holdfast.rules.quorum.state_rows import QuorumRow
from support.envelopes import MESH, MODEL
from support.nodes import share, store_of, team
from support.snapshot import snapshot

LARGE = b"x" * INLINE_BYTES_MAX


def fill(b: Collected) -> list[BatchedChange]:
    """A change of every op."""
    task = b.tasks.create("Ship it", description="today")
    other = b.tasks.create("Rest")
    return [
        task,
        other,
        b.state.set("k", 1, meta={"why": "so"}),
        b.state.set("gone", 1),
        b.state.delete("gone"),
        b.memory.set("k", 1, tags=["t"]),
        b.memory.forget("k"),
        b.vectors.store("k", [1, 2], model=MODEL),
        b.vectors.delete("k", model=MODEL),
        b.files.share("small", b"x"),
        b.files.share("large", LARGE),
        b.files.delete("small"),
        b.tasks.claim(task.id),
        b.tasks.release(task.id),
        b.tasks.claim(task.id),
        b.tasks.complete(task.id),
        b.tasks.cancel(other.id),
        b.facts.append("s", "is", 1),
        b.audit.append("activityLog", {"did": "ship"}),
        b.audit.append("activityLog", {"did": "rest"}),
        b.send("done", topic="builds"),
    ]


def test_S3_a_batch_is_one_transaction_of_any_changes_with_a_receipt_each(node: Node) -> None:
    mesh = share(node)
    commits: list[int] = []
    store_of(node).on_commit(lambda: commits.append(node.log.head().offset))
    with mesh.batch() as b:
        done = fill(b)
        assert node.log.head().offset == 0
    assert commits == [len(done)]
    entries = list(node.log.range())
    assert {entry.op for entry in entries} == OPS
    assert [entry.offset for entry in entries] == [one.receipt.offset for one in done]
    assert [one.receipt.id for one in done] == [one.id for one in done]
    assert [entry.lamport for entry in entries] == [one.lamport for one in b.receipts]
    assert mesh.tasks.get(done[0].id).status == "completed"
    assert mesh.files.read("large") == LARGE
    assert [event.payload["did"] for event in mesh.audit.list("activityLog")] == ["ship", "rest"]


def together(mesh: Mesh, *changes: Callable[[WriteBatch], object]) -> WriteBatch:
    with mesh.batch() as b:
        for change in changes:
            change(b)
    return b


REFUSED: list[tuple[Any, type[HoldfastError], str]] = [
    (lambda b: b.state.delete("nowhere"), UnknownKey, r"change 3 .*\(state.delete 'nowhere'\)"),
    (lambda b: b.state.set("k", 2, expect="absent"), StampMoved, "change 3 .* is at 3@ana"),
    (lambda b: b.files.delete("nowhere"), UnknownFile, "change 3 "),
    (lambda b: b.tasks.release("t"), HoldfastError, "change 3 "),
]


@pytest.mark.parametrize(("change", "error", "said"), REFUSED)
def test_S3_a_refused_change_undoes_the_batch_and_is_named(
    node: Node, change: Any, error: type[HoldfastError], said: str
) -> None:
    mesh = team(node)
    mesh.state.set("before", 1)
    mesh.tasks.create("t")
    before = snapshot(store_of(node))
    kept: list[BatchedChange] = []
    with pytest.raises(error, match=said) as refused:
        together(
            mesh,
            lambda b: kept.append(b.state.set("k", 1)),
            lambda b: b.files.share("large", LARGE),
            change,
            lambda b: b.state.set("after", 1),
        )
    assert "nothing was written" in str(refused.value)
    assert snapshot(store_of(node)) == before
    assert (node.log.head().offset, mesh.clock().lamport) == (2, 2)
    with pytest.raises(BadInput, match="is not written"):
        _ = kept[0].receipt


def test_S3_a_refused_batch_leaves_its_neighbours_in_the_group_alone(tmp_path: Path) -> None:
    async def run() -> list[Any]:
        async with holdfast.aopen(tmp_path / "home", peer="ana", create=True) as node:
            mesh = await node.mesh("team", create=True)

            async def broken() -> None:
                async with mesh.batch() as b:
                    b.state.set("lost", 1)
                    b.state.delete("nowhere")

            work = [mesh.state.set("a", 1), broken(), mesh.state.set("b", 2)]
            done = await asyncio.gather(*work, return_exceptions=True)
            assert [entry.key async for entry in mesh.state.list()] == ["a", "b"]
            return done

    first, error, second = asyncio.run(run())
    assert (type(error), {first.offset, second.offset}) == (UnknownKey, {1, 2})


def test_U1_an_exception_in_the_block_writes_nothing(node: Node) -> None:
    mesh = team(node)
    steps: tuple[Any, ...] = (lambda b: b.state.set("k", 1), lambda b: b.files.share("f", LARGE))
    with pytest.raises(ZeroDivisionError):
        together(mesh, *steps, lambda b: 1 // 0)
    assert node.log.head().offset == 0
    with pytest.raises(BadKey):
        together(mesh, *steps, lambda b: b.state.set("", 1))
    assert node.log.head().offset == 0


def test_S5_later_changes_of_a_batch_see_the_earlier_ones(node: Node) -> None:
    mesh = team(node)
    with mesh.batch() as b:
        b.state.set("k", 1, expect=holdfast.ABSENT)
        b.state.set("k", 2, expect="1@ana")
        b.state.delete("k", expect="2@ana")
    assert [receipt.offset for receipt in b.receipts] == [1, 2, 3]


def test_D4_a_batch_with_a_name_is_written_once(node: Node) -> None:
    mesh = team(node)

    def ship(value: int = 1) -> list[tuple[str, int, bool]]:
        with mesh.batch(id="release 7") as b:
            b.state.set("k", value, expect=holdfast.ABSENT)
            task = b.tasks.create("t")
            b.tasks.claim(task.id)
            b.files.share("f", io.BytesIO(b"content"))
        return [(one.id, one.offset, one.duplicate) for one in b.receipts]

    first = ship()
    assert [(id, offset) for id, offset, _ in ship()] == [(id, at) for id, at, _ in first]
    assert {duplicate for _, _, duplicate in ship()} == {True}
    assert node.log.head().offset == 4
    with pytest.raises(IdReused, match="change 1 "):
        ship(2)
    with pytest.raises(BadId):
        mesh.batch(id=" blank ")


def test_U1_a_batch_ends_with_its_block(node: Node) -> None:
    mesh = team(node)
    with mesh.batch() as b:
        pass
    assert b.receipts == []
    for late in (lambda: b.state.set("k", 1), lambda: b.files.share("f", b""), b.__enter__):
        with pytest.raises(BadInput, match="has ended"):
            late()


def test_S3_a_batch_has_a_limit(node: Node) -> None:
    mesh = team(node)
    with mesh.batch() as b:
        for number in range(BATCH_CHANGES_MAX):
            b.state.set(f"k{number}", number)
        with pytest.raises(OverLimit, match="256 changes"):
            b.state.set("more", 1)
    assert len(b.receipts) == node.log.head().offset == BATCH_CHANGES_MAX
    count = BATCH_BYTES_MAX // 1_000_000 + 1
    with pytest.raises(OverLimit, match="bytes"):
        together(mesh, *[lambda b: b.state.set("k", "x" * 1_000_000)] * count)
    assert node.log.head().offset == BATCH_CHANGES_MAX


def test_Q1_in_a_mesh_with_voters_a_batch_takes_no_tasks(node: Node) -> None:
    """It is refused before anything is written: what came before the task in it is not there."""
    mesh, row = team(node), QuorumRow(mesh=MESH, engine="etcd", incarnation=1, tag=b"s" * 16)
    store_of(node).write(lambda tx: tx.quorum_put(row))
    with pytest.raises(HasVoters, match=r"change 2 .*\(task.create .* voters decide"):
        together(mesh, lambda b: b.state.set("k", 1), lambda b: b.tasks.create("t"))
    assert node.log.head().offset == 0
    assert together(mesh, lambda b: b.state.set("k", 1)).receipts[0].offset == 1


def test_S9_content_that_a_sweep_removes_before_the_batch_is_put_back(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh, engine = team(node), node._engine
    kind = type(engine.blobs)
    put, count = kind.put, 0

    def gone(self: Any, content: Any) -> Any:
        nonlocal count
        blob, count = put(self, content), count + 1
        if count < 2:
            self.unlink(blob.sha256)
        return blob

    monkeypatch.setattr(kind, "put", gone)
    with mesh.batch() as b:
        b.state.set("k", 1)
        b.files.share("large", io.BytesIO(LARGE))
    assert (count, [one.offset for one in b.receipts]) == (2, [1, 2])
    assert mesh.files.read("large") == LARGE


def test_S13_a_batch_that_only_removes_runs_on_a_full_disk(node: Node) -> None:
    mesh = team(node)
    mesh.state.set("k", 1)

    def full() -> None:
        raise DiskFull("the disk is full")

    node._engine.admit = full
    with pytest.raises(DiskFull):
        together(mesh, lambda b: b.state.delete("k"), lambda b: b.state.set("other", 1))
    assert together(mesh, lambda b: b.state.delete("k")).receipts[0].offset == 2


def test_U1_coroutines_write_together_too(tmp_path: Path) -> None:
    async def run() -> None:
        async with holdfast.aopen(tmp_path / "home", peer="ana", create=True) as node:
            mesh = await node.mesh("team", create=True)
            async with mesh.batch(id="one") as b:
                task = b.tasks.create("t")
                b.tasks.claim(task.id)
                b.files.share("large", io.BytesIO(LARGE))
            assert [one.offset for one in b.receipts] == [1, 2, 3]
            other = await mesh.tasks.create("u")

            async def refused(error: Exception | None) -> None:
                async with mesh.batch() as b:
                    b.state.set("k", 1)
                    b.tasks.complete(other.task)
                    if error is not None:
                        raise error

            with pytest.raises(TaskTaken, match="change 2 "):
                await refused(None)
            with pytest.raises(ValueError, match="mine"):
                await refused(ValueError("mine"))
            assert (await node.log.head()).offset == 4

    asyncio.run(run())
