"""The ranged read: any piece of the log, as often as wanted, as lines or as Arrow."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.node.http.ranges import Ranged
from holdfast.node.settings import Settings
from holdfast.protocol.log_wire import ARROW, NDJSON
from holdfast.rules.filters import Filter
from holdfast.rules.ids import id_text
from holdfast.rules.rows import Columns, Entry
from support.daemon import connect, make_home, running
from support.talk import Talk
from support.waiting import until

BATCH = 10


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    home = make_home(tmp_path / "home", "ana", "team", "other")
    with running(home, Settings(tcp="127.0.0.1:0")) as up:
        yield Talk(up, up.unix)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of ten, so that a short log has several."""
    monkeypatch.setattr("holdfast.node.http.ranges.RANGE_BATCH_ROWS", BATCH)


def fill(talk: Talk, count: int) -> None:
    facts = [
        {
            "subject": f"{'é' if n % 3 else 's'}/{n}",
            "predicate": "is",
            "object": {"n": n, "text": "ä" * (n % 7)},
            "mesh": "team" if n % 2 else "other",
        }
        for n in range(count)
    ]
    answer = talk.ask("POST", "/v1/facts/append", {"facts": facts})
    assert {result["status"] for result in answer.json["results"]} == {201}


def lines(talk: Talk, **query: Any) -> list[dict[str, Any]]:
    answer = talk.range(**query)
    assert (answer.status, answer.headers["content-type"]) == (200, NDJSON)
    return [json.loads(line) for line in answer.body.splitlines()]


def table(talk: Talk, **query: Any) -> pa.Table:
    answer = talk.range(ARROW, **query)
    assert (answer.status, answer.headers["content-type"]) == (200, ARROW)
    with pa.ipc.open_stream(answer.body) as reader:
        return reader.read_all()


def rows(found: pa.Table) -> list[Entry]:
    found.validate(full=True)
    columns = [found.column(name).to_pylist() for name in Entry.__struct_fields__]
    at = Entry.__struct_fields__.index("recorded_at")
    columns[at] = [round(time.timestamp() * 1000) for time in columns[at]]
    return [Entry(*row) for row in zip(*columns, strict=True)]


def offsets(talk: Talk, **query: Any) -> list[int]:
    found: list[int] = table(talk, **query).column("offset").to_pylist()
    assert found == [line["offset"] for line in lines(talk, **query)]
    return found


# --- What is read ------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_Z3_arrow_holds_every_value_of_the_log(talk: Talk) -> None:
    fill(talk, 35)
    talk.api.node.mesh("team").state.set("k", 1)
    found = table(talk)
    assert rows(found) == list(talk.api.node.log.range())
    assert len(found.column("offset").chunks) == 4
    metadata = found.schema.metadata
    assert metadata == {
        b"holdfast.format": b"1",
        b"holdfast.epoch": b"1",
        b"holdfast.peer": b"ana",
    }


@pytest.mark.usefixtures("small")
def test_Z3_lines_hold_what_the_entries_say(talk: Talk) -> None:
    fill(talk, 25)
    found = lines(talk)
    for line, entry in zip(found, talk.api.node.log.range(), strict=True):
        assert (line["offset"], line["id"]) == (entry.offset, id_text(entry.id))
        assert (line["recorded_at"], line["lamport"]) == (entry.recorded_at, entry.lamport)
        assert line["object"]["n"] == entry.offset - 1


@pytest.mark.usefixtures("small")
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 31), st.integers(1, 60))
def test_Z3_a_range_is_half_open_and_ends_at_the_head(talk: Talk, start: int, to: int) -> None:
    if talk.api.node.log.head().offset == 0:
        fill(talk, 30)
    if to < start:
        answer = talk.range("", **{"from": start, "to": to})
        assert (answer.status, answer.code) == (400, "bad_input")
        return
    expected = list(range(start, min(to, 31)))
    assert offsets(talk, **{"from": start, "to": to}) == expected


