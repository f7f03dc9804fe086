"""One node in many threads: everything is written once, and every thread sees its own order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from holdfast.node.library.node import Node
from holdfast.node.upkeep.sweep import Ttl, collect_blobs
from holdfast.rules.errors import BlobMissing, HoldfastError, StoreClosed, TaskTaken, UnknownFile
from support.envelopes import state_set
from support.nodes import Nodes, store_of, team
from support.snapshot import snapshot
from support.source import HandClock

THREADS = 8


def together(*acts: Callable[[], object]) -> list[object]:
    """Runs everything at once; an error of ours is a result too."""
    start = threading.Barrier(len(acts))
    results: list[object] = [None] * len(acts)

    def run(at: int) -> None:
        start.wait()
        try:
            results[at] = acts[at]()
        except HoldfastError as error:
            results[at] = error

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_S4_stamps_of_many_threads_have_no_gap_and_no_double(node: Node) -> None:
    mesh = team(node)

    def write(name: int) -> list[int]:
        return [mesh.state.set(f"{name}-{n}", n).lamport for n in range(25)]

    stamps = together(*(lambda name=name: write(name) for name in range(THREADS)))
    flat = [stamp for mine in stamps for stamp in mine]  # type: ignore[attr-defined]
    assert sorted(flat) == list(range(1, THREADS * 25 + 1))
    assert all(mine == sorted(mine) for mine in stamps)  # type: ignore[call-overload]
    assert [entry.lamport for entry in node.log.range()] == list(range(1, THREADS * 25 + 1))


def test_S10_one_task_is_claimed_by_one_of_many(node: Node) -> None:
    """Threads of one peer all hold it; what is counted is that nothing breaks."""
    mesh = team(node)
    task = mesh.tasks.create("t").task
    results = together(*(lambda: mesh.tasks.claim(task) for _ in range(THREADS)))
    assert not any(isinstance(result, HoldfastError) for result in results)
    events = [event.event for event in mesh.tasks.events(task)]
    assert events.count("claimed") == 1
    assert events.count("renewed") == THREADS - 1


def test_S10_a_task_is_completed_once_by_many(node: Node) -> None:
    mesh = team(node)
    task = mesh.tasks.create("t").task
    mesh.tasks.claim(task)
    results = together(*(lambda: mesh.tasks.complete(task) for _ in range(THREADS)))
    assert sum(isinstance(result, HoldfastError) for result in results) == THREADS - 1
    assert not any(isinstance(result, TaskTaken) for result in results)


def test_D3_one_id_from_many_threads_writes_once(node: Node) -> None:
    mesh = team(node)
    id = "018bcfe5-6800-7000-8000-0000000000aa"
    results = together(*(lambda: mesh.facts.append("s", "is", 1, id=id) for _ in range(THREADS)))
    assert sorted(result.duplicate for result in results) == [False] + [True] * (THREADS - 1)  # type: ignore[attr-defined]
    assert {result.offset for result in results} == {1}  # type: ignore[attr-defined]
    assert node.log.head().offset == 1


def test_S6_a_mesh_that_many_make_at_once_is_there_for_all(node: Node) -> None:
    results = together(*(lambda: node.mesh("new", create=True).slug for _ in range(THREADS)))
    assert results == ["new"] * THREADS


def test_S3_readers_among_writers_see_whole_writes(node: Node) -> None:
    """Two keys always change together; nobody ever sees one without the other."""
    store = store_of(node)
    node.apply([state_set("a", 0, lamport=1), state_set("b", 0, lamport=1)])
    done = threading.Event()

    def write() -> None:
        for n in range(1, 60):
            node.apply([state_set("a", n, lamport=2 * n), state_set("b", n, lamport=2 * n)])
        done.set()

    def read() -> int:
        looks = 0
        while not done.is_set() or not looks:
            with store.read() as tx:
                a, b = tx.state_get("team", "a"), tx.state_get("team", "b")
            assert a is not None
            assert b is not None
            assert a.value == b.value
            looks += 1
        return looks

    results = together(write, read, read)
    assert results[0] is None
    assert all(isinstance(looks, int) and looks > 0 for looks in results[1:])


def test_S9_many_threads_share_one_content(node: Node) -> None:
    content = bytes(70_000)
    mesh = team(node)
    together(*(lambda n=n: mesh.files.share(f"f{n}", content) for n in range(THREADS)))
    sha = mesh.files.info("f0").sha256
    assert node._engine.read("x", lambda tx: tx.blob_refs(sha)) == THREADS
    together(*(lambda n=n: mesh.files.delete(f"f{n}") for n in range(THREADS)))
    assert node._engine.read("x", lambda tx: tx.blob_refs(sha)) == 0


def test_S16_closing_while_others_write_loses_nothing_that_was_answered(
    tmp_path: Path, clock: HandClock
) -> None:
    nodes = Nodes("sqlite", tmp_path, clock)
    node = nodes.open("ana")
    mesh = team(node)
    answered: list[str] = []
    started, enough = threading.Barrier(5), threading.Event()

    def write(name: int) -> None:
        started.wait()
        for n in range(10_000):
            try:
                mesh.state.set(f"{name}-{n}", n)
            except StoreClosed:
                return
            answered.append(f"{name}-{n}")
            if len(answered) > 50:
                enough.set()
        raise AssertionError("never closed")

    def close() -> None:
        started.wait()
        enough.wait()
        node.close()

    together(*(lambda name=name: write(name) for name in range(4)), close)
    again = nodes.reopen(node)
    keys = {row["key"] for row in snapshot(store_of(again))["team"]["state"]}
    assert set(answered) <= keys
    assert len(keys) <= len(answered) + 4, "at most the one write of each that was under way"
    nodes.close()


def test_S9_sharing_while_a_sweep_runs_leaves_no_row_without_its_content(nodes: Nodes) -> None:
    """The sweep takes every blob that nothing names at that moment, however young."""
    node = nodes.open("ana")
    mesh = team(node)
    contents = [bytes([n]) * 70_000 for n in range(3)]
    done = threading.Event()

    def sweep() -> int:
        rounds = 0
        while not done.is_set() or not rounds:
            collect_blobs(node._engine, Ttl(blob_ms=0))
            rounds += 1
        return rounds

    def share(name: int) -> int:
        gone = 0
        for n in range(30):
            try:
                mesh.files.share(f"f{name}", contents[(name + n) % 3])
                if n % 3 == 0:
                    mesh.files.delete(f"f{name}")
            except (BlobMissing, UnknownFile):
                gone += 1  # swept away three times in a row, and said so
        return gone

    def shares() -> list[object]:
        try:
            return together(lambda: share(0), lambda: share(1))
        finally:
            done.set()

    gone, rounds = together(shares, sweep)
    assert isinstance(rounds, int)
    assert isinstance(gone, list)
    assert all(isinstance(count, int) for count in gone), gone
    for info in mesh.files.list():
        assert info.here, f"{info.path} names content that is not there"
        assert mesh.files.read(info.path) in contents
