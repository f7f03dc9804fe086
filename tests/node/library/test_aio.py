"""The library for coroutines: the same verbs, one commit for many, and no answer that gets lost."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import textwrap
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.node.library import aio, families, presence
from holdfast.node.library import node as sync_node
from holdfast.node.library.aio import AsyncNode
from holdfast.node.library.aio_sharing import AsyncSharing
from holdfast.node.log import log
from holdfast.node.messages import inbox, outbox
from holdfast.node.sharing.sharing import Sharing
from holdfast.rules.errors import BadKey, IdReused, StoreClosed, TaskEnded, UnknownMesh
from holdfast.rules.vectors import Model
from holdfast.storage import group_commit
from holdfast.storage.ports import Transaction
from holdfast.storage.tickets import Ticket
from support.envelopes import state_set
from support.nodes import Nodes

MODEL = Model(provider="test", name="tiny", dim=2)
ID = "018bcfe5-6800-7000-8000-0000000000aa"
PATIENCE_S = 30

PAIRS = [
    (sync_node.Node, aio.AsyncNode),
    (sync_node.Mesh, aio.AsyncMesh),
    (log.Log, aio.AsyncLog),
    (families.State, aio.AsyncState),
    (families.Memories, aio.AsyncMemories),
    (families.Vectors, aio.AsyncVectors),
    (families.Files, aio.AsyncFiles),
    (families.Tasks, aio.AsyncTasks),
    (families.Facts, aio.AsyncFacts),
    (presence.PeerPresences, aio.AsyncPeerPresences),
    (inbox.Inbox, aio.AsyncInbox),
    (outbox.Outbox, aio.AsyncOutbox),
    (Sharing, AsyncSharing),
]


def run(nodes: Nodes, story: Callable[[AsyncNode], Awaitable[None]]) -> None:
    """Plays a story on a node of either kind."""

    async def play() -> None:
        await story(AsyncNode(nodes.open("ana")))

    asyncio.run(play())


# --- the same verbs -------------------------------------------------------------------------------


def _verbs(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


@pytest.mark.parametrize(("sync", "asynchronous"), PAIRS, ids=lambda kind: kind.__name__)
def test_U1_both_faces_have_the_same_verbs_with_the_same_signatures(
    sync: type, asynchronous: type
) -> None:
    mine, theirs = _verbs(sync), _verbs(asynchronous)
    assert set(theirs) == set(mine)
    for name in mine:
        if isinstance(mine[name], property):
            assert isinstance(theirs[name], property)
            continue
        one, other = (inspect.signature(found[name]) for found in (mine, theirs))
        assert one.parameters == other.parameters, name
        waits = inspect.iscoroutinefunction(theirs[name])
        # They ask when they are entered.
        entered = str(other.return_annotation) in ("AsyncLease", "AsyncWriteBatch")
        iterators = ("AsyncIterator", "AsyncChangeWatch")
        at_once = entered or str(other.return_annotation).startswith(iterators)
        assert waits != at_once, name
        # What people read of the one holds for the other; only meshes and iterators are others.
        returns = str(other.return_annotation).removeprefix("Async").replace("Rows[", "list[")
        assert returns == str(one.return_annotation).replace("Rows[", "list["), name
        assert _said(mine[name]) == _said(theirs[name]), name


def _said(verb: object) -> str:
    """Its documentation. A verb that is written out for coroutines need not repeat the example."""
    return (inspect.getdoc(verb) or "").partition("\n\n>>>")[0]


def test_U1_both_faces_are_opened_in_the_same_way() -> None:
    one = inspect.signature(holdfast.open).parameters
    other = inspect.signature(holdfast.aopen).parameters
    assert {name: value for name, value in one.items() if name != "inner"} == dict(other)


def test_U1_the_same_families_and_the_log_hang_on_both(nodes: Nodes) -> None:
    async def story(node: AsyncNode) -> None:
        mesh = await node.mesh("team")
        public = {name for name in vars(mesh) if not name.startswith("_")}
        assert public == {name for name in vars(mesh.sync) if name[0] != "_"} | {"sync"}
        public = {name for name in vars(node) if not name.startswith("_")}
        assert public == {name for name in vars(node.sync) if name[0] != "_"} | {"sync"}

    run(nodes, story)


def test_U1_the_example_in_the_docstring_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert holdfast.__doc__ is not None
    code = holdfast.__doc__[holdfast.__doc__.index("    import holdfast") :]
    example = textwrap.dedent(code[: code.index("\n\n", code.index("team"))])
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    exec(example, scope)
    with holdfast.open("home") as node:
        assert node.mesh("team").state.get("build") == {"status": "green"}


def test_U1_importing_holdfast_costs_nothing_that_is_not_used() -> None:
    code = (
        "import sys, holdfast; "
        "print([name for name in ('asyncio', 'apsw', 'msgspec') if name in sys.modules]); "
        "holdfast.open; print('asyncio' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "False"]


def test_U1_every_public_name_is_there() -> None:
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    assert set(holdfast.__all__) <= set(dir(holdfast))
    with pytest.raises(AttributeError):
        holdfast.nothing  # type: ignore[attr-defined]  # noqa: B018


# --- every verb -----------------------------------------------------------------------------------


def test_U1_every_family_works_in_a_few_lines(nodes: Nodes) -> None:
    async def story(node: AsyncNode) -> None:
        team = await node.mesh("team")
        await team.state.set("k", 1)
        assert await team.state.get("k") == 1
        entry = await team.state.entry("k")
        assert entry is not None
        assert [e.key async for e in team.state.list("k")] == ["k"]
        await team.state.delete("k")
        assert [e.value for e in await team.state.as_of("k", offset=1)] == [1]
        assert [e.value for e in await team.state.history("k")][-1] == 1

        await team.memory.set("m", "x", tags=["t"])
        memory = await team.memory.get("m")
        assert memory is not None
        assert [m.value for m in await team.memory.recall("m", scope="all")] == ["x"]
        assert [m.key async for m in team.memory.list()] == ["m"]
        await team.memory.forget("m")
        assert len(await team.memory.as_of("m", offset=3)) == 1

        await team.vectors.store("v", [1, 0], model=MODEL, content="c")
        assert [h.content for h in await team.vectors.search([0, 0], model=MODEL)] == ["c"]
        assert await team.vectors.search([0, 0], model=MODEL, scope="peer:none") == []
        await team.vectors.delete("v", model=MODEL)
        assert len(await team.vectors.models()) == 1

        await team.files.share("f", b"x")
        assert await team.files.read("f") == b"x"
        with await team.files.open("f") as stream:
            assert stream.read() == b"x"
        assert (await team.files.info("f")).size == 1
        assert (await team.files.last_known("f")).status == "fresh"
        assert [f.path async for f in team.files.list()] == ["f"]
        assert [f.path async for f in team.files.list(scope="self")] == ["f"]
        assert [f.path async for f in team.files.list(scope="peer:none")] == []
        await team.files.delete("f")

        task = (await team.tasks.create("t")).task
        await team.tasks.claim(task)
        await team.tasks.release(task)
        await team.tasks.claim(task)
        assert (await team.tasks.complete(task)).status == "completed"
        assert (await team.tasks.get(task)).status == "completed"
        assert [t.task async for t in team.tasks.list(status="completed")] == [task]
        assert len(await team.tasks.events(task)) == 5
        other = (await team.tasks.create("u")).task
        assert (await team.tasks.cancel(other)).status == "cancelled"

        await team.facts.append("s", "is", True, meta={"a": 1})
        assert (await team.info()).slug == "team"
        assert (await team.counts())["task"] == 2
        assert (await team.clock()).lamport > 10
        assert await team.peers() == []

    run(nodes, story)


def test_U1_the_node_and_its_log_work_for_coroutines(nodes: Nodes) -> None:
    async def story(node: AsyncNode) -> None:
        assert node.peer == "ana"
        assert node.home == node.sync.home
        await node.create_mesh("other")
        assert [row.slug for row in await node.meshes()] == ["other", "team"]
        with pytest.raises(UnknownMesh):
            await node.mesh("nowhere")
        raws = [state_set("k", n, lamport=n + 1, origin=f"p{n}") for n in range(3)]
        assert all(result.error is None for result in await node.apply(raws))
        assert [c.number async for c in node.conflicts()] == [1, 2]
        assert (await node.conflict(1)).entity == "k"
        await node.restore_conflict(1)
        await node.dismiss_conflict(2)
        assert await node.take_warnings() == []

        assert (await node.log.head()).offset == 4
        assert [e.offset async for e in node.log.range(2, 4)] == [2, 3]
        assert len(await node.log.tail(2)) == 2
        await node.log.add_consumer("r")
        assert len(await node.log.fetch("r", 2)) == 2
        assert (await node.log.confirm("r", 1)).frontier == 1
        assert (await node.log.confirm("r", ranges=[(2, 4)])).frontier == 3
        assert [c.name for c in await node.log.consumers()] == ["r"]
        await node.log.retire("r")

        sha = await node.receive_blob(b"x" * 70_000)
        with await node.open_blob(sha) as stream:
            assert len(stream.read()) == 70_000
        assert (await node.sweep()).log_entries == 0

    run(nodes, story)


def test_U1_a_home_is_opened_and_closed_by_coroutines(tmp_path: Path) -> None:
    async def story() -> None:
        async with holdfast.aopen(tmp_path / "home", peer="ana", create=True) as node:
            team = await node.create_mesh("team")
            await team.state.set("k", 1)
        with pytest.raises(StoreClosed):
            await team.state.set("k", 2)
        node = await holdfast.aopen(tmp_path / "home")
        async with node:
            assert await (await node.mesh("team")).state.get("k") == 1

    asyncio.run(story())


# --- groups ---------------------------------------------------------------------------------------


def test_S3_writes_of_one_turn_of_the_loop_share_a_commit(nodes: Nodes) -> None:
    async def story(node: AsyncNode) -> None:
        team = await node.mesh("team")
        writer = node.sync._opened.store.writer
        engine = writer._engine
        commits = 0
        commit = engine.commit

        def counted() -> None:
            nonlocal commits
            commits += 1
            commit()

        engine.commit = counted  # type: ignore[method-assign]
        receipts = await asyncio.gather(*(team.state.set(f"k{n}", n) for n in range(100)))
        assert [receipt.offset for receipt in receipts] == list(range(1, 101)), "in their order"
        assert commits <= 3

    run(nodes, story)


def test_S3_more_writes_in_one_turn_than_the_queue_holds_wait_and_keep_their_order(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "QUEUE_OPS_MAX", 30)

    async def story(node: AsyncNode) -> None:
        team = await node.mesh("team")
        receipts = await asyncio.gather(*(team.state.set(f"k{n}", n) for n in range(400)))
        assert [receipt.offset for receipt in receipts] == list(range(1, 401))

    run(nodes, story)


def test_S3_writes_of_a_loop_wait_while_others_fill_the_queue(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "QUEUE_OPS_MAX", 3)

    async def story(node: AsyncNode) -> None:
        team = await node.mesh("team")
        writer = node.sync._opened.store.writer
        for _ in range(3):
            writer.enqueue(Ticket(lambda tx: None, lambda tickets: None))
        writes = asyncio.gather(*(team.state.set(f"k{n}", n) for n in range(10)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(writer._queue) == 3, "there was no room for any of them"
        assert writer.run_group() == 3
        assert [receipt.offset for receipt in await writes] == list(range(1, 11))

    run(nodes, story)


def test_S3_a_group_with_tasks_in_it_opens_no_savepoint(nodes: Nodes) -> None:
    async def story(node: AsyncNode) -> None:
        team = await node.mesh("team")
        task = (await team.tasks.create("work")).task
        engine = node.sync._opened.store.writer._engine
        opened = 0
        savepoint = engine.savepoint

        def counted() -> None:
            nonlocal opened
            opened += 1
            savepoint()

        engine.savepoint = counted  # type: ignore[method-assign]
        await asyncio.gather(
            team.tasks.create("more"),
            team.tasks.claim(task),
            team.state.set("k", 1),
            team.tasks.release(task),
            team.tasks.cancel(task),
        )
        assert opened == 0
        results = await asyncio.gather(
            team.tasks.claim(task), team.state.set("k", 2), return_exceptions=True
        )
        assert isinstance(results[0], TaskEnded)
        assert opened == 0, "nor for one that is refused before it has changed anything"
        assert await team.state.get("k") == 2
        assert [event.kind for event in await team.tasks.events(task)] == [
            *("create", "claim", "release", "cancel")
        ]

    run(nodes, story)


def test_S3_an_error_reaches_the_one_who_caused_it(nodes: Nodes) -> None:
    async def story(node: AsyncNode) -> None:
        team = await node.mesh("team")
        await team.state.set("k", 1, id=ID)
        results = await asyncio.gather(
            team.state.set("a", 1),
            team.state.set("k", 2, id=ID),
            team.state.set("", 1),
            team.tasks.claim("unknown"),
            team.state.set("b", 2),
            return_exceptions=True,
        )
        assert isinstance(results[1], IdReused)
        assert isinstance(results[2], BadKey)
        assert isinstance(results[3], holdfast.Refused)
        assert [await team.state.get(key) for key in ("a", "b", "k")] == [1, 2, 1]
        assert (await team.clock()).lamport == 3, "the failed ones left no gap"

    run(nodes, story)


def test_S3_coroutines_and_threads_write_together(nodes: Nodes) -> None:
    async def story(node: AsyncNode) -> None:
        team = await node.mesh("team")

        def in_thread(name: str) -> None:
            for n in range(40):
                team.sync.state.set(f"{name}{n}", n)

        async def in_loop(name: str) -> None:
            for n in range(40):
                await team.state.set(f"{name}{n}", n)

        await asyncio.gather(
            *(asyncio.to_thread(in_thread, f"t{n}-") for n in range(3)),
            *(in_loop(f"l{n}-") for n in range(5)),
        )
        entries = [entry async for entry in node.log.range()]
        assert [entry.lamport for entry in entries] == list(range(1, 8 * 40 + 1))
        for name in ("t0-", "l0-", "l4-"):
            own = [entry.entity for entry in entries if entry.entity.startswith(name)]
            assert own == [f"{name}{n}" for n in range(40)]

    run(nodes, story)


def _hold(node: AsyncNode) -> tuple[threading.Event, threading.Event]:
    """A write that the writer's thread is busy with, until it is let go."""
    inside, go = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> None:
        inside.set()
        assert go.wait(PATIENCE_S)

    node.sync._opened.store.writer.submit([Ticket(slow, lambda tickets: None)])
    assert inside.wait(PATIENCE_S)
    return inside, go


