"""A node of the bench of the quorum: a home with its bus and its groups, in a process of its own.

    python -m bench._voter HOME [PROFILE]

It reads one command a line, as JSON, and answers each with one line of JSON. The load runs in this
process too: what is measured is a program that writes through the library where the bus is held.
With PROFILE it writes there what the threads of this process did while it was under load.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import sys
import threading
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from time import perf_counter, thread_time
from typing import Any

import uvloop

import holdfast
from holdfast.node.bus.host import BusHost
from holdfast.node.bus.sharing import BusSharing
from holdfast.node.quorum.api import ReadDemand
from holdfast.node.settings import BusSettings, Settings
from holdfast.rules.bodies import encode_body, encode_value
from holdfast.rules.invites import PeerInvite, parse_any_invite
from holdfast.rules.quorum.intents import EntityChange, EntityOperation, entity_name
from holdfast.storage.files.home import HomePaths

MESH = "team"
VALUE_BYTES = 500
SETTINGS = Settings(bus=BusSettings(listen=["127.0.0.1:0"], discovery="off"))
_FRESH = ReadDemand(linearizable=True)


def body_of(id: str, number: int) -> bytes:
    """A change of one entity whose fields have `VALUE_BYTES`."""
    fields = encode_value({"number": number, "text": "", "title": "a mission"})
    fields = fields.replace(b'"text":""', b'"text":"%s"' % (b"x" * (VALUE_BYTES - len(fields))))
    return encode_body(EntityChange((EntityOperation("put", "mission", id, None, fields),)))


class Voter:
    """Carries out commands. Belongs to one event loop."""

    def __init__(self, node: holdfast.Node, host: BusHost) -> None:
        self._node, self._host = node, host

    async def share(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Owns the mesh; answers with one invite for each of the others."""
        sharing = BusSharing(self._node._engine, self._host._own_key)
        sharing.share(MESH)
        await self._host.refresh()
        at = self._host.bus.addresses
        return {
            "invites": [sharing.invite(MESH, addresses=at).text for _ in range(asked["others"])]
        }

    async def join(self, asked: dict[str, Any]) -> dict[str, Any]:
        invite = parse_any_invite(asked["invite"])
        assert isinstance(invite, PeerInvite)
        await self._host.members.join(invite)
        return {}

    async def init(self, asked: dict[str, Any]) -> dict[str, Any]:
        await self._host.quorum.init(MESH, tuple(asked["voters"]))
        return {}

    async def groups(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Begins groups of this node alone, one for each of so many more meshes."""
        for number in range(asked["first"], asked["first"] + asked["count"]):
            self._node.create_mesh(f"idle-{number}")
            await self._host.groups.beginnings.found(f"idle-{number}")
        return {}

    async def status(self, asked: dict[str, Any]) -> dict[str, Any]:
        status = await self._host.quorum.status(MESH)
        voters = [one.peer for one in status.members if one.place == "voter"]
        return {
            "part": status.part,
            "coordinator": status.coordinator,
            "applied": status.applied,
            "voters": voters,
        }

    async def transfer(self, asked: dict[str, Any]) -> dict[str, Any]:
        await self._host.quorum.transfer(MESH, None)
        return {}

    async def write(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Writes for so many seconds, so many at a time."""
        quorum, keys, first = self._host.quorum, asked["keys"], asked["first"]
        queued = 0

        async def one(number: int) -> None:
            nonlocal queued
            id = f"m{(first + number) % keys}"
            name = entity_name("mission", id)
            receipt = await quorum.intend(MESH, "entity.change", name, body_of(id, number))
            queued += receipt.state == "queued"

        return await _load(one, asked) | {"queued": queued}

    async def confirm(self, asked: dict[str, Any]) -> dict[str, Any]:
        async def one(number: int) -> None:
            await self._host.quorum.confirm(MESH, _FRESH)

        return await _load(one, asked)


async def _load(one: Callable[[int], Awaitable[None]], asked: dict[str, Any]) -> dict[str, Any]:
    took: list[float] = []
    ended: list[float] = []
    begun = perf_counter()
    until = begun + asked["seconds"]

    async def some(number: int) -> None:
        while (now := perf_counter()) < until:
            await one(number)
            number += asked["in_flight"]
            ended.append(perf_counter())
            took.append(ended[-1] - now)

    await asyncio.gather(*(some(number) for number in range(asked["in_flight"])))
    ends = [begun, *ended]
    cuts = quantiles(took, n=100)
    return {
        "count": len(took),
        "seconds": perf_counter() - begun,
        "p50_ms": cuts[49] * 1e3,
        "p99_ms": cuts[98] * 1e3,
        "gap_s": max(b - a for a, b in pairwise(ends)),
    }


async def main(home: Path) -> None:
    with holdfast.open(home, sync="full") as node:
        host = await BusHost.bind(node._engine, node._opened.store, HomePaths(home), SETTINGS)
        voter = Voter(node, host)
        try:
            while line := await asyncio.to_thread(sys.stdin.readline):
                asked = json.loads(line)
                answer = await getattr(voter, asked.pop("do"))(asked)
                print(json.dumps(answer), flush=True)
        finally:
            await host.close()


def profiled(run: Callable[[], None], file: Path) -> None:
    """Notes what each thread of the process does, the writers' too."""
    profiles: list[cProfile.Profile] = []
    inner = threading.Thread.run

    def outer(thread: threading.Thread) -> None:
        profile = cProfile.Profile(thread_time)
        profiles.append(profile)
        profile.runcall(inner, thread)

    threading.Thread.run = outer  # type: ignore[method-assign, assignment]
    profile = cProfile.Profile(thread_time)
    profile.runcall(run)
    profile.dump_stats(file.with_suffix(".loop"))
    for number, other in enumerate(profiles):
        other.dump_stats(file.with_suffix(f".{number}"))


if __name__ == "__main__":
    _, place, *wanted = sys.argv
    if wanted:
        profiled(lambda: uvloop.run(main(Path(place))), Path(wanted[0]))
    else:
        uvloop.run(main(Path(place)))
