"""With `normal` sync a power cut may take the log back: after a bad end it begins a new epoch."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from holdfast.node.library.node import open_node


def leave(home: Path, sync: str, *, clean: bool) -> int:
    """One process's work on the home, and its end. Returns the epoch it worked in."""
    node = open_node(home, peer="ana", create=True, sync=sync)
    node.mesh("team", create=True).state.set("k", 1)
    epoch = node.log.head().epoch
    if clean:
        node.close()
    else:
        node._opened.abandon()
    return epoch


@pytest.mark.parametrize(
    ("sync", "clean", "grows"),
    [
        ("normal", False, True),
        ("normal", True, False),
        ("full", False, False),
        ("full", True, False),
    ],
)
def test_S13_only_a_bad_end_with_normal_sync_begins_a_new_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sync: str, clean: bool, grows: bool
) -> None:
    home = tmp_path / "home"
    before = leave(home, sync, clean=clean)
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        assert (leave(home, "full", clean=True) > before) == grows
    assert ("may have gone back" in caplog.text) == grows


def test_S13_every_bad_end_with_normal_sync_begins_another_epoch(tmp_path: Path) -> None:
    epochs = [leave(tmp_path / "home", "normal", clean=False) for _ in range(3)]
    assert epochs == [1, 2, 3]
    with open_node(tmp_path / "home") as node:
        assert node.log.head().epoch == 4
        assert node.mesh("team").state.set("k", 2).lamport > 3_000_000
