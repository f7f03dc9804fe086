"""Any logs, read in any pieces, by runs that may be killed: what is in the lake is what a plain
model says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.pipeline.ingest import divide, take
from holdfast.pipeline.ingest.ingest import ingest_planned
from holdfast.pipeline.ingest.plan import make_plan
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark.workers import DriverWorkers
from support import envelopes
from support.list_log import ListedEntry, ListLog
from support.source import START_MS

Place = tuple[str, int, int]
Row = dict[str, Any]
HOUR_MS = 3_600_000
KINDS = ("", "other bytes", "unknown op", "broken")


class Crew(DriverWorkers):
    """As many workers at once as a test wants; each does its work here."""

    def __init__(self, parallelism: int) -> None:
        self._parallelism = parallelism

    @property
    def parallelism(self) -> int:
        return self._parallelism


@dataclass(frozen=True)
class Round:
    """One run of several."""

    logs: int
    """How many of the logs answer."""
    max_rows: int
    parallelism: int
    portion_bytes: int
    killed_before: int
    """The commit before which it dies; 0 if it lives."""


def listed(name: str, drawn: Sequence[tuple[int, str, int, int]]) -> ListLog:
    entries = []
    offset = 0
    for number, kind, recorded_at, step in drawn:
        offset += step
        # The ids of a day and of the next, some of which begin with the same 64 bits.
        id = envelopes.make_id(number % 3, START_MS + number // 3 * 15 * HOUR_MS)
        whole = envelopes.state_set("k", kind == "other bytes", lamport=1 + number, id=id)
        if kind == "unknown op":
            whole = envelopes.changed(whole, op="later.x")
        raw = whole[:-1] if kind == "broken" else whole
        entries.append(ListedEntry(offset, whole, recorded_at, raw))
    dense = offset == len(entries)
    return ListLog(name, tuple(entries), dense=dense)


ENTRIES = st.lists(
    st.tuples(
        st.integers(0, 8),
        st.sampled_from(KINDS[:1] * 4 + KINDS),
        st.integers(0, 2),
        st.sampled_from((1, 1, 1, 3)),
    ),
    max_size=12,
)
LOGS = st.tuples(ENTRIES, ENTRIES, ENTRIES).map(
    lambda drawn: [listed(name, one) for name, one in zip(("b", "a", "ü"), drawn, strict=True)]
)
ROUNDS = st.lists(
    st.builds(
        Round,
        logs=st.integers(1, 3),
        max_rows=st.sampled_from((4, 11, 1000)),
        parallelism=st.integers(1, 3),
        portion_bytes=st.sampled_from((1, 1 << 30)),
        killed_before=st.integers(0, 4),
    ),
    max_size=2,
)


class Killed(BaseException):
    """Nothing catches it, as nothing catches SIGKILL."""


@contextmanager
def dying(before: int) -> Iterator[None]:
    """The process dies before its commit with this number."""
    real = Table.commit
    left = before

    def commit(table: Table, *args: Any, **options: Any) -> int:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed
        return real(table, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "commit", commit)
        with suppress(Killed):
            yield


@contextmanager
def small_pieces(portion_bytes: int) -> Iterator[None]:
    """What is done with millions of rows, on a few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(take, "INGEST_PORTION_BYTES", portion_bytes)
        patch.setattr(divide, "LAKE_FILE_ROWS", 2)
        patch.setattr(divide, "SOURCE_PARTITION_ROWS", 5)
        patch.setattr(divide, "SOURCE_BATCH_ROWS", 2)
        yield


def rows_of(table: Table) -> list[Row]:
    if not table.fresh().exists:
        return []
    found: list[Row] = DeltaTable(table.root).to_pyarrow_table().to_pylist()
    return found


def place_of(row: Row) -> Place:
    return row["log"], row["epoch"], row["offset"]


