"""Vectors of bytes and of bits on their way: as rows, as a log, after a truncation, in a repair."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.node.exchange.export import export
from holdfast.node.exchange.import_rows import import_, import_log
from holdfast.node.library.node import Node, open_node
from holdfast.node.recovery.repair import repair_home
from holdfast.node.snapshots.mesh_export import tables_of
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.vectors import Model
from support.snapshot import snapshot

SMALL = Model(provider="p", name="m", dim=3, quantization="int8")
BITS = Model(provider="p", name="m", dim=24, quantization="binary")


@pytest.fixture
def ana(tmp_path: Path) -> Iterator[Node]:
    with open_node(tmp_path / "ana", peer="ana", create=True, sync="normal") as node:
        vectors = node.create_mesh("team").vectors
        vectors.store("a", [1, -2, 3], model=SMALL, content="bytes")
        vectors.store("b", [0, 1] * 12, model=BITS, metadata={"n": 1})
        vectors.store("gone", [1, 0] * 12, model=BITS)
        vectors.delete("gone", model=BITS)
        yield node


def exported(node: Node, **options: Any) -> io.BytesIO:
    out = io.BytesIO()
    export(node, out, **options)
    return io.BytesIO(out.getvalue())


def found(node: Node) -> list[tuple[str, float, str]]:
    vectors = node.mesh("team").vectors
    hits = [*vectors.search([1, -2, 3], model=SMALL), *vectors.search([0, 1] * 12, model=BITS)]
    return [(hit.key, hit.distance, hit.content) for hit in hits]


WHOLE = [("a", 0.0, "bytes"), ("b", 0.0, "")]


def test_S13_vectors_of_bytes_and_bits_are_exported_and_imported(ana: Node, tmp_path: Path) -> None:
    assert found(ana) == WHOLE
    with open_node(tmp_path / "bob", peer="bob", create=True, sync="normal") as bob:
        assert import_(bob, exported(ana)).counts["vector"] == 2
        assert found(bob) == WHOLE
    with open_node(tmp_path / "cy", peer="cy", create=True, sync="normal") as cy:
        assert not import_log(cy, exported(ana, log=True)).refused
        assert snapshot(cy._engine.store) == snapshot(ana._engine.store)
        assert found(cy) == WHOLE


def test_S14_vectors_of_bytes_and_bits_are_rebuilt_from_their_rows(
    ana: Node, tmp_path: Path
) -> None:
    ana.sweep(Ttl(log_ms=0))
    with ana._engine.store.read() as tx:
        raws = list(tables_of(tx, "team"))
    with open_node(tmp_path / "bob", peer="bob", create=True, sync="normal") as bob:
        bob.create_mesh("team")
        raws += [entry.raw for entry in ana.log.range(ana.log.head().first)]
        assert [one.error for one in bob.apply(raws)] == [None] * len(raws)
        assert found(bob) == WHOLE


def test_S12_a_repair_indexes_vectors_of_bytes_and_bits_anew(ana: Node) -> None:
    before = snapshot(ana._engine.store)
    ana.close()
    repair_home(ana.home)
    with open_node(ana.home, sync="normal") as again:
        assert found(again) == WHOLE
        assert snapshot(again._engine.store) == before
