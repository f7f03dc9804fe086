"""A process with a bus that finds its peers by mDNS, and the test's handle on it.

    ana = LanPeer.begin(machine, "ana", ["ana", "ben"])
    ana.send("ben", "hello")
    ben.until_got("ana", "hello")

Keys are made of names, so that everybody knows everybody's card. Nobody is told an address.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any

from holdfast.bus.bus import Bus
from holdfast.bus.discovery.mdns import MdnsDiscovery
from holdfast.bus.options import BusOptions
from holdfast.bus.static_peers import StaticPeers
from holdfast.rules.keys import card_of, public_key
from support.netns import Namespace
from support.waiting import PATIENCE_S


def seed_of(name: str) -> bytes:
    return sha256(f"the secret of {name}".encode()).digest()


class LanPeer:
    """The process, from outside."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.got: list[tuple[str, str]] = []
        """Who sent what, in the order of arrival."""

    @classmethod
    def begin(cls, machine: Namespace, name: str, names: list[str]) -> LanPeer:
        argv = [sys.executable, "-m", "support.lan_peer", name, *names]
        tests = Path(__file__).parents[1]
        pipe = subprocess.PIPE
        return cls(machine.popen(argv, stdin=pipe, stdout=pipe, cwd=tests))

    def send(self, to: str, text: str) -> None:
        """Hands a message over; it waits there for the other one if it must."""
        self._tell("send", to, text)

    def until_got(self, sender: str, text: str) -> None:
        deadline = monotonic() + PATIENCE_S
        while (sender, text) not in self.got:
            assert monotonic() < deadline, f"{text!r} of {sender} did not come; came: {self.got}"
            self._read()

    def links(self) -> dict[str, str]:
        """The addresses of those who are linked, by name."""
        self._tell("links")
        while (links := self._read()) is None:
            pass
        return links

    def end(self) -> None:
        self._tell("end")
        self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0

    def _tell(self, *words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def _read(self) -> dict[str, Any] | None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the peer ended"
        word = json.loads(line)
        if isinstance(word, dict):
            return word
        sender, text = word
        self.got.append((sender, text))
        return None


async def _serve(name: str, names: list[str]) -> None:
    cards = [card_of(one, public_key(seed_of(one))) for one in names]
    bus = await Bus.bind_with(
        BusOptions(
            seed=seed_of(name),
            name=name,
            listen=("0.0.0.0:0",),
            peers=StaticPeers(cards),
            discovery=MdnsDiscovery(),
        )
    )
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with bus, asyncio.TaskGroup() as tasks:
        listening = tasks.create_task(_listen(bus))
        while (line := await reader.readline()) and (words := json.loads(line)) != ["end"]:
            if words == ["links"]:
                print(json.dumps({link.name: link.address for link in bus.links.all()}), flush=True)
            else:
                _, to, text = words
                tasks.create_task(bus.send(to, text, wait_ms=PATIENCE_S * 1000))
        listening.cancel()


async def _listen(bus: Bus) -> None:
    async with bus.subscribe() as messages:
        async for message in messages:
            print(json.dumps([message.sender, message.text]), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], sys.argv[2:]))
