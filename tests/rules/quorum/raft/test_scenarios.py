"""The scenarios under tests/scenarios/quorum, replayed on the product's machine."""

from __future__ import annotations

import pytest

from support.project import TESTS
from support.raft_scenario import replay

SCENARIOS = sorted((TESTS / "scenarios" / "quorum").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_Q4_the_machine_does_what_the_scenario_says(path: object) -> None:
    assert replay(path) > 0, "a scenario without a fact proves nothing"  # type: ignore[arg-type]


def test_Q4_there_is_a_scenario_for_every_known_trap() -> None:
    assert len(SCENARIOS) >= 40