def test_S3_a_cancelled_write_happens_and_disturbs_nobody(nodes: Nodes) -> None:
    async def story(node: AsyncNode) -> None:
        team = await node.mesh("team")
        _, go = _hold(node)
        doomed = asyncio.create_task(team.state.set("k", 1, id=ID))
        other = asyncio.create_task(team.state.set("l", 2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        doomed.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doomed
        go.set()
        await other
        receipt = await team.state.set("k", 1, id=ID)
        assert receipt.duplicate, "asked again with its id, it says what came of it"

    run(nodes, story)


def test_S3_a_loop_that_ends_early_leaves_the_writer_alive(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    node = nodes.open("ana")
    held: list[threading.Event] = []

    async def story() -> None:
        async_node = AsyncNode(node)
        team = await async_node.mesh("team")
        held.append(_hold(async_node)[1])
        asyncio.create_task(team.state.set("k", 1))  # noqa: RUF006
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(story())
    results: list[object] = []
    late = threading.Thread(target=lambda: results.append(node.mesh("team").state.set("l", 2)))
    late.start()
    held[0].set()
    late.join(PATIENCE_S)
    assert not late.is_alive(), "the writer died with the loop"
    assert node.mesh("team").state.get("k") == 1, "handed over, so written"
    assert caplog.text == ""


def test_S3_after_closing_every_coroutine_hears_so(nodes: Nodes) -> None:
    async def story(node: AsyncNode) -> None:
        team = await node.mesh("team")
        await node.close()
        results = await asyncio.gather(
            *(team.state.set("k", n) for n in range(3)), return_exceptions=True
        )
        assert all(isinstance(result, StoreClosed) for result in results)

    run(nodes, story)
