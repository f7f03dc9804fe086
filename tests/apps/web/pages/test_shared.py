"""Pages about what is shared: a mesh with its members and invites, the network, and the broker
itself as its operator sees it. All tests share one broker and the daemons of two members.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.apps.web.part import broker_console
from support.console import Browser, Console, ConsoleInThread, console_up
from support.daemon import Up, make_home
from support.live_broker import LiveBroker, join, share
from support.waiting import until


@dataclass
class World:
    broker: LiveBroker
    operator: Browser
    ana: ConsoleInThread

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """A call in the name of ana's own user."""
        from holdfast.transport.http_client import Client

        with closing(Client(self.ana.up.unix)) as client:
            raw = None if body is None else json.dumps(body).encode()
            answer = client.call(
                method, path, body=raw, headers={"Content-Type": "application/json"}
            )
            return json.loads(answer.body) if answer.body else None


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("shared")
    ana, bob = make_home(folder / "ana", "ana"), make_home(folder / "bob", "<b>ob", "other")
    with ExitStack() as ending:
        broker = LiveBroker(folder / "broker")
        broker.parts = broker_console
        ending.enter_context(broker)
        share(ana, broker)
        import holdfast

        with holdfast.open(bob, sync="normal") as node:
            node.create_mesh("team")
        join(bob, broker, ana)
        console = ending.enter_context(console_up(ana))
        assert broker.daemon is not None
        up = Up(broker.folder, list(broker.daemon.addresses), "")
        yield World(broker, Console(up).browser(), console)


def test_U5_a_mesh_shows_its_members_and_what_they_may_do(world: World) -> None:
    browser = world.ana.browser()
    text = browser.get("/meshes/team").text
    assert "&lt;b&gt;ob" in text
    assert "<b>ob" not in text
    assert "read, send, write" in text
    key = next(
        row["key"]
        for row in world.ask("GET", "/v1/meshes/team/members")["items"]
        if row["name"] == "<b>ob"
    )
    form = {"mesh": "team", "member": key, "name": "<b>ob"}
    done = browser.do("mesh.grant", at="/meshes/team", grants="read", **form)
    assert done.leads_to == "/meshes/team"
    said = browser.get("/meshes/team").text
    assert "&lt;b&gt;ob may now: read." in said
    assert "--grant read" in said
    browser.do("mesh.grant", at="/meshes/team", grants="read send write", **form)
    odd = browser.do("mesh.grant", at="/meshes/team", grants="everything", **form)
    assert odd.status == 400
    asked = browser.do("mesh.remove_member", at="/meshes/team", **form)
    assert "Remove &lt;b&gt;ob from team?" in asked.text


def test_U5_an_invite_is_a_text_and_a_picture_that_nobody_is_shown_again(world: World) -> None:
    browser = world.ana.browser()
    form = {"mesh": "team", "uses": "2", "hours": "1", "grants": "read"}
    made = browser.do("mesh.invite", at="/meshes/team", **form)
    assert made.status == 200
    assert "holdfast://join/" in made.text
    assert "<svg" in made.text
    assert " style=" not in made.text
    assert "holdfast://join/" not in browser.get("/meshes/team").text
    (one,) = (
        row for row in world.ask("GET", "/v1/meshes/team/invites")["items"] if row["uses_left"] == 2
    )
    browser.do("mesh.drop_invite", at="/meshes/team", mesh="team", id=one["id"])
    left = world.ask("GET", "/v1/meshes/team/invites")["items"]
    assert one["id"] not in [row["id"] for row in left]


def test_U5_the_network_is_drawn_with_what_runs_on_it(world: World) -> None:
    browser = world.ana.browser()
    until(lambda: world.ask("GET", "/v1/brokers")["brokers"][0]["state"] in ("active", "idle"))
    text = browser.get("/topology").text
    assert 'class="edge ' in text
    assert ">hub</text>" in text
    browser.do("mesh.pause", at="/topology", mesh="team")
    paused = browser.get("/topology").text
    assert 'action="/do/mesh.resume"' in paused
    assert "team is paused" in browser.get("/").text
    browser.do("mesh.resume", at="/topology", mesh="team")
    assert 'action="/do/mesh.pause"' in browser.get("/topology").text


def test_U5_a_broker_that_is_away_is_said_and_its_members_are_those_known_last(
    world: World,
) -> None:
    browser = world.ana.browser()
    browser.get("/meshes/team")
    world.broker.stop()
    try:
        text = browser.get("/meshes/team").text
        assert "The broker cannot be asked now" in text
        assert "&lt;b&gt;ob" in text
        until(lambda: "hub is" in browser.get("/").text)
        assert "works, with something to look at" in browser.get("/").text
    finally:
        world.broker.start()


def test_U5_the_operator_sees_meshes_members_and_dead_letters_and_revives_one(
    world: World,
) -> None:
    operator = world.operator
    text = operator.get("/").text
    assert "hub is well" in text
    assert 'href="/meshes/team"' in text
    members = operator.get("/meshes/team").text
    assert "&lt;b&gt;ob" in members
    assert "<b>ob" not in members
    world.ask("PUT", "/v1/meshes/team/destinations/queue/night", {})
    world.ask("POST", "/v1/send", {"mesh": "team", "to": {"queue": "night"}, "body": "secret"})
    path = "/v1/meshes/team/queues/night"
    taken: list[Any] = []

    def took() -> bool:
        taken.extend(world.ask("POST", f"{path}/take", {"most": 1})["items"])
        return bool(taken)

    until(took)
    how = {"handle": taken[0]["handle"], "how": "dead", "reason": "<script>no</script>"}
    world.ask("POST", f"{path}/settle", how)
    letters = operator.get("/meshes/team/queues/night").text
    assert "&lt;script&gt;no" in letters
    assert "<script>no" not in letters
    assert "secret" not in letters
    seq = letters.partition('name="seq" value="')[2].partition('"')[0]
    form = {"mesh": "team", "queue": "night", "seq": seq}
    done = operator.do("broker.revive", at="/meshes/team/queues/night", **form)
    assert done.status == 303
    assert "No letter is dead." in operator.get("/meshes/team/queues/night").text
    assert operator.get("/meshes/nothing").status == 404


def test_U5_a_broker_has_no_door_for_tokens(world: World) -> None:
    stranger = Browser(world.operator.address)
    assert 'type="password"' not in stranger.get("/login").text
    assert stranger.log_in(token="hf_anything").status == 401
    asked = world.operator.do("broker.new_epoch", at="/meshes/team", mesh="team")
    assert "Begin a new epoch in team?" in asked.text
