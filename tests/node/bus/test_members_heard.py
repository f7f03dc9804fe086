"""Q12: how long members without a vote have been silent, as the bus of a home knows it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from holdfast.node.bus.members_heard import MembersHeard
from support.cli import Cli
from support.daemon import make_home
from support.envelopes import MESH, fact_append
from support.nodes import Nodes
from support.quorum_processes import VoterProcess
from support.source import HandClock
from support.waiting import until


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


def test_Q12_a_member_without_a_vote_that_is_killed_is_lost_and_its_task_moves_on(
    tmp_path: Path,
) -> None:
    ana, bo = (VoterProcess(tmp_path / name) for name in ("ana", "bo"))
    here, there = Cli(ana.home), Cli(bo.home)
    make_home(ana.home, "ana", MESH)
    there("init", "--peer", "bo")
    here("mesh", "share", MESH)
    try:
        for one in (ana, bo):
            one.begin()
        for one in (ana, bo):
            one.ready()
        there("mesh", "join", here("mesh", "invite", MESH).out.strip())
        here("mesh", "grant", "bo", "--grant", "read", "--grant", "write", "--mesh", MESH)
        here("quorum", "init", MESH)
        settings = '{"handoff":"reassign-to-local","lostAfterMs":1000}'
        here("entity", "put", "mesh_settings", "quorum", settings)
        task = here("task", "create", "build", "--json").json["task"]

        def claimed() -> bool:
            return there("task", "claim", task, code=None).code == 0

        until(claimed)

        def row() -> dict[str, Any]:
            (found,) = here("task", "list", "--json").json
            return cast("dict[str, Any]", found)

        until(lambda: row()["claimed_by"] == "bo")
        bo.kill()
        until(lambda: row()["claimed_by"] == "ana")
        bo.restart()
        until(lambda: there("task", "list", "--json").json[0]["claimed_by"] == "ana")
    finally:
        for one in (ana, bo):
            one.end()
