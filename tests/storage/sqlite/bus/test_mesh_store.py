"""What only the durable store of the bus promises: it remembers, and it notices when it went back.

Every test that says "restart" closes the store and opens its file again.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest

from holdfast.rules.bus.mesh_store import ArrivalVerdict, SignedArrival
from holdfast.rules.errors import StoreBusy, StoreFailed
from holdfast.rules.limits import (
    BUS_BLOCK,
    BUS_INBOX_PAGE_BYTES,
    BUS_LANE_BYTES,
    BUS_NONCES_KEPT,
    BUS_SET_BACK_SKIP,
    BUS_WINDOW,
    DAY_MS,
)
from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore, inline
from holdfast.storage.sqlite.store import SqliteStore
from support.mesh_stores import (
    ANA,
    BEN,
    NOW,
    SetClock,
    bus_message,
    nonce_of,
    signed_arrival,
    waiting_for,
)

NEW, DUPLICATE, REPLAY = ArrivalVerdict.NEW, ArrivalVerdict.DUPLICATE, ArrivalVerdict.REPLAY
CLOCK = SetClock()


async def opened(folder: Path, nonces_kept: int = BUS_NONCES_KEPT) -> SqliteMeshStore:
    return await SqliteMeshStore.open(
        folder / "bus.db", now_ms=CLOCK.now_ms, nonces_kept=nonces_kept
    )


def put_back(folder: Path, copy: Path) -> None:
    """Writes an older copy over the database, in place, as a person would."""
    for name in ("bus.db-wal", "bus.db-shm"):
        (folder / name).unlink(missing_ok=True)
    (folder / "bus.db").write_bytes(copy.read_bytes())


def test_B3_marks_nonces_ids_and_what_waits_survive_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        store = await opened(tmp_path)
        captured = [signed_arrival(n) for n in (4, 5)]
        assert await store.accept(ANA, captured) == [NEW, NEW]
        await store.accept(ANA, [signed_arrival(9)], window=True)
        waiting = await store.enqueue_outbox(waiting_for("ben", 7, priority="now"))
        await store.put_back(waiting, NOW + 5)
        await store.keep_interest("", ["news"])
        incarnation = await store.incarnation()
        inbox = await store.pending_inbox(0, 10)
        await store.close()

        store = await opened(tmp_path)
        assert await store.incarnation() == incarnation
        assert await store.accept(ANA, captured) == [REPLAY, REPLAY], "captured before the restart"
        assert await store.nonce_seen(nonce_of(4))
        assert await store.last_seq(ANA) == 9
        late = [signed_arrival(8), signed_arrival(9, nonce=90)]
        assert await store.accept(ANA, late, window=True) == [NEW, REPLAY]
        assert await store.accept(ANA, [signed_arrival(12, message=4)]) == [DUPLICATE]
        assert (await store.pending_inbox(0, 10))[:3] == inbox
        assert await store.next_outbox("ben") == NOW + 5
        assert [id for id, _ in await store.due_outbox()] == []
        assert await store.interests() == {"": ["news"]}
        await store.close()

    asyncio.run(story())


def test_B3_a_store_that_was_opened_again_never_repeats_a_number(tmp_path: Path) -> None:
    async def story() -> None:
        given: list[int] = []
        for count in (3, 1, BUS_BLOCK + 5, 2):
            store = await opened(tmp_path)
            given += [await store.next_out_seq(), *await store.reserve(count)]
            await store.close()
        assert given == sorted(set(given))
        assert given[0] == 1

    asyncio.run(story())


def test_B3_a_thousand_numbers_cost_one_write(tmp_path: Path) -> None:
    async def story() -> None:
        commits = 0
        store = await opened(tmp_path)

        def count() -> None:
            nonlocal commits
            commits += 1

        store._store.on_commit(count)
        given = [await store.next_out_seq() for _ in range(BUS_BLOCK + 1)]
        assert given == list(range(1, BUS_BLOCK + 2))
        assert commits == 2
        await store.close()

    asyncio.run(story())


def test_B3_an_older_database_skips_ahead_and_takes_a_new_incarnation(tmp_path: Path) -> None:
    async def story() -> None:
        store = await opened(tmp_path)
        await store.reserve(10)
        await store.accept(ANA, [signed_arrival(1)])
        incarnation = await store.incarnation()
        await store.close()
        copy = tmp_path / "copy.db"
        shutil.copy(tmp_path / "bus.db", copy)

        store = await opened(tmp_path)
        highest = (await store.reserve(5 * BUS_BLOCK)).stop - 1
        await store.accept(ANA, [signed_arrival(2)])
        assert await store.incarnation() == incarnation
        await store.close()
        seen = [incarnation]
        for _ in range(2):  # the same copy is put back twice: it must not skip to the same place
            put_back(tmp_path, copy)
            store = await opened(tmp_path)
            given = await store.reserve(5)
            assert given.start > highest
            highest = given.stop
            assert await store.incarnation() not in seen, "what was signed for it is worth nothing"
            seen.append(await store.incarnation())
            await store.close()

    asyncio.run(story())


_MARK = '{"reserved":%d,"generation":1,"epoch":1,"file":0}'


@pytest.mark.parametrize(
    "harm",
    ["no mark", "another file", "\udcff{", _MARK % 2**70, _MARK % (2**63 - 1), _MARK % -1],
    ids=["no mark", "another file", "no text", "huge", "at the end", "negative"],
)
def test_B3_a_database_that_may_be_a_copy_is_doubted(tmp_path: Path, harm: str) -> None:
    async def story() -> None:
        store = await opened(tmp_path)
        await store.reserve(10)
        incarnation = await store.incarnation()
        await store.close()
        mark, database = tmp_path / "bus.db.mark", tmp_path / "bus.db"
        if harm == "no mark":
            mark.unlink()
        elif harm == "another file":
            shutil.copy(database, tmp_path / "copy")
            (tmp_path / "copy").replace(database)
        else:
            mark.write_bytes(harm.encode(errors="surrogateescape"))
        store = await opened(tmp_path)
        assert (await store.reserve(1)).start > BUS_SET_BACK_SKIP
        assert await store.incarnation() != incarnation
        given = await store.incarnation()
        await store.close()
        store = await opened(tmp_path)
        assert await store.incarnation() == given, "it doubts once"
        await store.close()

    asyncio.run(story())


def test_B3_a_log_that_counts_on_in_a_new_epoch_gives_a_new_incarnation(tmp_path: Path) -> None:
    async def story() -> None:
        store = await opened(tmp_path)
        incarnation = await store.incarnation()
        store._store.write(lambda tx: tx.set_epoch(tx.epoch() + 1))
        await store.close()
        store = await opened(tmp_path)
        assert await store.incarnation() != incarnation
        await store.close()

    asyncio.run(story())


def test_B4_nothing_is_remembered_of_a_commit_that_failed(tmp_path: Path) -> None:
    """Memory follows the database: after the failure, and after the ones before it in its group."""

    async def story() -> None:
        store = SqliteStore(tmp_path / "bus.db")
        mesh_store = SqliteMeshStore(store, tmp_path / "mark", write=inline(store))
        await mesh_store.start()
        await mesh_store.accept(ANA, [signed_arrival(1)])
        real = store.writer._engine.commit
        failing = True

        def commit() -> None:
            if failing:
                raise StoreFailed("the disk failed")
            real()

        store.writer._engine.commit = commit  # type: ignore[method-assign]
        with pytest.raises(StoreFailed):
            await mesh_store.accept(ANA, [signed_arrival(2), signed_arrival(3)])
        failing = False
        assert not await mesh_store.nonce_seen(nonce_of(2))
        assert await mesh_store.last_seq(ANA) == 1
        assert [row.number for row in await mesh_store.pending_inbox(0, 9)] == [1]
        again = [signed_arrival(2), signed_arrival(3)]
        assert await mesh_store.accept(ANA, again) == [NEW, NEW]
        store.abort()

    asyncio.run(story())


def test_B4_batches_that_wait_at_the_same_time_share_a_commit(tmp_path: Path) -> None:
    async def story() -> None:
        store = await opened(tmp_path)
        commits: list[int] = []
        store._store.on_commit(lambda: commits.append(1))
        batches = [store.accept(bytes([n]) * 32, [signed_arrival(n)]) for n in range(1, 65)]
        sends = [store.enqueue_outbox(waiting_for("ben", n)) for n in range(1, 65)]
        await asyncio.gather(*batches, *sends)
        assert len(commits) <= 3
        assert len(await store.pending_inbox(0, 100)) == 64
        await store.close()

    asyncio.run(story())


def test_B3_the_ring_of_nonces_is_exact_after_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        kept = BUS_WINDOW + 7
        store = await opened(tmp_path, nonces_kept=kept)
        for first in range(1, 1500, 90):
            batch = range(first, first + 90)
            await store.accept(ANA, [signed_arrival(n, keep=False) for n in batch])
        before = list(store._ring._known)
        await store.close()
        store = await opened(tmp_path, nonces_kept=kept)
        assert len(store._ring) == kept
        assert sorted(store._ring._known) == sorted(before)
        assert await store.nonce_seen(nonce_of(1530))
        assert not await store.nonce_seen(nonce_of(3))
        await store.close()

    asyncio.run(story())


def test_B2_a_file_has_one_bus(tmp_path: Path) -> None:
    async def story() -> None:
        store = await opened(tmp_path)
        with pytest.raises(StoreBusy):
            await opened(tmp_path)
        await store.close()
        await store.close()
        await (await opened(tmp_path)).close()

    asyncio.run(story())


def test_B4_the_id_of_an_outbox_item_is_never_given_again(tmp_path: Path) -> None:
    async def story() -> None:
        store = await opened(tmp_path)
        first = await store.enqueue_outbox(waiting_for("ben", 1))
        await store.remove_outbox(first)
        second = await store.enqueue_outbox(waiting_for("ben", 2))
        assert second > first
        await store.remove_many([second])
        again = await store.enqueue_outbox(waiting_for("ben", 2))
        assert again > second, "sent anew under its id"
        await store.remove_outbox(again)
        third = await store.enqueue_outbox(waiting_for("ana", 3))
        await store.remove_outbox(second)  # late, and for the second time
        assert [id for id, _ in await store.due_outbox()] == [third]
        rows = store._read(lambda tx: tx.outbox_list(None, (), 0, 100))
        assert len(rows) <= 2, "what was delivered leaves no rows behind but the last"
        await store.close()

    asyncio.run(story())


def test_B4_a_peer_that_sleeps_does_not_hold_the_log(tmp_path: Path) -> None:
    async def story() -> None:
        store = await opened(tmp_path)
        await store.enqueue_outbox(waiting_for("ben", 1))
        assert store._read(lambda tx: tx.outbox_floor()) is None
        assert store._read(lambda tx: tx.outbox_old("peer:ben", NOW + 9, NOW + 9, 5)) == []
        await store.close()

    asyncio.run(story())


def test_B4_what_failed_is_listed_with_its_reason_and_can_be_sent_again(tmp_path: Path) -> None:
    async def story() -> None:
        store = await opened(tmp_path)
        id = await store.enqueue_outbox(waiting_for("ben", 1))
        await store.give_up(id, "not_allowed", "ben wants nothing of it")
        (row,) = store._read(lambda tx: tx.outbox_list("peer:ben", ("dead",), 0, 9))
        assert (row.code, row.error) == ("not_allowed", "ben wants nothing of it")
        again = await store.enqueue_outbox(waiting_for("ben", 1))
        assert again > id
        assert [found for found, _ in await store.due_outbox()] == [again]
        await store.close()

    asyncio.run(story())


def test_B4_ids_are_swept_when_no_sender_can_send_them_again(tmp_path: Path) -> None:
    async def story() -> None:
        store = await opened(tmp_path)
        short = signed_arrival(1)
        brief = bus_message(2, ttl_ms=1000)
        arrivals = [short, type(short)(2, nonce_of(2), brief, True)]
        await store.accept(BEN, arrivals)
        sweep = store._store.write
        assert sweep(lambda tx: tx.bus_sweep(NOW + 1000, 100)) == 0
        assert sweep(lambda tx: tx.bus_sweep(NOW + 4_000_000, 100)) == 1, "ttl and a margin"
        assert await store.accept(BEN, [signed_arrival(3, message=1)]) == [DUPLICATE]
        assert await store.accept(BEN, [signed_arrival(4, message=2)]) == [NEW]
        await store.close()

    asyncio.run(story())


def test_B4_a_clock_that_was_set_while_nobody_looked_ends_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        clock, life = SetClock(), 0
        for at in (NOW, NOW + 400 * DAY_MS, NOW + 401 * DAY_MS, NOW + 2 * DAY_MS):
            clock.at, life = at, life + 1
            store = await SqliteMeshStore.open(tmp_path / "bus.db", now_ms=clock.now_ms)
            if life == 1:
                await store.enqueue_outbox(waiting_for("ben", 1, expires_at=NOW + 7 * DAY_MS))
                await store.enqueue_outbox(waiting_for("ben", 2, expires_at=NOW + 1000))
                await store.accept(
                    ANA, [SignedArrival(1, nonce_of(1), bus_message(1, ttl_ms=7 * DAY_MS), True)]
                )
            expired = [item.message.id for item in await store.expire_outbox()]
            # Of an absence a day counts, so what has hours is over.
            assert len(expired) == (life == 2)
            assert len(await store.due_outbox()) == (2 if life == 1 else 1)
            sweep = store._store.write
            assert sweep(lambda tx: tx.bus_sweep(clock.at, 100)) == 0
            await store.close()

    asyncio.run(story())


def test_B4_a_sender_that_never_says_what_is_settled_loses_ids_of_its_own(tmp_path: Path) -> None:
    async def story() -> None:
        store = await opened(tmp_path)
        store._ids_max = 40
        await store.accept(ANA, [signed_arrival(1)], name="ana")
        for number in range(1, 201):
            await store.accept(BEN, [signed_arrival(number, number, number + 1)], name="ben")
        ids = {bus_message(number).id for number in range(1, 201)}
        known = await store.write_rows(lambda tx: tx.bus_ids(tx.bus_sender("ben"), ids))
        assert 40 <= len(known) <= 46
        assert bus_message(200).id in known, "the newest stay"
        again = signed_arrival(2, message=1, nonce=500)
        assert await store.accept(ANA, [again], name="ana") == [DUPLICATE]
        await store.close()

    asyncio.run(story())


def test_B4_of_large_messages_few_are_read_at_a_time(tmp_path: Path) -> None:
    async def story() -> None:
        store = await opened(tmp_path)
        large = b"x" * (3 << 19)
        for number in range(1, 6):
            item = waiting_for("ben", number)
            message = msgspec.structs.replace(item.message, body=large)
            await store.enqueue_outbox(msgspec.structs.replace(item, message=message))
            arrival = SignedArrival(number, nonce_of(number), message, True)
            await store.accept(ANA, [arrival])
        assert len(await store.outbox_of("ben", 100)) == BUS_LANE_BYTES // len(large) + 1
        assert len(await store.pending_inbox(0, 100)) == BUS_INBOX_PAGE_BYTES // len(large) + 1
        await store.close()

    asyncio.run(story())