def expected(
    logs: Sequence[ListLog], after: Mapping[str, int], bronze: Mapping[str, bytes]
) -> dict[Place, str]:
    """Where a single batch puts every place: the model, row by row."""
    verdicts: dict[Place, str] = {}
    good: list[tuple[str, int, Place, bytes]] = []
    for log in logs:
        for one in log.entries:
            place = (log.name, 1, one.offset)
            if one.offset <= after.get(log.name, 0):
                continue
            if one.raw != one.envelope:
                verdicts[place] = "bad_envelope"
            else:
                good.append((one.id, one.recorded_at, place, one.raw))
    for id, same in groupby(sorted(good), key=lambda row: row[0]):
        first = bronze.get(id)
        for _, _, place, raw in same:
            verdicts[place] = "new" if first is None else "again" if raw == first else "id_conflict"
            first = raw if first is None else first
    return verdicts


def verdicts_in(lake: Lake) -> Counter[tuple[Place, str]]:
    found = Counter((place_of(row), "new") for row in rows_of(lake.bronze))
    found.update((place_of(row), "again") for row in rows_of(lake.sightings))
    found.update((place_of(row), row["reason"]) for row in rows_of(lake.quarantine))
    return found


def check_kept(lake: Lake, logs: Sequence[ListLog]) -> None:
    """Every id once, every place up to the positions somewhere, each once."""
    bronze = rows_of(lake.bronze)
    kept = {row["id"]: row["raw"] for row in bronze}
    assert len(kept) == len(bronze)
    reached = {at.log: at.offset for at in lake.fresh().positions()}
    entries = {
        (log.name, 1, one.offset): one
        for log in logs
        for one in log.entries
        if one.offset <= reached.get(log.name, 0)
    }
    strange = {place_of(row) for row in bronze if row["op"] == "later.x"}
    found = verdicts_in(lake)
    assert {place for place, what in found if what == "unknown_op"} == strange
    assert set(found.values()) <= {1}
    places = Counter(place for place, what in found if what != "unknown_op")
    assert places == Counter(dict.fromkeys(entries, 1))
    for place, what in found:
        one = entries[place]
        if what in ("new", "again"):
            assert one.raw == kept[one.id]
        if what == "id_conflict":
            assert one.raw != kept[one.id]
    for row in rows_of(lake.quarantine):
        assert row["raw"] == entries[place_of(row)].raw
    for log in logs:
        assert all(offset <= reached.get(log.name, 0) for offset in log.confirmed.values())


def ingest(lake: Lake, logs: Sequence[ListLog], one: Round) -> None:
    with small_pieces(one.portion_bytes):
        plan = make_plan(lake.fresh(), logs)
        assert plan.failures == []
        report = ingest_planned(lambda: Crew(one.parallelism), lake, plan, max_rows=one.max_rows)
        assert report.failures == []


def in_new_lake(act: Callable[[Lake], None]) -> None:
    with TemporaryDirectory() as folder:
        act(Lake.open(Path(folder) / "lake", create=True))


@settings(max_examples=25)
@given(
    logs=LOGS,
    rounds=ROUNDS,
    last=st.builds(
        Round,
        st.just(3),
        st.just(1000),
        st.integers(1, 3),
        st.sampled_from((1, 1 << 30)),
        st.just(0),
    ),
)
def test_P2_every_id_is_once_in_the_lake_and_every_place_somewhere_whatever_is_killed(
    logs: list[ListLog], rounds: list[Round], last: Round
) -> None:
    def work(lake: Lake) -> None:
        for one in rounds:
            with dying(one.killed_before):
                ingest(lake, logs[: one.logs], one)
        known = {row["id"]: row["raw"] for row in rows_of(lake.bronze)}
        after = {at.log: at.offset for at in lake.fresh().positions()}
        ingest(lake, logs, last)
        check_kept(lake, logs)
        assert (
            verdicts_in(lake).items()
            >= dict.fromkeys(expected(logs, after, known).items(), 1).items()
        )

    in_new_lake(work)
