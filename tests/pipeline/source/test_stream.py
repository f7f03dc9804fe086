"""The stream: nothing lost, nothing twice, and nothing confirmed too early."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import holdfast
from holdfast.node.library.node import Node
from holdfast.node.recovery.backup import backup, restore
from holdfast.node.upkeep.sweep import Ttl, sweep
from holdfast.pipeline.logs.log import LogBounds
from holdfast.pipeline.source.plan import LogRange, Offsets, next_offsets, starting
from holdfast.pipeline.source.source import HoldfastSource, register
from holdfast.pipeline.source.stream import LogStreamReader
from holdfast.rules.errors import BadInput, LogForked, Truncated
from support.daemon import running
from support.keeping import make_home, team

ALL = ReadAllAvailable()
Row = tuple[str, int, int]


def grow(node: Node, count: int) -> None:
    for n in range(count):
        team(node).state.set(f"k{n}", n)


@contextmanager
def reading(**options: Any) -> Iterator[LogStreamReader]:
    """The driver's side of a stream, as Spark drives it."""
    source = HoldfastSource({name: str(value) for name, value in options.items()})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, LogStreamReader)
    try:
        yield reader
    finally:
        reader.stop()


def rows(reader: LogStreamReader, start: Offsets, end: Offsets) -> list[Row]:
    return [
        (row["log"], row["epoch"], row["offset"])
        for part in reader.partitions(start, end)
        for batch in reader.read(part)
        for row in batch.select(["log", "epoch", "offset"]).to_pylist()
    ]


def span(log: str, start: int, stop: int, epoch: int = 1) -> list[Row]:
    return [(log, epoch, offset) for offset in range(start, stop)]


# --- With Spark --------------------------------------------------------------------------------


