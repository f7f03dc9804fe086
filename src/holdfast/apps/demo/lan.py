"""Two laptops find each other on the LAN, part, write the same things apart, and meet again.

The LAN is the loopback of this machine; the mDNS is real. `garden` is their mesh, with no broker.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.apps.demo.stage import DemoStage
from holdfast.node.library.node import Mesh, Node
from holdfast.rules.errors import Unreachable

MESH: Final = "garden"
_DISCOVERS: Final = "--bus-discovery=mdns"
_MESSAGE: Final = "lunch?"
GRANTS: Final = ("read", "write", "relay")
"""Who may relay gives others back what they have lost."""


def play(stage: DemoStage) -> None:
    task = share(stage)
    with stage.node("bob") as bob:
        stage.prove(
            bob.mesh(MESH).state.get("gate") == "open",
            "bob reads what ana wrote before he came: gate = open",
        )
    _part(stage, task)
    _meet(stage, task)
    _restore_the_loser(stage)


def share_once(stage: DemoStage) -> None:
    """For chapters that stand on this one."""
    with stage.node("ana") as ana:
        is_shared = ana.bus.sharing.is_shared(MESH)
    if not is_shared:
        share(stage)


def share(stage: DemoStage) -> str:
    """Ana shares a mesh over the bus, and bob joins it; the task that is in it."""
    with stage.node("ana") as ana:
        garden = ana.mesh(MESH, create=True)
        garden.state.set("gate", "open")
        task = garden.tasks.create("water the beans").task
        ana.bus.sharing.share(MESH)
    stage.laptop("ana", _DISCOVERS)
    stage.laptop("bob", _DISCOVERS)
    stage.switch_on("ana", "bob")
    with stage.node("ana") as ana, stage.node("bob") as bob:
        invite = ana.bus.sharing.invite(MESH, uses=2, grants=GRANTS).text
        stage.tell("ana invites bob to the mesh garden; the invite names no address")
        try:
            bob.bus.join(invite)
        except Unreachable:
            stage.screen.left_out("this machine lets no mDNS pass: bob is told where ana is")
            where = [stage.laptop("ana").bus]
            told = ana.bus.sharing.invite(MESH, grants=GRANTS, addresses=where)
            bob.bus.join(told.text)
        else:
            stage.until(lambda: _address_of_ana(bob), "bob knows where ana is")
            found = _address_of_ana(bob)
            stage.prove(found == stage.laptop("ana").bus, f"bob found her by mDNS, at {found}")
        stage.until(lambda: bob.mesh(MESH).counts() == garden_of(ana).counts(), "bob has it all")
    return task


def _address_of_ana(bob: Node) -> str | None:
    return next((peer.address for peer in bob.bus.peers() if peer.peer == "ana"), None)


def garden_of(node: Node) -> Mesh:
    return node.mesh(MESH)


def _part(stage: DemoStage, task: str) -> None:
    stage.switch_off("ana", "bob")
    stage.tell("both are on the road: each writes the gate, and takes the same task")
    with stage.node("ana") as ana:
        garden_of(ana).tasks.claim(task)
        garden_of(ana).state.set("gate", "shut by ana")
    with stage.node("bob") as bob:
        garden_of(bob).memory.set("beans", "they like shade")
        garden_of(bob).tasks.claim(task)
        garden_of(bob).state.set("gate", "painted by bob")
    stage.switch_on("ana")
    with stage.node("ana") as ana:
        sent = ana.bus.send("bob", _MESSAGE, wait_ms=100)
    stage.prove(sent.state == "spooled", "ana's message to bob, who is away, waits on her disk")


def _meet(stage: DemoStage, task: str) -> None:
    stage.switch_on("bob")
    with stage.node("ana") as ana, stage.node("bob") as bob:
        stage.until(lambda: everything(ana) == everything(bob), "both have the same")
        rows = sum(len(rows) for rows in everything(ana).values())
        stage.prove(
            everything(ana) == everything(bob),
            f"bob is back; both hold the same {rows} rows",
        )
        held = garden_of(ana).tasks.get(task).claimed_by
        warned = [warning.by_peer for warning in bob.take_warnings(MESH)]
        stage.prove(
            (held, warned) == ("ana", ["ana"]),
            "the task is ana's, who was first; bob is warned, once",
            f"it is {held}'s, and bob was warned of {warned}",
        )
        with bob.bus.subscribe() as messages:
            first = messages.take(timeout_ms=30_000)
            again = messages.take(timeout_ms=200)
        stage.prove(
            first is not None and first.text == _MESSAGE and again is None,
            f"her message has come, once: {_MESSAGE}",
            f"{first} and then {again}",
        )


def _restore_the_loser(stage: DemoStage) -> None:
    with stage.node("ana") as ana, stage.node("bob") as bob:
        row = next(row for row in ana.conflicts(MESH) if row.entity == "gate")
        stood = garden_of(ana).state.get("gate")
        ana.restore_conflict(row.number)
        lost = garden_of(ana).state.get("gate")
        stage.until(lambda: garden_of(bob).state.get("gate") == lost, "bob has what was restored")
        stage.prove(
            {stood, lost} == {"shut by ana", "painted by bob"},
            f"what the merge discarded is in the ledger, and restored: gate = {lost}",
            f"{stood} stood, and {lost} was restored",
        )


def everything(node: Node) -> dict[str, list[Any]]:
    """What a node holds of the mesh, as its readers see it."""
    mesh = garden_of(node)
    return {
        "state": [(row.key, row.value, row.lamport, row.peer) for row in mesh.state.list()],
        "memory": [(row.peer, row.key, row.value) for row in mesh.memory.list(scope="all")],
        "files": [(row.path, row.sha256, row.lamport) for row in mesh.files.list()],
        "tasks": [(row.task, row.status, row.claimed_by) for row in mesh.tasks.list()],
    }
