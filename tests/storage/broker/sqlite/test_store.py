"""What only a store on SQLite has: its folder, its mark, its settings, its thread."""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import stat
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from holdfast.rules import limits
from holdfast.rules.broker_rows import BrokerMesh
from holdfast.rules.errors import BadInput, NewerSchema, NotOurs, StoreClosed, StoreCorrupt
from holdfast.storage.broker.port import BrokerStore
from holdfast.storage.broker.sqlite import SqliteBrokerStore, ThreadedBrokerStore
from holdfast.storage.broker.sqlite import database as base
from holdfast.storage.broker.sqlite import migrations as schema_version
from holdfast.storage.broker.sqlite.mark import Mark, doubts, read_mark, write_mark
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.connection import connect, shut
from support.broker_stores import (
    NOW,
    TEAM,
    accept,
    arriving,
    feed,
    seqs,
    topic,
    verdicts,
    with_team,
)

T = TypeVar("T")


def step(work: Coroutine[Any, Any, T]) -> T:
    """Runs what must not suspend, without a loop."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it suspended")


@asynccontextmanager
async def opened(folder: Path, **options: Any) -> AsyncIterator[SqliteBrokerStore]:
    store = SqliteBrokerStore(folder, sync="off", **options)
    await store.open(NOW)
    try:
        yield store
    finally:
        await store.close()


async def grow(folder: Path, *numbers: int) -> BrokerMesh:
    """Opens the store, hands in, closes it; how it stood after the opening."""
    async with opened(folder) as store:
        await with_team(store)
        mesh = await store.mesh_get(TEAM)
        await accept(store, *(arriving(n) for n in numbers))
    assert mesh is not None
    return mesh


def copy_database(source: Path, target: Path) -> None:
    """Into the file that is there, as `cp` does: it keeps its number."""
    target.write_bytes(source.read_bytes())


def test_D1_a_store_on_sqlite_never_suspends_and_needs_no_loop(tmp_path: Path) -> None:
    store = SqliteBrokerStore(tmp_path / "b", sync="off")
    step(store.open(NOW))
    step(with_team(store))
    assert verdicts(step(accept(store, arriving(1), topic(2)))) == ["created", "created"]
    step(store.sweep(NOW, 10))
    step(store.close())


def test_D1_every_store_is_one() -> None:
    stores: list[type[BrokerStore]] = [SqliteBrokerStore, ThreadedBrokerStore]
    verbs = {name: verb for name, verb in vars(BrokerStore).items() if name.isidentifier()}
    for store, name in product(stores, verbs):
        if name.startswith("_") or isinstance(verbs[name], property):
            continue
        promised, kept = (inspect.signature(verb) for verb in (verbs[name], getattr(store, name)))
        assert list(kept.parameters) == list(promised.parameters), (store, name)
        waits = inspect.iscoroutinefunction(verbs[name])
        assert not waits or inspect.iscoroutinefunction(getattr(store, name)), (store, name)


def test_S2_the_folder_is_ours_alone_and_commits_are_synced(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "b"
    old = os.umask(0)
    try:
        store = SqliteBrokerStore(folder)
        step(store.open(NOW))
        step(with_team(store))
    finally:
        os.umask(old)
    modes = {name: stat.S_IMODE(os.stat(folder / name).st_mode) for name in os.listdir(folder)}
    assert set(modes) == {"broker.db", "broker.db-wal", "broker.db-shm", "broker.mark"}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert store.connection.pragma("journal_mode") == "wal"
    assert store.connection.pragma("synchronous") == 2
    step(store.close())


def test_S2_a_link_or_a_closed_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "elsewhere").write_bytes(b"")
    (tmp_path / "b" / "broker.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotOurs):
        step(SqliteBrokerStore(tmp_path / "b").open(NOW))
    with pytest.raises(StoreClosed):
        step(SqliteBrokerStore(tmp_path / "c").ping())


def test_D1_a_newer_store_is_left_untouched(tmp_path: Path) -> None:
    asyncio.run(grow(tmp_path / "b", 1))
    database = tmp_path / "b" / "broker.db"
    con = connect(database)
    con.pragma("user_version", schema_version.LATEST + 1)
    shut(con)
    before = database.read_bytes()
    with pytest.raises(NewerSchema):
        asyncio.run(grow(tmp_path / "b", 2))
    assert database.read_bytes() == before


def test_D1_the_scripts_are_numbered_and_go_back(tmp_path: Path) -> None:
    steps = migrations.load(schema_version.PACKAGE)
    numbers = [one.number for one in steps]
    assert numbers == sorted(set(numbers))
    assert (numbers[0], numbers[-1]) == (1, schema_version.LATEST)
    con = connect(tmp_path / "x.db")
    assert schema_version.migrate(con) == [one.number for one in steps]
    assert schema_version.migrate(con) == []
    migrations.rollback(con, 0, steps)
    assert con.execute("SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite%'").get is None
    shut(con)


def test_D1_the_schema_goes_back_version_by_version_and_up_again_with_what_is_in_it(
    tmp_path: Path,
) -> None:
    """From the newest to the oldest: whatever each version has stays, and works when it is new
    again. The database as it was stays beside it.
    """
    folder = tmp_path / "b"
    asyncio.run(grow(folder, 1, 2))
    numbers = [one.number for one in migrations.load(schema_version.PACKAGE)]
    for to in reversed(numbers[:-1]):
        undone, kept = step(SqliteBrokerStore(folder, sync="off").rollback_schema(to, NOW + to))
        con = connect(folder / "broker.db")
        assert migrations.version(con) == to
        assert con.execute("SELECT count(*) FROM message").get == 2
        shut(con)
        assert undone == [number for number in reversed(numbers) if number > to]
        assert kept.exists()
        asyncio.run(_is_whole(folder))
    with pytest.raises(BadInput, match="cannot roll back"):
        step(SqliteBrokerStore(folder, sync="off").rollback_schema(schema_version.LATEST, NOW))


async def _is_whole(folder: Path) -> None:
    async with opened(folder) as store:
        assert await store.schema() == schema_version.LATEST
        assert verdicts(await accept(store, arriving(1), arriving(2))) == ["duplicate"] * 2
        assert await store.inconsistencies() == []
        assert await store.orphans(9) == []


def test_D1_something_that_is_no_database_is_said_to_be_damaged(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "broker.db").write_bytes(b"no database at all" * 1000)
    with pytest.raises(StoreCorrupt):
        step(SqliteBrokerStore(tmp_path / "b").open(NOW))


# --- the mark ------------------------------------------------------------------------------------


def test_D6_an_older_copy_of_the_database_begins_a_new_epoch(tmp_path: Path) -> None:
    folder, saved = tmp_path / "b", tmp_path / "saved.db"
    asyncio.run(grow(folder, 1, 2))
    shutil.copy(folder / "broker.db", saved)
    assert asyncio.run(grow(folder, 3, 4, 5)).epoch == 1
    copy_database(saved, folder / "broker.db")
    mesh = asyncio.run(grow(folder, 6))
    assert (mesh.epoch, mesh.base, mesh.seq) == (2, 2, 2)
    # Once is enough, and the next time it is a new one again.
    assert asyncio.run(grow(folder)).epoch == 2
    copy_database(saved, folder / "broker.db")
    mesh = asyncio.run(grow(folder))
    assert (mesh.epoch, mesh.base) == (3, 2)


def test_D6_a_copy_from_the_same_opening_is_noticed_after_a_clean_end(tmp_path: Path) -> None:
    folder, saved = tmp_path / "b", tmp_path / "saved.db"

    async def story() -> None:
        async with opened(folder) as store:
            await with_team(store)
            await accept(store, arriving(1))
            store.connection.execute(f"VACUUM INTO '{saved}'")
            await accept(store, arriving(2))

    asyncio.run(story())
    copy_database(saved, folder / "broker.db")
    mesh = asyncio.run(grow(folder))
    assert (mesh.epoch, mesh.base, mesh.seq) == (2, 1, 1)


def test_D6_a_crash_is_no_step_back_but_an_old_copy_after_a_crash_is(tmp_path: Path) -> None:
    folder, crashed, saved = tmp_path / "b", tmp_path / "crashed", tmp_path / "saved.db"

    async def story() -> None:
        async with opened(folder, mark_rows=10) as store:
            await with_team(store)
            await accept(store, *(arriving(n) for n in range(5)))
            store.connection.execute(f"VACUUM INTO '{saved}'")
            for turn in range(1, 5):
                await accept(store, *(arriving(10 * turn + n) for n in range(10)))
            mark = read_mark(folder / "broker.mark")
            assert mark is not None
            # It may be behind, by one group and one step at most.
            assert mark.meshes["server-1"][1] >= 45 - 20
            crashed.mkdir()
            for name in os.listdir(folder):
                shutil.copy(folder / name, crashed / name)

    asyncio.run(story())
    for name in os.listdir(crashed):
        copy_database(crashed / name, folder / name)
    mesh = asyncio.run(grow(folder))
    assert (mesh.epoch, mesh.seq) == (1, 45)

    for name in os.listdir(folder):
        os.truncate(folder / name, 0)
    copy_database(crashed / "broker.mark", folder / "broker.mark")
    copy_database(saved, folder / "broker.db")
    mesh = asyncio.run(grow(folder))
    assert (mesh.epoch, mesh.base) == (2, 5)


def test_D6_a_database_without_its_mark_or_copied_elsewhere_is_doubted(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    asyncio.run(grow(folder, 1))
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert asyncio.run(grow(tmp_path / "elsewhere")).epoch == 2
    (folder / "broker.mark").unlink()
    assert asyncio.run(grow(folder)).epoch == 2
    (folder / "broker.mark").write_bytes(b"{ no json")
    assert asyncio.run(grow(folder)).epoch == 3
    assert asyncio.run(grow(folder)).epoch == 3


def test_D6_where_files_get_new_numbers_they_are_not_looked_at(tmp_path: Path) -> None:
    folder = tmp_path / "b"

    async def look(place: Path) -> int:
        async with opened(place, tell_copies=False) as store:
            mesh = await with_team(store)
            return mesh.epoch

    asyncio.run(look(folder))
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert asyncio.run(look(tmp_path / "elsewhere")) == 1


def test_D6_two_processes_on_one_folder_count_on_and_doubt_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with opened(tmp_path / "b", mark_rows=2) as serving:
            await with_team(serving)
            for turn in range(4):
                (one,) = await accept(serving, arriving(2 * turn))
                async with opened(tmp_path / "b", mark_rows=2) as operating:
                    (two,) = await accept(operating, arriving(2 * turn + 1))
                    await operating.sweep(NOW, 100)
                assert (one.seq, two.seq) == (2 * turn + 1, 2 * turn + 2)
                assert (one.epoch, two.epoch) == (1, 1)

    asyncio.run(story())
    assert asyncio.run(grow(tmp_path / "b")).epoch == 1


def test_D6_the_new_epoch_is_above_the_one_that_was_lost(tmp_path: Path) -> None:
    folder, saved = tmp_path / "b", tmp_path / "saved.db"
    asyncio.run(grow(folder, 1))
    shutil.copy(folder / "broker.db", saved)

    async def move_on() -> None:
        async with opened(folder) as store:
            await store.new_epoch(None, "one", NOW)
            await store.new_epoch(None, "two", NOW)

    asyncio.run(move_on())
    copy_database(saved, folder / "broker.db")
    mesh = asyncio.run(grow(folder))
    assert mesh.epoch == 4


def test_D6_each_doubt_has_its_reason() -> None:
    found = Mark(store="s", generation=5, folder=1, file=2, meshes={"m": (2, 10), "n": (1, 1)})
    assert doubts(found, found) is None
    change = msgspec.structs.replace
    assert doubts(found, change(found, meshes={"gone": (9, 9)})) is None
    assert doubts(found, change(found, generation=4, meshes={"m": (1, 99)})) is None
    assert "without its mark" in (doubts(found, None) or "")
    assert "another database" in (doubts(found, change(found, store="t")) or "")
    assert "older than its mark" in (doubts(found, change(found, generation=6)) or "")
    assert "was at" in (doubts(found, change(found, meshes={"m": (2, 11)})) or "")
    assert "was at" in (doubts(found, change(found, meshes={"m": (3, 1)})) or "")
    assert "copied" in (doubts(found, change(found, file=3)) or "")


def test_D6_the_mark_costs_an_accept_nothing_most_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Mark] = []

    def note(path: Path, mark: Mark) -> None:
        written.append(mark)
        write_mark(path, mark)

    async def story() -> None:
        async with opened(tmp_path / "b") as store:
            await with_team(store)
            monkeypatch.setattr(base, "write_mark", note)
            for turn in range(25):
                await accept(store, *(arriving(turn * 1000 + n) for n in range(1000)))
            assert len(written) == 2
            assert written[-1].meshes["server-1"] == (1, 2 * limits.BROKER_MARK_ROWS)

    asyncio.run(story())


# --- the thread ----------------------------------------------------------------------------------


def test_D14_news_are_told_in_the_loop_and_only_after_a_commit(tmp_path: Path) -> None:
    told: list[tuple[str, int, bool]] = []

    async def story() -> None:
        import threading

        store = ThreadedBrokerStore(SqliteBrokerStore(tmp_path / "b", sync="off"))
        await store.open(NOW)
        main = threading.current_thread()
        store.on_news(
            lambda mesh, seq: told.append((mesh, seq, threading.current_thread() is main))
        )
        await with_team(store)
        with pytest.raises(TypeError, match="bytes"):
            await accept(store, arriving(1), arriving(2, raw=None))
        await accept(store, arriving(3), arriving(4))
        await accept(store, arriving(3))
        await asyncio.sleep(0)
        await store.close()

    asyncio.run(story())
    assert told == [(TEAM, 2, True)]


def test_D2_a_caller_that_is_cancelled_does_not_break_the_desk(tmp_path: Path) -> None:
    async def story() -> None:
        store = ThreadedBrokerStore(SqliteBrokerStore(tmp_path / "b", sync="off"))
        await store.open(NOW)
        await with_team(store)
        tasks = [asyncio.ensure_future(accept(store, arriving(n))) for n in range(20)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        answers = await accept(store, *(arriving(n) for n in range(20)))
        assert sorted(one.seq for one in answers) == list(range(1, 21))
        await store.close()

    asyncio.run(story())


def test_D1_a_store_in_a_thread_can_be_closed_twice_opened_again_and_is_refused_between(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        store = ThreadedBrokerStore(SqliteBrokerStore(tmp_path / "b", sync="off"))
        with pytest.raises(StoreClosed):
            await store.ping()
        await store.open(NOW)
        await with_team(store)
        waiting = [asyncio.ensure_future(accept(store, arriving(n))) for n in range(5)]
        await asyncio.sleep(0)
        await store.close()
        await store.close()
        # What was asked for before the end was done.
        assert [(await one)[0].seq for one in waiting] == [1, 2, 3, 4, 5]
        with pytest.raises(StoreClosed):
            await accept(store, arriving(9))
        await store.open(NOW)
        assert verdicts(await accept(store, arriving(1), arriving(9))) == ["duplicate", "created"]
        await store.close()

    asyncio.run(story())


def test_D1_a_store_that_does_not_open_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "broker.db").write_bytes(b"no database at all" * 1000)

    async def story() -> None:
        store = ThreadedBrokerStore(SqliteBrokerStore(tmp_path / "b"))
        with pytest.raises(StoreCorrupt):
            await store.open(NOW)
        with pytest.raises(StoreClosed):
            await store.ping()

    asyncio.run(story())


def test_D14_who_only_looks_does_not_wait_for_who_writes(tmp_path: Path) -> None:
    async def story() -> None:
        store = ThreadedBrokerStore(SqliteBrokerStore(tmp_path / "b", sync="off"))
        await store.open(NOW)
        await with_team(store)
        await accept(store, arriving(1))
        other = connect(tmp_path / "b" / "broker.db")
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(accept(store, arriving(2)))
        assert seqs(await feed(store)) == [1]
        assert await store.orphans(10) == []
        assert not writing.done()
        other.execute("ROLLBACK")
        assert verdicts(await writing) == ["created"]
        assert seqs(await feed(store)) == [1, 2]
        shut(other)
        await store.close()

    asyncio.run(story())


def test_D7_nobody_waits_while_orphans_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, began = threading.Event(), threading.Event()
    real = SqliteBrokerStore.orphans

    async def slow(store: SqliteBrokerStore, limit: int) -> Any:
        began.set()
        assert go_on.wait(20)
        return await real(store, limit)

    async def run() -> None:
        store = ThreadedBrokerStore(SqliteBrokerStore(tmp_path / "b", sync="off"))
        await store.open(NOW)
        try:
            await with_team(store)
            monkeypatch.setattr(SqliteBrokerStore, "orphans", slow)
            looking = asyncio.ensure_future(store.orphans(10))
            await asyncio.to_thread(began.wait, 20)
            try:
                async with asyncio.timeout(10):
                    assert await store.mesh_get(TEAM) is not None
                    assert verdicts(await accept(store, arriving(1))) == ["created"]
            finally:
                go_on.set()
            assert await looking == []
        finally:
            await store.close()

    asyncio.run(run())
