"""The bodies of a whole array of envelopes, beside the same bodies one by one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.fold.columns import ops_of
from holdfast.pipeline.fold.decode import body_columns, one_by_one
from holdfast.pipeline.fold.decode_at_once import columns_at_once
from holdfast.pipeline.lake.schema import FAMILY_OF, SILVER, arrow_schema
from holdfast.rules.bodies import OPS, decode_stored_body, family_of
from holdfast.rules.envelope import decode_stored
from holdfast.rules.errors import HoldfastError
from support import envelopes
from support.odd_envelopes import (
    every_change,
    every_change_of_the_body,
    one_of_each,
    random_envelope,
)

TABLES = [name for name in SILVER if ops_of(name) and name not in ("tasks", "audit_events")]
"""Those whose bodies are read all at once; events of audits are few, and read one by one."""


def in_bronze(raws: list[bytes]) -> dict[str, list[bytes]]:
    """What bronze would hold of these, by family."""
    found: dict[str, list[bytes]] = {family_of(op): [] for op in OPS}
    for raw in raws:
        try:
            envelope = decode_stored(raw)
            decode_stored_body(envelope)
        except HoldfastError:
            continue
        if envelope.op in OPS:
            found[family_of(envelope.op)].append(raw)
    return found


def assert_alike(held: dict[str, list[bytes]]) -> None:
    for name in TABLES:
        if FAMILY_OF[name] not in held:
            continue
        raws = pa.array(held[FAMILY_OF[name]], pa.binary())
        columns, expected = body_columns(name, raws), one_by_one(name, raws)
        assert list(columns) == list(expected)
        for column, values in columns.items():
            values.validate(full=True)
            assert values.type == arrow_schema(SILVER[name]).field(column).type
            assert values.to_pylist() == expected[column].to_pylist(), (name, column)


def test_P3_bodies_with_any_change_that_bronze_takes_are_read_alike_at_once() -> None:
    held: dict[str, list[bytes]] = {}
    for raw in one_of_each("key", {"a": 1}, lamport=2):
        for family, raws in in_bronze([raw, *every_change(raw), raw]).items():
            held.setdefault(family, []).extend(raws)
    held["fact"].append(envelopes.fact_append("s", "is", 1))
    assert all(len(raws) > 100 for family, raws in held.items() if family != "audit")
    assert_alike(held)


def test_P3_damaged_bodies_are_read_or_refused_alike_at_once() -> None:
    """Bronze holds none of these, unless a disk has changed it."""
    families = {
        family: name for name, family in FAMILY_OF.items() if name not in ("tasks", "files")
    }
    for whole in one_of_each("key", {"a": 1}, lamport=2):
        name = families.get(family_of(decode_stored(whole).op))
        for raw in list(every_change_of_the_body(whole))[::3] if name else ():
            raws = pa.array([raw], pa.binary())
            assert outcome(body_columns, name, raws) == outcome(one_by_one, name, raws)


def outcome(read: Callable[..., dict[str, pa.Array]], name: str | None, raws: pa.Array) -> object:
    try:
        found = read(name, raws)
        # Values that are JSON are not looked at again, so damaged ones need not be text.
        return {
            column: (values.view(pa.binary()) if values.type == pa.string() else values).to_pylist()
            for column, values in found.items()
        }
    except (HoldfastError, pa.ArrowInvalid, OverflowError) as error:
        return type(error)


@given(seed=st.integers(0, 2**64 - 1))
def test_P3_random_bodies_are_read_alike_at_once(seed: int) -> None:
    random = Random(seed)
    held = in_bronze([random_envelope(random) for _ in range(20)])
    assert_alike({family: raws for family, raws in held.items() if raws})


@pytest.mark.parametrize("name", [name for name in TABLES if name != "files"])
def test_P3_bodies_as_nodes_write_them_are_read_at_once(name: str) -> None:
    """Otherwise slow code is compared with itself above."""
    raws = [
        raw
        for raw in one_of_each("schlüssel", ["ä"], lamport=3, base=(2, "zoë"))
        if family_of(decode_stored(raw).op) == FAMILY_OF[name]
        and decode_stored(raw).op != "vector.delete"
    ]
    rows, _ = columns_at_once(name, pa.array(raws, pa.binary()))
    assert len(rows) == len(raws) > 0
