"""Tasks share the work of a fold evenly, and leave alone what has not changed."""

from __future__ import annotations

import random

import pytest

from holdfast.pipeline.fold.plan import (
    HeldFiles,
    cuts_of,
    file_begins,
    is_shared,
    shares_of,
    spans_for,
    within,
)
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.reader import FileReader
from holdfast.rules.limits import (
    FOLD_BUCKETS,
    FOLD_FILE_ROWS,
    FOLD_SHARE_ROWS_MAX,
    FOLD_TASK_ROWS_MIN,
    LAKE_FILE_BYTES,
)
from support.seeds import seeds


def file(path: str, rows: int, low: int | None = None, high: int | None = None) -> File:
    bounds = ({}, {}) if low is None else ({"bucket": low}, {"bucket": high})
    return File(path=path, size=1, rows=rows, low=bounds[0], high=bounds[1])


def test_P4_every_file_is_in_one_share_and_shares_are_alike() -> None:
    files = [file(f"{n}", rows * FOLD_TASK_ROWS_MIN) for n, rows in enumerate((5, 3, 3, 2, 1))]
    shares = shares_of(files, 2)
    assert sorted(file.path for share in shares for file in share) == list("01234")
    assert [sum(file.rows for file in share) for share in shares] == [7 * FOLD_TASK_ROWS_MIN] * 2
    assert len(shares_of(files, 100)) == 5
    assert len(shares_of([file("a", 1), file("b", 2)], 8)) == 1
    assert shares_of([], 8) == []
    large = [file(f"{n}", FOLD_SHARE_ROWS_MAX) for n in range(5)]
    assert [len(share) for share in shares_of(large, 1)] == [1] * 5


def test_P4_spans_follow_rows_bytes_and_the_cluster() -> None:
    assert spans_for(0, 0, 64) == 1
    assert [spans_for(FOLD_FILE_ROWS + at, 0, 1) for at in (0, 1)] == [1, 2]
    assert spans_for(1, 3 * LAKE_FILE_BYTES, 1) == 3
    assert spans_for(10 * FOLD_TASK_ROWS_MIN, 0, 64) == 10
    assert spans_for(10 * FOLD_TASK_ROWS_MIN, 0, 4) == 4
    assert len(cuts_of(10 * FOLD_BUCKETS, FOLD_BUCKETS)) == FOLD_BUCKETS


def test_P4_spans_begin_where_files_begin_if_these_are_near() -> None:
    files = [file("a", 1, 0, 9), file("b", 1, 12, 30), file("c", 1, 31, 40), file("d", 1, 35, 63)]
    assert file_begins(files, 64, 64) == [12, 31]
    assert cuts_of(2, 64, files, 64) == [range(31), range(31, 64)]
    assert cuts_of(2, 128, files, 64) == [range(62), range(62, 128)]
    assert cuts_of(2, 64, [file("a", 1)], 64) == [range(32), range(32, 64)]


@pytest.mark.parametrize("seed", seeds(30))
def test_P4_spans_hold_every_bucket_once_and_know_whose_files_they_share(seed: int) -> None:
    rng = random.Random(seed)
    of, buckets = rng.choice((64, 1024)), rng.choice((64, 256, 1024))
    files = []
    for number in range(rng.randrange(6)):
        low = rng.randrange(of)
        bounds = (low, rng.randrange(low, of)) if rng.random() < 0.9 else (None, None)
        files.append(file(f"{number}", 1, *bounds))
    held = HeldFiles(reader=FileReader(root="", schema=None), files=tuple(files), buckets=of)
    spans = cuts_of(rng.randint(1, 9), buckets, files, of)
    assert [bucket for span in spans for bucket in span] == list(range(buckets))
    met = [within(held, span, buckets).files for span in spans]
    for one in files:
        places = [at for at, some in enumerate(met) if one.path in {file.path for file in some}]
        assert places
        if len(places) > 1:
            assert all(is_shared(held, spans[at], buckets) for at in places)