def test_Z3_an_empty_log_and_an_empty_range_are_whole_streams(talk: Talk) -> None:
    assert offsets(talk) == []
    assert offsets(talk, **{"from": 1}) == []
    fill(talk, 3)
    assert offsets(talk, **{"from": 4}) == []
    assert offsets(talk, **{"from": 2, "to": 2}) == []
    assert offsets(talk, subject="nothing begins so") == []


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("query", "filter"),
    [
        ({"mesh": "team"}, Filter(meshes=("team",))),
        ({"mesh": ["team", "other"]}, Filter(meshes=("team", "other"))),
        ({"subject": "é/1"}, Filter(subjects=("é/1",))),
        ({"subject": ["s/", "k"]}, Filter(subjects=("s/", "k"))),
        ({"class": "state"}, Filter(classes=("state",))),
        (
            {"class": ["facts", "tasks"], "mesh": "team"},
            Filter(classes=("facts",), meshes=("team",)),
        ),
        ({"origin": "ana"}, Filter(origins=("ana",))),
        ({"origin": "bob"}, Filter(origins=("bob",))),
    ],
    ids=str,
)
def test_Z3_a_range_can_be_narrowed(talk: Talk, query: dict[str, Any], filter: Filter) -> None:
    fill(talk, 40)
    for n in range(5):
        talk.api.node.mesh("team").state.set(f"k{n}", n)
    expected = [
        entry.offset
        for entry in talk.api.node.log.range()
        if filter.passes(entry.mesh, entry.op, entry.entity, entry.origin, "")
    ]
    assert offsets(talk, **query) == expected


@pytest.mark.usefixtures("small")
def test_Z3_reading_moves_nobody_and_can_be_repeated_exactly(talk: Talk) -> None:
    fill(talk, 25)
    talk.register()
    before = talk.state()
    first = talk.range(ARROW, **{"from": 5, "to": 20})
    fill(talk, 5)
    again = talk.range(ARROW, **{"from": 5, "to": 20})
    assert first.body == again.body
    assert talk.state()["consumers"] == before["consumers"]


def test_Z3_the_answer_says_where_the_log_stands_and_what_it_covers(talk: Talk) -> None:
    fill(talk, 9)
    talk.truncate(3)
    told = talk.range("", **{"from": 4, "to": 100}).headers
    names = ("epoch", "first", "head", "from", "to")
    assert [told[f"holdfast-{name}"] for name in names] == ["1", "3", "9", "4", "10"]
    head = talk.ask("HEAD", "/v1/facts/range?from=4")
    assert (head.status, head.body, head.headers["holdfast-to"]) == (200, b"", "10")


def test_Z3_a_token_reads_only_its_meshes(talk: Talk) -> None:
    fill(talk, 10)
    secret = talk.api.trust.add_token("spark", reads=["team"])
    spark = Talk(talk.up, talk.up.tcp, secret)
    assert offsets(spark) == offsets(talk, mesh="team")
    refused = spark.range(mesh="other")
    assert (refused.status, refused.code) == (403, "not_granted")
    assert Talk(talk.up, talk.up.tcp).range().status == 401


def test_Z3_times_are_read_as_times(talk: Talk) -> None:
    fill(talk, 1)
    (time,) = table(talk).column("recorded_at").to_pylist()
    assert abs((datetime.now(UTC) - time).total_seconds()) < 3600


# --- What is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize("accept", [ARROW, ""])
def test_Z5_a_range_that_is_gone_is_refused_before_anything_is_sent(
    talk: Talk, accept: str
) -> None:
    fill(talk, 9)
    talk.truncate(5)
    for query in ({"from": 4}, {"from": 1, "to": 3}, {"from": 4, "to": 5}):
        answer = talk.range(accept, **query)
        assert (answer.status, answer.code) == (410, "truncated")
        assert answer.json["error"]["first_available"] == 5
    assert offsets(talk) == [5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({"from": 5}, 409, "past_end"),
        ({"from": 0}, 400, "bad_input"),
        ({"from": "-1"}, 400, "bad_input"),
        ({"from": "1.5"}, 400, "bad_input"),
        ({"from": "٣"}, 400, "bad_input"),
        ({"from": ""}, 400, "bad_input"),
        ({"from": ["1", "2"]}, 400, "bad_input"),
        ({"from": 3, "to": 2}, 400, "bad_input"),
        ({"to": 0}, 400, "bad_input"),
        ({"from": 10**30}, 400, "bad_input"),
        ({"epoch": 2}, 409, "epoch_changed"),
        ({"mesh": "Not A Slug"}, 400, "bad_input"),
        ({"class": "nonsense"}, 400, "bad_input"),
        ({"subject": "a\0b"}, 400, "bad_key"),
        ({"origin": "\x07"}, 400, "bad_peer_id"),
        ({"mesh": [f"m{n}" for n in range(65)]}, 400, "over_limit"),
        ({"form": 1}, 400, "bad_input"),
    ],
    ids=str,
)
def test_Z3_a_range_that_makes_no_sense_is_refused(
    talk: Talk, query: dict[str, Any], status: int, code: str
) -> None:
    fill(talk, 3)
    for accept in ("", ARROW):
        answer = talk.range(accept, **query)
        assert (answer.status, answer.code) == (status, code)


