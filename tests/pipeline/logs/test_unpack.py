"""What stands in the bytes, as columns; and what is wrong with bytes that are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from holdfast.pipeline.lake import schema
from holdfast.pipeline.logs.arrow import LOG
from holdfast.pipeline.logs.log import open_log
from holdfast.pipeline.logs.unpack import ENVELOPE, decode_header
from holdfast.rules.bodies import VectorStore
from holdfast.rules.envelope import decode
from holdfast.rules.ids import id_text
from support import envelopes
from support.envelopes import changed, make_id
from support.keeping import MODEL, fill, make_home, team


def batch_of(raws: list[bytes], **columns: list[Any]) -> pa.RecordBatch:
    """A log with these envelopes, whose own columns say what the bytes do unless told otherwise."""

    def said(name: str, raw: bytes) -> Any:
        try:
            envelope = msgspec.msgpack.decode(raw)
            return dict(zip(("id", "mesh", "op", "entity"), envelope[2:6], strict=True))[name]
        except (msgspec.DecodeError, TypeError, ValueError):
            return bytes(16) if name == "id" else "?"

    def number(raw: bytes) -> int:
        try:
            return int(msgspec.msgpack.decode(raw)[10])
        except (msgspec.DecodeError, TypeError, LookupError):
            return 1

    count = len(raws)
    values: dict[str, list[Any]] = {
        "log": ["ana"] * count,
        "epoch": [1] * count,
        "offset": list(range(1, count + 1)),
        "id": [id_text(said("id", raw)) for raw in raws],
        "mesh": [said("mesh", raw) for raw in raws],
        "op": [said("op", raw) for raw in raws],
        "entity": [said("entity", raw) for raw in raws],
        "origin": ["bob"] * count,
        "lamport": [number(raw) for raw in raws],
        "recorded_at": [1_700_000_000_000_000] * count,
        "raw": raws,
        **columns,
    }
    return pa.RecordBatch.from_pydict(values, schema=LOG)


def problems(raws: list[bytes], **columns: list[Any]) -> list[str | None]:
    batch = batch_of(raws, **columns)
    found = decode_header(batch)
    found.validate(full=True)
    for name in LOG.names:
        assert found.column(name) == batch.column(name), "a row keeps its place and its bytes"
    told: list[str | None] = found.column("problem").to_pylist()
    for row, problem in zip(found.to_pylist(), told, strict=True):
        header = [row[field.name] for field in schema.HEADER.fields]
        assert problem is None or header == [None] * len(header)
    return told


def test_P1_the_columns_of_envelopes_are_those_that_spark_is_told_of() -> None:
    assert to_arrow_schema(schema.ENVELOPE, timezone="UTC") == ENVELOPE


def test_P1_every_field_of_every_family_is_unpacked(tmp_path: Path) -> None:
    with make_home(tmp_path / "home") as node:
        fill(team(node), 3)
        team(node).vectors.delete("vector-1", model=MODEL)
        team(node).facts.append("s", "is", 1, meta={"ä": ["\u2028", 2]})
    log = open_log(str(tmp_path / "home"))
    place = log.place()
    (batch,) = log.batches(1, 1, place.head + 1)
    found = decode_header(batch)
    found.validate(full=True)
    assert found.column("problem").null_count == found.num_rows == place.head
    for row in found.to_pylist():
        envelope = decode(row["raw"])
        base = envelope.base
        assert (row["owner"], row["origin_epoch"], row["seq"]) == (
            *(envelope.owner, envelope.epoch, envelope.seq),
        )
        assert round(row["created_at"].timestamp() * 1000) == envelope.created_at
        assert (row["write_class"], row["state"]) == (envelope.write_class, envelope.state)
        assert row["base_lamport"] == (base.lamport if base else None)
        assert row["base_peer"] == (base.peer if base else None)
        assert row["fingerprint"] == envelope.fingerprint
        assert row["meta"] == (envelope.meta.decode() or None)
        is_vector = row["op"].startswith("vector.")
        assert row["model"] == (MODEL.fingerprint if is_vector else "")
    ops = set(found.column("op").to_pylist())
    assert {"vector.delete", "state.delete", "task.claim", "fact.append"} <= ops


def test_P1_vectors_of_bytes_and_bits_are_unpacked_and_those_that_do_not_fit_are_named() -> None:
    def stored(quantization: str, dim: int, embedding: bytes) -> bytes:
        body = VectorStore("p", "m", "1", dim, quantization, embedding)
        return envelopes.raw("vector.store", "k", body, owner="ana")

    raws = [
        *(stored("int8", 3, b"abc"), stored("binary", 24, b"abc")),
        *(stored("int8", 3, bytes(12)), stored("binary", 24, bytes(24))),
        *(stored("binary", 3, b"a"), stored("int4", 3, b"ab")),
    ]
    told = problems(raws)
    assert told[:2] == [None, None]
    assert all("bad_vector" in (one or "") for one in told[2:]), told


def test_P1_bytes_that_cannot_be_read_are_named_and_kept() -> None:
    good = envelopes.state_set("k", 1)
    assert problems([good]) == [None]
    raws = [b"", b"\xc1", good[:-3], good + b"\0", b"\x90", msgspec.msgpack.encode({"a": 1}), good]
    told = problems(raws)
    assert told[-1] is None
    assert all(problem and problem.startswith("bad_envelope: ") for problem in told[:-1])


def test_P1_another_major_version_is_told_as_such_whatever_its_fields() -> None:
    future = msgspec.msgpack.encode(["holdfast", "2.0", {"all": "new"}])
    near = changed(envelopes.state_set("k", 1), version="2.7")
    minor = changed(envelopes.state_set("k", 1), version="1.9")
    other = changed(envelopes.state_set("k", 1), protocol="else")
    told = problems([future, near, minor, other])
    assert told[0] == "unsupported_protocol: version '2.0' is not of major version 1"
    assert told[1] == "unsupported_protocol: version '2.7' is not of major version 1"
    assert told[2] is None
    assert told[3]
    assert told[3].startswith("unsupported_protocol: ")


def test_P1_impossible_stamps_and_broken_bodies_are_problems() -> None:
    good = envelopes.state_set("k", 1)
    raws = [
        changed(good, lamport=0),
        changed(good, seq=0),
        changed(good, created_at=2**60),
        changed(good, body=b"\xc1"),
        envelopes.state_set("k", 1, owner="bob"),
        changed(good, body=msgspec.msgpack.encode([b"{broken"])),
        changed(good, meta=b"\xff"),
        changed(good, id=make_id(5)[:15]),
    ]
    codes = [problem and problem.partition(":")[0] for problem in problems(raws)]
    assert codes == [
        *("bad_envelope", "bad_envelope", "bad_stamp", "bad_envelope", "bad_envelope"),
        *("bad_value", "bad_envelope", "bad_id"),
    ]


def test_P1_a_message_is_held_to_the_rules_of_the_door() -> None:
    good = envelopes.message_send("topic", "news", b"to all", meta=b'{"a":1}', priority="now")
    raws = [
        changed(good, priority="low"),
        changed(good, reply_to="x"),
        changed(good, to=("queue", "news")),
        changed(good, to=None),
        changed(good, body=msgspec.msgpack.encode([b"to some", ""])),
    ]
    told = problems([good, *raws])
    assert told[0] is None
    assert all(problem and problem.startswith("bad_envelope: ") for problem in told[1:])


def test_P1_an_op_of_a_later_version_is_no_problem() -> None:
    later = changed(envelopes.state_set("k", 1), op="state.increment", body=b"anything")
    found = decode_header(batch_of([later]))
    assert found.column("problem").to_pylist() == [None]
    assert found.column("state").to_pylist() == ["committed"]
    assert found.column("model").to_pylist() == [""]


@pytest.mark.parametrize(
    ("name", "value"),
    [("id", id_text(make_id(1))), ("mesh", "x"), ("op", "x"), ("entity", "x"), ("origin", "x")],
)
def test_P1_a_log_that_says_something_else_than_the_bytes_is_found_out(
    name: str, value: str
) -> None:
    raws = [envelopes.state_set("k", n) for n in range(3)]
    honest = batch_of(raws).column(name).to_pylist()
    told = problems(raws, **{name: [honest[0], value, honest[2]]})
    assert told == [None, f"bad_envelope: the log says another {name} than the envelope", None]
    assert problems(raws[:1], lamport=[7]) == [
        "bad_envelope: the log says another lamport than the envelope"
    ]


def test_P1_an_empty_batch_unpacks_to_an_empty_one() -> None:
    assert decode_header(batch_of([])).num_rows == 0
