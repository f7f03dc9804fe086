"""A store on a PostgreSQL that is cut off, goes down, or is not the one that it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any

import asyncpg
import pytest

from holdfast.rules.broker_rows import AcceptVerdict
from holdfast.rules.errors import OutcomeUnknown, StoreBusy, Unreachable
from holdfast.rules.limits import POSTGRES_TRIES_MAX
from holdfast.storage.broker.port import BrokerStore
from holdfast.storage.broker.postgres import PostgresBrokerStore, connections
from support.broker_stores import BOB, NOW, TEAM, accept, arriving, feed, queued, seqs, with_team
from support.postgres import server

_numbers = count(1)
NEVER_MS = 10_000_000
PATIENCE_S = 60


async def new_database() -> tuple[str, str]:
    name = f"f{next(_numbers)}"
    return name, await server().database(name)


@asynccontextmanager
async def opened(dsn: str, **settings: Any) -> AsyncIterator[PostgresBrokerStore]:
    store = PostgresBrokerStore(dsn, **settings)
    await store.open(NOW)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def two_stores(
    **settings: Any,
) -> AsyncIterator[tuple[PostgresBrokerStore, PostgresBrokerStore]]:
    """Two processes would see no more of each other than these."""
    _, dsn = await new_database()
    async with opened(dsn, **settings) as one, opened(dsn, **settings) as other:
        await with_team(one)
        yield one, other


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.002)


async def epoch(store: BrokerStore) -> int:
    mesh = await store.mesh_get(TEAM)
    assert mesh is not None
    return mesh.epoch


async def cut_off(dsn: str, which: str) -> int:
    """Ends connections of this database, as a network would; how many."""
    con = await asyncpg.connect(dsn)
    try:
        return len(
            await con.fetch(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                f"WHERE datname = current_database() AND pid <> pg_backend_pid() AND {which}"
            )
        )
    finally:
        await con.close()


LISTENERS = "application_name LIKE '%that listens'"
WAITING = "wait_event_type = 'Lock' AND query LIKE '%accept%'"


# --- a lost connection ----------------------------------------------------------------------------


def test_D2_a_line_that_breaks_in_accept_leaves_the_outcome_unknown_and_a_retry_settles_it() -> (
    None
):
    async def main() -> None:
        _, dsn = await new_database()
        async with opened(dsn) as store:
            await with_team(store)
            holder = await asyncpg.connect(dsn)
            async with holder.transaction():
                await holder.execute("SELECT FROM holdfast.mesh FOR UPDATE")
                asked = asyncio.create_task(accept(store, arriving(1), arriving(2)))
                async with asyncio.timeout(PATIENCE_S):
                    while not await cut_off(dsn, WAITING):
                        await asyncio.sleep(0.01)
                with pytest.raises(OutcomeUnknown):
                    await asked
            await holder.close()
            answers = await accept(store, arriving(1), arriving(2))
            assert [answer.seq for answer in answers] == [1, 2]
            assert await store.orphans(10) == []

    asyncio.run(main())


def test_D2_a_mesh_that_stays_locked_is_busy_and_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(connections.SETTINGS, "lock_timeout", "50")

    async def main() -> None:
        _, dsn = await new_database()
        async with opened(dsn) as store:
            await with_team(store)
            holder = await asyncpg.connect(dsn)
            async with holder.transaction():
                await holder.execute("SELECT FROM holdfast.mesh FOR UPDATE")
                with pytest.raises(StoreBusy):
                    await accept(store, arriving(1))
            await holder.close()
            assert (await accept(store, arriving(1)))[0].verdict == AcceptVerdict.CREATED

    asyncio.run(main())


def test_D2_work_that_the_server_undid_for_other_work_is_done_again_and_not_for_ever() -> None:
    undone = "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$"

    async def main() -> None:
        _, dsn = await new_database()
        async with opened(dsn) as store:
            tries = 0

            async def work(con: Any) -> int:
                nonlocal tries
                tries += 1
                if tries < failing:
                    await con.execute(undone)
                return tries

            failing = 3
            assert await store._connections.transact(work) == 3
            tries, failing = 0, 1000
            with pytest.raises(StoreBusy):
                await store._connections.transact(work)
            assert tries == POSTGRES_TRIES_MAX

    asyncio.run(main())


def has(found: dict[int, int], enough: int) -> bool:
    return len(found) >= enough


@pytest.mark.faults
def test_D2_a_server_that_goes_down_under_load_has_all_that_was_acknowledged_once() -> None:
    async def main() -> None:
        _, dsn = await new_database()
        async with opened(dsn) as store:
            await with_team(store)
            going, acknowledged = True, dict[int, int]()

            async def write(number: int) -> None:
                while going:
                    try:
                        (answer,) = await accept(store, arriving(number))
                    except (OutcomeUnknown, Unreachable):
                        await asyncio.sleep(0.05)  # the same again, when the server is back
                        continue
                    assert answer.verdict in (AcceptVerdict.CREATED, AcceptVerdict.DUPLICATE)
                    acknowledged[number] = answer.seq
                    number += 1

            writers = [asyncio.create_task(write(1_000_000 * n)) for n in range(1, 5)]
            for enough in (50, 100):
                await until(partial(has, acknowledged, enough))
                await asyncio.to_thread(server().crash)
                await asyncio.to_thread(server().start_again)
            await until(partial(has, acknowledged, len(acknowledged) + 50))
            going = False
            await asyncio.gather(*writers)
            page = await store.feed(TEAM, BOB, 0, 100_000, 10_000_000, own=True)
            held = {row.seq: row.raw for row in page.rows}
            assert list(held) == list(range(1, page.last + 1))
            for number, seq in acknowledged.items():
                assert held[seq] == arriving(number).raw
            assert len(set(held.values())) == len(held)
            assert await store.orphans(10) == []
            assert await epoch(store) == 1

    asyncio.run(main())


# --- another database than it was -----------------------------------------------------------------


def test_D6_a_database_that_was_copied_begins_one_new_epoch() -> None:
    async def main() -> None:
        name, dsn = await new_database()
        async with opened(dsn) as store:
            await with_team(store)
            await accept(store, arriving(1), arriving(2))
        await server().execute(f"CREATE DATABASE {name}_back TEMPLATE {name}")
        copy = server().dsn(f"{name}_back")
        stores = [PostgresBrokerStore(copy) for _ in range(5)]
        await asyncio.gather(*(store.open(NOW) for store in stores))
        await asyncio.gather(*(store.close() for store in stores))
        async with opened(copy) as one, opened(copy) as other:
            mesh = await other.mesh_get(TEAM)
            assert mesh is not None
            assert (mesh.epoch, mesh.base, mesh.seq) == (2, 2, 2)
            (answer,) = await accept(one, arriving(3))
            assert (answer.epoch, answer.seq) == (2, 3)
            assert [row.base for row in await one.epochs(TEAM)] == [0, 2]
        async with opened(dsn) as store:
            assert await epoch(store) == 1

    asyncio.run(main())


@pytest.mark.faults
def test_D6_a_server_restored_under_running_brokers_counts_nothing_in_the_old_epoch() -> None:
    async def main() -> None:
        async with two_stores() as (one, other):
            await accept(one, arriving(1))
            await accept(other, arriving(2))
            await asyncio.to_thread(server().recover_from_archive)
            answers = await asyncio.gather(
                *(retried(store, number) for store, number in ((one, 3), (other, 4)))
            )
            assert [answer.epoch for answer in answers] == [2, 2]
            assert sorted(answer.seq for answer in answers) == [3, 4]
            assert [row.base for row in await one.epochs(TEAM)] == [0, 2]

    async def retried(store: BrokerStore, number: int) -> Any:
        while True:
            try:
                return (await accept(store, arriving(number)))[0]
            except (OutcomeUnknown, Unreachable):
                await asyncio.sleep(0.05)

    asyncio.run(main())


def test_D6_a_mesh_that_shrinks_under_running_brokers_begins_one_new_epoch() -> None:
    async def main() -> None:
        async with two_stores(look_ms=20) as (one, other):
            told: list[int] = []
            await accept(one, arriving(1), arriving(2), arriving(3))
            await until(lambda: min(one._news.looks, other._news.looks) > 2)
            seen = min(one._news.looks, other._news.looks)
            await until(lambda: min(one._news.looks, other._news.looks) > seen + 2)
            other.on_news(lambda mesh, seq: told.append(seq))
            await one._connections.execute("UPDATE mesh SET seq = 1")
            await until(lambda: 1 in told)
            seen = max(one._news.looks, other._news.looks)
            await until(lambda: min(one._news.looks, other._news.looks) > seen + 2)
            assert [(row.epoch, row.base) for row in await one.epochs(TEAM)] == [(1, 0), (2, 1)]

    asyncio.run(main())


# --- news -----------------------------------------------------------------------------------------


def test_D14_the_other_broker_hears_of_it_by_a_notification() -> None:
    async def main() -> None:
        async with two_stores(look_ms=NEVER_MS) as (one, other):
            here: list[tuple[str, int]] = []
            there: list[tuple[str, int]] = []
            await until(lambda: min(one._news.looks, other._news.looks) > 0)
            one.on_news(lambda mesh, seq: here.append((mesh, seq)))
            other.on_news(lambda mesh, seq: there.append((mesh, seq)))
            await accept(one, arriving(1), arriving(2))
            assert here == [(TEAM, 2)], "told before the answer, without a round trip"
            await until(lambda: (TEAM, 2) in there)
            await accept(one, queued(3))
            leases = [b"l" * 16]
            (taken,) = await one.take(TEAM, "work", BOB, 1, leases, NOW)
            await until(lambda: (TEAM, 3) in there)
            await one.settle(TEAM, "work", taken.seq, taken.lease, "again", "", NOW)
            await until(lambda: (TEAM, 0) in there)
            assert here.count((TEAM, 2)) == 1, "one's own notification is not news"

    asyncio.run(main())


def test_D14_news_that_nobody_wanted_are_told_when_somebody_does() -> None:
    """Nobody looks here: what is heard was said."""

    async def main() -> None:
        async with two_stores(look_ms=NEVER_MS) as (one, other):
            there: list[tuple[str, int]] = []
            other.on_news(lambda mesh, seq: there.append((mesh, seq)))
            other.wants_only_some_news()
            await until(lambda: min(one._news.looks, other._news.looks) > 0)
            await until(lambda: not one._news._interest.wants(TEAM))
            there.clear()
            await accept(one, arriving(1))
            assert one._news._kept_back == {TEAM: 1}
            other.wants_news(TEAM, on=True)
            await until(lambda: (TEAM, 1) in there)
            await accept(one, arriving(2))
            await until(lambda: (TEAM, 2) in there)
            other.wants_news(TEAM, on=False)
            await until(lambda: not one._news._interest.wants(TEAM))
            await one.new_epoch(TEAM, "asked for", NOW)
            await until(lambda: (TEAM, 0) in there)
            await one._news.close()
            one._news.open()  # it knows nothing now, and asks
            assert one._news._interest.wants(TEAM)
            await until(lambda: not one._news._interest.wants(TEAM))

    asyncio.run(main())


def test_D14_a_process_that_comes_back_hears_what_it_wants_and_says_it_again() -> None:
    async def main() -> None:
        _, dsn = await new_database()
        async with opened(dsn, look_ms=NEVER_MS) as one, opened(dsn, look_ms=NEVER_MS) as other:
            await with_team(one)
            there: list[int] = []
            other.on_news(lambda mesh, seq: there.append(seq))
            for store in (one, other):
                store.wants_only_some_news()
            other.wants_news(TEAM, on=True)
            both = (one._news, other._news)
            await until(lambda: all(each.looks for each in both))
            for seq in (1, 2, 3):
                await accept(one, arriving(seq))
                await until(lambda seq=seq: seq in there)  # type: ignore[misc]
                looks = [each.looks for each in both]
                assert await cut_off(dsn, LISTENERS) == 2
                await until(
                    lambda looks=looks: all(  # type: ignore[misc]
                        each.looks > before for each, before in zip(both, looks, strict=True)
                    )
                )

    asyncio.run(main())


def test_D14_a_process_with_much_to_tell_looks_how_far_the_meshes_are_all_the_same() -> None:
    async def main() -> None:
        async with two_stores(look_ms=50) as (one, other):
            there: list[int] = []
            other.on_news(lambda mesh, seq: there.append(seq))
            ended = asyncio.Event()

            async def busy() -> None:
                while not ended.is_set():
                    other._news.grew("elsewhere", 0)
                    await asyncio.sleep(0.005)

            work = asyncio.create_task(busy())
            await one._news.close()  # so that it tells nobody
            await accept(one, arriving(1))
            await until(lambda: 1 in there)
            ended.set()
            await work

    asyncio.run(main())


def test_D14_what_was_missed_is_looked_for_on_every_new_connection() -> None:
    async def main() -> None:
        _, dsn = await new_database()
        async with opened(dsn, look_ms=NEVER_MS) as one, opened(dsn, look_ms=NEVER_MS) as other:
            await with_team(one)
            await until(lambda: min(one._news.looks, other._news.looks) > 0)
            there: list[int] = []
            other.on_news(lambda mesh, seq: there.append(seq))
            await one._news.close()  # so that it tells nobody
            await accept(one, arriving(1))
            assert await cut_off(dsn, LISTENERS) == 1
            await until(lambda: 1 in there)
            await accept(other, arriving(2))
            assert there[-1] == 2

    asyncio.run(main())


def test_D14_the_word_of_a_broker_that_died_after_its_commit_is_not_missed() -> None:
    async def main() -> None:
        async with two_stores(look_ms=20) as (one, other):
            there: list[int] = []
            other.on_news(lambda mesh, seq: there.append(seq))
            await one._news.close()
            await accept(one, arriving(1))
            await until(lambda: 1 in there)

    asyncio.run(main())


def test_D14_a_listener_that_fails_hurts_nobody() -> None:
    async def main() -> None:
        async with two_stores() as (one, _):
            told: list[int] = []
            one.on_news(lambda mesh, seq: [][seq])
            one.on_news(lambda mesh, seq: told.append(seq))
            (answer,) = await accept(one, arriving(1))
            assert (answer.verdict, told[-1]) == (AcceptVerdict.CREATED, 1)

    asyncio.run(main())


# --- queues ---------------------------------------------------------------------------------------


def test_D5_takers_at_several_brokers_never_get_the_same_message() -> None:
    async def main() -> None:
        async with two_stores() as (one, other):
            await accept(one, *(queued(n) for n in range(1, 61)))

            async def work(store: BrokerStore, name: int) -> list[int]:
                got: list[int] = []
                for step in range(100):
                    leases = [bytes([name, step, n]) * 5 for n in range(4)]
                    taken = await store.take(TEAM, "work", BOB, 4, leases, NOW)
                    if not taken:
                        return got
                    got += [one.seq for one in taken]
                raise AssertionError("there is no end of it")

            got = await asyncio.gather(*(work(one, 1), work(other, 2), work(one, 3)))
            assert sorted(seq for part in got for seq in part) == list(range(1, 61))
            assert seqs(await feed(one)) == []

    asyncio.run(main())
