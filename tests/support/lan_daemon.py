"""A daemon of a real home on a machine of its own (`netns.py`), and the test's handle on it.

    ana = LanDaemon(machine, home).up()
    ana.write("goal", "the moon")
    ben.until_has("goal", "of ana")

It listens on all addresses of its machine and is told none of others. What happens there is heard
from its stream of events; nothing is asked twice.
"""

from __future__ import annotations

import json
import subprocess
import sys
from http.client import HTTPResponse
from pathlib import Path
from time import monotonic
from typing import Any, Self

from holdfast.rules.ids import id_text
from holdfast.service.clock import SystemClock
from support.daemon import PATIENCE_S, Plain, UnixConnection, ask
from support.netns import Namespace

MESH = "team"


class LanDaemon:
    def __init__(self, machine: Namespace, home: Path, *flags: str) -> None:
        """Starts it and does not wait for it."""
        self._log = home.parent / f"{home.name}.log"
        up = [sys.executable, "-m", "holdfast", "up", "--json", "--home", str(home)]
        with self._log.open("ab") as said:
            self.process = machine.popen(
                [*up, "--bus-listen", "0.0.0.0", *flags],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
            )
        self._entities: dict[tuple[str, str], None] = {}
        """Key and origin of each entry of the log so far."""
        self._links: dict[str, bool] = {}
        """Who was linked or lost, by the last event."""
        self.lost: list[str] = []
        """Whose links went down, as far as was heard."""

    def up(self) -> Self:
        """Waits until it serves."""
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline() or "{}")
        assert ready.get("event") == "ready", self._log.read_text()
        self.pid, self.card = int(ready["pid"]), str(ready["card"])
        self._unix = next(one for one in ready["listening"] if one.startswith("unix:"))
        self._connection, self._events = self._stream("/v1/events?from=1")
        return self

    def get(self, path: str) -> Any:
        found = ask(self._unix, "GET", path)
        assert found.status == 200, found
        return found.json

    def post(self, path: str, document: Any) -> Any:
        found = self._posted(path, document)
        assert found.status == 200, found
        return found.json

    def write(self, key: str, value: Any) -> None:
        """Writes to the state of the mesh."""
        change = {"op": "state.set", "mesh": MESH, "entity": key, "value": value}
        made = self.post("/v1/changes", {"changes": [{**change, "id": _new_id()}]})
        assert made["results"][0]["status"] == 201, made

    def until_has(self, key: str, origin: str) -> None:
        """Waits until a change of this peer is in the log."""
        while (key, origin) not in self._entities:
            self._hear(f"{key} of {origin}")

    def until_link(self, peer: str, *, up: bool) -> None:
        """Waits until the last that was heard of a link is this."""
        while self._links.get(peer) is not up:
            self._hear(f"link to {peer}: {up}")

    def until_unlinked(self, peer: str) -> None:
        """Waits until there is no link to a peer; at once if none came up: it may have been found
        too late, and everything have gone through others.
        """
        while self._links.get(peer):
            self._hear(f"no link to {peer}")

    def standing(self) -> dict[str, dict[str, Any]]:
        """How this daemon sees each peer of its bus, by name."""
        peers = self.get("/v1/bus/status")["peers"]
        return {one["peer"]: one for one in peers}

    def digest(self) -> Any:
        """Of all that it holds of the mesh."""
        found = self.get(f"/v1/digests?mesh={MESH}")
        return found["meshes"]

    def messages(self, count: int) -> list[tuple[str, str]]:
        """Takes so many messages from its inbox, as they come."""
        connection, stream = self._stream("/v1/bus/messages")
        found: list[tuple[str, str]] = []
        while len(found) < count:
            kind, document = _event(stream)
            if kind == "message":
                found.append((document["sender"], document["body"]))
        connection.close()
        return found

    def memory_kb(self) -> int:
        """What it occupies now."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

    def cpu_s(self) -> float:
        """The processor time that it has used."""
        words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / 100

    def kill(self) -> None:
        """As the power would."""
        self.process.kill()
        self._ended()

    def end(self) -> None:
        self.process.terminate()
        self._ended()
        assert self.process.returncode == 0

    def _ended(self) -> None:
        self._connection.close()
        with self.process:
            self.process.wait(PATIENCE_S)

    def _posted(self, path: str, document: Any) -> Plain:
        return ask(self._unix, "POST", path, json.dumps(document).encode())

    def _stream(self, path: str) -> tuple[UnixConnection, HTTPResponse]:
        connection = UnixConnection(self._unix.removeprefix("unix:"))
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        return connection, answer

    def _hear(self, awaited: str) -> None:
        """The next event. A daemon says `still here` now and then, so this ends."""
        deadline = monotonic() + PATIENCE_S
        kind, document = _event(self._events)
        if kind == "entry":
            self._entities[document["entity"], document["origin"]] = None
        elif kind == "peer":
            self._links[document["name"]] = document["state"] == "up"
            if document["state"] != "up":
                self.lost.append(document["name"])
        assert monotonic() < deadline, f"it did not come: {awaited}"


def _event(stream: HTTPResponse) -> tuple[str, Any]:
    """The next event, or an empty one for a sign of life."""
    kind, document = "", None
    while line := stream.readline().strip():
        name, _, value = line.decode().partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            document = json.loads(value)
    return kind, document


def _new_id() -> str:
    return id_text(SystemClock().new_id())