class Sink:
    """Takes batches, and fails once after it took one, as a process does that is killed."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, list[Row]]] = []
        self.fail_at: int | None = None

    def __call__(self, frame: DataFrame, number: int) -> None:
        found = [tuple(row) for row in frame.select("log", "epoch", "offset").collect()]
        self.batches.append((number, sorted(found)))
        if number == self.fail_at:
            self.fail_at = None
            raise RuntimeError("the sink was killed")

    def rows(self) -> list[Row]:
        return sorted(row for _, batch in self.batches for row in batch)


def run(spark: SparkSession, sink: Sink, checkpoint: Path, **options: Any) -> None:
    register(spark)
    stream = spark.readStream.format("holdfast").options(**options).load()
    query = (
        stream.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()


def test_P1_a_stream_restarts_from_its_checkpoint_without_loss_or_duplicate(
    spark: SparkSession, tmp_path: Path
) -> None:
    with make_home(tmp_path / "ana") as node:
        grow(node, 20)
    with make_home(tmp_path / "bob", "bob") as node:
        grow(node, 4)
    sink, checkpoint = Sink(), tmp_path / "checkpoint"
    with running(tmp_path / "ana") as up:
        node = up.daemon.api.node
        options = {
            "logs": f"{up.unix},{tmp_path / 'bob'}",
            "maxRowsPerBatch": 10,
            "consumer": "lake",
        }
        sink.fail_at = 1
        with pytest.raises(Exception, match="the sink was killed"):
            run(spark, sink, checkpoint, **options)
        # Batch 0 was committed and is confirmed; batch 1 was not.
        assert [number for number, _ in sink.batches] == [0, 1]
        assert node.log.consumers()[0].frontier == 6
        assert sweep(up.daemon.api.engine, Ttl(log_ms=0)).log_entries <= 6
        run(spark, sink, checkpoint, **options)
        batches = dict(sink.batches)
        assert [batch for number, batch in sink.batches if number == 1] == [batches[1]] * 2
        assert sorted(row for batch in batches.values() for row in batch) == [
            *span("ana", 1, 21),
            *span("bob", 1, 5),
        ]
        assert max(map(len, batches.values())) == 10
        grow(node, 3)
        sink.batches.clear()
        run(spark, sink, checkpoint, **options)
        assert sink.rows() == span("ana", 21, 24)
        # What was committed in the run before is confirmed by now.
        assert node.log.consumers()[0].frontier >= 20


# --- As Spark drives it ------------------------------------------------------------------------


def test_P1_offsets_say_exactly_what_is_in_a_batch(tmp_path: Path) -> None:
    with make_home(tmp_path / "home") as node:
        grow(node, 10)
        with reading(path=node.home, rowsPerPartition=3) as reader:
            start = reader.initialOffset()
            assert start == {"ana": [1, 0]}
            end = reader.latestOffset(start, ReadMaxRows(4))
            assert end == {"ana": [1, 4]}
            assert rows(reader, start, end) == span("ana", 1, 5)
            assert rows(reader, start, start) == []
            last = reader.latestOffset(end, ALL)
            assert rows(reader, end, last) == span("ana", 5, 11)
            assert reader.reportLatestOffset() == {"ana": [1, 10]}
            # Nothing new: the same offset, so that Spark does not go round and round.
            assert reader.latestOffset(last, ALL) == last
            grow(node, 1)
            assert reader.latestOffset(last, ALL) == {"ana": [1, 11]}
        with reading(path=node.home, maxRowsPerBatch=4) as reader:
            assert reader.getDefaultReadLimit() == ReadMaxRows(4)
            # A restart: Spark has the offsets, and asks for the same again.
            assert rows(reader, start, end) == span("ana", 1, 5)


def test_P1_available_now_ends_whatever_is_written_meanwhile(tmp_path: Path) -> None:
    with make_home(tmp_path / "home") as node:
        grow(node, 5)
        with reading(path=node.home) as reader:
            reader.prepareForTriggerAvailableNow()
            at = reader.initialOffset()
            steps = 0
            while (end := reader.latestOffset(at, ReadMaxRows(2))) != at:
                grow(node, 3)
                at, steps = end, steps + 1
            assert (at, steps) == ({"ana": [1, 5]}, 3)


def test_P1_a_log_keeps_what_is_planned_and_goes_on_after_the_commit(tmp_path: Path) -> None:
    with make_home(tmp_path / "home") as node, reading(path=node.home, consumer="lake") as reader:
        grow(node, 10)
        engine = node._engine
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxRows(6))
        assert sweep(engine, Ttl(log_ms=0)).log_entries == 0
        assert len(rows(reader, start, end)) == 6
        assert sweep(engine, Ttl(log_ms=0)).log_entries == 0
        reader.commit(end)
        assert sweep(engine, Ttl(log_ms=0)).log_entries == 6
        reader.commit(end)
        with pytest.raises(Truncated, match=r"offsets 1 to 6 in epoch 1 of log 'ana' at .* is 7"):
            reader.partitions(start, end)
        assert rows(reader, end, reader.latestOffset(end, ALL)) == span("ana", 7, 11)


def test_P1_without_a_consumer_nothing_is_told_to_the_log(tmp_path: Path) -> None:
    with make_home(tmp_path / "home") as node, reading(path=node.home) as reader:
        grow(node, 3)
        end = reader.latestOffset(reader.initialOffset(), ALL)
        reader.commit(end)
        assert node.log.consumers() == []


def test_P1_what_was_truncated_before_it_was_read_stops_the_stream(tmp_path: Path) -> None:
    with make_home(tmp_path / "home") as node, reading(path=node.home) as reader:
        grow(node, 10)
        start = reader.initialOffset()
        sweep(node._engine, Ttl(log_ms=0))
        with pytest.raises(Truncated, match=r"offsets 1 to 9 .* of log 'ana'") as error:
            reader.latestOffset(start, ALL)
        assert error.value.first_available == 10


def test_P1_a_restored_log_is_read_again_from_its_first_offset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "home"
    with make_home(home) as node:
        grow(node, 5)
        backup(node, tmp_path / "backup")
        grow(node, 5)
    with reading(path=home, consumer="lake") as reader:
        start = reader.initialOffset()
        middle = reader.latestOffset(start, ReadMaxRows(7))
        end = reader.latestOffset(middle, ALL)
        restore(tmp_path / "backup", home, force=True)
        # Planned in the old epoch, and it cannot be read any more: said, and gone on.
        with caplog.at_level(logging.WARNING, "holdfast"):
            assert rows(reader, middle, end) == []
        assert "offsets 8 to 10 in epoch 1" in caplog.text
        reader.commit(end)
        fresh = reader.latestOffset(end, ALL)
        assert fresh == {"ana": [2, 0]}
        with holdfast.open(home) as node:  # it is waited for in the new epoch too, from the start
            assert [(c.name, c.frontier) for c in node.log.consumers()] == [("lake", 0)]
        assert rows(reader, end, fresh) == []
        last = reader.latestOffset(fresh, ReadMaxRows(3))
        assert rows(reader, fresh, last) == span("ana", 1, 4, epoch=2)
        done = reader.latestOffset(last, ALL)
        assert rows(reader, last, done) == span("ana", 4, 6, epoch=2)
        assert reader.latestOffset(done, ALL) == done
        reader.commit(last)
    with holdfast.open(home) as node:
        assert [(c.name, c.frontier) for c in node.log.consumers()] == [("lake", 3)]


def test_P1_a_log_that_is_shorter_than_what_was_read_is_another_one(tmp_path: Path) -> None:
    with make_home(tmp_path / "home") as node, reading(path=node.home) as reader:
        grow(node, 3)
        with pytest.raises(LogForked, match="ends at offset 3 of epoch 1, but 7 was read"):
            reader.latestOffset({"ana": [1, 7]}, ALL)
        with pytest.raises(LogForked):
            reader.partitions({"ana": [1, 2]}, {"ana": [1, 7]})


def test_P1_logs_come_and_go_between_two_runs(tmp_path: Path) -> None:
    homes = []
    for peer in ("ana", "bob"):
        with make_home(tmp_path / peer, peer) as node:
            grow(node, 3)
        homes.append(str(tmp_path / peer))
    with reading(logs=homes[0]) as reader:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
    with reading(logs=",".join(homes)) as reader:
        both = reader.latestOffset(end, ALL)
        assert both == {"ana": [1, 3], "bob": [1, 0]}
        assert rows(reader, end, both) == []
        more = reader.latestOffset(both, ALL)
        assert rows(reader, both, more) == span("bob", 1, 4)
    with reading(logs=homes[1]) as reader:
        # The one that is not read any more keeps its place.
        assert reader.latestOffset(more, ALL) == more
        assert rows(reader, both, more) == span("bob", 1, 4)
        with pytest.raises(BadInput, match="the checkpoint names log 'ana'"):
            reader.partitions(start, more)


def test_P1_a_stream_begins_where_it_is_told_to(tmp_path: Path) -> None:
    with make_home(tmp_path / "home") as node:
        grow(node, 5)
        for said, expected in (
            ("latest", [1, 5]),
            ("earliest", [1, 0]),
            ('{"ana": [1, 2]}', [1, 2]),
            ('{"bob": [1, 2]}', [1, 0]),
        ):
            with reading(path=node.home, startingOffsets=said, consumer="lake") as reader:
                assert reader.initialOffset() == {"ana": expected}
            assert node.log.consumers()[0].frontier == expected[1]
            node.log.retire("lake")
    for wrong in ("soon", "[1]", '{"ana": 5}', '{"ana": [0, 5]}', '{"ana": [1, -1]}'):
        with pytest.raises(BadInput):
            starting(wrong, {"ana": LogBounds("ana", 1, 1, 5)})


def test_P1_a_reader_that_was_retired_is_registered_where_the_stream_is(tmp_path: Path) -> None:
    with make_home(tmp_path / "home") as node, reading(path=node.home, consumer="lake") as reader:
        grow(node, 5)
        end = reader.latestOffset(reader.initialOffset(), ReadMaxRows(3))
        node.log.retire("lake")
        reader.commit(end)
        assert node.log.consumers()[0].frontier == 3


def test_P1_another_node_at_the_same_address_is_noticed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    make_home(home).close()
    with reading(path=home) as reader:
        reader.initialOffset()
        home.rename(tmp_path / "aside")
        make_home(home, "bob").close()
        with pytest.raises(BadInput, match="another node answers"):
            reader.latestOffset({"ana": [1, 0]}, ALL)


def test_P1_a_batch_is_shared_fairly_among_logs() -> None:
    places = {
        name: LogBounds(name, 1, 1, head) for name, head in (("a", 100), ("b", 3), ("c", 100))
    }
    start = {name: [1, 0] for name in places}
    assert next_offsets(start, places, places, 23) == {"a": [1, 10], "b": [1, 3], "c": [1, 10]}
    assert next_offsets(start, places, places, None) == {"a": [1, 100], "b": [1, 3], "c": [1, 100]}
    late = {"c": [1, 0], "a": [1, 0], "b": [1, 3]}
    assert list(next_offsets(late, places, places, 1)) == ["a", "b", "c"]


def test_P1_partitions_of_a_stream_are_ranges_of_one_log(tmp_path: Path) -> None:
    with make_home(tmp_path / "home") as node:
        grow(node, 10)
        with reading(path=node.home, rowsPerPartition=4) as reader:
            parts = reader.partitions({"ana": [1, 0]}, {"ana": [1, 10]})
    location = str(node.home)
    assert parts == [
        LogRange(location, "ana", 1, 1, 4),
        LogRange(location, "ana", 1, 4, 7),
        LogRange(location, "ana", 1, 7, 11),
    ]
