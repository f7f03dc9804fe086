"""`holdfast mesh share`, `invite`, `join` and the rest with no broker: daemons that speak TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.node.settings import BusSettings, Settings
from support.cli import Cli
from support.daemon import make_home, running
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


def test_B6_U2_a_trusted_peer_that_is_linked_shares_a_mesh_from_its_join_on(
    ana: Cli, tmp_path: Path
) -> None:
    """What it was given to show is shown on a new link, and nobody waits until the old one ends."""
    bob = newcomer(tmp_path / "bob", "bob")
    with running(bob.home, LISTENING) as up:
        ana("peer", "trust", bob("peer", "card", "--bus").out.strip())
        bob("peer", "trust", ana("peer", "card", "--bus").out.strip())
        until(lambda: rows(bob, "peer", "list")[0]["link"] == "up")
        ana("mesh", "share", "team")
        ana("state", "set", "build", "green", "--mesh", "team")
        bob("mesh", "join", ana("mesh", "invite", "team").out.strip())
        team = up.daemon.api.node.mesh("team")
        until(lambda: team.state.get("build") == "green")
        team.state.set("answer", 42)
        until(lambda: "42" in ana("state", "get", "answer", "--mesh", "team", code=None).out)
