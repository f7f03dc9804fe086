"""The books of the platter, against the plainest model of a file."""

from __future__ import annotations

import random

from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.simulate.disk.platter import (
    SECTOR_BYTES,
    Cut,
    Deleted,
    DirectorySynced,
    Event,
    FileCreated,
    FileFound,
    FileWritten,
    Platter,
    Renamed,
    Synced,
    SyncFailed,
)

PATH = "/home/file"
sizes = st.integers(0, 3 * SECTOR_BYTES)
writes = st.builds(
    lambda offset, byte, size: FileWritten(1, offset, bytes([byte]) * size),
    sizes,
    st.integers(1, 255),
    st.integers(1, 3 * SECTOR_BYTES),
)
changes = st.lists(st.one_of(writes, sizes.map(lambda size: Cut(1, size)), st.just(Synced(1))))


def plain(events: list[Event]) -> bytes:
    """The file as a running program sees it."""
    content = bytearray()
    for event in events:
        if isinstance(event, FileWritten):
            content.extend(bytes(max(0, event.offset - len(content))))
            content[event.offset : event.offset + len(event.data)] = event.data
        elif isinstance(event, Cut):
            content = bytearray(bytes(content[: event.size]).ljust(event.size, b"\0"))
    return bytes(content)


def platter_after(events: list[Event]) -> Platter:
    platter = Platter(random.Random(0))
    platter.apply(FileFound(PATH, 1, b""))
    for event in events:
        platter.apply(event)
    return platter


@given(changes)
@example([FileWritten(1, 0, b"x"), Synced(1), Cut(1, 0)])
def test_R1_with_all_kept_the_disk_shows_what_the_program_saw(events: list[Event]) -> None:
    platter = platter_after(events)
    assert platter.image(platter.all_kept()).files == {PATH: plain(events)}


@given(changes)
def test_R1_with_all_lost_the_disk_shows_the_last_sync(events: list[Event]) -> None:
    platter = platter_after(events)
    last = max((at for at, event in enumerate(events) if isinstance(event, Synced)), default=0)
    assert platter.image(platter.all_lost()).files == {PATH: plain(events[:last])}


@given(changes, st.integers())
def test_R1_a_torn_write_is_old_or_new_sector_by_sector(events: list[Event], seed: int) -> None:
    platter = platter_after([*events, Synced(1)])
    old = platter.image(()).files[PATH].ljust(6 * SECTOR_BYTES, b"\0")
    written = FileWritten(1, 100, b"\xff" * 2000)
    platter.apply(written)
    new = platter.image(platter.all_kept()).files[PATH].ljust(6 * SECTOR_BYTES, b"\0")
    (fate,) = platter.random_fates(random.Random(seed))
    torn = platter.image((fate,)).files[PATH].ljust(6 * SECTOR_BYTES, b"\0")
    for sector in range(6):
        place = slice(sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES)
        assert torn[place] == (new if fate >> sector & 1 else old)[place]


def test_R1_a_name_is_sure_only_when_its_directory_is() -> None:
    platter = Platter(random.Random(0))
    for event in (FileCreated("/home/draft", 1), FileWritten(1, 0, b"x"), Synced(1)):
        platter.apply(event)
    assert platter.image(platter.all_lost()).files == {}
    platter.apply(DirectorySynced("/elsewhere"))
    assert platter.image(platter.all_lost()).files == {}
    platter.apply(DirectorySynced("/home"))
    platter.apply(Renamed("/home/draft", "/home/final", 1))
    assert platter.image(platter.all_lost()).files == {"/home/draft": b"x"}
    platter.apply(DirectorySynced("/home"))
    platter.apply(Deleted("/home/final"))
    assert platter.image(platter.all_lost()).files == {"/home/final": b"x"}
    assert platter.image(platter.all_kept()).files == {}


def test_R1_after_a_failed_sync_no_later_sync_saves_the_writes() -> None:
    lost = 0
    for seed in range(50):
        platter = Platter(random.Random(seed))
        platter.apply(FileFound(PATH, 1, b"old"))
        for event in (FileWritten(1, 0, b"new"), SyncFailed(1), Synced(1)):
            platter.apply(event)
        lost += platter.image(platter.all_kept()).files[PATH] == b"old"
    assert 10 < lost < 40
