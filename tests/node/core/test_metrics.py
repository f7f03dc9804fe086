"""The local metrics file: one line per process, and never without end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast.node.core import metrics
from holdfast.node.core.metrics import Metrics, summarise
from holdfast.node.library.node import Node, open_node
from holdfast.rules.errors import UnknownKey
from support.envelopes import MODEL, fact_append


def test_S13_what_a_process_did_is_counted_when_it_closes(tmp_path: Path) -> None:
    for _ in range(2):
        with open_node(tmp_path / "home", peer="ana", create=True, sync="normal") as node:
            mesh = node.mesh("team", create=True)
            mesh.state.set("k", 1)
            with pytest.raises(UnknownKey):
                mesh.state.delete("unknown")
    found = summarise(tmp_path / "home" / "logs" / "metrics.jsonl")
    assert found["launches"] == 2
    assert found["verbs"]["state.set"]["count"] == 2
    assert found["errors"] == {"unknown_key": 2}
    assert found["open_ms_median"] > 0


def test_S13_writes_of_coroutines_are_counted_like_those_of_threads(tmp_path: Path) -> None:
    with open_node(tmp_path / "threads", peer="ana", create=True, sync="normal") as node:
        mesh = node.create_mesh("team")
        mesh.state.set("k", 1)
        mesh.state.delete("k")
        mesh.memory.set("k", 1)
        mesh.memory.forget("k")
        mesh.vectors.store("v", [1.0, 2.0], model=MODEL)
        mesh.vectors.delete("v", model=MODEL)
        mesh.files.share("f", b"x")
        mesh.files.delete("f")
        task = mesh.tasks.create("t").task
        mesh.tasks.claim(task)
        mesh.tasks.complete(task)
        mesh.facts.append("s", "p", 1)
        node.apply([fact_append("s", "p", 2, lamport=99)])
        with pytest.raises(UnknownKey):
            mesh.state.delete("k")
        counted = _counts(node)

    async def run() -> None:
        async with holdfast.aopen(tmp_path / "loop", peer="ana", create=True) as node:
            mesh = await node.create_mesh("team")
            await mesh.state.set("k", 1)
            await mesh.state.delete("k")
            await mesh.memory.set("k", 1)
            await mesh.memory.forget("k")
            await mesh.vectors.store("v", [1.0, 2.0], model=MODEL)
            await mesh.vectors.delete("v", model=MODEL)
            await mesh.files.share("f", b"x")
            await mesh.files.delete("f")
            task = (await mesh.tasks.create("t")).task
            await mesh.tasks.claim(task)
            await mesh.tasks.complete(task)
            await mesh.facts.append("s", "p", 1)
            await node.apply([fact_append("s", "p", 2, lamport=99)])
            with pytest.raises(UnknownKey):
                await mesh.state.delete("k")
            assert _counts(node.sync) == counted
            assert all(verb.total_ns > 0 for verb in node.sync._engine.metrics.verbs.values())

    asyncio.run(run())
    assert counted[0]["state.delete"] == 2
    assert counted[1] == {"unknown_key": 1}


def _counts(node: Node) -> tuple[dict[str, int], dict[str, int]]:
    metrics = node._engine.metrics
    return {name: verb.count for name, verb in metrics.verbs.items()}, metrics.errors


def test_S13_a_full_file_is_set_aside_with_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "METRICS_BYTES_MAX", 300)
    path = tmp_path / "metrics.jsonl"
    counts = Metrics()
    counts.add("state.set", 1000)
    for now in range(20):
        counts.save(path, now, 1.0)
    full = path.with_suffix(".jsonl.full")
    lines = [
        msgspec.json.decode(line)["at"]
        for file in (full, path)
        for line in file.read_bytes().splitlines()
    ]
    assert lines == list(range(lines[0], 20)), "the newest, in order, none twice"
    assert len(lines) > 3
    for file in (full, path):
        assert file.stat().st_size < 600
        assert file.stat().st_mode & 0o777 == 0o600


def test_S13_a_line_that_was_torn_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    counts = Metrics()
    counts.add("state.set", 1000)
    counts.save(path, 1, 1.0)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    assert summarise(path)["launches"] == 1
    assert summarise(tmp_path / "none")["launches"] == 0
