"""Version 6 of the schema, in which a message says all of itself: the way there and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.rules.broker_rows import SnapshotRow
from holdfast.rules.errors import MigrationFailed
from holdfast.storage.broker.sqlite import SqliteBrokerStore
from holdfast.storage.broker.sqlite import migrations as schema
from holdfast.storage.sqlite import migrations
from holdfast.storage.sqlite.connection import connect
from support.broker_stores import (
    ANA,
    BOB,
    DEDUPE_MS,
    KEEP_MS,
    NOW,
    OWNER,
    QUEUE,
    TEAM,
    TOPIC,
    accept,
    arriving,
    dm,
    feed,
    member,
    queued,
    seqs,
    topic,
    verdicts,
    with_team,
)
from support.envelopes import make_id

Rows = list[tuple[Any, ...]]
BEFORE = 5
LATER = NOW + KEEP_MS + 1

OLD_ROWS = (
    "SELECT m.place, m.kind, m.rank, m.ref, m.sender, m.id, m.broker_id, m.expires_at, m.raw "
    "FROM message AS m ORDER BY 1",
    "SELECT mesh, id, fingerprint, epoch, seq, broker_id, first_seen_at, expires_at, history, kind,"
    " ref FROM dedupe ORDER BY 1, 2",
)
NEW_ROWS = tuple(f"SELECT * FROM {table} ORDER BY 1, 2" for table in ("message", "dedupe", "gone"))


async def live(store: SqliteBrokerStore) -> None:
    """Two meshes with something of each kind, in two epochs, of which much was swept."""
    await with_team(store)
    await store.mesh_register("other", "Other", OWNER, "olga", "server-2", NOW)
    await store.member_put("other", member(ANA, "ana"))
    await accept(store, arriving(1), topic(2), dm(3), queued(4), queued(5))
    await accept(store, arriving(1, mesh="other"), topic(6, priority="now"), dedupe_ms=None)
    row = SnapshotRow(
        id="at-1", epoch=1, seq=1, parts=0, rows=0, ready=False, made_by=ANA, began_at=NOW
    )
    await store.snapshot_begin(TEAM, row)
    await store.snapshot_commit(TEAM, row.id, sha256().digest(), NOW)
    (taken,) = await store.take(TEAM, QUEUE, BOB, 1, [b"L" * 16], NOW)
    await store.settle(TEAM, QUEUE, taken.seq, taken.lease, "done", "", NOW)
    await store.new_epoch(TEAM, "restored", NOW)
    assert (await store.sweep(LATER, 100)).messages == 5, "all but the queued one and other's"
    await accept(store, topic(7), arriving(8), now_ms=LATER)


def rows_of(folder: Path, selects: tuple[str, ...]) -> list[Rows]:
    with closing(connect(folder / "broker.db")) as con:
        return [list(con.execute(select)) for select in selects]


def damage(folder: Path, do: Callable[[apsw.Connection], object]) -> None:
    with closing(connect(folder / "broker.db")) as con:
        do(con)


async def opened(folder: Path) -> SqliteBrokerStore:
    store = SqliteBrokerStore(folder, sync="off")
    await store.open(LATER)
    return store


async def made(folder: Path, to: int = schema.LATEST) -> None:
    store = await opened(folder)
    await live(store)
    await store.close()
    if to < schema.LATEST:
        await SqliteBrokerStore(folder, sync="off").rollback_schema(to, LATER)


def test_D7_the_way_to_one_row_and_back_loses_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        await made(tmp_path)
        new = rows_of(tmp_path, NEW_ROWS)
        assert [len(rows) for rows in new] == [4, 9, 5]
        await SqliteBrokerStore(tmp_path, sync="off").rollback_schema(BEFORE, LATER)
        old = rows_of(tmp_path, OLD_ROWS)
        assert len(old[0]) == 4
        assert [row[-3:] for row in old[1] if not row[-3]] == [
            *((0, 0, ""), (0, 1, TOPIC), (0, 2, BOB.hex()), (0, 3, QUEUE), (0, 1, TOPIC))
        ]
        assert {row[3] for row in old[1]} == {1, 2}, "the epochs"
        store = await opened(tmp_path)
        assert rows_of(tmp_path, NEW_ROWS) == new
        await _goes_on(store)
        await store.close()
        await SqliteBrokerStore(tmp_path, sync="off").rollback_schema(BEFORE, LATER)
        grown = rows_of(tmp_path, OLD_ROWS)
        assert grown[0][0] == old[0][0], "the queued one"
        assert [row[-3] for row in grown[1]] == [1, 0, 1, 1], "what is held, and what is known"

    asyncio.run(story())


async def _goes_on(store: SqliteBrokerStore) -> None:
    """What was accepted is known, also where it is gone; and all can be used."""
    assert await store.inconsistencies() == []
    assert await store.orphans(9) == []
    again = await accept(store, arriving(1), topic(2), dm(3), queued(4), queued(5), topic(6))
    assert set(verdicts(again)) == {"duplicate"}
    assert [one.history_available for one in again] == [False] * 4 + [True, False]
    assert [one.seq for one in again] == [1, 2, 3, 4, 5, 6]
    assert {one.message_epoch for one in again} == {1}
    (other,) = await accept(store, topic(2, fingerprint=b"x" * 32))
    assert other.verdict.value == "idempotency_key_reused"
    assert seqs(await feed(store, after=6)) == [8]
    (taken,) = await store.take(TEAM, QUEUE, ANA, 9, [b"M" * 16], LATER)
    assert (taken.seq, taken.raw) == (5, b"envelope 5")
    assert verdicts(await accept(store, topic(9), now_ms=LATER)) == ["created"]
    assert (await store.sweep(LATER + KEEP_MS, 100)).messages == 2
    ended = await store.sweep(LATER + 3 * DEDUPE_MS, 100)
    assert ended.dedupe == 6, "not those that are remembered for ever"


def test_D7_rows_without_their_other_half_stay_what_they_were(tmp_path: Path) -> None:
    """Damage of before is found and mended after the way as it was before it."""

    async def story() -> None:
        await made(tmp_path, BEFORE)
        base = 1 << 40

        def vandalise(con: apsw.Connection) -> None:
            con.execute("DELETE FROM dedupe WHERE id = ?", (make_id(8),))
            con.execute("UPDATE dedupe SET seq = 77 WHERE id = ?", (make_id(7),))
            con.execute("DELETE FROM message WHERE place = ?", (base + 5,))
            # Two that say that they are gone from one place.
            con.execute("UPDATE dedupe SET seq = 2 WHERE id = ?", (make_id(3),))
            con.execute("UPDATE dedupe SET history = 0 WHERE mesh = 2 AND id = ?", (make_id(1),))

        damage(tmp_path, vandalise)
        store = await opened(tmp_path)
        found = {(one.mesh, one.seq, one.id, one.what[:4]) for one in await store.orphans(99)}
        assert found == {
            (TEAM, 8, make_id(8), "mess"),
            *((TEAM, 7, make_id(7), "mess"), (TEAM, 77, make_id(7), "dedu")),
            (TEAM, 5, make_id(5), "dedu"),
            (TEAM, 2, make_id(3), "dedu"),
            ("other", 1, make_id(1), "mess"),
        }
        # An id that leads to nothing is no reason to refuse what comes again under it.
        assert verdicts(await accept(store, queued(5), now_ms=LATER)) == ["created"]
        assert await store.orphans(99) != []
        await store.close()
        await SqliteBrokerStore(tmp_path, sync="off").rollback_schema(BEFORE, LATER)
        assert len(rows_of(tmp_path, OLD_ROWS)[0]) == 4

    asyncio.run(story())


def test_D1_a_way_that_fails_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    async def story() -> None:
        await made(tmp_path, BEFORE)
        before = rows_of(tmp_path, OLD_ROWS)
        damage(tmp_path, lambda con: con.execute("CREATE TABLE gone (a)"))
        with pytest.raises(MigrationFailed):
            await opened(tmp_path)
        assert rows_of(tmp_path, OLD_ROWS) == before
        with closing(connect(tmp_path / "broker.db")) as con:
            assert migrations.version(con) == BEFORE
            con.execute("DROP TABLE gone")
        store = await opened(tmp_path)
        await _goes_on(store)
        await store.close()

    asyncio.run(story())


@pytest.mark.parametrize("to", [1, 3])
def test_D7_what_comes_from_the_first_versions_is_whole(tmp_path: Path, to: int) -> None:
    async def story() -> None:
        await made(tmp_path, to)
        store = await opened(tmp_path)
        await _goes_on(store)
        await store.close()

    asyncio.run(story())


def test_D1_a_new_store_has_large_pages_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    def page_bytes(folder: Path) -> Any:
        with closing(connect(folder / "broker.db")) as con:
            return con.pragma("page_size")

    async def story() -> None:
        await made(tmp_path / "new")
        (tmp_path / "old").mkdir(mode=0o700)
        with closing(connect(tmp_path / "old" / "broker.db")) as con:
            migrations.migrate(con, migrations.load(schema.PACKAGE)[:BEFORE])
        await made(tmp_path / "old")

    asyncio.run(story())
    assert (page_bytes(tmp_path / "new"), page_bytes(tmp_path / "old")) == (8192, 4096)
