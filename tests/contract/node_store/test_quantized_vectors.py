"""Vectors of bytes and of bits, as every store keeps and finds them."""

from __future__ import annotations

import math
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.errors import BadVector
from holdfast.rules.rows import VectorRow
from holdfast.rules.vectors import Model, pack, unpack
from holdfast.storage.ports import Store, Transaction
from support.envelopes import MESH
from support.stores import read, vector_row, with_mesh

BYTES = Model(provider="test", name="tiny", dim=3, quantization="int8")
BITS = Model(provider="test", name="tiny", dim=16, quantization="binary")
FLOATS = Model(provider="test", name="tiny", dim=3)


def add(store: Store, model: Model, **vectors: object) -> None:
    for lamport, (key, vector) in enumerate(vectors.items(), 1):
        packed = pack(vector, model.dim, model.quantization)  # type: ignore[arg-type]  # numbers
        row = vector_row(
            "bo" if key == "his" else "ana",
            *(key, lamport),
            model=model.fingerprint,
            embedding=packed,
        )
        store.write(partial(_add, row=row, model=model))


def _add(tx: Transaction, row: VectorRow, model: Model) -> None:
    tx.vector_add(row, model)


def found(
    store: Store, model: Model, query: object, *, exact: bool = True, owner: str | None = None
) -> list[tuple[str, float]]:
    packed = pack(query, model.dim, model.quantization)  # type: ignore[arg-type]  # numbers
    hits = read(
        store, lambda tx: tx.vector_search(MESH, model, packed, 9, exact=exact, owner=owner)
    )
    return [(row.key, far) for row, far in hits]


def test_S8_bytes_are_compared_by_their_euclidean_distance(store: Store) -> None:
    with_mesh(store)
    add(store, BYTES, far=(-128, 127, 0), near=(1, 2, 3), same=(0, 0, 0), his=(0, 1, 0))
    assert found(store, BYTES, (0, 0, 0)) == [
        *(("same", 0.0), ("his", 1.0), ("near", math.sqrt(14))),
        ("far", math.dist((-128, 127, 0), (0, 0, 0))),
    ]
    assert found(store, BYTES, (0, 0, 0), owner="bo") == [("his", 1.0)]
    assert found(store, BYTES, (0, 0, 0), exact=False)[0] == ("same", 0.0)
    (kept,) = [
        row
        for _, row in read(
            store, lambda tx: tx.vector_scan(MESH, BYTES.fingerprint, 0, 99, live_only=True)
        )
        if row.key == "far"
    ]
    assert (len(kept.embedding), unpack(kept.embedding, "int8")) == (3, [-128, 127, 0])


def test_S8_bits_are_compared_by_how_many_differ(store: Store) -> None:
    with_mesh(store)
    zeros, ones = [0] * 16, [1] * 16
    add(store, BITS, all=ones, none=zeros, first=[1] + [0] * 15, his=[0] * 13 + [1] * 3)
    assert found(store, BITS, zeros) == [
        *(("none", 0.0), ("first", 1.0), ("his", 3.0), ("all", 16.0)),
    ]
    assert found(store, BITS, b"\x80\x00")[0] == ("first", 0.0), "the first bit is the highest"
    assert found(store, BITS, zeros, owner="bo") == [("his", 3.0)]


def test_S8_models_of_one_name_and_several_quantizations_are_kept_apart(store: Store) -> None:
    with_mesh(store)
    add(store, BYTES, a=(1, 2, 3))
    add(store, FLOATS, b=(1, 2, 3))
    add(store, BITS, c=[1] * 16)
    assert len({one.fingerprint for one in (BYTES, FLOATS, BITS)}) == 3
    assert found(store, BYTES, (1, 2, 3)) == [("a", 0.0)]
    assert found(store, FLOATS, (1, 2, 3)) == [("b", 0.0)]
    models = {row.id: row.quantization for row in read(store, lambda tx: tx.model_list())}
    assert models == {one.fingerprint: one.quantization for one in (BYTES, FLOATS, BITS)}


def test_S8_vectors_of_another_kind_are_refused(store: Store) -> None:
    with_mesh(store)
    add(store, BYTES, a=(1, 2, 3))
    with pytest.raises(BadVector, match="take 3"):
        read(store, lambda tx: tx.vector_search(MESH, BYTES, bytes(12), 1, exact=True))
    with pytest.raises(BadVector, match="take 2"):
        read(store, lambda tx: tx.vector_search(MESH, BITS, bytes(16), 1, exact=True))


def test_S8_a_replaced_vector_of_bits_is_not_found(store: Store) -> None:
    with_mesh(store)
    add(store, BITS, a=[1] * 16, b=[0] * 16)
    store.write(lambda tx: tx.vector_retire(MESH, "ana", "a", BITS.fingerprint))
    assert found(store, BITS, [1] * 16) == [("b", 16.0)]


@given(st.lists(st.integers(-128, 127), min_size=1, max_size=40))
def test_S8_bytes_come_back_as_they_were_given(numbers: list[int]) -> None:
    packed = pack(numbers, len(numbers), "int8")
    assert (len(packed), unpack(packed, "int8")) == (len(numbers), numbers)


@given(st.lists(st.integers(0, 1), min_size=8, max_size=64).filter(lambda bits: not len(bits) % 8))
def test_S8_bits_come_back_as_they_were_given(bits: list[int]) -> None:
    packed = pack(bits, len(bits), "binary")
    assert (len(packed) * 8, unpack(packed, "binary")) == (len(bits), bits)
