"""Texts embedded anew: each once, by whom it belongs to, however often the job runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from holdfast.node.library.node import Node, open_node
from holdfast.pipeline.embed import reembed as module
from holdfast.pipeline.embed.reembed import (
    ReembedReport,
    embed_batches,
    reembed,
    resolved,
    with_verdicts,
)
from holdfast.pipeline.embed.rounds import Rounds
from holdfast.pipeline.fold.silver import fold_lake
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.spark.workers import DriverWorkers
from holdfast.rules.errors import BadInput, BadVector
from holdfast.rules.ids import id_text
from holdfast.rules.vectors import Model, pack
from support.envelopes import make_id, vector_store
from support.filled_lake import pour

pytestmark = pytest.mark.timeout(300)

OLD = Model(provider="test", name="old", dim=2)
NEW = Model(provider="test", name="new", dim=3)


def _embedder() -> Any:
    """A model that counts letters; made here so that it travels to the executors by itself."""

    def embed(texts: list[str]) -> list[list[float]]:
        return [[float(len(text)), float(text.count("a")), 1.0] for text in texts]

    return embed


def _vector(text: str) -> bytes:
    return pack(_embedder()([text])[0], NEW.dim)


def _fill(node: Node) -> None:
    mesh = node.create_mesh("team")
    for number in range(6):
        mesh.vectors.store(f"v{number}", [number, 1], model=OLD, content=f"text a{number}")
    mesh.vectors.store("v0", [9, 9], model=OLD, content="a newer text")
    mesh.vectors.store("blank", [1, 1], model=OLD, content="")
    mesh.vectors.store("gone", [1, 1], model=OLD, content="gone")
    mesh.vectors.delete("gone", model=OLD)
    mesh.vectors.store("v5", [1, 1, 1], model=NEW, content="made by hand")
    mesh.vectors.store("v4", [1, 1, 1], model=NEW, content="older than its source")
    mesh.vectors.store("v4", [4, 1], model=OLD, content="text a4")
    node.apply([vector_store("v1", (1, 2), model=OLD, content="bob's", origin="bob", lamport=50)])
    node.create_mesh("other").vectors.store("x", [1, 1], model=OLD, content="not asked for")


def _made(node: Node, model: Model = NEW) -> dict[tuple[str, str], bytes]:
    def read(tx: Any) -> Any:
        return tx.vector_scan("team", model.fingerprint, 0, 100, live_only=True)

    found = node._engine.read("test", read)
    return {(row.owner, row.key): row.embedding for _, row in found}


def _head(home: Path) -> int:
    with open_node(home, sync="normal") as node:
        return node.log.head().offset


def test_P7_what_is_a_nodes_own_is_embedded_once_and_the_rest_is_left_to_its_owners(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    with open_node(home, peer="ana", create=True, sync="normal") as node:
        _fill(node)
        before = node.log.head().offset
    lake = Lake.open(tmp_path / "lake", create=True)

    pour(lake, home)
    fold_lake(DriverWorkers(), lake.fresh())

    def run(**settings: Any) -> ReembedReport:
        return reembed(
            *(spark, lake.fresh()),
            mesh="team",
            source=OLD,
            target=NEW,
            embed=_embedder(),
            to=str(home),
            **settings,
        )

    _break_off(monkeypatch, run)
    partly = _head(home) - before
    for note in (tmp_path / "lake" / "jobs").iterdir():
        note.unlink()  # as if nobody knew what was done: the node knows
    told: list[tuple[str, int, int]] = []
    report = run(progress=lambda *step: told.append(step))
    assert [done for _, done, _ in told] == list(range(1, told[-1][2] + 1))
    assert (report.vectors, report.up_to_date, report.embedded, report.empty) == (7, 1, 5, 1)
    assert report.empty_keys == ("ana/blank",)
    assert report.of_others == 1, "bob's, which only bob can write"
    assert 0 < partly < 5
    assert _head(home) == before + 5
    expected = {
        ("ana", "v0"): "a newer text",
        **{("ana", f"v{number}"): f"text a{number}" for number in range(1, 5)},
    }
    with open_node(home, sync="normal") as node:
        made = _made(node)
        assert made.pop(("ana", "v5")) == pack([1, 1, 1], 3), "what is newer is left alone"
        assert made == {key: _vector(text) for key, text in expected.items()}
        assert len(_made(node, OLD)) == 8, "the old ones stay"


def test_P7_only_what_the_new_model_has_not_seen_is_embedded(spark: SparkSession) -> None:
    """Once the lake has read back what was written, nothing is left to do; what changes is new."""
    old, new = OLD.fingerprint, NEW.fingerprint
    rows = [
        # owner, key, model, content, lamport, peer, id, live
        ("ana", "fresh", old, "text", 5, "ana", "a", True),
        ("ana", "done", old, "text", 5, "ana", "b", True),
        ("ana", "done", new, "text", 6, "ana", "c", True),
        ("ana", "changed", old, "text", 7, "ana", "d", True),
        ("ana", "changed", new, "text", 6, "ana", "e", True),
        ("ana", "tie", old, "text", 6, "ana", "f", True),
        ("ana", "tie", new, "text", 6, "bob", "a", True),
        ("ana", "deleted there", old, "text", 5, "ana", "g", True),
        ("ana", "deleted there", new, "", 9, "ana", "h", False),
        ("ana", "superseded", old, "text", 4, "ana", "i", False),
        ("bob", "done", old, "text", 5, "ana", "j", True),
        ("ana", "blank", old, "", 5, "ana", "k", True),
    ]
    schema = "owner string, key string, model string, content string, lamport long, peer string, "
    frame = spark.createDataFrame(rows, schema + "id string, live boolean")
    found = with_verdicts(frame.coalesce(1), old, new).select("owner", "key", "state").collect()
    assert {(row.owner, row.key): row.state for row in found} == {
        ("ana", "fresh"): "pending",
        ("ana", "done"): "done",
        ("ana", "changed"): "pending",
        ("ana", "tie"): "done",
        ("ana", "deleted there"): "done",
        ("bob", "done"): "pending",
        ("ana", "blank"): "empty",
    }


def _break_off(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    """A run in rounds that dies in its second one."""
    real = module._write
    done: list[int] = []

    def write(*args: Any) -> None:
        if done:
            raise KeyboardInterrupt
        real(*args)
        done.append(1)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write", write)
        with pytest.raises(KeyboardInterrupt):
            run(round_rows=3)


def _texts(*texts: str) -> Iterator[pa.RecordBatch]:
    ids = [id_text(make_id(number)) for number in range(len(texts))]
    columns = {
        "id": ids,
        "owner": ["ana"] * len(texts),
        "key": [f"k{number}" for number in range(len(texts))],
        "content": list(texts),
        "metadata": ["null"] * len(texts),
    }
    yield pa.RecordBatch.from_pydict(columns)


def test_P7_a_model_gets_texts_by_the_handful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REEMBED_TEXTS_MAX", 2)
    sizes: list[int] = []

    def embed(texts: list[str]) -> list[list[float]]:
        sizes.append(len(texts))
        return [[1.0, 2.0, 3.0]] * len(texts)

    (made, *others) = embed_batches(embed, NEW, _texts("a", "b", "c", "d", "e"))
    assert sizes == [2, 2, 1]
    assert [batch.num_rows for batch in others] == [2, 1]
    assert made.column("embedding").to_pylist() == [pack([1, 2, 3], 3)] * 2


def test_P7_a_model_that_gives_something_else_is_told_so() -> None:
    with pytest.raises(BadVector, match="1 vectors for 2 texts"):
        list(embed_batches(lambda texts: [[1.0, 2.0, 3.0]], NEW, _texts("a", "b")))
    with pytest.raises(BadVector, match="2 numbers"):
        list(embed_batches(lambda texts: [[1.0, 2.0]] * 2, NEW, _texts("a", "b")))


def test_P7_a_model_is_a_function_that_can_be_imported() -> None:
    assert resolved("holdfast.pipeline.minilm:embed").__name__ == "embed"
    for text in ("nowhere:embed", "holdfast.pipeline.minilm:none", "minilm", "math:pi", ":x"):
        with pytest.raises(BadInput):
            resolved(text)


def test_P7_rounds_go_on_where_they_stopped(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    first = Rounds(lake, "work")
    for number, count in first.run(4):
        assert count == 4
        if number == 2:
            break
    assert [number for number, _ in Rounds(lake, "other work").run(2)] == [0, 1]
    again = Rounds(lake, "work")
    assert list(again.run(9)) == [(2, 4), (3, 4)], "as it was cut, not as it would be now"
    assert again.resumed == 2
    assert list(Rounds(lake, "work").run(0)) == [(0, 1)], "all is done, so it begins anew"
    notes = list((tmp_path / "lake" / "jobs").iterdir())
    assert notes == []