# --- What goes wrong in the middle -------------------------------------------------------------


def stumble(monkeypatch: pytest.MonkeyPatch, after: int, step: Any) -> list[int]:
    """Does something before the batch that follows so many."""
    read: list[int] = []
    real = Ranged.more

    def more(self: Ranged) -> Columns | None:
        if len(read) == after:
            step()
        found = real(self)
        read.append(0 if found is None else len(found.offset))
        return found

    monkeypatch.setattr(Ranged, "more", more)
    return read


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("accept", [ARROW, ""])
def test_Z5_a_log_truncated_while_it_is_read_cuts_the_line(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, accept: str
) -> None:
    """Never a silent skip: neither an end that looks like one, nor a hole in the middle."""
    fill(talk, 45)
    read = stumble(monkeypatch, 2, lambda: talk.truncate(40))
    with pytest.raises(http.client.IncompleteRead) as caught:
        talk.range(accept)
    assert read == [BATCH, BATCH]
    whole = caught.value.partial
    if accept == ARROW:
        assert not whole.endswith(b"\xff\xff\xff\xff\x00\x00\x00\x00")
    else:
        assert len(whole.splitlines()) <= 2 * BATCH


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("accept", [ARROW, ""])
def test_Z3_a_fault_in_the_middle_cuts_the_line_and_the_node_lives_on(
    talk: Talk,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    accept: str,
) -> None:
    fill(talk, 45)

    def fault() -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        stumble(patch, 3, fault)
        with pytest.raises(http.client.IncompleteRead):
            talk.range(accept)
    assert "planted" in caplog.text
    assert offsets(talk) == list(range(1, 46))


@pytest.mark.usefixtures("small")
def test_Z3_what_is_appended_meanwhile_is_not_part_of_it(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(talk, 45)
    stumble(monkeypatch, 2, lambda: talk.api.node.mesh("team").state.set("k", 1))
    assert [line["offset"] for line in lines(talk)] == list(range(1, 46))


# --- Slow readers ------------------------------------------------------------------------------


def ask_and_wait(talk: Talk) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(60)
    line.connect(talk.up.unix.removeprefix("unix:"))
    line.sendall(
        b"GET /v1/facts/range HTTP/1.1\r\nhost: localhost\r\naccept: %s\r\n\r\n" % ARROW.encode()
    )
    return line


def fill_large(talk: Talk, count: int) -> None:
    facts = [
        {"subject": "s", "predicate": "p", "object": "x" * 50_000, "mesh": "team"}
        for _ in range(50)
    ]
    for _ in range(count // 50):
        assert talk.ask("POST", "/v1/facts/append", {"facts": facts}).status == 200


@pytest.mark.usefixtures("small")
def test_Z3_a_slow_reader_does_not_make_us_buffer(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of half a megabyte, a reader that takes nothing: some are on the way, not all."""
    fill_large(talk, 200)
    read = stumble(monkeypatch, -1, None)
    with ask_and_wait(talk) as line:
        until(lambda: len(read) >= 1)
        for _ in range(20):  # time to run ahead in, if it were to
            talk.append(mesh="team")
        assert len(read) <= 3
        with line.makefile("rb") as stream:
            answer = http.client.HTTPResponse(line, method="GET")
            answer.fp = stream
            answer.begin()
            found = pa.ipc.open_stream(answer.read()).read_all()
    assert found.num_rows == 200


@pytest.mark.usefixtures("small")
def test_Z3_a_reader_that_goes_away_is_not_read_for(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_large(talk, 200)
    read = stumble(monkeypatch, -1, None)
    with ask_and_wait(talk):
        until(lambda: len(read) >= 1)
    until(lambda: talk.api.gate.now["call"] == 0)
    assert len(read) < 20


def test_Z3_a_batch_is_bound_in_bytes(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.node.http.ranges.RANGE_BATCH_BYTES", 200_000)
    fill_large(talk, 50)
    read = stumble(monkeypatch, -1, None)
    assert table(talk).num_rows == 50
    assert max(read) <= 5
    assert sum(read) == 50


def test_Z3_many_ranges_are_read_at_the_same_time(talk: Talk) -> None:
    fill(talk, 500)
    whole = talk.range(ARROW).body
    connections = [connect(talk.address) for _ in range(30)]
    for connection in connections:
        connection.request("GET", "/v1/facts/range", headers={"accept": ARROW})
    assert {connection.getresponse().read() for connection in connections} == {whole}
    for connection in connections:
        connection.close()
