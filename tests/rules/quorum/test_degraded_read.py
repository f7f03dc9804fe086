"""Q9: reads say how fresh they are, and refuse rather than serve what is too old."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.errors import BadChecksum, BadValue, NotFresh, TooStale
from holdfast.rules.limits import SOURCE_TIME_MS_MAX
from holdfast.rules.quorum.degraded_read import (
    check_demand,
    check_snapshot,
    degraded,
    fresh,
    make_snapshot,
)
from holdfast.rules.quorum.moments import moment_text, parse_moment
from holdfast.rules.quorum.write_queue import WriteCounts

COUNTS = WriteCounts(5, 3, 2)
FIELDS = [
    "mode",
    "asOf",
    "sourceNodeId",
    "snapshotVersion",
    "stalenessMs",
    "queueDepth",
    "pendingWriteCount",
    "failedWriteCount",
]


def test_Q9_a_linearizable_read_is_fresh_with_the_fields_of_the_source() -> None:
    record = fresh("ana", 1_000, COUNTS)
    shown = msgspec.json.decode(msgspec.json.encode(record))
    assert list(shown) == FIELDS
    assert list(shown.values()) == ["fresh", "1970-01-01T00:00:01.000Z", "ana", None, 0, 5, 3, 2]


def test_Q9_any_other_read_is_degraded_and_names_its_snapshot() -> None:
    snapshot = make_snapshot("team", "bob", 5_000, {"b": 1, "a": [1.0, "é"]})
    assert snapshot.payload == '{"a":[1,"é"],"b":1}'.encode()
    assert snapshot.version == sha256(snapshot.payload).hexdigest()
    record = degraded(snapshot, 8_000, None, COUNTS)
    assert (record.mode, record.staleness_ms) == ("degraded", 3_000)
    assert (record.source_node_id, record.snapshot_version) == ("bob", snapshot.version)
    assert record.as_of == "1970-01-01T00:00:05.000Z"
    bare = degraded(None, 8_000, 500, COUNTS)
    assert (bare.source_node_id, bare.snapshot_version, bare.staleness_ms) == (None, None, 500)
    assert bare.as_of == "1970-01-01T00:00:07.500Z"


@given(
    captured=st.integers(0, 10**13),
    now=st.integers(10**12, 10**13),
    waited=st.one_of(st.none(), st.integers(0, 10**11)),
)
def test_Q9_staleness_is_never_negative_and_never_less_than_the_wait(
    captured: int, now: int, waited: int | None
) -> None:
    snapshot = make_snapshot("team", "bob", captured, {})
    for record in (
        degraded(snapshot, now, waited, COUNTS),
        degraded(None, now, waited, COUNTS),
    ):
        assert record.staleness_ms >= max(0, waited or 0)
        assert record.mode == "degraded"


def test_Q9_a_demand_that_cannot_be_met_is_an_error_and_no_older_answer() -> None:
    check_demand(linearizable=True, confirmed=True, staleness_ms_max=0, since_confirmed_ms=None)
    with pytest.raises(NotFresh):
        check_demand(
            linearizable=True, confirmed=False, staleness_ms_max=None, since_confirmed_ms=0
        )
    check_demand(
        linearizable=False, confirmed=False, staleness_ms_max=None, since_confirmed_ms=None
    )
    check_demand(linearizable=False, confirmed=False, staleness_ms_max=100, since_confirmed_ms=100)
    with pytest.raises(TooStale):
        check_demand(
            linearizable=False, confirmed=False, staleness_ms_max=100, since_confirmed_ms=101
        )
    with pytest.raises(TooStale):
        check_demand(
            linearizable=False, confirmed=False, staleness_ms_max=100, since_confirmed_ms=None
        )
    with pytest.raises(BadValue):
        check_demand(linearizable=False, confirmed=False, staleness_ms_max=-1, since_confirmed_ms=0)


def test_Q9_a_snapshot_with_another_payload_is_refused() -> None:
    good = make_snapshot("team", "bob", 5_000, {"a": 1})
    assert check_snapshot(good) is good
    with pytest.raises(BadChecksum):
        check_snapshot(msgspec.structs.replace(good, payload=b'{"a":2}'))
    with pytest.raises(BadValue):
        make_snapshot("team", "bob", 5_000, {"a": float("nan")})


@given(st.integers(0, SOURCE_TIME_MS_MAX - 1))
def test_Q9_times_are_written_as_the_source_writes_them(at_ms: int) -> None:
    text = moment_text(at_ms)
    assert parse_moment(text) == at_ms
    assert datetime.fromisoformat(text) == datetime.fromtimestamp(at_ms // 1000, UTC).replace(
        microsecond=at_ms % 1000 * 1000
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "now", "2026-05-17", "2026-05-17 08:30:00Z", "2026-13-01T00:00:00Z"),
        *("1960-01-01T00:00:00Z", "2026-05-17T08:30:00", "2026-05-17T25:30:00Z"),
    ],
)
def test_Q9_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadValue):
        parse_moment(text)


def test_Q9_offsets_are_read_and_times_beyond_the_calendar_refused() -> None:
    assert parse_moment("1970-01-01T02:00:00.1239+02:00") == 123
    for at_ms in (-1, SOURCE_TIME_MS_MAX):
        with pytest.raises(BadValue):
            moment_text(at_ms)
