"""A process that looks for peers, and the test's handle on it.

    node = DiscoveryNode.begin(machine, "ana", 7001)
    node.seek("ben")
    node.until_found("ben", "10.77.0.2:7002")

Keys are made of names, so that everybody knows everybody's.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from holdfast.bus.discovery.mdns import MdnsDiscovery
from support.netns import Namespace
from support.waiting import PATIENCE_S


def key_of(name: str) -> bytes:
    return sha256(name.encode()).digest()


class DiscoveryNode:
    """The process, from outside."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.told: list[tuple[str, list[str]]] = []
        """Everything that it has told, in order."""
        self._since = 0

    @classmethod
    def begin(cls, machine: Namespace, name: str, port: int, *listen: str) -> DiscoveryNode:
        places = listen or (f"0.0.0.0:{port}", f"[::]:{port}")
        argv = [sys.executable, "-m", "support.discovery_node", name, *places]
        tests = Path(__file__).parents[1]
        pipe = subprocess.PIPE
        return cls(machine.popen(argv, stdin=pipe, stdout=pipe, cwd=tests))

    def seek(self, *names: str) -> None:
        self._tell("seek", *names)

    def look(self, name: str) -> None:
        self._tell("look", name)

    def until_found(self, name: str, *places: str) -> list[str]:
        """Waits until one word names all these places; returns all that it names."""
        deadline = monotonic() + PATIENCE_S
        while True:
            for who, where in self.told[self._since :]:
                if who == name and set(places) <= set(where):
                    return where
            assert monotonic() < deadline, f"{name} is nowhere; told: {self.told}"
            self._read()

    def forget(self) -> None:
        """Only what is told from now on counts."""
        self.status()
        self._since = len(self.told)

    def status(self) -> dict[str, Any]:
        """How it stands, with what it has cost: `cpu_s` and `memory_kb`."""
        self._tell("status")
        while (status := self._read()) is None:
            pass
        return status

    def end(self) -> None:
        """Says goodbye and ends."""
        self._tell("stop")
        self.process.communicate(timeout=PATIENCE_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _tell(self, *words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def _read(self) -> dict[str, Any] | None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the node ended"
        word = json.loads(line)
        if isinstance(word, dict):
            return word
        name, places = word
        self.told.append((name, places))
        return None


async def _serve(name: str, listening: Sequence[str]) -> None:
    names = {key_of(name): name}
    discovery = MdnsDiscovery()

    def found(key: bytes, places: Sequence[str]) -> None:
        print(json.dumps([names[key], places]), flush=True)

    await discovery.start(key_of(name), listening, found)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        verb, *words = json.loads(line)
        if verb == "seek":
            names.update((key_of(word), word) for word in words)
            discovery.seek([key_of(word) for word in words])
        elif verb == "look":
            discovery.look(key_of(words[0]))
        elif verb == "status":
            used = resource.getrusage(resource.RUSAGE_SELF)
            costs = {"cpu_s": used.ru_utime + used.ru_stime, "memory_kb": used.ru_maxrss}
            print(json.dumps(msgspec.to_builtins(discovery.status()) | costs), flush=True)
        else:
            break
    await discovery.stop()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], sys.argv[2:]))
