"""What the doctor says about clocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.node.library.node import open_node
from holdfast.node.recovery.checks import Check
from holdfast.node.recovery.doctor import diagnose
from holdfast.rules.lamport import ceiling
from holdfast.rules.limits import DAY_MS, HOUR_MS
from holdfast.service.clock import SystemClock
from support.nodes import store_of
from support.source import HandClock


def clock_checks(home: Path) -> list[Check]:
    return [one for one in diagnose(home).checks if one.name == "clock"]


@pytest.mark.parametrize(
    ("share", "words"), [(0.6, "somebody has moved it"), (3.0, "export the mesh")]
)
def test_S4_the_doctor_warns_of_a_clock_that_others_will_not_take(
    tmp_path: Path, share: float, words: str
) -> None:
    to = int(share * ceiling(SystemClock().now_ms()))
    with open_node(tmp_path / "home", peer="ana", create=True) as node:
        node.create_mesh("team")
        assert clock_checks(tmp_path / "home") == []
        store_of(node).write(lambda tx: tx.clock_raise("team", to))
    (first,) = clock_checks(tmp_path / "home")
    assert first.status == "warn"
    assert words in f"{first.message} {first.fix}"


def test_S11_the_doctor_shows_a_clock_that_was_ahead_and_says_that_nothing_is_to_be_done(
    tmp_path: Path,
) -> None:
    clock = HandClock(SystemClock().now_ms())
    home = tmp_path / "home"
    with open_node(home, peer="ana", create=True, source=clock) as node:
        mesh = node.create_mesh("team")
        mesh.state.set("k", 1)
        clock.advance(400 * DAY_MS + HOUR_MS)
        mesh.state.set("k", 2)
        (found,) = clock_checks(home)
        assert "the newest entry, 2, was recorded 400 days in the future" in found.message
        clock.advance(-400 * DAY_MS - HOUR_MS)
        mesh.state.set("k", 3)
    (found,) = clock_checks(home)
    assert "the clock was 400 days ahead before offset 3" in found.message
    assert found.fix.startswith("nothing")
