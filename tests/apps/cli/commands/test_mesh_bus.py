"""`holdfast mesh share`, `invite`, `join` and the rest with no broker: daemons that speak TLS."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.node.settings import BusSettings, Settings
from support.cli import Cli
from support.daemon import UpInThread, make_home, running
from support.waiting import until

LISTENING = Settings(bus=BusSettings(listen=["127.0.0.1:0"]))


@pytest.fixture
def ana(tmp_path: Path) -> Iterator[Cli]:
    """The owner of `team`, whose daemon runs."""
    home = make_home(tmp_path / "ana")
    with running(home, LISTENING):
        yield Cli(home)


def rows(cli: Cli, *words: str) -> list[dict[str, Any]]:
    """What a listing says, as documents."""
    found: list[dict[str, Any]] = cli(*words, "--json").json
    return found


def names(cli: Cli) -> list[str]:
    return [row["name"] for row in rows(cli, "mesh", "members", "team")]


def newcomer(folder: Path, name: str) -> Cli:
    return Cli(make_home(folder, name, "own"))


def test_B6_U2_a_mesh_is_shared_and_joined_with_no_broker_at_all(ana: Cli, tmp_path: Path) -> None:
    assert ana("mesh", "share", "team").out == "team\n"
    ana("state", "set", "build", "green", "--mesh", "team")
    text = ana("mesh", "invite", "team").out.strip()
    bob = newcomer(tmp_path / "bob", "bob")
    joined = bob("mesh", "join", text)
    assert "bob is a member of team, which ana owns" in joined.err
    assert names(bob) == ["ana", "bob"]
    with running(tmp_path / "bob", LISTENING) as up:
        team = up.daemon.api.node.mesh("team")
        until(lambda: team.state.get("build") == "green")
        team.state.set("answer", 42)
        until(lambda: "42" in ana("state", "get", "answer", "--mesh", "team", code=None).out)
        found = rows(ana, "peer", "list")
        assert [row["peer"] for row in found] == ["bob"], found
        (seen,) = found
        assert (seen["trust"], seen["link"]) == ("member", "up")
        assert seen["last_seen_at"] is not None
        ana("mesh", "grant", "bob", "--grant", "read", "--mesh", "team")
        until(lambda: rows(bob, "mesh", "members", "team")[1]["grants"] == ["read"])
        ana("mesh", "remove-member", "bob", "--mesh", "team")
    assert names(ana) == ["ana"]


def test_B6_U2_a_join_that_cannot_be_says_why(ana: Cli, tmp_path: Path) -> None:
    ana("mesh", "share", "team")
    text = ana("mesh", "invite", "team").out.strip()
    bob = newcomer(tmp_path / "bob", "bob")
    bob("mesh", "join", text)
    twin = newcomer(tmp_path / "twin", "bob")
    again = twin("mesh", "join", ana("mesh", "invite", "team").out.strip(), code=5)
    assert "a member 'bob' with another key" in again.err
    late = newcomer(tmp_path / "zoe", "zoe")("mesh", "join", text, code=7)
    assert "used up" in late.err
    (open_,) = rows(ana, "mesh", "invites", "team")
    ana("mesh", "invites", "team", "--drop", open_["id"][:12])
    assert "belongs to ana" in bob("mesh", "invite", "team", code=7).err
    bob("mesh", "leave", "team")
    assert names(ana) == ["ana"]
    assert "--remove" in ana("mesh", "leave", "team", code=5).err
    ana("mesh", "leave", "team", "--remove")
    with holdfast.open(tmp_path / "bob") as node:
        assert [row.slug for row in node.meshes()] == ["own", "team"], "it keeps what it has"


def test_B6_U2_a_member_that_left_joins_again_with_a_new_invite_and_both_sides_have_all_of_it(
    ana: Cli, tmp_path: Path
) -> None:
    ana("mesh", "share", "team")
    ana("state", "set", "before", "one", "--mesh", "team")
    bob = newcomer(tmp_path / "bob", "bob")
    with running(bob.home, LISTENING) as up:
        bob("mesh", "join", ana("mesh", "invite", "team").out.strip())
        team = up.daemon.api.node.mesh("team")
        until(lambda: team.state.get("before") == "one")
        team.state.set("bob", "here")
        until(lambda: "here" in ana("state", "get", "bob", "--mesh", "team", code=None).out)
        bob("mesh", "leave", "team")
        assert names(ana) == ["ana"]
        ana("state", "set", "before", "two", "--mesh", "team")
        ana("state", "set", "meanwhile", "yes", "--mesh", "team")
        bob("state", "set", "alone", "yes", "--mesh", "team")
        assert team.state.get("meanwhile") is None
        invite = ana("mesh", "invite", "team").out.strip()
        assert "bob is a member of team" in bob("mesh", "join", invite).err
        assert names(ana) == names(bob) == ["ana", "bob"]
        until(lambda: (team.state.get("before"), team.state.get("meanwhile")) == ("two", "yes"))
        until(lambda: "yes" in ana("state", "get", "alone", "--mesh", "team", code=None).out)


def test_B6_U2_a_mesh_of_the_same_name_is_joined_to_no_other_than_the_one_that_was_left(
    ana: Cli, tmp_path: Path
) -> None:
    ana("mesh", "share", "team")
    bob = newcomer(tmp_path / "bob", "bob")
    bob("mesh", "create", "team")
    invite = ana("mesh", "invite", "team").out.strip()
    assert "another mesh 'team'" in bob("mesh", "join", invite, code=5).err, "it is bob's own"
    cleo = newcomer(tmp_path / "cleo", "cleo")
    cleo("mesh", "join", invite)
    cleo("mesh", "leave", "team")
    ana("mesh", "leave", "team", "--remove")
    ana("mesh", "share", "team")  # a new mesh, with members of its own
    other = ana("mesh", "invite", "team").out.strip()
    assert "another mesh 'team'" in cleo("mesh", "join", other, code=5).err


def test_B6_U2_trusted_peers_that_are_linked_share_a_mesh_from_their_join_on(
    ana: Cli, tmp_path: Path
) -> None:
    """The owner goes by its list. Others have to see what a member was given, on a new link: nobody
    waits until the old one ends.
    """
    people = [ana, newcomer(tmp_path / "bob", "bob"), newcomer(tmp_path / "cyd", "cyd")]
    with running(people[1].home, LISTENING) as bobs, running(people[2].home, LISTENING) as cyds:
        for one, other in permutations(people, 2):
            one("peer", "trust", other("peer", "card", "--bus").out.strip())
        for one in people:
            until(lambda one=one: [row["link"] for row in rows(one, "peer", "list")] == ["up"] * 2)  # type: ignore[misc]
        ana("mesh", "share", "team")
        invite = ana("mesh", "invite", "team", "--uses", "2").out.strip()
        teams = []
        for newcome, up in ((people[1], bobs), (people[2], cyds)):
            newcome("mesh", "join", invite)
            teams.append(up.daemon.api.node.mesh("team"))
        ana("state", "set", "of ana", "1", "--mesh", "team")
        for team in teams:
            until(lambda team=team: team.state.get("of ana") == "1")  # type: ignore[misc]
        teams[0].state.set("of bob", 1)
        until(lambda: "1" in ana("state", "get", "of bob", "--mesh", "team", code=None).out)
        # Not only by way of the owner, who may relay.
        for up in (bobs, cyds):
            until(lambda up=up: _shares(up) == [["team"]] * 2)  # type: ignore[misc]


def _shares(up: UpInThread) -> list[list[str]]:
    """What is shared with each peer that is linked."""
    host = up.daemon.api.bus
    assert host is not None
    return [one.meshes for one in up.run(host.exchange.status).peers]
