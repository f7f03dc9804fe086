"""Lists become tables, with the home open and over a connection."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import holdfast
from holdfast.rules.errors import NoPackage
from holdfast.rules.listed import Listed, ListedRows
from holdfast.service.clock import SystemClock
from node.remote.conftest import Seen
from support import envelopes as e
from support.envelopes import MODEL


def test_U1_a_list_becomes_a_table_of_each_package(mesh: holdfast.Mesh) -> None:
    mesh.state.set("a", {"n": [1]})
    mesh.state.set("b", None)
    entry = mesh.state.entry("a")
    assert entry is not None
    at = datetime.fromtimestamp(entry.updated_at / 1000, UTC)

    arrow = mesh.state.list().to_arrow()
    types = [str(field.type) for field in arrow.schema]
    assert arrow.column_names == ["key", "value", "lamport", "peer", "updated_at"]
    assert types == ["string", "string", "int64", "string", "timestamp[ms, tz=UTC]"]
    rows = arrow.to_pylist()
    assert [json.loads(row["value"]) for row in rows] == [{"n": [1]}, None]
    assert (rows[0]["key"], rows[0]["lamport"], rows[0]["peer"]) == ("a", entry.lamport, "ana")
    assert abs((rows[0]["updated_at"] - at).total_seconds()) < 0.001

    polars = mesh.state.list().to_polars()
    assert polars.schema["updated_at"].__class__.__name__ == "Datetime"
    assert polars.to_arrow().to_pylist() == rows

    pandas = mesh.state.list().to_pandas()
    assert list(pandas["value"]) == [{"n": [1]}, None], "its own values, and not JSON"
    assert [str(kind) for kind in pandas.dtypes] == [
        *("string", "object", "int64", "string", "datetime64[ms, UTC]"),
    ]
    assert pandas["updated_at"][0].to_pydatetime() == rows[0]["updated_at"]


def _fill(seen: Seen, mesh: holdfast.Mesh) -> None:
    mesh.state.set("k", "mine")
    theirs = {"mesh": mesh.slug, "origin": "bo", "id": SystemClock().new_id()}
    seen.inside.apply([e.state_set("k", "theirs", lamport=9, **theirs)])
    mesh.memory.set("k", 1, tags=("x", "y"))
    mesh.files.share("f", b"content")
    open_task, taken = mesh.tasks.create("open"), mesh.tasks.create("taken")
    assert open_task.task != taken.task
    mesh.tasks.claim(taken.task)
    mesh.audit.append("activityLog", {"n": 1})
    mesh.telemetry.set("gauge", "cpu", 0.5)


def _lists(node: holdfast.Node, mesh: holdfast.Mesh) -> dict[str, Callable[[], Listed[Any]]]:
    return {
        "state": mesh.state.list,
        "memory": lambda: mesh.memory.list(scope="all"),
        "files": mesh.files.list,
        "tasks": mesh.tasks.list,
        "audit": lambda: mesh.audit.list("activityLog"),
        "telemetry": mesh.telemetry.list,
        "conflicts": lambda: node.conflicts(mesh.slug),
        "inbox": mesh.inbox.list,
        "outbox": node.outbox.list,
    }


def test_U1_every_list_has_the_same_columns_full_or_empty(seen: Seen, mesh: holdfast.Mesh) -> None:
    node = seen.node
    empty = {name: rows().to_arrow() for name, rows in _lists(node, mesh).items()}
    _fill(seen, mesh)
    for name, rows in _lists(node, mesh).items():
        table = rows().to_arrow()
        assert table.schema == empty[name].schema, name
        assert rows().to_polars().to_arrow().to_pylist() == table.to_pylist(), name
        assert list(rows().to_pandas().columns) == table.column_names, name
        assert table.num_rows == len(list(rows())), name
        if name not in ("inbox", "outbox"):
            assert table.num_rows > empty[name].num_rows, name
    tasks = mesh.tasks.list().to_arrow().to_pylist()
    assert {row["title"]: row["holder_peer"] for row in tasks} == {"open": None, "taken": "ana"}
    assert {row["status"] for row in tasks} == {"open", "claimed"}
    assert mesh.memory.list().to_arrow().to_pylist()[0]["tags"] == ["x", "y"]


def _rows(node: holdfast.Node, mesh: holdfast.Mesh) -> dict[str, Callable[[], ListedRows[Any]]]:
    (task, *_) = [row.task for row in mesh.tasks.list(status="claimed")] or [""]
    return {
        "past": lambda: mesh.state.as_of("k", offset=node.log.head().offset),
        "versions": lambda: mesh.state.history("k"),
        "memory's versions": lambda: mesh.memory.history("k"),
        "recalled": lambda: mesh.memory.recall("k", scope="all"),
        "past memory": lambda: mesh.memory.as_of("k", offset=node.log.head().offset),
        "hits": lambda: mesh.vectors.search([1, 2], model=MODEL),
        "models": mesh.vectors.models,
        "events": lambda: mesh.tasks.events(task),
        "chains": mesh.audit.streams,
        "verdicts": mesh.audit.verify,
        "presence": mesh.presence.list,
        "tail": lambda: node.log.tail(3),
        "consumers": node.log.consumers,
        "meshes": node.meshes,
        "peers": mesh.peers,
        "blocked": node.blocked_peers,
    }


def test_U1_lists_that_are_all_there_are_lists_and_tables(seen: Seen, mesh: holdfast.Mesh) -> None:
    _fill(seen, mesh)
    mesh.vectors.store("v", [1, 2], model=MODEL, metadata={"n": 1})
    for name, read in _rows(seen.node, mesh).items():
        rows, kind = read(), read()._kind
        assert isinstance(rows, list), name
        assert rows == [*rows] == pickle.loads(pickle.dumps(rows)), name
        assert type(rows + rows) is list
        assert all(isinstance(row, kind) for row in rows), name
        table = rows.to_arrow()
        assert table.num_rows == len(rows), name
        assert rows.to_arrow() == table, "it can be read again"
        assert list(rows.to_pandas().columns) == table.column_names, name
        assert rows.to_polars().height == len(rows), name
        assert rows._repr_html_().startswith("<table>" if rows else "<p>empty"), name
        if name not in ("consumers", "blocked"):
            assert rows, name
    assert mesh.memory.recall("none") == []
    assert mesh.memory.recall("none").to_arrow().column_names[0] == "peer"


def test_U1_a_table_without_its_package_says_what_to_install(
    mesh: holdfast.Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, verb in (("pandas", "pandas"), ("polars", "polars"), ("pyarrow", "arrow")):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(NoPackage) as missing:
            getattr(mesh.state.list(), f"to_{verb}")()
        assert missing.value.hint == f"pip install {name}"


def test_U1_a_list_that_was_begun_gives_the_rest(mesh: holdfast.Mesh) -> None:
    for key in "abc":
        mesh.state.set(key, key)
    rows = mesh.state.list()
    assert "StateEntry" in repr(rows)
    assert next(rows).key == "a"
    assert rows.to_arrow().column("key").to_pylist() == ["b", "c"]
    assert list(rows) == []
