"""Q12: how long members without a vote have been silent, as the bus of a home knows it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from holdfast.node.bus.members_heard import MembersHeard
from support.envelopes import MESH, fact_append
from support.nodes import Nodes
from support.source import HandClock


def test_Q12_links_and_whatever_arrives_are_signs_of_life_and_silence_is_never_overstated(
    tmp_path: Path,
) -> None:
    ana = Nodes("memory", tmp_path, HandClock()).open("ana")
    listed = [SimpleNamespace(name=name, key=name.encode()) for name in ("ana", "bob", "cyd")]
    held = SimpleNamespace(members=SimpleNamespace(members=listed))
    linked: set[bytes] = set()
    now = 1000
    heard = MembersHeard(
        ana._engine,
        cast(Any, SimpleNamespace(held_mesh=lambda mesh: held)),
        cast(Any, SimpleNamespace(linked=lambda: linked)),
        lambda: now,
    )
    assert heard(MESH) == {"bob": None, "cyd": None}
    linked.add(b"bob")
    assert heard(MESH) == {"bob": 0, "cyd": None}
    # The link may have ended just before this look.
    linked.clear()
    now += 500
    assert heard(MESH) == {"bob": 0, "cyd": None}
    now += 70
    assert heard(MESH) == {"bob": 70, "cyd": None}
    # Somebody else brings what cyd wrote, and what dan wrote, who is no member any more.
    ana.apply([fact_append("s", "is", 1, origin="cyd"), fact_append("s", "is", 1, origin="dan")])
    assert heard(MESH) == {"bob": 70, "cyd": 0, "dan": None}
    now += 30
    assert heard(MESH) == {"bob": 100, "cyd": 0, "dan": None}
    now += 5
    assert heard(MESH) == {"bob": 105, "cyd": 5, "dan": None}
    assert heard("other") == {"bob": None, "cyd": None}
