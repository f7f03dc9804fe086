"""The demo as `--console` leaves it running, with something in it for every page and action of the
console: real laptops, a broker, a plant behind a line, three voters, a lake.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from holdfast.apps.demo import lan, through_broker, voters, zone
from holdfast.apps.demo.screen import DemoScreen
from holdfast.apps.demo.stage import DemoStage
from holdfast.pipeline.audits.gold import run_audits
from holdfast.pipeline.lake.lake import Lake
from holdfast.transport.http_client import Client
from support.daemon import Up
from support.filled_lake import pour

CLASHES = 5
"""Keys that both laptops wrote while neither heard of the other."""
DECISIONS = 4
"""Writes of cy that met a newer revision, and need somebody to decide."""


@contextmanager
def live_demo(folder: Path) -> Iterator[DemoStage]:
    """Of its chapters all is set up that has several processes; all of it runs afterwards."""
    screen = DemoScreen(lambda text: None, in_colour=False, reading_s=0)
    with DemoStage(folder, screen, is_ours=False, has_console=True) as stage:
        lan.share_once(stage)
        for begin in (through_broker.play, zone.play, voters.begin_voting):
            begin(stage)
        _write_apart(stage)
        _send_messages(stage)
        _let_decisions_wait(stage)
        _make_lake(stage)
        stage.switch_on(*stage.peers)
        yield stage


def up_of(stage: DemoStage, peer: str) -> Up:
    """The daemon of a laptop, or the broker."""
    if peer == "broker":
        assert stage.broker is not None
        return Up(stage.folder / "hub", stage.broker.listening, "")
    return Up(stage.home(peer), stage.laptop(peer).listening, "")


def ask(stage: DemoStage, peer: str, method: str, path: str, body: Any = None) -> Any:
    """A call of the laptop's own user."""
    with closing(Client(up_of(stage, peer).unix)) as client:
        raw = None if body is None else json.dumps(body).encode()
        told = {"Content-Type": "application/json"}
        answer = client.call(method, path, body=raw, headers=told)
        return json.loads(answer.body) if answer.body else None


def _write_apart(stage: DemoStage) -> None:
    stage.switch_off("ana", "bob")
    for peer in ("ana", "bob"):
        with stage.node(peer) as node:
            for number in range(CLASHES):
                lan.garden_of(node).state.set(f"clash/{number}", f"<i>{peer} wrote this")
    with stage.node("ana") as ana:
        garden = lan.garden_of(ana)
        garden.state.set("build/main", {"status": "green", "took_s": 41, "steps": ["a", "b"]})
        garden.memory.set("taste", "tea", tags=["drinks"])
        garden.memory.set("taste", "tea, no milk", tags=["drinks"])
        garden.files.share("notes/long.txt", b"one of many lines\n" * 8000)
        ana.create_mesh("own")
        ana.log.add_consumer("audit")
    stage.switch_on("ana", "bob")
    with stage.node("ana") as ana:
        stage.until(lambda: len(list(ana.conflicts(lan.MESH))) >= CLASHES, "the clashes are told")


def _send_messages(stage: DemoStage) -> None:
    with stage.node("bob") as bob, stage.node("ana") as ana:
        for text in ("lunch today?", "<script>alert(1)</script>"):
            bob.mesh(through_broker.MESH).send(text, dm="ana")
        stage.until(lambda: len(list(ana.inbox.list())) >= 3, "bob's messages have come")
    mesh = f"/v1/meshes/{through_broker.MESH}"
    queue = f"{mesh}/queues/night"
    ask(stage, "ana", "PUT", f"{mesh}/destinations/queue/night", {})
    sent = {"mesh": through_broker.MESH, "to": {"queue": "night"}, "body": "water"}
    ask(stage, "ana", "POST", "/v1/send", sent)
    taken: list[Any] = []

    def took() -> bool:
        taken.extend(ask(stage, "ana", "POST", f"{queue}/take", {"most": 1})["items"])
        return bool(taken)

    stage.until(took, "the letter is there")
    dead = {"handle": taken[0]["handle"], "how": "dead", "reason": "<b>nobody can"}
    ask(stage, "ana", "POST", f"{queue}/settle", dead)


def _let_decisions_wait(stage: DemoStage) -> None:
    """Cy, who is cut off, changes what the others change too."""
    names = [f"trip-{number}" for number in range(DECISIONS)]
    with stage.node("ana") as ana, stage.node("cy") as cy:
        ours, his = ana.mesh(voters.MESH).entities, cy.mesh(voters.MESH).entities
        for name in names:
            ours.put("mission", name, {"title": name}, base=0, timeout_ms=30_000)
        stage.until(lambda: all(_has(his, name) for name in names), "cy has the trips")
        voters.cut_off_cy(stage)
        stage.until(lambda: not any(peer.link == "up" for peer in cy.bus.peers()), "cy is alone")
        for name in names:
            ours.patch("mission", name, {"title": "by ana"}, base=1, timeout_ms=30_000)
            his.patch("mission", name, {"title": "by cy"}, base=1, timeout_ms=200)
        voters.let_in_cy(stage)
    path = f"/v1/meshes/{voters.MESH}/quorum/conflicts"
    stage.until(
        lambda: len(ask(stage, "cy", "GET", path)["conflicts"]) == DECISIONS,
        "what cy wanted waits for somebody to decide",
    )


def _has(entities: Any, name: str) -> bool:
    return entities.get("mission", name, demand=voters._LOCAL).entity is not None


def _make_lake(stage: DemoStage) -> None:
    """In this process: to start Spark for a page takes longer than all of the rest."""
    folder = stage.folder / "lake"
    lake = Lake.open(folder, create=True)
    for peer in ("ana", "bob", "plant"):
        pour(lake, stage.home(peer))
    for _ in range(2):
        run_audits(None, lake.fresh())
    stage.lake = folder
