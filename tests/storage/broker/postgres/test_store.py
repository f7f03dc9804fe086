"""What only PostgreSQL has: several processes, and a server that has a life of its own.

What every store promises is in tests/contract/broker_store.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import asyncpg
import pytest

from holdfast.rules.broker_rows import AcceptVerdict
from holdfast.rules.errors import (
    BadInput,
    Conflict,
    MigrationFailed,
    NewerSchema,
    StoreClosed,
    StoreFailed,
    Unreachable,
)
from holdfast.storage.broker.port import BrokerStore
from holdfast.storage.broker.postgres import PostgresBrokerStore, connections, migrations
from support.broker_stores import (
    NOW,
    OWNER,
    TEAM,
    accept,
    arriving,
    dm,
    feed,
    queued,
    seqs,
    topic,
    verdicts,
    with_team,
)
from support.postgres import server

_numbers = count(1)


def new_name() -> str:
    return f"p{next(_numbers)}"


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
    dsn = await server().database(new_name())
    async with opened(dsn, **settings) as one, opened(dsn, **settings) as other:
        await with_team(one)
        yield one, other


async def epoch(store: BrokerStore) -> int:
    mesh = await store.mesh_get(TEAM)
    assert mesh is not None
    return mesh.epoch


# --- opening --------------------------------------------------------------------------------------


def test_D1_the_version_is_that_of_the_scripts() -> None:
    numbers = [number for number, _, _ in migrations.load()]
    assert numbers == sorted(set(numbers)) == [n for n, _, _ in migrations.load(down=True)]
    assert (numbers[0], numbers[-1]) == (1, migrations.LATEST)


def test_D1_the_schema_goes_back_version_by_version_and_up_again_with_what_is_in_it() -> None:
    async def main() -> None:
        dsn = await server().empty(new_name())
        store = PostgresBrokerStore(dsn)
        await store.open(NOW)
        await with_team(store)
        await accept(store, arriving(1), arriving(2))
        with pytest.raises(Conflict, match="connections of brokers"):
            await PostgresBrokerStore(dsn).rollback_schema(1)
        await store.close()
        numbers = [number for number, _, _ in migrations.load()]
        for to in reversed(numbers[:-1]):
            undone = await PostgresBrokerStore(dsn).rollback_schema(to)
            assert undone == [number for number in reversed(numbers) if number > to]
            con = await asyncpg.connect(dsn)
            assert await migrations.version(con) == to
            assert await con.fetchval("SELECT count(*) FROM holdfast.message") >= 2
            await con.close()
            store = PostgresBrokerStore(dsn)
            await store.open(NOW)
            assert await store.schema() == migrations.LATEST
            assert verdicts(await accept(store, arriving(1), arriving(2))) == ["duplicate"] * 2
            assert verdicts(await accept(store, arriving(1), arriving(100 + to))) == (
                ["duplicate", "created"]
            )
            assert await store.inconsistencies() == []
            assert await store.orphans(9) == []
            await store.close()
        with pytest.raises(BadInput, match="cannot roll back"):
            await PostgresBrokerStore(dsn).rollback_schema(migrations.LATEST)
        con = await asyncpg.connect(dsn)
        async with con.transaction():
            await con.execute("SET search_path TO holdfast")
            await migrations.rollback(con, 0)
        assert await con.fetchval("SELECT to_regclass('holdfast.message')") is None
        await con.close()
        store = PostgresBrokerStore(dsn)
        await store.open(NOW)
        await store.close()

    asyncio.run(main())


def test_D1_of_many_that_start_at_once_one_migrates() -> None:
    async def main() -> None:
        dsn = await server().empty(new_name())
        stores = [PostgresBrokerStore(dsn) for _ in range(5)]
        await asyncio.gather(*(store.open(NOW) for store in stores))
        await with_team(stores[0])
        assert [await epoch(store) for store in stores] == [1] * 5
        await asyncio.gather(*(store.close() for store in stores))

    asyncio.run(main())


def test_D1_a_newer_schema_is_refused_and_left_alone() -> None:
    async def main() -> None:
        name = new_name()
        dsn = await server().database(name)
        newer = "UPDATE holdfast.meta SET value = '999' WHERE name = 'schema'"
        await server().execute(newer, name)
        with pytest.raises(NewerSchema, match="999"):
            await PostgresBrokerStore(dsn).open(NOW)

    asyncio.run(main())


def test_D1_a_migration_that_fails_leaves_the_last_good_version() -> None:
    async def main() -> None:
        con = await asyncpg.connect(await server().database(new_name()))
        script = "CREATE TABLE holdfast.half (x INT); SELECT nonsense"
        broken = (migrations.LATEST + 1, "broken.sql", script)
        with pytest.raises(MigrationFailed, match="broken"):
            async with con.transaction():
                await migrations.migrate(con, [*migrations.load(), broken])
        assert await migrations.version(con) == migrations.LATEST
        assert await con.fetchval("SELECT to_regclass('holdfast.half')") is None
        await con.close()

    asyncio.run(main())


def test_D2_a_server_that_answers_before_the_disk_has_it_is_refused() -> None:
    async def main() -> None:
        name = new_name()
        dsn = await server().database(name)
        await server().execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
        with pytest.raises(StoreFailed, match="synchronous_commit"):
            await PostgresBrokerStore(dsn).open(NOW)

    asyncio.run(main())


def test_D1_nobody_there_and_no_way_in_are_unreachable() -> None:
    async def main() -> None:
        for dsn in (
            "postgresql://postgres@127.0.0.1:9/x",
            server().dsn("no_such_database"),
            server().dsn(user="nobody_we_know"),
        ):
            with pytest.raises(Unreachable):
                await PostgresBrokerStore(dsn).open(NOW)
        with pytest.raises(StoreClosed):
            await PostgresBrokerStore(server().dsn()).ping()

    asyncio.run(main())


def test_D1_without_the_package_it_is_said_what_to_install() -> None:
    code = (
        "import sys; sys.modules['asyncpg'] = None\n"
        "from holdfast.rules.errors import NoPostgres\n"
        "try:\n    import holdfast.storage.broker.postgres\n"
        "except NoPostgres as error:\n    print(error.hint)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "pip install 'holdfast[postgres]'"


# --- numbering ------------------------------------------------------------------------------------


def test_D6_no_reader_sees_a_seq_before_all_lower_ones() -> None:
    async def main() -> None:
        async with two_stores() as (one, other):
            writers = [
                asyncio.create_task(write(store, 1000 * number))
                for number, store in enumerate((one, other, one, other), 1)
            ]
            seen: list[int] = []
            while not all(writer.done() for writer in writers) or len(seen) < 240:
                for writer in writers:
                    assert not writer.done() or writer.exception() is None
                page = await feed(other, after=len(seen))
                seen += seqs(page)
                assert seen == list(range(1, page.to + 1))
            given = [seq for writer in writers for seq in writer.result()]
            assert sorted(given) == seen == list(range(1, 241))

    async def write(store: BrokerStore, number: int) -> list[int]:
        given = []
        for step in range(20):
            batch = [arriving(number + 10 * step + n) for n in range(3)]
            given += [answer.seq for answer in await accept(store, *batch)]
        return given

    asyncio.run(main())


def test_D6_groups_over_the_same_meshes_never_wait_in_a_circle() -> None:
    async def main() -> None:
        async with two_stores() as (one, other):
            await one.mesh_register("other", "Other", OWNER, "olga", "server-2", NOW)
            await one.new_epoch(None, "a lock of all", NOW)
            fields: dict[str, Any] = {"sender": OWNER, "origin": "olga"}

            async def write(store: BrokerStore, number: int, *meshes: str) -> None:
                for step in range(20):
                    batch = [
                        arriving(number + 10 * step + n, mesh=mesh, **fields)
                        for n, mesh in enumerate(meshes)
                    ]
                    answers = await accept(store, *batch)
                    assert {answer.verdict for answer in answers} == {AcceptVerdict.CREATED}

            await asyncio.gather(
                write(one, 1000, TEAM, "other"),
                write(other, 2000, "other", TEAM),
                other.new_epoch(None, "in between", NOW),
            )
            assert [mesh.seq for mesh in await one.mesh_list()] == [40, 40]

    asyncio.run(main())


def test_D2_the_same_envelopes_through_two_brokers_are_there_once() -> None:
    async def main() -> None:
        async with two_stores() as (one, other):
            batch = [arriving(n) for n in range(1, 51)]
            first, second = await asyncio.gather(accept(one, *batch), accept(other, *batch))
            assert {first[0].verdict, second[0].verdict} == {
                AcceptVerdict.CREATED,
                AcceptVerdict.DUPLICATE,
            }
            assert [a.seq for a in first] == [b.seq for b in second] == list(range(1, 51))

    asyncio.run(main())


def test_D2_what_is_alike_is_kept_like_what_goes_the_long_way() -> None:
    async def main() -> None:
        dsn = await server().database(new_name())
        async with opened(dsn) as store:
            await with_team(store)
            con = await asyncpg.connect(dsn, server_settings=connections.SETTINGS)
            for step, (kind, make) in enumerate(
                {"topic": topic, "dm": dm, "queue": queued, "change": arriving}.items(), 1
            ):
                number = step * 100
                alike = [make(number + n, priority="now") for n in range(3)]
                first = await accept(store, *alike)
                # One of another kind sends the whole group the long way.
                mixed = [make(number + n, priority="now") for n in range(10, 13)]
                second = await accept(store, *mixed, topic(number + 20, priority="low"))
                assert [one.seq for one in (*first, *second)] == list(
                    range(step * 7 - 6, step * 7 + 1)
                )
                assert {(one.verdict, one.epoch, one.first_seen_at) for one in first} == {
                    (AcceptVerdict.CREATED, 1, NOW)
                }
                for one, (gave, got) in enumerate(zip(first, second, strict=False)):
                    assert (gave.broker_id, got.broker_id) == (
                        alike[one].broker_id,
                        mixed[one].broker_id,
                    )
                    assert await kept(con, gave.seq) == [
                        (alike[one].id, alike[one].fingerprint, alike[one].raw, kind)
                    ]
                    assert await common(con, gave.seq) == await common(con, got.seq)
            await con.close()

    async def kept(con: Any, seq: int) -> list[tuple[Any, ...]]:
        rows = await con.fetch(
            "SELECT m.id, d.fingerprint, m.raw, m.kind FROM message m JOIN dedupe d "
            "ON d.mesh = m.mesh AND d.id = m.id AND d.broker_id = m.broker_id AND d.seq = m.seq "
            "WHERE m.seq = $1",
            seq,
        )
        return [tuple(row) for row in rows]

    async def common(con: Any, seq: int) -> list[tuple[Any, ...]]:
        rows = await con.fetch(
            "SELECT m.epoch, m.expires_at, m.rank, m.kind, m.ref, m.sender, d.epoch, "
            "d.first_seen_at, d.expires_at, d.history, q.ref, q.rank, q.visible_at, q.deliveries "
            "FROM message m JOIN dedupe d USING (mesh, seq) LEFT JOIN queue q USING (mesh, seq) "
            "WHERE m.seq = $1",
            seq,
        )
        return [tuple(row) for row in rows]

    asyncio.run(main())


def test_D2_one_connection_is_enough_for_many_who_wait() -> None:
    async def main() -> None:
        dsn = await server().database(new_name())
        async with opened(dsn, connections=1) as store:
            await with_team(store)

            async def write(number: int) -> list[AcceptVerdict]:
                answers = []
                for step in range(5):
                    answers += await accept(store, arriving(number * 10 + step))
                    assert await store.member_get(TEAM, OWNER) is not None
                return [answer.verdict for answer in answers]

            for verdicts in await asyncio.gather(*(write(number) for number in range(1, 9))):
                assert verdicts == [AcceptVerdict.CREATED] * 5
            with pytest.raises(StoreFailed):
                await store._connections.execute("SELECT nonsense")
            await store.ping()
            assert len(store._connections._at_hand) == 1
            con = await asyncpg.connect(dsn)
            await con.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = $1 AND pid <> pg_backend_pid()",
                connections.SETTINGS["application_name"],
            )
            await con.close()
            while any(one._con and not one.is_closed() for one in store._connections._at_hand):
                await asyncio.sleep(0.01)
            # A line that broke while nobody used it is not lent again.
            assert await write(9) == [AcceptVerdict.CREATED] * 5

    asyncio.run(main())


def test_D7_what_goes_through_everything_may_take_longer_than_other_statements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        dsn = await server().database(new_name())
        monkeypatch.setitem(connections.SETTINGS, "statement_timeout", "200")
        async with opened(dsn) as store:
            await with_team(store)
            other = await asyncpg.connect(dsn)
            async with other.transaction():
                await other.execute("LOCK TABLE holdfast.dedupe IN ACCESS EXCLUSIVE MODE")
                looking = asyncio.ensure_future(store.orphans(10))
                removing = asyncio.ensure_future(store.mesh_remove(TEAM))
                await asyncio.wait({looking, removing}, timeout=0.6)
            assert await looking == []
            assert await removing
            await other.close()

    asyncio.run(run())
