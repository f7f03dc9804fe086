"""A lake that was set back is noticed, to the offset, before anything more is confirmed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.ingest.plan import make_plan
from holdfast.pipeline.lake.checked import checked
from holdfast.pipeline.lake.compare import compared
from holdfast.pipeline.lake.held import AGAIN, NEW, RUNS, Key, Offsets, joined_runs
from holdfast.pipeline.lake.lake import BRONZE, Lake
from holdfast.pipeline.lake.reads import Read, as_rows, sum_of
from holdfast.pipeline.logs.disk import HomeLog
from holdfast.pipeline.logs.log import ReadableLog, open_log
from holdfast.rules.errors import LakeSetBack
from support.histories import Histories
from support.read_in_turns import (
    TABLES,
    Place,
    ReadInTurns,
    held_places,
    read_in_turns,
    table_of,
)
from support.set_back import CARE, HARMS, Harm, put_back, restored


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> ReadInTurns:
    return read_in_turns(tmp_path_factory.mktemp("grown"))


@pytest.fixture
def filled(grown: ReadInTurns, tmp_path: Path) -> ReadInTurns:
    """The same, to be harmed."""
    shutil.copytree(grown.lake.root, tmp_path / "lake")
    return grown._replace(lake=Lake.open(tmp_path / "lake"))


def named(missing: dict[Key, tuple[tuple[int, int], ...]]) -> set[Place]:
    return {
        (*key, offset)
        for key, ranges in missing.items()
        for start, stop in ranges
        for offset in range(start, stop)
    }


def opened(histories: Histories) -> Iterator[ReadableLog]:
    return (open_log(str(home)) for home in histories.homes.values())


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("name", TABLES)
def test_P2_what_a_table_that_was_set_back_lacks_is_named_to_the_offset(
    filled: ReadInTurns, name: str, harm: Harm
) -> None:
    lake = filled.lake
    before, known = held_places(lake), lake.fresh().positions()
    harm(table_of(lake, name), filled.older / name)

    _, missing = checked(lake.fresh())

    lost = before - held_places(lake)
    assert bool(lost) == (name != "reads")
    assert named({key: one.ranges for key, one in missing.items()}) == lost
    assert sum(one.rows for one in missing.values()) == len(lost)
    # What was read is still known, and no later look finds anything else.
    assert lake.fresh().positions() == known
    assert checked(lake.fresh())[1] == missing
    assert lake.fresh().is_whole() == (not lost)


@pytest.mark.parametrize("care", CARE, ids=lambda care: care.__name__)
def test_P2_the_housekeeping_of_others_changes_nothing(filled: ReadInTurns, care: Harm) -> None:
    lake = filled.lake
    known = lake.fresh().positions()
    for name in TABLES:
        care(table_of(lake, name), filled.older / name)

    assert checked(lake.fresh())[1] == {}
    assert lake.fresh().positions() == known
    plan = make_plan(lake.fresh(), opened(filled.histories))
    assert (plan.rows, plan.failures) == (0, [])


def test_P2_nothing_is_read_or_confirmed_of_a_log_of_which_the_lake_has_lost_entries(
    filled: ReadInTurns, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = filled.lake
    confirmed: list[str] = []
    real = HomeLog.confirm

    def confirm(log: HomeLog, consumer: str, epoch: int, offset: int) -> None:
        confirmed.append(log.place().log)
        real(log, consumer, epoch, offset)

    monkeypatch.setattr(HomeLog, "confirm", confirm)
    for name in ("quarantine", "bronze"):
        restored(table_of(lake, name), filled.older / name)
        confirmed.clear()
        plan = make_plan(lake.fresh(), opened(filled.histories))
        failed = {failure.log for failure in plan.failures}
        assert all(isinstance(failure.error, LakeSetBack) for failure in plan.failures)
        assert failed
        assert not failed & set(confirmed)
        assert not any(key[0] in failed for key in plan.stretches)
        assert "holdfast pipeline repair" in str(plan.failures[0].error.hint)


def test_P2_a_lake_of_earlier_code_gets_its_reads_from_what_is_stored(filled: ReadInTurns) -> None:
    lake = filled.lake
    claims, known = lake.fresh().claims, lake.fresh().positions()
    shutil.rmtree(lake.reads.root)

    assert lake.fresh().positions() == known
    assert checked(lake.fresh())[1] == {}
    assert lake.fresh().reads.exists
    for name in ("rows", "new", "again", "quarantined", "noted"):
        assert sum_of(lake.fresh().claims, name) == sum_of(claims, name)
    assert lake.fresh().positions() == known


def test_P2_batches_that_silver_has_seen_are_never_numbered_again(filled: ReadInTurns) -> None:
    lake = filled.lake
    seen = lake.fresh().next_batch - 1
    lake.silver("facts").commit([], txns={BRONZE: seen})
    for name in TABLES:
        put_back(table_of(lake, name), filled.older / name)
    assert lake.fresh().next_batch <= seen
    checked(lake.fresh())
    assert lake.fresh().next_batch == seen + 1


Spans = st.sets(st.integers(1, 60), max_size=40)


@given(kept=Spans, again=Spans, claims=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 20))))
def test_P2_claims_of_any_shape_lack_exactly_what_is_not_held(
    kept: set[int], again: set[int], claims: list[tuple[int, int]]
) -> None:
    """For logs without holes: a claim says that every offset in it was read."""
    held = kept | again
    rows = [
        {"log": "ana", "epoch": 1, "kind": kind, "batch": 0, "start": at, "stop": at + 1}
        for kind, offsets in ((NEW, kept), (AGAIN, again - kept))
        for at in offsets
    ]
    reads = [
        Read(log="ana", epoch=1, first=at, last=at + more, rows=more + 1, batch=number)
        for number, (at, more) in enumerate(claims)
    ]
    runs = joined_runs([pa.Table.from_pylist(rows, schema=RUNS)])

    found = compared(as_rows(reads), runs, {})

    claimed = {offset for at, more in claims for offset in range(at, at + more + 1)}
    lacking = named({one.key: one.ranges for one in found.missing})
    assert lacking == {("ana", 1, offset) for offset in claimed - held}
    # Where nothing is missing, what `reads` says is true.
    again_found = compared(found.reads, runs, {})
    assert again_found.missing == found.missing
    if not found.missing:
        assert sum_of(found.reads, "new") == len(kept & _reached(found.reads))
        assert not again_found.differs


def _reached(reads: pa.Table) -> set[int]:
    return {offset for row in reads.to_pylist() for offset in range(row["first"], row["last"] + 1)}


@given(runs=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=12))
def test_P2_a_set_of_offsets_counts_and_has_holes_like_a_set(runs: list[tuple[int, int]]) -> None:
    inside = {offset for at, rows in runs for offset in range(at, at + rows)}
    pairs = [{"start": at, "stop": at + rows} for at, rows in runs]
    kinds = pa.schema([("start", pa.int64()), ("stop", pa.int64())])
    found = Offsets(pa.Table.from_pylist(pairs, schema=kinds))
    for start in range(0, 52, 3):
        for stop in range(start, 54, 5):
            part = set(range(start, stop))
            counted = found.count(np.array([start]), np.array([stop]))
            assert int(counted[0]) == len(inside & part)
            holes = {at for begin, end in found.holes(start, stop) for at in range(begin, end)}
            assert holes == part - inside
