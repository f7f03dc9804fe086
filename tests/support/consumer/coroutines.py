"""Every family, for coroutines."""

from __future__ import annotations

import asyncio
from pathlib import Path

import holdfast
from holdfast.errors import HoldfastError, NotShared, TaskTaken

MODEL = holdfast.Model(provider="local", name="tiny", dim=3)


async def state_and_memory(mesh: holdfast.AsyncMesh) -> dict[str, int]:
    one, other = await asyncio.gather(
        mesh.state.set("build", {"status": "green"}), mesh.memory.set("notes", ["one"])
    )
    receipts: list[holdfast.Receipt] = [one, other]
    entry: holdfast.StateEntry | None = await mesh.state.entry("build")
    mine: holdfast.Memory | None = await mesh.memory.get("notes")
    assert entry is not None
    assert mine is not None
    assert len(receipts) == 2
    listed = {found.key: found.lamport async for found in mesh.state.list("b")}
    past = await mesh.state.as_of("build", lamport=one.lamport)
    await mesh.state.delete("build")
    await mesh.memory.forget("notes")
    return listed | {found.key: found.lamport for found in past}


async def vectors(mesh: holdfast.AsyncMesh) -> float:
    await mesh.vectors.store("a", [1.0, 0.0, 0.0], model=MODEL)
    nearest: list[holdfast.Hit] = await mesh.vectors.search([0.9, 0.1, 0.0], model=MODEL)
    await mesh.vectors.delete("a", model=MODEL)
    return nearest[0].distance


async def files(mesh: holdfast.AsyncMesh) -> bytes:
    await mesh.files.share("todo.txt", b"water the plants")
    info: holdfast.FileInfo = await mesh.files.info("todo.txt")
    assert [found.path async for found in mesh.files.list()] == [info.path]
    with await mesh.files.open("todo.txt") as stream:
        begin: bytes = stream.read(5)
    content = await mesh.files.read("todo.txt")
    await mesh.files.delete("todo.txt")
    return begin + content


async def tasks(mesh: holdfast.AsyncMesh) -> holdfast.TaskRow:
    task: holdfast.TaskRow = await mesh.tasks.create("water the plants")
    try:
        await mesh.tasks.claim(task.task)
    except TaskTaken as taken:
        raise SystemExit(taken.hint) from taken
    await mesh.tasks.complete(task.task)
    assert len(await mesh.tasks.events(task.task)) == 3
    return await mesh.tasks.get(task.task)


async def facts_and_events(mesh: holdfast.AsyncMesh) -> list[str]:
    await mesh.facts.append("plants", "watered_at", 1_700_000_000)
    await mesh.audit.append("activityLog", {"did": "water"})
    await mesh.telemetry.set("heartbeats", "pump", 1)
    await mesh.presence.set(status="here")
    origins: list[str] = [event.origin async for event in mesh.audit.list("activityLog")]
    kinds = [entry.kind async for entry in mesh.telemetry.list()]
    return [*origins, *kinds, *(peer.status for peer in await mesh.presence.list())]


async def messages(mesh: holdfast.AsyncMesh) -> int:
    try:
        sent = await mesh.send("done", topic="builds")
    except NotShared:
        return 0
    return len(sent.id) + sum([len(message.id) async for message in mesh.inbox.list()])


async def decided(mesh: holdfast.AsyncMesh) -> str:
    """What voters decide; never run, only checked."""
    async with mesh.lease("deploy") as lease:
        receipt = await mesh.entities.put("mission", "m1", {"name": "north"}, lease=lease)
    found = await mesh.entities.get("mission", "m1")
    return receipt.id + ("" if found.entity is None else found.entity.id)


async def shared(node: holdfast.AsyncNode) -> list[str]:
    """What a broker and the bus do; never run, only checked."""
    names: list[str] = [member.name for member in await node.sharing.members("team")]
    await node.bus.send("bob", b"hello")
    async with node.bus.subscribe("builds.>") as found:
        names += [message.topic or "" async for message in found]
    return names


async def main(home: Path) -> None:
    try:
        await holdfast.aopen(home / "nowhere")
    except HoldfastError as error:
        print(error.code, error.hint)
    async with holdfast.aopen(home, peer="ana", create=True) as node:
        mesh: holdfast.AsyncMesh = await node.mesh("team", create=True)
        assert await state_and_memory(mesh) == {"build": 1}
        assert await vectors(mesh) < 1
        assert await files(mesh) == b"water" + b"water the plants"
        assert (await tasks(mesh)).status == "completed"
        assert await facts_and_events(mesh) == ["ana", "heartbeats", "here"]
        assert await messages(mesh) == 0
