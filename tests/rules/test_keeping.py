"""What the settings of forgetting may say, and what follows from them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.rules.errors import (
    BadInput,
    HoldfastError,
    OutboxAgeAboveWindow,
    RetentionBelowFloor,
    RetentionFactsBelowLog,
)
from holdfast.rules.keeping import KeptFor, Retention, first_held
from holdfast.rules.limits import DAY_MS, RETENTION_FOREVER_MS


def retention(**given: Any) -> Retention:
    return msgspec.convert(given, Retention)


@pytest.mark.parametrize(
    ("given", "rule", "says"),
    [
        ({"log": "2d"}, RetentionBelowFloor, "retention.log is 2d; at least 3d"),
        ({"tombstones": "0d"}, RetentionBelowFloor, "retention.tombstones"),
        ({"ids": "2d"}, RetentionBelowFloor, "retention.ids"),
        ({"blobs": "0d"}, RetentionBelowFloor, "retention.blobs is 0d; at least 1d"),
        (
            {"meshes": {"team": {"facts": "1d"}}},
            RetentionBelowFloor,
            "retention.meshes.team.facts",
        ),
        ({"log": "30d", "facts": "29d"}, RetentionFactsBelowLog, "kept for 30d"),
        (
            {"meshes": {"team": {"log": "forever", "facts": "30d"}}},
            RetentionFactsBelowLog,
            "retention.meshes.team.facts",
        ),
        ({"ids": "4d"}, OutboxAgeAboveWindow, "120 hours, but retention.ids is 4d"),
        ({"tombstones": "4d"}, OutboxAgeAboveWindow, "retention.tombstones is 4d"),
        (
            {"meshes": {"team": {"tombstones": "4d"}}},
            OutboxAgeAboveWindow,
            "retention.meshes.team.tombstones",
        ),
        ({"log": "36501d"}, BadInput, "'36501d'"),
        ({"log": "long"}, BadInput, "'long'"),
        ({"meshes": {"No Mesh": {}}}, BadInput, "No Mesh"),
    ],
)
def test_D8_a_retention_that_would_lose_something_is_refused_by_its_rule(
    given: dict[str, Any], rule: type[HoldfastError], says: str
) -> None:
    with pytest.raises(rule) as refused:
        retention(**given).check(120)
    assert says in refused.value.message
    assert refused.value.hint


def test_D8_the_least_retention_is_taken() -> None:
    least = retention(log="3d", facts="3d", tombstones="3d", ids="3d", blobs="1d")
    least.check(72)
    least.check(None)
    with pytest.raises(OutboxAgeAboveWindow):
        least.check(73)


def test_S17_a_mesh_keeps_what_it_names_and_else_what_all_keep() -> None:
    asked = retention(
        facts="forever",
        tombstones="10 d",
        meshes={"team": {"log": "365d"}, "notes": {"log": "5d", "facts": "6d", "tombstones": "7d"}},
    )
    asked.check(None)
    assert asked.of("other") == KeptFor(
        log_ms=90 * DAY_MS, fact_ms=RETENTION_FOREVER_MS, dead_ms=10 * DAY_MS
    )
    assert asked.of("team").log_ms == 365 * DAY_MS
    assert asked.of("team").fact_ms == RETENTION_FOREVER_MS
    assert asked.of("notes") == KeptFor(log_ms=5 * DAY_MS, fact_ms=6 * DAY_MS, dead_ms=7 * DAY_MS)
    assert asked.shown()["meshes"] == {
        "notes": {"log": "5d", "facts": "6d", "tombstones": "7d"},
        "team": {"log": "365d", "facts": "forever", "tombstones": "10d"},
    }
    longer = retention(facts="100d", meshes={"team": {"log": "365d"}})
    assert longer.of("team").fact_ms == 365 * DAY_MS, "they are in the log that is kept"


def test_S17_the_log_goes_up_to_the_first_entry_that_its_mesh_still_keeps() -> None:
    bounds = {("", False): 9, ("", True): 4, ("team", False): 3, ("team", True): 3}
    old = [(1, "a", "state.set"), (2, "team", "state.set"), (3, "a", "fact.append")]
    assert first_held(old, bounds, 9) == 9
    assert first_held([*old, (4, "a", "fact.append")], bounds, 9) == 4
    assert first_held([*old, (5, "team", "state.set")], bounds, 9) == 5
    assert first_held([*old, (8, "a", "state.set")], bounds, 9) == 9
    assert first_held([*old, (5, "team", "state.set")], bounds, 5) == 5
