"""Whatever a node takes, from a caller or from others, the lake can hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.node.library.node import Mesh
from holdfast.pipeline.fold.decode import body_columns
from holdfast.pipeline.lake.schema import FAMILY_OF, SILVER
from holdfast.pipeline.logs.arrow import LOG
from holdfast.pipeline.logs.log import open_log
from holdfast.pipeline.logs.unpack import decode_header
from holdfast.rules import envelope as envelope_rules
from holdfast.rules.arrivals import Arrived, header_of, read_arrivals
from holdfast.rules.bodies import OPS, family_of
from holdfast.rules.errors import BadId, BadInput
from holdfast.rules.idempotency import id_of_key
from holdfast.rules.ids import id_text, parse_id
from holdfast.rules.limits import SOURCE_TIME_MS_MAX
from holdfast.rules.message import check_arriving
from support import envelopes
from support.envelopes import make_id
from support.keeping import fill, make_home, team
from support.odd_envelopes import every_change, one_of_each, random_envelope

TOO_LATE = id_text(make_id(1, SOURCE_TIME_MS_MAX))
LAST = id_text(make_id(1, SOURCE_TIME_MS_MAX - 1))


def taken(raws: list[bytes]) -> list[Arrived]:
    """What a node would write into its log of these."""
    return [
        header
        for arrival in read_arrivals(raws)
        if isinstance(arrival, tuple) or arrival.error is None
        if (header := header_of(arrival)) is not None
    ]


def check_held(headers: list[Arrived]) -> None:
    rows = [
        {
            **{"log": "ana", "epoch": 1, "offset": offset, "id": id_text(id), "mesh": mesh},
            **{"op": op, "entity": entity, "origin": origin, "lamport": lamport},
            **{"recorded_at": 0, "raw": raw},
        }
        for offset, (id, mesh, op, entity, origin, lamport, raw) in enumerate(headers, 1)
    ]
    found = decode_header(pa.RecordBatch.from_pylist(rows, schema=LOG))
    found.validate(full=True)
    problems = {row["op"]: row["problem"] for row in found.to_pylist() if row["problem"]}
    assert not problems
    for name in SILVER:
        raws = [raw for _, _, op, *_, raw in headers if op in OPS and is_of(op, name)]
        if name == "tasks" or not raws:
            continue  # made of their events, or of what quorums have committed
        for column in body_columns(name, pa.array(raws, pa.binary())).values():
            column.validate(full=True)


def is_of(op: str, table: str) -> bool:
    return family_of(op) == FAMILY_OF[table]


def test_P2_a_lake_holds_every_arrival_that_a_node_takes() -> None:
    whole = one_of_each("key", {"a": 1}, lamport=2, base=(1, "ana"))
    headers = taken([changed for raw in whole for changed in (raw, *every_change(raw))])
    assert len(headers) > 1000
    check_held(headers)


@given(seed=st.integers(0, 2**64 - 1))
def test_P2_a_lake_holds_every_random_arrival_that_a_node_takes(seed: int) -> None:
    random = Random(seed)
    check_held(taken([random_envelope(random) for _ in range(8)]))


def test_P2_an_arrival_with_an_id_after_the_year_9999_is_refused_everywhere() -> None:
    for raw in one_of_each("key", 1, id=parse_id(TOO_LATE)):
        (arrival,) = read_arrivals([raw])
        assert not isinstance(arrival, tuple), "nor is it taken for a plain fact"
        assert isinstance(arrival.error, BadId)
        with pytest.raises(BadId, match="9999"):  # as a broker reads what a member pushes
            check_arriving(envelope_rules.decode(raw))
    for raw in (envelopes.fact_append("s", "is", 1, id=parse_id(LAST)),):
        assert isinstance(read_arrivals([raw])[0], tuple)


WRITES: dict[str, Callable[[Mesh, Any], object]] = {
    "state": lambda mesh, id: mesh.state.set("k", 1, id=id),
    "memory": lambda mesh, id: mesh.memory.set("k", 1, id=id),
    "fact": lambda mesh, id: mesh.facts.append("s", "is", 1, id=id),
    "task": lambda mesh, id: mesh.tasks.create("t", id=id),
    "file": lambda mesh, id: mesh.files.share("a.txt", b"x", id=id),
}


def test_P2_a_caller_gives_no_id_and_no_meta_that_a_lake_cannot_hold(tmp_path: Path) -> None:
    with make_home(tmp_path / "home") as node:
        mesh = team(node)
        fill(mesh, 3)
        for number, write in enumerate(WRITES.values()):
            with pytest.raises(BadId, match="9999"):
                write(mesh, TOO_LATE)
            write(mesh, id_text(make_id(number, SOURCE_TIME_MS_MAX - 1)))
        with pytest.raises(BadId, match="9999"):
            id_of_key(TOO_LATE, "team", "ana")
        for meta in ({"a": "\ud800"}, {"a": b"\xff"}, {"a": float("nan")}, {1: 2}, "text"):
            with pytest.raises(BadInput):
                mesh.facts.append("s", "is", 1, meta=meta)  # type: ignore[arg-type]
        mesh.facts.append("s", "is", 1, meta={"\u2028": ["\x7f", "\0", 2**53 - 1]})
    log = open_log(str(tmp_path / "home"))
    (batch,) = log.batches(1, 1, log.place().head + 1)
    rows = decode_header(batch).to_pylist()
    assert [row["problem"] for row in rows if row["problem"]] == []


def test_P2_an_id_from_before_this_rule_is_told_and_kept() -> None:
    old = envelopes.state_set("k", 1, id=parse_id(TOO_LATE))
    later = envelopes.state_set("k", 1, id=id_of_key("order 4711", "team", "ana"))
    rows = [
        {
            **{"log": "a", "epoch": 1, "offset": 1, "id": id_text(raw[18:34]), "mesh": "team"},
            **{"op": "state.set", "entity": "k", "origin": "bob", "lamport": 1},
            **{"recorded_at": 0, "raw": raw},
        }
        for raw in (old, later)
    ]
    found = decode_header(pa.RecordBatch.from_pylist(rows, schema=LOG)).column("problem")
    assert found.to_pylist() == [f"bad_id: the id {TOO_LATE} was made after the year 9999", None]
