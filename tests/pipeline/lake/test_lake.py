"""The lake as a folder: found, made, refused, locked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from holdfast.pipeline.lake.folder import Folder
from holdfast.pipeline.lake.lake import ID_DAY, Lake
from holdfast.pipeline.lake.reads import Position, Read, note_reads
from holdfast.rules.errors import (
    BadPath,
    LakeBusy,
    NoLake,
    StoreCorrupt,
    UnknownKey,
    UnsupportedProtocol,
)
from holdfast.rules.ids import id_text, uuid7
from holdfast.rules.limits import READS_FILES_MAX


def test_P2_a_lake_is_made_once_and_known_again(tmp_path: Path) -> None:
    with pytest.raises(NoLake):
        Lake.open(tmp_path / "lake")
    made = Lake.open(tmp_path / "a" / "lake", create=True)
    again = Lake.open(tmp_path / "a" / "lake", create=True)
    assert (again.id, again.consumer) == (made.id, f"lake-{made.id[:8]}")
    assert made.positions() == []
    assert made.position("ana", 1) is None
    with pytest.raises(UnknownKey, match="stat"):
        made.silver("stat")


def test_P2_only_an_empty_folder_becomes_a_lake(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(BadPath):
        Lake.open(tmp_path, create=True)
    with pytest.raises(BadPath):
        Lake.open(tmp_path / "mine.txt", create=True)
    for odd in ("la[k]e", "{lake}", "l*ke", "la?ke", "la\\ke", "lake%20"):
        with pytest.raises(BadPath, match="misread"):
            Lake.open(tmp_path / "odd" / odd, create=True)
    assert not (tmp_path / "odd").exists()
    card = tmp_path / "lake.json"
    card.write_text('{"holdfast": "lake", "version": 99, "id": "x", "created_at": 1}')
    with pytest.raises(UnsupportedProtocol):
        Lake.open(tmp_path)
    card.write_text('{"holdfast"')
    with pytest.raises(StoreCorrupt):
        Lake.open(tmp_path)


def test_P11_one_job_at_a_time_works_on_a_lake(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    other = Lake.open(lake.root)
    with (
        lake.working("a fold"),
        pytest.raises(LakeBusy, match=rf"a fold \(process {os.getpid()}"),
        other.working("another"),
    ):
        pass
    with lake.working("another"):
        pass


def test_P11_the_lock_is_one_however_the_lake_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    lake = Lake.open(tmp_path.as_uri() + "/lake", create=True)
    assert lake.root == str(tmp_path / "lake")
    with lake.working("a fold"):
        for name in ("lake", str(tmp_path / "lake"), f"file:{tmp_path}/lake/", "link/lake"):
            with pytest.raises(LakeBusy), Lake.open(name).working("another"):
                pass


def test_P10_a_new_lake_is_as_open_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        for umask, folder_mode, file_mode in ((0o002, 0o775, 0o664), (0o077, 0o700, 0o600)):
            os.umask(umask)
            root = tmp_path / f"{umask:o}"
            lake = Lake.open(root, create=True)
            with lake.working("a fold"):
                pass
            found = {path.name: path.stat().st_mode & 0o777 for path in (root, *root.iterdir())}
            assert found == {root.name: folder_mode, "lake.json": file_mode, ".job": file_mode}
    finally:
        os.umask(before)


def test_P2_two_jobs_that_make_one_lake_use_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Folder.write

    def late(folder: Folder, name: str, raw: bytes, **how: bool) -> None:
        write(folder, name, raw, **how)
        monkeypatch.setattr(Folder, "write", write)
        (tmp_path / "lake" / "lake.json").unlink()
        Lake.open(tmp_path / "lake", create=True)

    monkeypatch.setattr(Folder, "write", late)
    lake = Lake.open(tmp_path / "lake", create=True)
    assert lake.id == Lake.open(tmp_path / "lake").id
    lake.proof()


def test_P1_a_position_is_the_end_of_what_was_read(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    seven = Read(log="ana", epoch=1, first=1, last=7, rows=7, last_id="x", batch=0)
    nine = Read(log="bob", epoch=2, first=4, last=9, rows=3, batch=1)
    note_reads(lake.reads, [seven])
    note_reads(lake.reads, [nine, replace(seven, first=8, last=8, rows=1, last_id="y", batch=1)])
    lake = lake.fresh()
    assert lake.positions() == [Position("ana", 1, 8, "y"), Position("bob", 2, 9)]
    assert (lake.position("ana", 1), lake.position("bob", 2)) == (8, 9)
    assert lake.position("ana", 2) is None
    assert lake.next_batch == 2


def test_P4_many_small_files_of_reads_become_one(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    for number in range(READS_FILES_MAX + 1):
        at = number + 1
        read = Read(log="ana", epoch=1, first=at, last=at, rows=1, batch=number)
        note_reads(lake.reads, [read])
    reads = lake.fresh().reads
    assert (len(reads.files()), reads.rows) == (1, READS_FILES_MAX + 1)
    assert lake.fresh().position("ana", 1) == READS_FILES_MAX + 1


def test_P2_an_id_is_of_the_day_that_stands_in_it(spark: SparkSession) -> None:
    at_ms = 1_767_225_599_999  # the last millisecond of 2025
    ids = [id_text(uuid7(at_ms + more, b"\xff" * 10)) for more in (0, 1)]
    frame = spark.createDataFrame([(id,) for id in ids], "id string").selectExpr(ID_DAY)
    assert [str(row[0]) for row in frame.collect()] == ["2025-12-31", "2026-01-01"]
