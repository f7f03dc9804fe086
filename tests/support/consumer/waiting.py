"""Every family, for callers that wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import holdfast
from holdfast.errors import TaskTaken, UnknownMesh

MODEL = holdfast.Model(provider="local", name="tiny", dim=3)


def open_home(home: Path, peer: str) -> holdfast.Node:
    try:
        return holdfast.open(home)
    except holdfast.errors.NoHome as missing:
        print(missing.message, missing.hint)
        return holdfast.open(home, peer=peer, create=True, sync="normal")


def mesh_of(node: holdfast.Node, slug: str) -> holdfast.Mesh:
    try:
        return node.mesh(slug)
    except UnknownMesh:
        return node.mesh(slug, create=True)


def state(mesh: holdfast.Mesh) -> dict[str, int]:
    receipt: holdfast.Receipt = mesh.state.set("build", {"status": "green"}, id=None)
    entry: holdfast.StateEntry | None = mesh.state.entry("build")
    assert entry is not None
    mesh.state.delete("build")
    past = mesh.state.as_of("build", lamport=receipt.lamport)
    return {found.key: found.lamport for found in (*past, *mesh.state.list("b"))}


def memory(mesh: holdfast.Mesh) -> list[str]:
    mesh.memory.set("notes", ["one"], tags=("draft",))
    mine: holdfast.Memory | None = mesh.memory.get("notes")
    assert mine is not None
    everybody = mesh.memory.recall("notes", scope="all")
    listed = [found.key for found in mesh.memory.list()]
    mesh.memory.forget("notes")
    return [*listed, *(found.peer for found in everybody), *mine.tags]


def vectors(mesh: holdfast.Mesh) -> float:
    mesh.vectors.store("a", [1.0, 0.0, 0.0], model=MODEL, content="north")
    nearest: list[holdfast.Hit] = mesh.vectors.search([0.9, 0.1, 0.0], model=MODEL, limit=1)
    mesh.vectors.delete("a", model=MODEL)
    return nearest[0].distance


def files(mesh: holdfast.Mesh) -> tuple[bytes, int]:
    mesh.files.share("notes/todo.txt", b"water the plants")
    info: holdfast.FileInfo = mesh.files.info("notes/todo.txt")
    with mesh.files.open("notes/todo.txt") as stream:
        begin: bytes = stream.read(5)
    content = mesh.files.read("notes/todo.txt") + mesh.files.last_known("notes/todo.txt").content
    sizes = sum(found.size for found in mesh.files.list())
    mesh.files.delete("notes/todo.txt")
    return begin + content, sizes + info.size


def tasks(mesh: holdfast.Mesh) -> holdfast.TaskRow:
    task: holdfast.TaskRow = mesh.tasks.create("water the plants", description="all of them")
    try:
        mesh.tasks.claim(task.task)
    except TaskTaken as taken:
        raise SystemExit(taken.message) from taken
    mesh.tasks.release(task.task)
    mesh.tasks.claim(task.task)
    done = mesh.tasks.complete(task.task)
    assert [turn.kind for turn in mesh.tasks.events(task.task)]
    assert [found.title for found in mesh.tasks.list(status="completed")] == [done.title]
    return mesh.tasks.get(task.task)


def facts_and_events(mesh: holdfast.Mesh) -> list[str]:
    mesh.facts.append("plants", "watered_at", 1_700_000_000)
    mesh.audit.append("activityLog", {"did": "water"})
    events: Iterator[str] = (event.origin for event in mesh.audit.list("activityLog"))
    mesh.telemetry.set("heartbeats", "pump", 1, ttl_ms=60_000)
    kinds = [entry.kind for entry in mesh.telemetry.list()]
    mesh.presence.set(display_name="Ana", status="here")
    return [*events, *kinds, *(peer.display_name for peer in mesh.presence.list())]


def messages(mesh: holdfast.Mesh) -> tuple[int, int]:
    try:
        sent = mesh.send("done", topic="builds", meta={"run": 7})
    except holdfast.errors.NotShared:
        return (0, 0)
    assert sent.id
    for message in mesh.inbox.list():
        mesh.inbox.reply(message.id, "thanks")
    return mesh.inbox.counts()


def node_itself(node: holdfast.Node) -> int:
    reader = node.log.add_consumer("report")
    offsets: list[int] = [entry.offset for entry in node.log.fetch(reader.name, limit=10)]
    node.log.confirm(reader.name, offsets[-1])
    node.log.retire(reader.name)
    for conflict in node.conflicts():
        node.dismiss_conflict(conflict.number)
    assert [item.id for item in node.outbox.list()] == [] == node.take_warnings()
    node.sweep()
    return len(offsets)


def decided(mesh: holdfast.Mesh) -> str:
    """What voters decide; never run, only checked."""
    with mesh.lease("deploy", ttl_ms=10_000) as lease:
        receipt = mesh.entities.put("mission", "m1", {"name": "north"}, lease=lease)
        fence: str = lease.fence
    found = mesh.entities.get("mission", "m1", demand=holdfast.ReadDemand(linearizable=False))
    name = "" if found.entity is None else str(found.entity.fields["name"])
    both = holdfast.entity_operation("patch", "mission", "m1", {"name": "south"}, base=1)
    mesh.entities.change([both])
    return fence + name + receipt.id


def shared(node: holdfast.Node) -> list[str]:
    """What a broker and the bus do; never run, only checked."""
    node.sharing.publish("team", broker="https://broker.example", card="AbC")
    names: list[str] = [member.name for member in node.sharing.members("team")]
    node.bus.send("bob", b"hello")
    with node.bus.subscribe("builds.>") as messages:
        names += [message.topic or "" for message in messages]

    @node.bus.serve("echo")
    def echo(request: object) -> bytes:
        return repr(request).encode()

    assert echo(1)
    return names


def main(home: Path) -> None:
    with open_home(home, "ana") as node:
        mesh = mesh_of(node, "team")
        assert state(mesh) == {"build": 1}
        assert memory(mesh) == ["notes", "ana", "draft"]
        assert vectors(mesh) < 1
        assert files(mesh) == (b"water" + 2 * b"water the plants", 32)
        assert tasks(mesh).status == "completed"
        assert facts_and_events(mesh) == ["ana", "heartbeats", "Ana"]
        assert messages(mesh) == (0, 0)
        assert node_itself(node) == 10
