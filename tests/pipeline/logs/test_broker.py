"""The log of a mesh at a broker, on both stores: everything once, in order, and what is gone is
told.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.pipeline.ingest.plan import IngestPlan, make_plan
from holdfast.pipeline.jobs import sources
from holdfast.pipeline.jobs.sources import log_source, remember, remembered
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.logs.arrow import LOG
from holdfast.pipeline.logs.log import LogBounds, LostOffsets, ReadableLog, open_log
from holdfast.pipeline.source.source import HoldfastSource
from holdfast.pipeline.source.stream import LogStreamReader
from holdfast.rules.broker_rows import MEMBER_GRANTS
from holdfast.rules.errors import (
    BadInput,
    BadToken,
    EpochChanged,
    NotGranted,
    PastEnd,
    Truncated,
    UnknownConsumer,
    Unreachable,
    ZoneNotTrusted,
)
from holdfast.storage.files.home import HomePaths
from support.audited import AWAITED_MS, KEPT_MS, STORES, Audited, audited
from support.live_broker import MESH

NAME = f"hub/{MESH}"


@pytest.fixture(params=STORES)
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Audited]:
    with audited(tmp_path, request.param) as there:
        yield there


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Audited]:
    with audited(tmp_path) as there:
        yield there


def offsets(log: ReadableLog, start: int = 1, stop: int | None = None) -> list[int]:
    place = log.place()
    upto = place.head + 1 if stop is None else stop
    return [
        offset
        for batch in log.batches(place.epoch, start, upto)
        for offset in batch.column("offset").to_pylist()
    ]


def test_P1_a_broker_gives_the_rows_that_a_member_has_in_a_nodes_columns(
    there: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.rules.limits.BROKER_RANGE_ROWS", 2)
    there.write(0, a=1, b=2, c=3)
    there.send("topic", "news")
    there.send("queue", "jobs")
    there.write(1, b=4)
    with closing(there.log()) as log, closing(open_log(str(there.homes[0]))) as home:
        place = log.place()
        assert place == LogBounds(NAME, 1, 1, 6)
        batches = list(log.batches(1, 1, 7))
        assert [batch.num_rows for batch in batches] == [2, 2, 2]
        assert all(batch.schema == LOG for batch in batches)
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert [(row["log"], row["epoch"], row["offset"]) for row in rows] == [
            (NAME, 1, offset) for offset in range(1, 7)
        ]
        own = [
            row for batch in home.batches(1, 1, home.place().head + 1) for row in batch.to_pylist()
        ]
        # When it was recorded, and where, is each one's own.
        same = [name for name in LOG.names if name not in ("log", "epoch", "offset", "recorded_at")]
        assert [[row[name] for name in same] for row in rows[:5]] == [
            [row[name] for name in same] for row in own
        ]
        assert rows[5]["origin"] == "bob"
        assert offsets(log, 3, 5) == [3, 4]
        assert list(log.batches(1, 3, 3)) == []


def test_P1_a_range_that_a_broker_cannot_give_names_the_log_and_the_offsets(
    on_sqlite: Audited,
) -> None:
    on_sqlite.write(0, a=1, b=2)
    with closing(on_sqlite.log()) as log:
        with pytest.raises(PastEnd, match=f"offsets 1 to 3 in epoch 1 of log '{NAME}' at broker"):
            list(log.batches(1, 1, 4))
        with pytest.raises(EpochChanged, match="counts in epoch 1, not 2"):
            list(log.batches(2, 1, 2))
        with pytest.raises(UnknownConsumer):
            log.confirm("nobody", 1, 1)
        log.register("lake", 1)
        with pytest.raises(EpochChanged):
            log.confirm("lake", 2, 1)
        log.confirm("lake", 1, 2)
        assert log.readers() == {"lake": 2}


def test_P1_what_was_confirmed_goes_and_the_rest_is_kept_for_a_while(there: Audited) -> None:
    there.write(0, a=1)
    for number in range(4):
        there.send("topic", "news", b"%d" % number)
    with closing(there.log()) as log:
        log.register("lake", 1)
        assert there.sweep_later(AWAITED_MS - 1000 * 60) == 0
        log.confirm("lake", 1, 3)
        assert there.sweep_later(KEPT_MS) == 2
        assert log.place().lost is None
        # The change stays where it is: no snapshot covers it.
        assert offsets(log) == [1, 4, 5]


def test_P1_what_went_unread_is_an_error_until_the_reader_says_that_it_knows(
    there: Audited,
) -> None:
    there.send("topic", "news", b"before")
    assert there.sweep_later(AWAITED_MS) == 1
    with closing(there.log(consumer="lake")) as log:
        # Nobody could have read it: whoever begins here misses nothing.
        log.register("lake", 1)
        there.send("topic", "news", b"read")
        assert offsets(log) == [2]
        log.confirm("lake", 1, 2)
        there.send("queue", "jobs", b"waits")
        there.send("dm", "bob", b"unread")
        there.write(0, a=1)
        assert there.sweep_later(AWAITED_MS) == 2
        # As a task reads it that was planned before.
        with pytest.raises(Truncated, match="1 of the offsets 4 to 4") as caught:
            list(log.batches(1, 3, 6))
        assert caught.value.first_available == 5
        assert [batch.num_rows for batch in log.batches(1, 5, 6)] == [1]
        assert log.place() == LogBounds(NAME, 1, 1, 5, LostOffsets(4, 4, 1))
        # It knows now; from here on it may pass over it.
        log.register("lake", 1)
        assert offsets(log, 3) == [3, 5]


def test_P1_what_goes_between_the_look_and_the_registration_is_told(on_sqlite: Audited) -> None:
    on_sqlite.send("topic", "news")
    with closing(on_sqlite.log()) as log:
        log.register("lake", 1)
    with closing(on_sqlite.log(consumer="lake")) as log:
        assert log.place().lost is None
        on_sqlite.sweep_later(AWAITED_MS)
        with pytest.raises(Truncated, match="1 of the offsets 1 to 1"):
            log.register("lake", 1)


def test_P1_a_restored_broker_is_read_anew_in_its_new_epoch(on_sqlite: Audited) -> None:
    there = on_sqlite
    there.write(0, a=1, b=2)
    with closing(there.log()) as log:
        assert log.place() == LogBounds(NAME, 1, 1, 2)
        there.broker.run(there.broker.store.new_epoch(MESH, "a test", 1))
        assert log.place() == LogBounds(NAME, 2, 1, 2)
        with pytest.raises(EpochChanged):
            list(log.batches(1, 1, 2))
        assert offsets(log) == [1, 2]


# --- who reads -----------------------------------------------------------------------------------


def test_D15_who_may_not_audit_reads_nothing(on_sqlite: Audited) -> None:
    on_sqlite.write(0, a=1)
    with closing(on_sqlite.log(key_file=str(on_sqlite.homes[0]))) as log, pytest.raises(NotGranted):
        log.place()
    with closing(on_sqlite.log()) as log:
        assert offsets(log) == [1]
        on_sqlite.grant("bob", *MEMBER_GRANTS)
        with pytest.raises(NotGranted):
            list(log.batches(1, 1, 2))


def test_Q11_nothing_that_is_shown_or_sent_of_a_log_holds_the_key(on_sqlite: Audited) -> None:
    seed = HomePaths(on_sqlite.homes[1]).identity.read_bytes()
    with closing(on_sqlite.log(consumer="lake")) as log:
        log.place()
        packed = pickle.dumps(log)
        again = pickle.loads(packed)
        assert again.place() == log.place()
        again.close()
        shown = f"{log!r} {vars(log)}".encode() + packed
    assert seed not in shown
    assert seed.hex().encode() not in shown


def test_P1_the_key_may_lie_in_a_file_of_its_own(on_sqlite: Audited, tmp_path: Path) -> None:
    alone = tmp_path / "auditor.key"
    alone.write_bytes(HomePaths(on_sqlite.homes[1]).identity.read_bytes())
    with closing(on_sqlite.log(key_file=str(alone))) as log:
        assert log.place().head == 0
    for bad, content in (("short", b"x" * 31), ("long", b"x" * 33)):
        (tmp_path / bad).write_bytes(content)
        with closing(on_sqlite.log(key_file=str(tmp_path / bad))) as log:
            with pytest.raises(BadToken, match="is not a key") as caught:
                log.place()
            assert "xxx" not in caught.value.message
    with (
        closing(on_sqlite.log(key_file=str(tmp_path / "nowhere"))) as log,
        pytest.raises(BadToken, match="cannot be read"),
    ):
        log.place()


def test_D15_over_tls_the_broker_is_known_by_its_card(tmp_path: Path) -> None:
    with audited(tmp_path, tls=True) as there:
        there.write(0, a=1)
        with closing(there.log()) as log:  # by the card in the home of the member
            assert offsets(log) == [1]
        alone = tmp_path / "auditor.key"
        alone.write_bytes(HomePaths(there.homes[1]).identity.read_bytes())
        with (
            closing(there.log(key_file=str(alone))) as log,
            pytest.raises(BadInput, match="by which key the broker"),
        ):
            log.place()
        assert there.broker.daemon is not None
        card = there.broker.daemon.broker.identity.card()
        with closing(there.log(key_file=str(alone), card=card)) as log:
            assert offsets(log) == [1]
        other = f"hub:{card.partition(':')[2][:-4]}{'AAAA' if card[-4:] != 'AAAA' else 'BBBB'}"
        with (
            closing(there.log(key_file=str(alone), card=other)) as log,
            pytest.raises((ZoneNotTrusted, BadInput)),
        ):
            log.place()


def test_P1_a_session_that_ended_is_renewed_and_a_broker_that_comes_back_is_asked_again(
    on_sqlite: Audited,
) -> None:
    there = on_sqlite
    there.write(0, a=1, b=2)
    with closing(there.log(retries="3")) as log, closing(there.log(retries="0")) as hasty:
        assert offsets(log) == [1, 2]
        place = log.place()
        there.broker.stop()
        with pytest.raises(Unreachable):
            hasty.place()
        there.broker.start()
        # Its sessions are gone, and the range is asked for before anything else.
        log._bounds = lambda: place  # type: ignore[method-assign]
        assert [batch.num_rows for batch in log.batches(1, 1, 3)] == [2]


@pytest.mark.parametrize(
    "location",
    [
        "broker+https://hub:7421",
        "broker+https://hub:7421/",
        "broker+https://hub:7421/a/b",
        "broker+http://hub:7421/team",
        "broker+https://hub:7421/NOT A MESH",
        "broker+ftp://hub/team",
    ],
)
def test_P1_an_address_that_is_no_mesh_of_a_broker_is_refused(location: str) -> None:
    with pytest.raises(BadInput):
        open_log(location, {"key_file": "/home/of/bob"})


def test_P1_a_broker_without_a_key_says_what_is_missing() -> None:
    with pytest.raises(BadToken) as caught:
        open_log("broker+https://hub:7421/team")
    assert "key_file" in str(caught.value.hint)


# --- in a lake -----------------------------------------------------------------------------------


def test_P1_a_lake_remembers_a_broker_and_no_secret(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    given = log_source("broker+https://hub:7421/team", key_file="keys/bob", card="hub:ed25519:abc")
    remember(lake, [given])
    (known,) = remembered(lake)
    assert known.options() == {"key_file": str(Path("keys/bob").absolute()), "card": given.card}
    for bad in ("broker+https://me:secret@hub:7421/team", "broker+https://hub:7421/team?key=1"):
        with pytest.raises(BadInput):
            sources.log_source(bad)


def planned(there: Audited, lake: Lake, **how: bool) -> IngestPlan:
    with closing(there.log(consumer=lake.consumer)) as log:
        return make_plan(lake, [log], **how)


def test_P1_a_lake_is_told_what_a_broker_lost_and_may_go_on_without(
    on_sqlite: Audited, tmp_path: Path
) -> None:
    there = on_sqlite
    lake = Lake.open(tmp_path / "lake", create=True)
    there.send("topic", "news", b"0")
    there.sweep_later(AWAITED_MS)
    there.send("topic", "news", b"1")
    first = planned(there, lake)
    assert (first.failures, first.gaps, first.rows) == ([], [], 2)
    there.write(0, a=1)
    there.send("topic", "news", b"3")
    there.sweep_later(AWAITED_MS)
    again = planned(there, lake)
    (failure,) = again.failures
    assert isinstance(failure.error, Truncated)
    assert f"2 of the offsets 2 to 4 in epoch 1 of log '{NAME}'" in failure.error.message
    # Nobody said that it knows: it is told until somebody does.
    assert planned(there, lake).failures
    allowed = planned(there, lake, allow_gaps=True)
    assert allowed.failures == []
    (gap,) = allowed.gaps
    assert (gap.key, gap.start, gap.stop, gap.rows) == ((NAME, 1), 2, 5, 2)
    assert [(part.start, part.stop) for part in allowed.stretches[NAME, 1]] == [(1, 5)]
    assert planned(there, lake).failures == []


# --- in a stream ---------------------------------------------------------------------------------


@contextmanager
def reading(there: Audited, **options: Any) -> Iterator[LogStreamReader]:
    given = {"path": there.location, "key_file": str(there.homes[1]), **options}
    found = HoldfastSource({name: str(value) for name, value in given.items()})
    reader = found.streamReader(found.schema())
    assert isinstance(reader, LogStreamReader)
    try:
        yield reader
    finally:
        reader.stop()


def test_P1_a_stream_reads_a_broker_under_a_name(on_sqlite: Audited) -> None:
    with (
        reading(on_sqlite) as reader,
        pytest.raises(BadInput, match="needs a name"),
    ):
        reader.initialOffset()


def test_P1_a_stream_confirms_what_spark_committed_and_is_told_what_went(
    on_sqlite: Audited,
) -> None:
    there = on_sqlite
    limit: Any = object()
    there.send("topic", "news", b"1")
    with reading(there, consumer="lake") as reader:
        begin = reader.initialOffset()
        assert begin == {NAME: [1, 0]}
        end = reader.latestOffset(begin, limit)
        (part,) = reader.partitions(begin, end)
        assert sum(batch.num_rows for batch in reader.read(part)) == 1
        reader.commit(end)
        there.send("topic", "news", b"2")
        following = reader.latestOffset(end, limit)
        assert following == {NAME: [1, 2]}
        there.sweep_later(AWAITED_MS)
        (part,) = reader.partitions(end, following)
        with pytest.raises(Truncated, match="offsets 2 to 2"):
            list(reader.read(part))
    # And the next one that goes on from there, also if the broker has a new epoch.
    there.broker.run(there.broker.store.new_epoch(MESH, "a test", 1))
    with reading(there, consumer="lake") as reader:
        with pytest.raises(Truncated, match="1 of the offsets 2 to 2"):
            reader.latestOffset(end, limit)
        with pytest.raises(Truncated, match="1 of the offsets 2 to 2"):
            reader.latestOffset(end, limit)
