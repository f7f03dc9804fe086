"""Which task reads what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.ingest.divide import task_count, tasks_of
from holdfast.pipeline.ingest.plan import LogStretch
from holdfast.rules.limits import LAKE_FILE_ROWS, SOURCE_PARTITION_ROWS
from support.list_log import ListLog

LOG = ListLog("any", ())  # it is not asked


def stretches(rows: list[int]) -> list[LogStretch]:
    return [LogStretch(LOG, (f"p{n}", 1), 5, 5 + count) for n, count in enumerate(rows)]


@given(
    st.lists(st.integers(1, 5 * SOURCE_PARTITION_ROWS), min_size=1, max_size=9),
    st.integers(1, 40),
)
def test_P1_tasks_cover_a_batch_and_follow_the_workers(rows: list[int], parallelism: int) -> None:
    batch = stretches(rows)
    tasks = tasks_of(batch, parallelism)
    covered = {part.key: part.start for part in batch}
    for part in sorted((part for task in tasks for part in task), key=lambda part: part.start):
        assert part.start == covered[part.key]
        covered[part.key] = part.stop
    assert covered == {part.key: part.stop for part in batch}
    count = task_count(sum(rows), parallelism)
    assert len(tasks) <= count
    if sum(rows) >= parallelism * LAKE_FILE_ROWS:
        assert count % parallelism == 0
        assert count >= sum(rows) / SOURCE_PARTITION_ROWS
        assert count < parallelism + sum(rows) / SOURCE_PARTITION_ROWS + 1
    assert count <= sum(rows) / LAKE_FILE_ROWS + 1


def test_P10_a_large_cluster_gets_more_tasks_and_a_small_batch_one() -> None:
    assert [task_count(1_000_000, cores) for cores in (1, 2, 8, 500)] == [5, 6, 8, 50]
    assert task_count(LAKE_FILE_ROWS, 500) == 1
    # Every task has the same share of both logs, and small logs are put together.
    tasks = tasks_of(stretches([400_000, 200_000, *[900] * 40]), 4)
    assert len(tasks) == 4
    for number, task in enumerate(tasks):
        large = {part.key[0]: (part.start - 5, part.rows) for part in task if part.rows > 900}
        assert large == {"p0": (number * 100_000, 100_000), "p1": (number * 50_000, 50_000)}
        assert sum(part.rows == 900 for part in task) == 10
