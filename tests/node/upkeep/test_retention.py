"""Sweeps keep what the settings say, for each mesh."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.node.library.node import Node
from holdfast.node.settings import Settings, load
from holdfast.node.upkeep.foresee import foresee
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.errors import BadInput, OutboxAgeAboveWindow
from holdfast.rules.limits import DAY_MS
from support.source import HandClock


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "settings.toml"
    monkeypatch.setenv("HOLDFAST_CONFIG", str(path))
    return path


def test_S17_facts_that_are_kept_for_ever_outlive_every_sweep(
    node: Node, clock: HandClock, file: Path
) -> None:
    mesh = node.mesh("team")
    for n in range(5):
        mesh.state.set("k", n)
    mesh.facts.append("s", "p", 1)
    mesh.state.set("k", 9)
    clock.advance(50 * 365 * DAY_MS)
    mesh.state.set("k", 10)
    file.write_text('[retention]\nfacts = "forever"\n')
    assert foresee(node._engine, Ttl.of_settings(load_file(file).retention)).report.log_entries == 5
    assert node.sweep().log_entries == 5, "what came before the first fact"
    assert node.sweep().log_entries == 0
    assert node.log.tail(99)[0].op == "fact.append"
    file.write_text('[retention]\nlog = "3d"\n')
    assert node.sweep().log_entries == 2, "when it is no longer asked for, it goes"


def test_S17_one_mesh_keeps_its_log_and_its_tombstones_longer_and_one_shorter(
    node: Node, clock: HandClock, file: Path
) -> None:
    for name in ("brief", "other", "long"):
        mesh = node.create_mesh(name)
        mesh.state.set("k", 1)
        mesh.state.delete("k")
    clock.advance(10 * DAY_MS)
    node.mesh("brief").state.set("new", 1)
    file.write_text(
        '[retention.meshes.brief]\nlog = "5d"\ntombstones = "5d"\n'
        '[retention.meshes.long]\nlog = "forever"\ntombstones = "forever"\n'
    )
    swept = node.sweep()
    assert (swept.log_entries, swept.tombstones) == (2, 1), "only what is of the brief mesh"
    clock.advance(90 * DAY_MS)
    swept = node.sweep()
    assert (swept.log_entries, swept.tombstones) == (2, 1), "then what is of the other"
    clock.advance(9000 * DAY_MS)
    assert node.sweep().tombstones == 0
    assert node.log.head().first == 5, "the long one holds all that came after it"


def test_S17_ids_and_blobs_are_kept_as_the_settings_say(
    node: Node, clock: HandClock, file: Path
) -> None:
    mesh = node.mesh("team")
    mesh.files.share("a.bin", b"a" * 100_000)
    mesh.files.delete("a.bin")
    mesh.state.set("k", 1)
    clock.advance(91 * DAY_MS)
    file.write_text('[retention]\nblobs = "200d"\nids = "forever"\n')
    swept = node.sweep()
    assert (swept.log_entries, swept.blobs) == (2, 0)
    clock.advance(110 * DAY_MS)
    swept = node.sweep()
    assert (swept.blobs, swept.dedupe_rows) == (1, 0)
    clock.advance(200 * DAY_MS)
    assert node.sweep().dedupe_rows == 0
    file.write_text("")
    assert node.sweep().dedupe_rows == 2


def test_D8_a_sweep_with_settings_that_are_no_good_removes_nothing(
    node: Node, clock: HandClock, file: Path
) -> None:
    node.mesh("team").facts.append("s", "p", 1)
    node.mesh("team").facts.append("s", "p", 2)
    clock.advance(400 * DAY_MS)
    file.write_text('[outbox]\nmax_age_hours = 100\n[retention]\nids = "4d"\n')
    with pytest.raises(OutboxAgeAboveWindow):
        node.sweep()
    file.write_text('[retention.meshes.team]\nids = "4d"\n')
    with pytest.raises(BadInput, match="ids"):
        node.sweep()
    assert node.log.head().first == 1


def load_file(file: Path) -> Settings:
    return load({"HOLDFAST_CONFIG": str(file)}, {})
