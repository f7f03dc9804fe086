"""Objects and snapshots, which come in parts."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from holdfast.rules.broker_rows import SnapshotRow
from holdfast.rules.errors import BadInput, BadValue, EpochMismatch, OverLimit, UnknownObject
from holdfast.rules.limits import BROKER_PIECE_BYTES, DAY_MS
from holdfast.storage.broker.port import BrokerStore
from support.broker_stores import ANA, BOB, NOW, TEAM, StoreMaker, accept, arriving, with_team

PIECES = [b"a" * 1000, b"b" * 1000, b"c" * 10]
WHOLE = b"".join(PIECES)
NAME = sha256(WHOLE).hexdigest()


async def read(store: BrokerStore, name: str = NAME) -> bytes:
    return b"".join([piece async for piece in store.object_read(TEAM, name)])


def snapshot(id: str = "one", seq: int = 2, epoch: int = 1, made_by: bytes = ANA) -> SnapshotRow:
    return SnapshotRow(
        id=id,
        epoch=epoch,
        seq=seq,
        parts=0,
        rows=0,
        ready=False,
        made_by=made_by,
        began_at=NOW,
    )


def digest_of(*parts: bytes) -> bytes:
    return sha256(b"".join(sha256(part).digest() for part in parts)).digest()


async def test_S9_an_object_comes_in_pieces_and_is_there_when_it_is_whole(
    store: BrokerStore,
) -> None:
    await with_team(store)
    for number, piece in enumerate(PIECES):
        assert await store.object_size(TEAM, NAME) is None
        with pytest.raises(UnknownObject):
            await read(store)
        assert await store.object_add(TEAM, NAME, number, piece) == number + 1
    await store.object_finish(TEAM, NAME, len(WHOLE))
    assert await store.object_size(TEAM, NAME) == len(WHOLE)
    assert await read(store) == WHOLE
    # Again changes nothing.
    assert await store.object_add(TEAM, NAME, 3, b"more") == 3
    await store.object_finish(TEAM, NAME, len(WHOLE))
    assert await read(store) == WHOLE
    assert (await store.counts())["objects"] == 1


async def test_D7_an_object_that_nothing_names_goes_when_that_was_noted_before(
    store: BrokerStore,
) -> None:
    await with_team(store)
    names = []
    for content in (b"one", b"two", b"three"):
        name = sha256(content).hexdigest()
        await store.object_add(TEAM, name, 0, content)
        await store.object_finish(TEAM, name, len(content))
        names.append(name)
    await store.object_add(TEAM, NAME, 0, PIECES[0])  # not whole: nothing of this is about it
    found = sorted(names)
    assert await store.objects_after(TEAM, "", 10) == found
    assert await store.objects_after(TEAM, found[0], 1) == [found[1]]
    kept, asked, gone = names

    assert await store.objects_settle(TEAM, [kept], [asked, gone], NOW, NOW - DAY_MS) == 0
    assert await store.object_size(TEAM, gone) == 5, "it is noted, and that is all"
    assert await store.object_asked(TEAM, asked) == 3
    assert await store.object_asked(TEAM, "0" * 64) is None
    later = NOW + DAY_MS
    assert await store.objects_settle(TEAM, [kept], [asked, gone, NAME], later, NOW) == 1
    assert await store.object_size(TEAM, gone) is None
    with pytest.raises(UnknownObject):
        await read(store, gone)
    assert [await store.object_size(TEAM, name) for name in (kept, asked)] == [3, 3]
    # Named again in between: its time begins anew.
    assert await store.objects_settle(TEAM, [asked], [kept], later, NOW) == 0
    assert await store.objects_settle(TEAM, [kept], [asked], later + DAY_MS, later) == 0
    # It can come again, as if it had never been there.
    await store.object_add(TEAM, gone, 0, b"three")
    await store.object_finish(TEAM, gone, 5)
    assert await read(store, gone) == b"three"
    assert await store.object_add(TEAM, NAME, 1, PIECES[1]) == 2


async def test_S9_an_upload_that_was_cut_goes_on_where_it_stopped(
    make_store: StoreMaker, tmp_path: Path
) -> None:
    async with make_store(tmp_path) as store:
        await with_team(store)
        assert await store.object_add(TEAM, NAME, 0, PIECES[0]) == 1
        # A piece too far, and one that is there, change nothing.
        assert await store.object_add(TEAM, NAME, 2, PIECES[2]) == 1
        assert await store.object_add(TEAM, NAME, 0, b"another") == 1
    async with make_store(tmp_path) as store:
        assert await store.object_add(TEAM, NAME, 1, PIECES[1]) == 2
        assert await store.object_add(TEAM, NAME, 2, PIECES[2]) == 3
        await store.object_finish(TEAM, NAME, len(WHOLE))
        assert await read(store) == WHOLE


@pytest.mark.parametrize(("piece", "size"), [(b"wrong", 5), (WHOLE, 7), (b"", 5)])
async def test_S9_of_an_object_that_is_another_nothing_stays(
    store: BrokerStore, piece: bytes, size: int
) -> None:
    await with_team(store)
    await store.object_add(TEAM, NAME, 0, piece)
    with pytest.raises(BadValue):
        await store.object_finish(TEAM, NAME, size)
    assert await store.object_size(TEAM, NAME) is None
    assert await store.object_add(TEAM, NAME, 0, WHOLE) == 1
    await store.object_finish(TEAM, NAME, len(WHOLE))
    assert await read(store) == WHOLE


async def test_S9_a_whole_object_is_finished_again_only_with_its_own_size(
    store: BrokerStore,
) -> None:
    await with_team(store)
    await store.object_add(TEAM, NAME, 0, WHOLE)
    await store.object_finish(TEAM, NAME, len(WHOLE))
    await store.object_finish(TEAM, NAME, len(WHOLE))
    with pytest.raises(BadValue):
        await store.object_finish(TEAM, NAME, len(WHOLE) + 1)
    assert await read(store) == WHOLE, "what is whole stays"


async def test_S9_objects_are_of_their_mesh_and_pieces_have_a_limit(store: BrokerStore) -> None:
    await with_team(store)
    await store.mesh_register("other", "Other", ANA, "ana", "server-2", NOW)
    await store.object_add(TEAM, NAME, 0, WHOLE)
    await store.object_finish(TEAM, NAME, len(WHOLE))
    assert await store.object_size("other", NAME) is None
    with pytest.raises(OverLimit):
        await store.object_add(TEAM, "ab" * 32, 0, b"x" * (BROKER_PIECE_BYTES + 1))
    with pytest.raises(BadValue):
        await store.object_finish(TEAM, "cd" * 32, 5)


async def test_S14_a_snapshot_is_seen_by_nobody_before_it_is_committed(store: BrokerStore) -> None:
    await with_team(store)
    await accept(store, arriving(1), arriving(2))
    begun = await store.snapshot_begin(TEAM, snapshot())
    assert begun == snapshot()
    assert await store.snapshot_add(TEAM, "one", 0, 5, b"part 0") == 1
    assert await store.snapshot_add(TEAM, "one", 1, 7, b"part 1") == 2
    assert await store.snapshot_get(TEAM) is None
    assert await store.snapshot_part(TEAM, "one", 0) is None
    digest = digest_of(b"part 0", b"part 1")
    ready = await store.snapshot_commit(TEAM, "one", digest, NOW + 5)
    assert (ready.ready, ready.parts, ready.rows, ready.digest) == (True, 2, 12, digest)
    assert await store.snapshot_get(TEAM) == ready
    assert await store.snapshot_commit(TEAM, "one", digest, NOW + 6) == ready
    assert await store.snapshot_part(TEAM, "one", 1) == b"part 1"
    assert await store.snapshot_part(TEAM, "one", 2) is None
    # What is ready does not change any more.
    assert await store.snapshot_add(TEAM, "one", 2, 1, b"late") == 2
    assert await store.snapshot_get(TEAM) == ready


async def test_S14_an_upload_is_gone_on_with_by_the_one_who_began_it(store: BrokerStore) -> None:
    await with_team(store)
    await accept(store, arriving(1), arriving(2))
    await store.snapshot_begin(TEAM, snapshot())
    await store.snapshot_add(TEAM, "one", 0, 5, b"part 0")
    again = await store.snapshot_begin(TEAM, snapshot("two"))
    assert (again.id, again.parts, again.rows) == ("one", 1, 5)
    other = await store.snapshot_begin(TEAM, snapshot("three", made_by=BOB))
    assert (other.id, other.parts) == ("three", 0)
    assert await store.snapshot_add(TEAM, "one", 0, 5, b"again") == 1
    assert await store.snapshot_add(TEAM, "one", 5, 5, b"too far") == 1
    ready = await store.snapshot_commit(TEAM, "one", digest_of(b"part 0"), NOW)
    assert ready.rows == 5


async def test_S14_a_newer_snapshot_takes_the_place_of_an_older_one(store: BrokerStore) -> None:
    await with_team(store)
    await accept(store, *(arriving(n) for n in range(5)))
    for id, seq in (("two", 2), ("four", 4), ("three", 3)):
        await store.snapshot_begin(TEAM, snapshot(id, seq))
        await store.snapshot_add(TEAM, id, 0, 1, id.encode())
    await store.snapshot_commit(TEAM, "two", digest_of(b"two"), NOW)
    await store.snapshot_commit(TEAM, "four", digest_of(b"four"), NOW)
    found = await store.snapshot_get(TEAM)
    assert found is not None
    assert (found.id, found.seq) == ("four", 4)
    assert await store.snapshot_part(TEAM, "two", 0) is None
    # An older one that comes late changes nothing for whoever asks.
    await store.snapshot_commit(TEAM, "three", digest_of(b"three"), NOW)
    found = await store.snapshot_get(TEAM)
    assert found is not None
    assert found.id == "four"


async def test_S14_snapshots_that_cannot_be_right_are_refused(store: BrokerStore) -> None:
    await with_team(store)
    await accept(store, arriving(1))
    with pytest.raises(BadInput):
        await store.snapshot_begin(TEAM, snapshot(seq=2))
    with pytest.raises(EpochMismatch):
        await store.snapshot_begin(TEAM, snapshot(seq=1, epoch=2))
    with pytest.raises(UnknownObject):
        await store.snapshot_add(TEAM, "one", 0, 1, b"part")
    with pytest.raises(UnknownObject):
        await store.snapshot_commit(TEAM, "one", b"", NOW)
    await store.snapshot_begin(TEAM, snapshot(seq=1))
    await store.snapshot_add(TEAM, "one", 0, 1, b"part")
    with pytest.raises(BadValue):
        await store.snapshot_commit(TEAM, "one", digest_of(b"other"), NOW)
    assert await store.snapshot_get(TEAM) is None
    # The upload is over: the next one begins anew.
    assert (await store.snapshot_begin(TEAM, snapshot("two", 1))).id == "two"
    await store.new_epoch(TEAM, "restored", NOW)
    with pytest.raises(EpochMismatch):
        await store.snapshot_begin(TEAM, snapshot("three", 1))


async def test_D7_uploads_that_nobody_goes_on_with_are_given_up(store: BrokerStore) -> None:
    await with_team(store)
    await accept(store, arriving(1), arriving(2))
    await store.object_add(TEAM, NAME, 0, PIECES[0])
    await store.snapshot_begin(TEAM, snapshot())
    await store.snapshot_add(TEAM, "one", 0, 5, b"part 0")
    now = NOW
    for _ in range(3):
        now += DAY_MS
        await store.sweep(now, 100)
    assert await store.object_add(TEAM, NAME, 1, PIECES[1]) == 0
    with pytest.raises(UnknownObject):
        await store.snapshot_add(TEAM, "one", 1, 5, b"part 1")
    # What is whole stays.
    await store.object_add(TEAM, NAME, 0, WHOLE)
    await store.object_finish(TEAM, NAME, len(WHOLE))
    for _ in range(3):
        now += DAY_MS
        await store.sweep(now, 100)
    assert await read(store) == WHOLE
