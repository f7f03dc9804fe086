"""Messages at rest in the durable store: what lies on the disk, and how keys are changed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.rules.bus.mesh_store import ArrivalVerdict, SignedArrival
from holdfast.rules.bus.sealing import SealSecret
from holdfast.rules.errors import StoreCorrupt, WrongKey
from holdfast.storage.sqlite.bus.mesh_store import SqliteMeshStore
from holdfast.storage.sqlite.bus.resealing import change_data_key, change_secret
from support.mesh_stores import ANA, bus_message, nonce_of, signed_arrival, waiting_for

OURS = SealSecret.key(b"o" * 32)
OTHER = SealSecret.key(b"x" * 32)
WORDS = b"the words of a message that nobody else may read"


def arrival(number: int) -> SignedArrival:
    return SignedArrival(number, nonce_of(number), bus_message(number, WORDS), True)


async def fill(store: SqliteMeshStore, first: int = 1) -> None:
    await store.accept(ANA, [arrival(n) for n in range(first, first + 250)])
    for number in range(first, first + 3):
        await store.enqueue_outbox(waiting_for("ben", number, body=WORDS))


async def bodies(store: SqliteMeshStore) -> set[bytes]:
    inbox = await store.pending_inbox(0, 10_000)
    return {row.message.body for row in inbox} | {
        item.message.body for _, item in await store.due_outbox()
    }


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("bus.db*")))


def test_B7_bodies_are_not_on_the_disk_and_topics_are(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "bus.db"
        store = await SqliteMeshStore.open(path, secret=OURS)
        await fill(store)
        assert await bodies(store) == {WORDS}
        assert WORDS not in on_disk(tmp_path)
        await store.close()
        assert WORDS not in on_disk(tmp_path)
        assert b"news" in on_disk(tmp_path), "the topic stays in the clear, and the docs say so"

    asyncio.run(story())


def test_B7_a_wrong_key_or_none_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "bus.db"
        store = await SqliteMeshStore.open(path, secret=OURS)
        await fill(store)
        await store.close()
        before = path.read_bytes()
        for wrong in (OTHER, None, SealSecret.passphrase("o" * 32)):
            with pytest.raises(WrongKey):
                await SqliteMeshStore.open(path, secret=wrong)
        assert path.read_bytes() == before
        store = await SqliteMeshStore.open(path, secret=OURS)
        assert await bodies(store) == {WORDS}
        await store.close()

    asyncio.run(story())


def test_B7_sealing_that_is_turned_on_late_leaves_no_old_text_behind(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "bus.db"
        store = await SqliteMeshStore.open(path)
        await fill(store)
        await store.finish_inbox(range(1, 100))  # what was deleted lies in free pages
        await store.close()
        assert WORDS in on_disk(tmp_path)

        store = await SqliteMeshStore.open(path, secret=OURS)
        assert await bodies(store) == {WORDS}
        assert WORDS not in on_disk(tmp_path), "also while the store is open, in its WAL"
        assert await store.accept(ANA, [signed_arrival(300)]) == [ArrivalVerdict.NEW]
        await store.close()
        assert WORDS not in on_disk(tmp_path)

    asyncio.run(story())


def test_B7_sealing_that_was_interrupted_goes_on_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    async def killed(store: SqliteMeshStore) -> None:
        raise Killed

    async def story() -> None:
        path = tmp_path / "bus.db"
        store = await SqliteMeshStore.open(path)
        await fill(store)
        await store.close()
        with monkeypatch.context() as patched:
            patched.setattr(SqliteMeshStore, "compact", killed)
            with pytest.raises(Killed):
                await SqliteMeshStore.open(path, secret=OURS)
        assert WORDS in on_disk(tmp_path)
        store = await SqliteMeshStore.open(path, secret=OURS)
        assert WORDS not in on_disk(tmp_path)
        assert await bodies(store) == {WORDS}
        await store.close()

    asyncio.run(story())


def test_B7_a_new_secret_touches_no_body_and_shuts_the_old_one_out(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "bus.db"
        store = await SqliteMeshStore.open(path, secret=OURS)
        await fill(store)
        rows = store._read(lambda tx: tx.bus_inbox(0, 10_000))
        with pytest.raises(WrongKey):
            await change_secret(store, OTHER, OTHER)
        await change_secret(store, OURS, OTHER)
        assert store._read(lambda tx: tx.bus_inbox(0, 10_000)) == rows
        await store.close()
        with pytest.raises(WrongKey):
            await SqliteMeshStore.open(path, secret=OURS)
        store = await SqliteMeshStore.open(path, secret=OTHER)
        assert await bodies(store) == {WORDS}
        await store.close()

    asyncio.run(story())


def test_B7_a_new_data_key_seals_everything_anew(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "bus.db"
        store = await SqliteMeshStore.open(path, secret=OURS)
        await fill(store)
        await change_data_key(store, OURS)
        rows = store._read(lambda tx: tx.bus_inbox(0, 10_000))
        assert {row.seal for row in rows} == {2}
        assert [number for number, _ in store._read(lambda tx: tx.bus_keys())] == [2]
        assert await bodies(store) == {WORDS}
        await store.close()
        store = await SqliteMeshStore.open(path, secret=OURS)
        await fill(store, first=300)
        assert await bodies(store) == {WORDS}
        await store.close()

    asyncio.run(story())


def test_B7_a_body_that_was_moved_to_another_row_is_damage(tmp_path: Path) -> None:
    async def story() -> None:
        store = await SqliteMeshStore.open(tmp_path / "bus.db", secret=OURS)
        await store.accept(ANA, [arrival(1), arrival(2)])
        await store.write_rows(
            lambda tx: tx.connection.execute(
                "UPDATE bus_inbox SET body = (SELECT body FROM bus_inbox WHERE number = 1)"
            ).fetchall()
        )
        with pytest.raises(StoreCorrupt):
            await store.pending_inbox(0, 10)
        assert [row.number for row in await store.pending_inbox(0, 1)] == [1]
        await store.close()

    asyncio.run(story())
