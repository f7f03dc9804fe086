"""The local metrics file: lines of every process while it runs, and never without end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.node.core import metrics
from holdfast.node.core.metrics import Metrics, summarise
from holdfast.node.library.node import Node, open_node
from holdfast.rules.errors import StoreFailed, UnknownKey
from holdfast.rules.limits import METRICS_LINE_MS
from support.envelopes import MODEL, fact_append
from support.waiting import PATIENCE_S


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


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def test_S13_what_a_process_does_is_written_while_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "home" / "logs" / "metrics.jsonl"
    with open_node(tmp_path / "home", peer="ana", create=True, sync="normal") as node:
        mesh = node.create_mesh("team")
        assert [line["line"] for line in lines_of(path)] == ["start"]
        mesh.state.set("k", 1)
        node._engine.metrics.tell(sync={"team": 7}, links={})
        with pytest.raises(UnknownKey):
            mesh.state.delete("unknown")
        mesh.state.set("k", 2)
        mesh.state.set("k", 3)
        killed = summarise(path)
        assert killed["verbs"]["state.set"]["count"] == 1, "what a kill would leave"
        assert node._engine.metrics.verbs["state.set"].count == 3, "counters are not reset"
    start, running, end = lines_of(path)
    assert start["open_ms"] > 0
    assert "verbs" not in start
    assert running["line"] == "running"
    assert running["verbs"]["state.set"]["count"] == 1
    assert end["line"] == "end"
    assert end["verbs"]["state.set"]["count"] == 2, "only what came after the line before"
    assert "mesh.create" not in end["verbs"]
    assert end["errors"] == {"unknown_key": 1}
    found = summarise(path)
    assert found["launches"] == 1
    assert found["verbs"]["state.set"]["count"] == 3
    assert found["lags"] == {"at": running["at"], "sync": {"team": 7}, "links": {}}


def test_S13_a_program_without_a_daemon_writes_a_line_when_one_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "METRICS_LINE_MS", 0)
    path = tmp_path / "metrics.jsonl"
    counts = Metrics()
    counts.begin(path, lambda: 1, 1.0)
    for _ in range(3000):
        counts.add("state.get", 1000)
    assert [line["line"] for line in lines_of(path)] == ["start", "running", "running"]
    counts.end()
    assert [line["line"] for line in lines_of(path)][-1] == "end"
    assert summarise(path)["verbs"]["state.get"]["count"] == 3000


def test_S13_a_program_writes_no_line_before_one_is_due(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    counts = Metrics()
    counts.begin(path, lambda: 1, 1.0)
    for _ in range(3000):
        counts.add("state.get", 1000)
    assert len(lines_of(path)) == 1
    assert 1000 <= METRICS_LINE_MS <= 3_600_000


def test_S13_a_command_is_told_with_what_its_start_has_cost(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for words in (
        ["init", "--peer", "ana"],
        ["mesh", "create", "team"],
        ["state", "set", "k", "1"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *words, "--home", home],
            capture_output=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
    found = summarise(home / "logs" / "metrics.jsonl")
    assert found["launches"] == 3
    assert sorted(found["commands"]) == ["init", "mesh create", "state set"]
    assert found["commands"]["state set"]["count"] == 1
    assert found["commands"]["state set"]["cpu_ms_median"] > 1


def test_S13_a_file_that_cannot_be_written_stops_no_work(tmp_path: Path) -> None:
    counts = Metrics()
    counts.begin(tmp_path, lambda: 1, 1.0)
    counts.add("state.set", 1000)
    counts.tell()
    with pytest.raises(StoreFailed):
        counts.end()  # whoever closes the home says so in the log


def test_S13_a_full_file_is_set_aside_with_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "METRICS_BYTES_MAX", 300)
    path = tmp_path / "metrics.jsonl"
    at = iter(range(21))
    counts = Metrics()
    counts.begin(path, lambda: next(at), 1.0)
    for _ in range(19):
        counts.add("state.set", 1000)
        counts.tell()
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
    counts.begin(path, lambda: 1, 1.0)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:40])
    assert summarise(path)["launches"] == 1
    assert summarise(tmp_path / "none")["launches"] == 0


def test_S13_lines_of_an_older_version_are_launches_with_counts(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    verbs = {"state.set": {"count": 2, "mean_ms": 0.5, "max_ms": 0.7}}
    line = {"at": 1, "pid": 2, "open_ms": 3.5, "verbs": verbs, "errors": {"unknown_key": 1}}
    path.write_bytes(msgspec.json.encode(line) + b"\n")
    found = summarise(path)
    assert (found["launches"], found["open_ms_median"]) == (1, 3.5)
    assert found["verbs"]["state.set"]["count"] == 2
    assert found["errors"] == {"unknown_key": 1}
