"""The part of the demo with a broker: two peers share a mesh through it, and it is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.node.library.node import Node, open_node
from holdfast.node.sync.run_once import wait_until_synced
from holdfast.node.trust.trust import Trust
from holdfast.storage.files.home import HomePaths

Say = Callable[[str], None]

MESH = "plans"
_PATIENCE_S = 30


def play(folder: Path, ana: Path, bob: Path, say: Say) -> None:
    say("\n5. A broker between them, which is killed")
    broker = _Broker(folder / "hub")
    try:
        with open_node(ana) as one, open_node(bob) as other:
            plans = one.create_mesh(MESH)
            for number in range(200):
                plans.state.set(f"step-{number}", f"by ana, {number}")
            done = one.sharing.publish(MESH, broker=broker.url)
            assert done.invite is not None
            say(f"   ana publishes a mesh with {done.rows} changes; bob joins by an invite")
            other.sharing.join(done.invite)
            _settle(one, other)
            say(f"   bob has step-199: {other.mesh(MESH).state.get('step-199')!r}")
            broker.kill()
            say("   the broker is killed with -9; both go on writing")
            plans.state.set("step-0", "changed by ana meanwhile")
            other.mesh(MESH).state.set("step-1", "changed by bob meanwhile")
            sent = other.mesh(MESH).send("are you there?", dm="ana")
            say(f"   bob's message waits in his outbox: {sent.state}")
            broker.start()
            _settle(one, other)
            _settle(one, other)
            same = one.mesh(MESH).counts() == other.mesh(MESH).counts() and all(
                one.mesh(MESH).state.get(key) == other.mesh(MESH).state.get(key)
                for key in ("step-0", "step-1")
            )
            if not same:
                raise SystemExit("the two differ: this must not happen; please report it")
            say("   it is back; both have the same again")
            for received in one.inbox.list():
                message = one.inbox.read(received.id)
                text = message.content.decode()
                say(f"   in ana's inbox, once: {text!r} from {message.sender}")
    finally:
        broker.kill()


class _Broker:
    """A broker as a process of its own, always at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._place = "127.0.0.1:0"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.start()
        self._place = self.url.removeprefix("http://")

    def start(self) -> None:
        words = ["broker", "serve", f"--store={self._folder}", f"--tcp={self._place}", "--json"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words], stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the broker did not start")
        self.url = str(msgspec.json.decode(line)["listening"][-1])

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGKILL)
        process.wait(_PATIENCE_S)
        if process.stdout is not None:
            process.stdout.close()


def _settle(*nodes: Node) -> None:
    for node in nodes:
        paths = HomePaths(node.home)
        found = wait_until_synced(node._engine, Trust(node._engine, paths), paths, MESH)
        if not found.done:
            raise SystemExit(f"{node.peer} could not exchange everything: {found.trouble}")
