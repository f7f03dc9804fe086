"""Closing: drain, sweep, checkpoint, and all of it within its limit."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import holdfast
from holdfast.node.library.node import Node
from holdfast.rules import limits
from holdfast.rules.errors import StoreClosed
from holdfast.storage.ports import Transaction
from holdfast.storage.tickets import Ticket
from support.nodes import Nodes, blob_names, team
from support.source import HandClock

PATIENCE_S = 30


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def opened(home: Path, clock: HandClock) -> Node:
    from holdfast.node.library.node import open_node

    node = open_node(home, peer="ana", create=True, sync="normal", source=clock)
    node.mesh("team", create=True)
    return node


def test_S16_a_closed_node_refuses_and_closing_twice_is_fine(nodes: Nodes) -> None:
    node = nodes.open()
    mesh = team(node)
    node.close()
    node.close()
    with pytest.raises(StoreClosed):
        mesh.state.set("k", 1)


def test_S16_what_waits_is_written_before_it_closes(home: Path, clock: HandClock) -> None:
    node = opened(home, clock)
    writer = node._opened.store.writer
    inside, go = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> None:
        inside.set()
        assert go.wait(PATIENCE_S)

    writer.submit([Ticket(slow, lambda tickets: None)])
    assert inside.wait(PATIENCE_S)
    mesh = team(node)
    late = threading.Thread(target=mesh.state.set, args=("k", "kept"))
    late.start()
    while not writer._queue:
        late.join(0.001)
    closer = threading.Thread(target=node.close)
    closer.start()
    while writer.state == "open":
        closer.join(0.001)
    go.set()
    late.join(PATIENCE_S)
    closer.join(PATIENCE_S)
    with holdfast.open(home) as again:
        assert team(again).state.get("k") == "kept"


def test_S16_the_wal_is_empty_after_a_good_end(home: Path, clock: HandClock) -> None:
    node = opened(home, clock)
    team(node).state.set("k", 1)
    assert (home / "data.db-wal").stat().st_size > 0
    node.close()
    assert not (home / "data.db-wal").exists() or not (home / "data.db-wal").stat().st_size
    assert list((home / "processes").iterdir()) == []


def test_S16_old_released_blobs_are_swept_at_the_end(home: Path, clock: HandClock) -> None:
    node = opened(home, clock)
    team(node).files.share("f", bytes(70_000))
    team(node).files.delete("f")
    clock.advance(limits.BLOB_RELEASE_AGE_MS + 1)
    assert len(blob_names(node)) == 1
    node.close()
    assert [path for path in (home / "blobs").rglob("*") if path.is_file()] == []


def test_S17_the_end_of_a_process_keeps_the_blobs_that_its_settings_keep(
    home: Path, clock: HandClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "settings.toml"
    monkeypatch.setenv("HOLDFAST_CONFIG", str(settings))
    node = opened(home, clock)
    team(node).files.share("f", bytes(70_000))
    team(node).files.delete("f")
    clock.advance(20 * limits.DAY_MS)
    for kept in ("30d", "0d", None):  # the second one is refused, so nobody knows
        settings.write_text(f'[retention]\nblobs = "{kept}"\n' if kept else "")
        assert len(blob_names(node)) == 1, kept
        node.close()
        node = opened(home, clock)
    node.close()
    assert [path for path in (home / "blobs").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("released", [False, True])
def test_S16_closing_gives_up_on_a_write_that_hangs(
    home: Path,
    clock: HandClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    released: bool,
) -> None:
    monkeypatch.setattr(limits, "SHUTDOWN_MS_MAX", 100)
    monkeypatch.setattr(limits, "SHUTDOWN_SWEEP_MS_MAX", 50)
    node = opened(home, clock)
    if released:
        team(node).files.share("f", bytes(70_000))
        team(node).files.delete("f")
    inside, go = threading.Event(), threading.Event()

    def hang(tx: Transaction) -> None:
        inside.set()
        assert go.wait(PATIENCE_S)

    hanging = threading.Thread(target=node._opened.store.write, args=(hang,))
    hanging.start()
    assert inside.wait(PATIENCE_S)
    closer = threading.Thread(target=node.close)
    closer.start()
    closer.join(10)
    timely = not closer.is_alive()
    go.set()
    hanging.join(PATIENCE_S)
    closer.join(PATIENCE_S)
    assert timely, "closing waited for a write that does not end"
    assert "took too long" in caplog.text
    assert len(list((home / "processes").iterdir())) == 1, "the next start looks at the database"
