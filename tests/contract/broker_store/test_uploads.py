"""Objects and snapshots, which come in parts."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from holdfast.rules.broker_rows import SnapshotRow
from holdfast.rules.errors import BadInput, BadValue, EpochMismatch, OverLimit, UnknownObject
from holdfast.rules.limits import DAY_MS, DESK_PIECE_BYTES
from holdfast.storage.broker.port import BrokerStore
from support.desks import ANA, BOB, NOW, TEAM, DeskMaker, accept, arriving, with_team

PIECES = [b"a" * 1000, b"b" * 1000, b"c" * 10]
WHOLE = b"".join(PIECES)
NAME = sha256(WHOLE).hexdigest()


async def read(desk: BrokerStore, name: str = NAME) -> bytes:
    return b"".join([piece async for piece in desk.object_read(TEAM, name)])


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
    desk: BrokerStore,
) -> None:
    await with_team(desk)
    for number, piece in enumerate(PIECES):
        assert await desk.object_size(TEAM, NAME) is None
        with pytest.raises(UnknownObject):
            await read(desk)
        assert await desk.object_add(TEAM, NAME, number, piece) == number + 1
    await desk.object_finish(TEAM, NAME, len(WHOLE))
    assert await desk.object_size(TEAM, NAME) == len(WHOLE)
    assert await read(desk) == WHOLE
    # Again changes nothing.
    assert await desk.object_add(TEAM, NAME, 3, b"more") == 3
    await desk.object_finish(TEAM, NAME, len(WHOLE))
    assert await read(desk) == WHOLE
    assert (await desk.counts())["objects"] == 1


async def test_D7_an_object_that_nothing_names_goes_when_that_was_noted_before(
    desk: BrokerStore,
) -> None:
    await with_team(desk)
    names = []
    for content in (b"one", b"two", b"three"):
        name = sha256(content).hexdigest()
        await desk.object_add(TEAM, name, 0, content)
        await desk.object_finish(TEAM, name, len(content))
        names.append(name)
    await desk.object_add(TEAM, NAME, 0, PIECES[0])  # not whole: nothing of this is about it
    found = sorted(names)
    assert await desk.objects_after(TEAM, "", 10) == found
    assert await desk.objects_after(TEAM, found[0], 1) == [found[1]]
    kept, asked, gone = names

    assert await desk.objects_settle(TEAM, [kept], [asked, gone], NOW, NOW - DAY_MS) == 0
    assert await desk.object_size(TEAM, gone) == 5, "it is noted, and that is all"
    assert await desk.object_asked(TEAM, asked) == 3
    assert await desk.object_asked(TEAM, "0" * 64) is None
    later = NOW + DAY_MS
    assert await desk.objects_settle(TEAM, [kept], [asked, gone, NAME], later, NOW) == 1
    assert await desk.object_size(TEAM, gone) is None
    with pytest.raises(UnknownObject):
        await read(desk, gone)
    assert [await desk.object_size(TEAM, name) for name in (kept, asked)] == [3, 3]
    # Named again in between: its time begins anew.
    assert await desk.objects_settle(TEAM, [asked], [kept], later, NOW) == 0
    assert await desk.objects_settle(TEAM, [kept], [asked], later + DAY_MS, later) == 0
    # It can come again, as if it had never been there.
    await desk.object_add(TEAM, gone, 0, b"three")
    await desk.object_finish(TEAM, gone, 5)
    assert await read(desk, gone) == b"three"
    assert await desk.object_add(TEAM, NAME, 1, PIECES[1]) == 2


async def test_S9_an_upload_that_was_cut_goes_on_where_it_stopped(
    make_desk: DeskMaker, tmp_path: Path
) -> None:
    async with make_desk(tmp_path) as desk:
        await with_team(desk)
        assert await desk.object_add(TEAM, NAME, 0, PIECES[0]) == 1
        # A piece too far, and one that is there, change nothing.
        assert await desk.object_add(TEAM, NAME, 2, PIECES[2]) == 1
        assert await desk.object_add(TEAM, NAME, 0, b"another") == 1
    async with make_desk(tmp_path) as desk:
        assert await desk.object_add(TEAM, NAME, 1, PIECES[1]) == 2
        assert await desk.object_add(TEAM, NAME, 2, PIECES[2]) == 3
        await desk.object_finish(TEAM, NAME, len(WHOLE))
        assert await read(desk) == WHOLE


@pytest.mark.parametrize(("piece", "size"), [(b"wrong", 5), (WHOLE, 7), (b"", 5)])
async def test_S9_of_an_object_that_is_another_nothing_stays(
    desk: BrokerStore, piece: bytes, size: int
) -> None:
    await with_team(desk)
    await desk.object_add(TEAM, NAME, 0, piece)
    with pytest.raises(BadValue):
        await desk.object_finish(TEAM, NAME, size)
    assert await desk.object_size(TEAM, NAME) is None
    assert await desk.object_add(TEAM, NAME, 0, WHOLE) == 1
    await desk.object_finish(TEAM, NAME, len(WHOLE))
    assert await read(desk) == WHOLE


async def test_S9_objects_are_of_their_mesh_and_pieces_have_a_limit(desk: BrokerStore) -> None:
    await with_team(desk)
    await desk.mesh_register("other", "Other", ANA, "ana", "server-2", NOW)
    await desk.object_add(TEAM, NAME, 0, WHOLE)
    await desk.object_finish(TEAM, NAME, len(WHOLE))
    assert await desk.object_size("other", NAME) is None
    with pytest.raises(OverLimit):
        await desk.object_add(TEAM, "ab" * 32, 0, b"x" * (DESK_PIECE_BYTES + 1))
    with pytest.raises(BadValue):
        await desk.object_finish(TEAM, "cd" * 32, 5)


async def test_S14_a_snapshot_is_seen_by_nobody_before_it_is_committed(desk: BrokerStore) -> None:
    await with_team(desk)
    await accept(desk, arriving(1), arriving(2))
    begun = await desk.snapshot_begin(TEAM, snapshot())
    assert begun == snapshot()
    assert await desk.snapshot_add(TEAM, "one", 0, 5, b"part 0") == 1
    assert await desk.snapshot_add(TEAM, "one", 1, 7, b"part 1") == 2
    assert await desk.snapshot_get(TEAM) is None
    assert await desk.snapshot_part(TEAM, "one", 0) is None
    digest = digest_of(b"part 0", b"part 1")
    ready = await desk.snapshot_commit(TEAM, "one", digest, NOW + 5)
    assert (ready.ready, ready.parts, ready.rows, ready.digest) == (True, 2, 12, digest)
    assert await desk.snapshot_get(TEAM) == ready
    assert await desk.snapshot_commit(TEAM, "one", digest, NOW + 6) == ready
    assert await desk.snapshot_part(TEAM, "one", 1) == b"part 1"
    assert await desk.snapshot_part(TEAM, "one", 2) is None
    # What is ready does not change any more.
    assert await desk.snapshot_add(TEAM, "one", 2, 1, b"late") == 2
    assert await desk.snapshot_get(TEAM) == ready


async def test_S14_an_upload_is_gone_on_with_by_the_one_who_began_it(desk: BrokerStore) -> None:
    await with_team(desk)
    await accept(desk, arriving(1), arriving(2))
    await desk.snapshot_begin(TEAM, snapshot())
    await desk.snapshot_add(TEAM, "one", 0, 5, b"part 0")
    again = await desk.snapshot_begin(TEAM, snapshot("two"))
    assert (again.id, again.parts, again.rows) == ("one", 1, 5)
    other = await desk.snapshot_begin(TEAM, snapshot("three", made_by=BOB))
    assert (other.id, other.parts) == ("three", 0)
    assert await desk.snapshot_add(TEAM, "one", 0, 5, b"again") == 1
    assert await desk.snapshot_add(TEAM, "one", 5, 5, b"too far") == 1
    ready = await desk.snapshot_commit(TEAM, "one", digest_of(b"part 0"), NOW)
    assert ready.rows == 5


async def test_S14_a_newer_snapshot_takes_the_place_of_an_older_one(desk: BrokerStore) -> None:
    await with_team(desk)
    await accept(desk, *(arriving(n) for n in range(5)))
    for id, seq in (("two", 2), ("four", 4), ("three", 3)):
        await desk.snapshot_begin(TEAM, snapshot(id, seq))
        await desk.snapshot_add(TEAM, id, 0, 1, id.encode())
    await desk.snapshot_commit(TEAM, "two", digest_of(b"two"), NOW)
    await desk.snapshot_commit(TEAM, "four", digest_of(b"four"), NOW)
    found = await desk.snapshot_get(TEAM)
    assert found is not None
    assert (found.id, found.seq) == ("four", 4)
    assert await desk.snapshot_part(TEAM, "two", 0) is None
    # An older one that comes late changes nothing for whoever asks.
    await desk.snapshot_commit(TEAM, "three", digest_of(b"three"), NOW)
    found = await desk.snapshot_get(TEAM)
    assert found is not None
    assert found.id == "four"


async def test_S14_snapshots_that_cannot_be_right_are_refused(desk: BrokerStore) -> None:
    await with_team(desk)
    await accept(desk, arriving(1))
    with pytest.raises(BadInput):
        await desk.snapshot_begin(TEAM, snapshot(seq=2))
    with pytest.raises(EpochMismatch):
        await desk.snapshot_begin(TEAM, snapshot(seq=1, epoch=2))
    with pytest.raises(UnknownObject):
        await desk.snapshot_add(TEAM, "one", 0, 1, b"part")
    with pytest.raises(UnknownObject):
        await desk.snapshot_commit(TEAM, "one", b"", NOW)
    await desk.snapshot_begin(TEAM, snapshot(seq=1))
    await desk.snapshot_add(TEAM, "one", 0, 1, b"part")
    with pytest.raises(BadValue):
        await desk.snapshot_commit(TEAM, "one", digest_of(b"other"), NOW)
    assert await desk.snapshot_get(TEAM) is None
    # The upload is over: the next one begins anew.
    assert (await desk.snapshot_begin(TEAM, snapshot("two", 1))).id == "two"


async def test_D7_uploads_that_nobody_goes_on_with_are_given_up(desk: BrokerStore) -> None:
    await with_team(desk)
    await accept(desk, arriving(1), arriving(2))
    await desk.object_add(TEAM, NAME, 0, PIECES[0])
    await desk.snapshot_begin(TEAM, snapshot())
    await desk.snapshot_add(TEAM, "one", 0, 5, b"part 0")
    now = NOW
    for _ in range(3):
        now += DAY_MS
        await desk.sweep(now, 100)
    assert await desk.object_add(TEAM, NAME, 1, PIECES[1]) == 0
    with pytest.raises(UnknownObject):
        await desk.snapshot_add(TEAM, "one", 1, 5, b"part 1")
    # What is whole stays.
    await desk.object_add(TEAM, NAME, 0, WHOLE)
    await desk.object_finish(TEAM, NAME, len(WHOLE))
    for _ in range(3):
        now += DAY_MS
        await desk.sweep(now, 100)
    assert await read(desk) == WHOLE
