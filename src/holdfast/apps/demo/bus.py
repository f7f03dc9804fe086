"""The part of the demo with nothing between: the peer bus. A message waits for a peer that is away,
and a mesh is shared with no broker.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from time import monotonic

from holdfast.node.library.node import Node, open_node
from holdfast.node.trust.trust import Trust
from holdfast.storage.files.home import HomePaths

Say = Callable[[str], None]

MESH = "garden"
_HERE = "127.0.0.1:0"
_PATIENCE_S = 30


def play(ana: Path, bob: Path, say: Say) -> None:
    say("\n6. Nothing between them: the peer bus")
    with open_node(ana) as one:
        one.bus.bind(listen=_HERE)
        where = one.bus.status().listening
        with open_node(bob) as other:
            _trust(one).trust(_trust(other).card())
            _trust(other).trust(_trust(one).card(), at=where)
            sent = other.bus.send("ana", "the build is green", topic="builds")
            say(f"   they trust each other's cards; bob sends to ana over TLS: {sent.state}")
        say("   bob's machine is switched off")
        waiting = one.bus.send("bob", "lunch?", wait_ms=100)
        say(f"   ana's message to him waits in her outbox: {waiting.state}")
        with open_node(bob) as other:
            with other.bus.subscribe() as messages:
                got = messages.take(timeout_ms=_PATIENCE_S * 1000)
            if got is None or got.text != "lunch?":
                raise SystemExit("the message is lost: this must not happen; please report it")
            say(f"   he is back, and has it, once: {got.text!r} from {got.sender}")
            _share(one, other, say)


def _share(one: Node, other: Node, say: Say) -> None:
    garden = one.create_mesh(MESH)
    garden.state.set("tomatoes", "by ana")
    one.bus.sharing.share(MESH)
    one.bus.refresh()
    invite = one.bus.sharing.invite(MESH, addresses=one.bus.status().listening)
    joined = other.bus.join(invite.text)
    say(f"   ana shares the mesh {MESH} over the bus; {joined.name} joins by her invite, no broker")
    other.mesh(MESH).state.set("beans", "by bob")
    for node, key in ((one, "beans"), (other, "tomatoes")):
        _until_has(node, key)
        say(f"   {node.peer} has {key}: {node.mesh(MESH).state.get(key)!r}")
    if one.mesh(MESH).counts() != other.mesh(MESH).counts():
        raise SystemExit("the two differ: this must not happen; please report it")


def _until_has(node: Node, key: str) -> None:
    """Looks again with each commit."""
    committed = Event()
    node._engine.store.on_commit(committed.set)
    deadline = monotonic() + _PATIENCE_S
    while node.mesh(MESH).state.get(key) is None:
        if not committed.wait(deadline - monotonic()):
            raise SystemExit(f"{node.peer} did not get {key}: this must not happen; please report")
        committed.clear()


def _trust(node: Node) -> Trust:
    return Trust(node._engine, HomePaths(node.home))
