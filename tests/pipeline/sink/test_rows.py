"""Rows that become changes: their ids, their values, what is refused. Without Spark itself."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import from_arrow_schema

import holdfast
from holdfast.pipeline.sink.deliver import Delivery, HomeTarget, HttpTarget, RowOutcome
from holdfast.pipeline.sink.ids import UNDATED_MS, base_ms, row_id, write_of
from holdfast.pipeline.sink.rows import Layout
from holdfast.pipeline.sink.sink import BatchSink, PartWritten, stream_writer, writer
from holdfast.rules.errors import (
    BadInput,
    BadToken,
    HoldfastError,
    JobFailed,
    OutcomeUnknown,
    Unreachable,
)
from holdfast.rules.ids import id_text, id_time_ms, parse_id, uuid7
from holdfast.rules.limits import SINK_CHUNK_ROWS
from holdfast.rules.vectors import Model
from support.daemon import make_home, process, running, start
from support.nodes import share

STATE = {"op": "state.set", "mesh": "team", "writeId": "w1"}


def table(**columns: Any) -> pa.Table:
    return pa.table(columns)


def sink(path: str | Path, rows: pa.Table, **options: str) -> BatchSink:
    said = {**STATE, "path": str(path), **options}
    return writer(said, from_arrow_schema(rows.schema), False)


def put(path: str | Path, rows: pa.Table, **options: str) -> PartWritten:
    """Writes a table in one part, as Spark would."""
    one = sink(path, rows, **options)
    message = one.write(iter(rows.to_batches()))
    one.commit([message])
    return message


def head(home: Path) -> int:
    with holdfast.open(home) as node:
        return node.log.head().offset


def values(home: Path) -> dict[str, Any]:
    with holdfast.open(home) as node:
        return {entry.key: entry.value for entry in node.mesh("team").state.list()}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return make_home(tmp_path / "home")


# --- ids ---------------------------------------------------------------------------------------

_PARTS = st.tuples(
    st.text(max_size=5),
    st.integers(0, 3),
    st.text(max_size=3),
    st.text(max_size=3),
    st.text(max_size=3),
    st.binary(max_size=5),
)


def _id(parts: tuple[str, int, str, str, str, bytes]) -> str:
    name, batch, peer, mesh, owner, key = parts
    return row_id(write_of(name, batch, "1000"), peer, mesh, owner, key, 5)


@given(_PARTS, _PARTS)
def test_P8_ids_are_equal_exactly_when_all_that_tells_rows_apart_is(one: Any, other: Any) -> None:
    assert (_id(one) == _id(other)) == (one == other)
    assert id_time_ms(parse_id(_id(one))) == 5


_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.text(st.characters(codec="utf-8"), max_size=4),
            "value": st.none() | st.floats() | st.just(-0.0),
            "tags": st.none() | st.lists(st.text("ab", max_size=2), max_size=2),
        }
    ),
    min_size=1,
    max_size=12,
)
_SCHEMA = pa.schema({"key": pa.string(), "value": pa.float64(), "tags": pa.list_(pa.string())})


def _ids(layout: Layout, rows: list[dict[str, Any]], cut: int) -> list[str]:
    whole = pa.RecordBatch.from_pylist(rows, _SCHEMA)
    write = write_of("w", 0, None)
    parts = [whole.slice(0, cut), whole.slice(cut)]
    return [row.id for part in parts for row in layout.rows(part, write, "ana")]


@given(_ROWS, st.integers(0, 12), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_P8_the_id_of_a_row_does_not_depend_on_where_it_stands(
    rows: list[dict[str, Any]], cut: int, lots: Any
) -> None:
    layout = Layout.of(from_arrow_schema(_SCHEMA), {"op": "memory.set", "mesh": "team"})
    straight = _ids(layout, rows, 0)
    order = list(range(len(rows)))
    lots.shuffle(order)
    shuffled = _ids(layout, [rows[index] for index in order], min(cut, len(rows)))
    # Infinite numbers are refused, and have no id then.
    assert shuffled == [straight[index] for index in order]
    told = [repr(sorted(row.items())) for row in rows]
    good = [(text, id) for text, id in zip(told, straight, strict=True) if id]
    assert len({text for text, _ in good}) == len({id for _, id in good})


def test_P8_named_columns_tell_rows_apart_and_others_do_not() -> None:
    rows = [{"order": 1, "key": "a", "value": 1}, {"order": 1, "key": "a", "value": 2}]
    batch = pa.RecordBatch.from_pylist([*rows, {"order": 2, "key": "a", "value": 2}])
    schema = from_arrow_schema(batch.schema)
    layout = Layout.of(schema, {"op": "state.set", "mesh": "team", "key": "order, key"})
    ids = [row.id for row in layout.rows(batch, write_of("w", 0, None), "ana")]
    assert ids[0] == ids[1] != ids[2]


def test_P8_the_order_of_the_columns_does_not_matter() -> None:
    batch = pa.RecordBatch.from_pylist([{"key": "a", "value": 1, "mesh": "team"}])
    found = set()
    for order in (["key", "value", "mesh"], ["mesh", "value", "key"]):
        turned = batch.select(order)
        layout = Layout.of(from_arrow_schema(turned.schema), {"op": "state.set"})
        found |= {row.id for row in layout.rows(turned, write_of("w", 0, None), "ana")}
    assert len(found) == 1


@pytest.mark.parametrize(
    ("name", "time", "ms"),
    [
        ("w", None, UNDATED_MS),
        ("w", "1970-01-02", 86_400_000),
        ("w", "1970-01-02T01:00:00+01:00", 86_400_000),
        ("w", "17", 17),
        (id_text(uuid7(1234, bytes(10))), None, 1234),
        ("prices-1970-01-02", None, 86_400_000),
        ("scheduled__1970-01-02T00:00:00+00:00", None, 86_400_000),
        ("from 2026-99-99 to 1970-01-02", None, 86_400_000),
        ("12026-01-011", None, UNDATED_MS),
        ("prices-1970-01-02", "5", 5),
    ],
)
def test_P8_the_time_of_ids_follows_from_what_was_said(name: str, time: Any, ms: int) -> None:
    assert base_ms(name, time) == ms
    assert write_of(name, 3, time).at_ms == ms + 3


def test_P8_a_column_says_the_time_of_its_row(home: Path) -> None:
    at = datetime(2026, 11, 15, 10, tzinfo=UTC)
    rows = table(key=["a", "b"], value=[1, 2], time=pa.array([at, None], pa.timestamp("us", "UTC")))
    put(home, rows)
    with holdfast.open(home) as node:
        times = [id_time_ms(entry.id) for entry in node.log.range()]
    assert times == [int(at.timestamp() * 1000), UNDATED_MS]
    long_ago = table(
        key=["c"], value=[1], time=pa.array([datetime(1950, 1, 1)], pa.timestamp("us", "UTC"))
    )
    with pytest.raises(JobFailed, match="bad_value 1"):
        put(home, long_ago)


def test_P8_an_id_that_the_row_brings_is_taken(home: Path) -> None:
    mine = id_text(uuid7(77, bytes(10)))
    put(home, table(id=[mine, None], key=["a", "b"], value=[1, 2]))
    with holdfast.open(home) as node:
        ids = [id_text(entry.id) for entry in node.log.range()]
    assert ids[0] == mine
    assert ids[1] != mine


def test_P8_two_nodes_never_get_the_same_id_from_the_same_rows(tmp_path: Path) -> None:
    rows = table(key=["a"], value=[1])
    found = set()
    for peer in ("ana", "bea"):
        home = make_home(tmp_path / peer, peer)
        put(home, rows)
        with holdfast.open(home) as node:
            found |= {entry.id for entry in node.log.range()}
    assert len(found) == 2


# --- values ------------------------------------------------------------------------------------

_AT = datetime(2026, 11, 15, 10, 0, 0, 250_000)
_VALUES: list[tuple[str, Any, Any, Any]] = [
    ("text", pa.string(), "é{", "é{"),
    ("null", pa.string(), None, None),
    ("bool", pa.bool_(), True, True),
    ("long", pa.int64(), -(2**63), -(2**63)),
    ("double", pa.float64(), 0.1, 0.1),
    ("float", pa.float32(), 0.1, 0.1),
    ("whole decimal", pa.decimal128(38, 0), Decimal(10**37), 10**37),
    (
        "decimal",
        pa.decimal128(38, 3),
        Decimal("12345678901234567890.100"),
        "12345678901234567890.100",
    ),
    ("date", pa.date32(), date(2026, 11, 15), "2026-11-15"),
    ("instant", pa.timestamp("us", "UTC"), _AT, "2026-11-15T10:00:00.250000Z"),
    ("local time", pa.timestamp("us"), _AT, "2026-11-15T10:00:00.250000"),
    ("bytes", pa.binary(), b"\0\xff", "AP8="),
    ("list", pa.list_(pa.float32()), [0.1, None], [0.1, None]),
    ("map", pa.map_(pa.string(), pa.date32()), [("a", date(2026, 1, 1))], {"a": "2026-01-01"}),
    (
        "struct",
        pa.struct({"a": pa.int32(), "b": pa.list_(pa.struct({"c": pa.binary()}))}),
        {"a": None, "b": [{"c": b"x"}, None]},
        {"a": None, "b": [{"c": "eA=="}, None]},
    ),
]


def test_P8_values_of_every_type_arrive_as_json_says_them(home: Path) -> None:
    for name, kind, value, _ in _VALUES:
        put(home, table(key=[name], value=pa.array([value], kind)), writeId=name)
    assert values(home) == {name: expected for name, _, _, expected in _VALUES}


def test_P8_text_is_text_unless_it_is_said_to_be_json(home: Path) -> None:
    put(home, table(key=["text"], value=['{"a":1}']))
    put(home, table(key=["json"], value=['{"a":1}']), valueFormat="json", writeId="w2")
    assert values(home) == {"text": '{"a":1}', "json": {"a": 1}}
    for broken in ("{", '{"a":1,"a":2}', "NaN", ""):
        with pytest.raises(JobFailed, match=r"bad_value 1 .*not JSON"):
            put(home, table(key=["x"], value=[broken]), valueFormat="json", writeId="w3")


@pytest.mark.parametrize("through", ["home", "daemon"])
def test_P8_rows_of_every_family_are_written(home: Path, through: str) -> None:
    task = id_text(uuid7(1, bytes(10)))
    rows: list[dict[str, Any]] = [
        {"op": "state.set", "entity": "k", "value": "v", "meta": {"why": "so"}},
        {"op": "memory.set", "entity": "k", "value": "v", "tags": ["t"], "owner": "ana"},
        {"op": "vector.store", "entity": "k", "embedding": [1.0, 0.5], "content": "text"},
        {"op": "fact.append", "entity": "s", "predicate": "is", "object": None},
        {"op": "file.share", "entity": "a.txt", "data": b"\0content"},
        {"op": "task.create", "id": task, "title": "do it"},
        {"op": "task.cancel", "entity": task},
        {"op": "state.delete", "entity": "k"},
    ]
    schema = pa.schema(
        {
            **dict.fromkeys(("op", "id", "entity", "owner", "predicate"), pa.string()),
            **dict.fromkeys(("content", "title", "value", "object"), pa.string()),
            "tags": pa.list_(pa.string()),
            "meta": pa.map_(pa.string(), pa.string()),
            "embedding": pa.list_(pa.float64()),
            "data": pa.binary(),
        }
    )
    for row in rows:
        if "meta" in row:
            row["meta"] = list(row["meta"].items())
    whole = pa.Table.from_pylist(rows, schema)
    said = {"mesh": "team", "writeId": "w", "provider": "p", "model": "m", "version": "1"}

    def written(path: str) -> PartWritten:
        one = writer({**said, "path": path}, from_arrow_schema(schema), False)
        # Sliced, because Arrow's offsets of a slice do not begin at zero.
        message = one.write(iter([whole.to_batches()[0].slice(0, 1), whole.to_batches()[0][1:]]))
        one.commit([message])
        return message

    if through == "home":
        assert written(str(home)).new == len(rows)
    else:
        with running(home) as up:
            assert written(up.unix).new == len(rows)
            assert written(up.unix).repeated == len(rows)
    with holdfast.open(home) as node:
        mesh = node.mesh("team")
        assert list(mesh.state.list()) == []
        assert [m.value for m in mesh.memory.recall("k", scope="self")] == ["v"]
        model = Model(provider="p", name="m", version="1", dim=2)
        (hit,) = mesh.vectors.search([1.0, 0.5], model=model)
        assert (hit.key, hit.content, hit.distance) == ("k", "text", 0.0)
        assert mesh.files.read("a.txt") == b"\0content"
        assert [(t.title, t.status.value) for t in mesh.tasks.list()] == [("do it", "cancelled")]


def test_P8_vectors_come_as_numbers_or_packed_and_are_packed_alike(home: Path) -> None:
    packed = pa.array([1.0, 0.5, math.nan, 1e300, 2.0], pa.float64())
    lists = pa.ListArray.from_arrays([0, 2, 2, 3, 4, 5], packed)
    rows = table(key=["a", "empty", "nan", "far", "b"], embedding=lists).slice(0, 5)
    with pytest.raises(JobFailed, match="bad_vector 3"):
        put(home, rows, op="vector.store", provider="p", model="m")
    binary = table(key=["c"], embedding=pa.array([b"\0\0\x80\x3f\0\0\0\x3f"], pa.binary()))
    put(home, binary, op="vector.store", provider="p", model="m", writeId="w2")
    with holdfast.open(home) as node:
        hits = node.mesh("team").vectors.search(
            [1.0, 0.5], model=Model(provider="p", name="m", dim=2)
        )
    assert [(hit.key, hit.distance) for hit in hits] == [("a", 0.0), ("c", 0.0)]


def test_P8_vectors_of_bytes_and_bits_come_as_integers_or_packed(home: Path) -> None:
    model = {"op": "vector.store", "provider": "p", "model": "m"}
    lists = pa.array([[1, -128], [3, 4], [300, 0]], pa.list_(pa.int16()))
    with pytest.raises(JobFailed, match="bad_vector 1"):
        put(home, table(key=["a", "b", "far"], embedding=lists), **model, quantization="int8")
    binary = table(key=["c"], embedding=pa.array([b"\x01\x00"], pa.binary()))
    put(home, binary, **model, quantization="int8", writeId="w2")
    mixed = table(key=["d"], embedding=pa.array([[0, 1] * 4]), quantization=["binary"])
    put(home, mixed, **model, writeId="w3")
    with holdfast.open(home) as node:
        vectors = node.mesh("team").vectors
        small = Model(provider="p", name="m", dim=2, quantization="int8")
        hits = vectors.search([1, 0], model=small)
        assert [(hit.key, hit.distance) for hit in hits] == [
            *(("c", 0.0), ("b", pytest.approx(20**0.5)), ("a", 128.0)),
        ]
        bits = Model(provider="p", name="m", dim=8, quantization="binary")
        assert [hit.distance for hit in vectors.search(b"\x55", model=bits)] == [0.0]


def test_P8_vectors_are_cut_out_right_wherever_a_batch_was_sliced(home: Path) -> None:
    lists = pa.array([[9.0, 9.0], None, [1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32()))
    whole = pa.RecordBatch.from_pydict({"key": ["x", "y", "a", "b"], "embedding": lists})
    one = sink(home, pa.Table.from_batches([whole]), op="vector.store", provider="p", model="m")
    assert one.write(iter([whole.slice(2, 1), whole.slice(3)])).new == 2
    with holdfast.open(home) as node:
        mesh, model = node.mesh("team"), Model(provider="p", name="m", dim=2)
        found = {hit.key: hit.distance for hit in mesh.vectors.search([1.0, 2.0], model=model)}
    assert found == {"a": 0.0, "b": pytest.approx(8**0.5)}


# --- once --------------------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["home", "daemon"])
def test_P8_a_repeated_write_is_a_no_op(home: Path, through: str) -> None:
    count = SINK_CHUNK_ROWS + 7
    rows = table(key=[f"k{n}" for n in range(count)], value=list(range(count)))

    def twice(path: str) -> None:
        first = put(path, rows)
        assert (first.new, first.repeated) == (count, 0)
        # Half of it first, as after a task that died, and in another order.
        again = put(path, rows.take(list(reversed(range(count)))))
        assert (again.new, again.repeated) == (0, count)

    if through == "home":
        twice(str(home))
    else:
        with running(home) as up:
            twice(up.unix)
    assert head(home) == count
    put(home, rows.slice(0, 3), writeId="another")
    assert head(home) == count + 3


def test_P8_rows_that_share_a_key_are_one_row_or_told_apart(home: Path) -> None:
    same = table(key=["a", "a"], value=[1, 1])
    assert put(home, same).repeated == 1
    other = table(n=[1, 1], key=["b", "b"], value=[1, 2])
    with pytest.raises(JobFailed, match="1 rows are new, 0 were there, 1 were refused: id_reused"):
        put(home, other, key="n", writeId="w2")
    assert values(home) == {"a": 1, "b": 1}
    owners = table(n=[1, 1], key=["c", "c"], value=[1, 1], owner=["bea", "carl"])
    with pytest.raises(JobFailed, match="2 were refused: not_ours 2"):
        put(home, owners, key="n", writeId="w3", op="memory.set")


# --- refused rows ------------------------------------------------------------------------------

MIXED = pa.table(
    {
        "key": ["good", "", "x", "y", "fine", ""],
        "value": [1.0, 2.0, math.nan, 4.0, 5.0, 6.0],
        "mesh": ["team", "team", "team", "nowhere", "team", "team"],
    }
)


def put_mixed(path: str | Path, rows: pa.Table = MIXED, **options: str) -> PartWritten:
    said = {"op": "state.set", "writeId": "w/ü", "path": str(path), **options}
    one = writer(said, from_arrow_schema(rows.schema), False)
    message = one.write(iter(rows.to_batches()))
    one.commit([message])
    return message


@pytest.mark.parametrize("through", ["home", "daemon"])
def test_P8_refused_rows_are_told_with_reasons_and_the_others_are_in(
    home: Path, through: str
) -> None:
    with ExitStack() as stack:
        path = str(home) if through == "home" else stack.enter_context(running(home)).unix
        with pytest.raises(JobFailed) as raised:
            put_mixed(path)
    said = raised.value.message
    assert "2 rows are new, 0 were there, 4 were refused: bad_key 2 (the key is empty" in said
    assert "unknown_mesh 1 (there is no mesh 'nowhere'" in said
    assert 'bad_value 1 (the number nan is not JSON [row {"key":"x","value":"nan"' in said
    assert values(home) == {"good": 1.0, "fine": 5.0}


def test_P8_refused_rows_are_kept_in_a_folder_until_they_are_put_right(
    home: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "refused"
    message = put_mixed(home, refused=str(folder))
    assert (message.new, message.refused) == (
        2,
        {"bad_key": 2, "bad_value": 1, "unknown_mesh": 1},
    )
    (file,) = folder.rglob("*.jsonl")
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted((line["reason"], line["row"]["value"]) for line in kept) == [
        ("bad_key", 2.0),
        ("bad_key", 6.0),
        ("bad_value", "nan"),
        ("unknown_mesh", 4.0),
    ]
    assert all(line["message"] for line in kept)
    before = file.read_bytes()
    again = put_mixed(home, refused=str(folder))
    assert (again.new, again.repeated, again.refused) == (0, 2, message.refused)
    assert [path.read_bytes() for path in folder.rglob("*.jsonl")] == [before]
    stale = file.with_name("batch-000000000-part-00007.jsonl")
    other = file.with_name("batch-000000001-part-00000.jsonl")
    stale.write_text("{}")
    other.write_text("{}")
    with holdfast.open(home) as node:
        node.create_mesh("nowhere")
    right = MIXED.slice(3, 2)
    said = {"op": "state.set", "writeId": "w/ü", "path": str(home), "refused": str(folder)}
    one = writer(said, from_arrow_schema(right.schema), False)
    message = one.write(iter(right.to_batches()))
    assert sorted(folder.rglob("*.jsonl")) == sorted([stale, other])
    one.commit([message])
    assert sorted(folder.rglob("*.jsonl")) == [other]
    assert head(home) == 3


@pytest.mark.parametrize("through", ["home", "daemon"])
def test_P8_a_row_that_would_be_a_message_is_refused_and_nobody_gets_it(
    home: Path, through: str
) -> None:
    """A mesh that has a broker would send it at once."""
    with holdfast.open(home) as node:
        share(node, "team")
    rows = pa.table(
        {
            "op": ["state.set", "message.send", "message.send"],
            "entity": ["k", "topic/news", None],
            "value": [1, None, None],
            "content": [None, "to all", "to nobody"],
        }
    )
    said = {"mesh": "team", "writeId": "w1"}
    with ExitStack() as stack:
        path = str(home) if through == "home" else stack.enter_context(running(home)).unix
        one = writer({**said, "path": path}, from_arrow_schema(rows.schema), False)
        message = one.write(iter(rows.to_batches()))
        with pytest.raises(JobFailed, match=r"bad_input 2 \(message\.send cannot be written"):
            one.commit([message])
    assert (message.new, message.refused) == (1, {"bad_input": 2})
    with holdfast.open(home) as node:
        assert [entry.op for entry in node.log.range()] == ["state.set"]


# --- a node that goes away ---------------------------------------------------------------------


def test_P8_a_daemon_that_is_killed_and_comes_back_gets_every_row_once(home: Path) -> None:
    rows = [
        pa.RecordBatch.from_pylist(
            [{"key": f"{n}/{m}", "value": m} for m in range(SINK_CHUNK_ROWS)]
        )
        for n in range(4)
    ]
    with process(home) as up:
        address = up.unix
        again: list[Any] = []

        def batches() -> Iterator[pa.RecordBatch]:
            yield rows[0]
            yield rows[1]
            up.kill()  # what was sent is answered; what comes next finds nobody
            threading.Timer(0.3, lambda: again.append(start(home))).start()
            yield from rows[2:]

        one = sink(address, pa.Table.from_batches(rows))
        message = one.write(batches())
    (back,) = again
    try:
        assert message.new == 4 * SINK_CHUNK_ROWS
    finally:
        back.terminate()
        back.communicate(timeout=60)
    assert head(home) == 4 * SINK_CHUNK_ROWS


class Unlucky:
    """A node whose answers get lost, one way after the other."""

    location = "unlucky"

    def __init__(self, real: HomeTarget, troubles: Sequence[HoldfastError | str]) -> None:
        self._real, self._troubles = real, list(troubles)

    def peer(self) -> str:
        return self._real.peer()

    def send(self, lines: Sequence[bytes]) -> list[RowOutcome]:
        trouble = self._troubles.pop(0) if self._troubles else None
        if isinstance(trouble, Unreachable):
            raise trouble
        if trouble == "one is busy":
            came = self._real.send(lines[1:])
            return [RowOutcome(503, False, "store_busy", "another process writes"), *came]
        came = self._real.send(lines)
        if isinstance(trouble, HoldfastError):
            raise trouble
        return came

    def close(self) -> None:
        self._real.close()


def _lines(count: int) -> list[bytes]:
    return [
        msgspec.json.encode(
            {
                "op": "state.set",
                "mesh": "team",
                "entity": f"k{n}",
                "value": n,
                "id": id_text(uuid7(n, bytes(10))),
            }
        )
        for n in range(count)
    ]


def test_P8_whatever_was_lost_on_the_way_is_sent_again_under_the_same_ids(home: Path) -> None:
    waits: list[float] = []
    outlet = Unlucky(
        HomeTarget(str(home)),
        [Unreachable("nobody"), OutcomeUnknown("who knows"), "one is busy", "one is busy"],
    )
    delivery = Delivery(outlet, wait=waits.append, clock=lambda: sum(waits), lot=lambda: 0.5)
    came = delivery.send(_lines(5))
    outlet.close()
    # All were in after the lost answer; from then on they are repeats.
    assert [one.is_in for one in came] == [True] * 5
    assert [one.duplicate for one in came] == [True] * 5
    assert len(waits) == 4
    assert head(home) == 5


def test_P8_patience_ends_when_nothing_gets_through_and_not_before(home: Path) -> None:
    waits: list[float] = []
    lines = _lines(3)

    def deliver(troubles: Sequence[HoldfastError | str]) -> list[RowOutcome]:
        outlet = Unlucky(HomeTarget(str(home)), troubles)
        try:
            return Delivery(
                outlet, 10, wait=waits.append, clock=lambda: sum(waits), lot=lambda: 0.99
            ).send(lines)
        finally:
            outlet.close()

    with pytest.raises(JobFailed, match="unlucky gave no answer within 10 s when 3 rows"):
        deliver([Unreachable("nobody")] * 50)
    assert sum(waits) == pytest.approx(10)
    assert head(home) == 0
    with pytest.raises(BadToken):
        deliver([BadToken("no")])


def test_P8_who_waits_for_a_node_can_be_called_off(tmp_path: Path) -> None:
    delivery = Delivery(HttpTarget(f"unix:{tmp_path}/nobody.sock", None), 3600)
    threading.Timer(0.1, delivery.close).start()
    with pytest.raises(JobFailed, match="broken off when its name was asked for"):
        delivery.peer()


def test_P8_a_node_that_is_not_there_fails_the_task_by_name(tmp_path: Path) -> None:
    rows = table(key=["a"], value=[1])
    address = f"unix:{tmp_path}/nobody.sock"
    with pytest.raises(JobFailed, match=r"nobody\.sock gave no answer"):
        sink(address, rows, retrySeconds="0").write(iter(rows.to_batches()))
    assert sink(address, rows).write(iter([])) == PartWritten(0)
    with pytest.raises(HoldfastError, match="nowhere"):
        sink(tmp_path / "nowhere", rows).write(iter(rows.to_batches()))


def test_P8_a_home_beside_the_driver_is_found_from_everywhere(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = table(key=["a", ""], value=[1, 2])
    monkeypatch.chdir(tmp_path)
    one = sink("home", rows, refused="refused")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert one.write(iter(rows.to_batches())).new == 1
    assert len(list((tmp_path / "refused").rglob("*.jsonl"))) == 1


# --- what is refused before anything is written -------------------------------------------------

_KEY_VALUE = spark.StructType().add("key", "string").add("value", "long")


@pytest.mark.parametrize(
    ("schema", "options", "match"),
    [
        ("key string, value long", {"writeId": None}, "needs the option writeId"),
        ("key string, value long", {"writeId": ""}, "needs the option writeId"),
        ("key string, value long", {"path": None}, "no node"),
        ("key string, value long", {"path": "s3://bucket"}, "no node"),
        ("key string, value long", {"op": None}, "nothing says the op"),
        ("key string, value long", {"mesh": None}, "nothing says the mesh"),
        ("key string, value long", {"op": "state.put"}, "no op 'state.put'"),
        ("key string, content string", {"op": "message.send"}, "message.send cannot be written"),
        ("key string, value long, mesh string", {}, "mesh is an option and a column"),
        ("key string, value long, price long", {}, "no column price"),
        ("key string, value long", {"key": "price"}, "names no column"),
        ("key string, subject string, value long", {}, "key and subject"),
        ("key long, value long", {}, "key is bigint and should be text"),
        ("key string, value interval day", {}, "which JSON cannot say"),
        ("key string, value map<int,int>", {}, "which JSON cannot say"),
        ("key string, value struct<a:array<variant>>", {}, "value.a is variant"),
        ("key string, embedding string", {}, "embedding is string"),
        ("key string, data string", {}, "data is string"),
        ("key string, tags string", {}, "tags is string"),
        ("key string, value long, time string", {}, "time is string"),
        ("key string, value long", {"time": "noon"}, "time is 'noon'"),
        ("key string, value long", {"valueFormat": "xml"}, "valueFormat is 'xml'"),
        ("key string, value long", {"retrySeconds": "soon"}, "retrySeconds is 'soon'"),
        ("key string, value long", {"dim": "two"}, "dim is 'two'"),
    ],
)
def test_P8_what_cannot_be_right_is_refused_before_the_first_row(
    schema: str, options: dict[str, str | None], match: str
) -> None:
    said = {**STATE, "path": "/home", **options}
    given_options = {name: value for name, value in said.items() if value is not None}
    columns = spark.StructType()
    for part in schema.split(", "):
        name, kind = part.split(" ", 1)
        columns = columns.add(name, _type(kind))
    with pytest.raises(BadInput, match=match):
        writer(given_options, columns, False)


def _type(kind: str) -> spark.DataType:
    special = {
        "interval day": spark.DayTimeIntervalType(0, 0),
        "map<int,int>": spark.MapType(spark.IntegerType(), spark.IntegerType()),
        "struct<a:array<variant>>": spark.StructType().add(
            "a", spark.ArrayType(spark.VariantType())
        ),
        "string": spark.StringType(),
        "long": spark.LongType(),
    }
    return special[kind]


def test_P8_a_log_is_never_overwritten_and_a_stream_is_named_by_its_query() -> None:
    options = {**STATE, "path": "/home"}
    with pytest.raises(BadInput, match="never overwritten"):
        writer(options, _KEY_VALUE, True)
    with pytest.raises(BadInput, match="drop writeId"):
        stream_writer(options, _KEY_VALUE, False)
