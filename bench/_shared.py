"""Real nodes that share a mesh through a real broker, for the bench of delivery."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import holdfast
from bench import _broker, _nats, _zones
from holdfast.node.library.node import Node
from holdfast.node.messages.send import prepare
from holdfast.storage.ports import Transaction
from holdfast.transport.http_client import Client

MESH, TOPIC = _broker.MESH, _broker.TOPIC
CHUNK = 500
WAIT_S_MAX = 300.0


def holdfast_says(home: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "holdfast", *words, "--json", "--home", str(home)]
    said = subprocess.run(command, check=True, capture_output=True, timeout=WAIT_S_MAX)
    return json.loads(said.stdout)


def until(what: Callable[[], bool], every_s: float = 0.005) -> None:
    give_up = perf_counter() + WAIT_S_MAX
    while not what():
        if perf_counter() > give_up:
            raise RuntimeError("it does not come to an end")
        sleep(every_s)


def publish(home: Path, up: _broker.Up) -> str:
    """Makes a home whose mesh is shared; an invite to it."""
    with holdfast.open(home, peer=home.name, create=True) as node:
        node.create_mesh(MESH)
    said = holdfast_says(home, "mesh", "publish", MESH, "--broker", up.url, "--card", up.card)
    holdfast_says(home, "mesh", "topic", TOPIC)
    invite: str = said["invite"]
    return invite


def send_many(node: Node, many: int) -> None:
    content = b"x" * _broker.BODY_BYTES

    def work(tx: Transaction) -> None:
        for _ in range(CHUNK):
            prepare(node._engine, MESH, "topic", TOPIC, content)(tx)

    for _ in range(many // CHUNK):
        node._engine.write("message.send", work)


def status(client: Client) -> Any:
    (broker,) = _zones.ask(client, "GET", "/v1/status")["brokers"]
    return broker["meshes"][0]


def waits(client: Client) -> int:
    """What the broker has not confirmed."""
    found = status(client)
    waiting: int = found["pending"] + found["inflight"]
    return waiting


class Drained:
    """How an outbox got empty: messages a second, and what the node held in memory at each look.

    Only memory of its own counts: pages of the database that are mapped are the system's to drop.
    """

    def __init__(self, folder: Path, many: int) -> None:
        folder.mkdir()
        port = _nats.free_port()
        home = folder / "ana"
        with _broker.up(folder / "hub", port=port) as up:
            publish(home, up)
        with holdfast.open(home, sync="normal") as node:
            send_many(node, many)
        # The node is up before its broker is back, as after an outage.
        with _zones.up(home) as daemon:
            client = Client(daemon.unix)
            self.before_mb = _broker.memory_mb(daemon.pid, "RssAnon")
            self.held_mb: list[float] = []
            ask_at = 0.0

            def is_empty() -> bool:
                nonlocal ask_at
                self.held_mb.append(_broker.memory_mb(daemon.pid, "RssAnon"))
                now = perf_counter()
                if now < ask_at:
                    return False
                left = waits(client)
                # To ask is to have all of them counted: not before a quarter of the rest is gone.
                ask_at = now + left / 4 * (now - begun) / max(many - left, many / 10)
                return left == 0

            with _broker.up(folder / "hub", port=port):
                begun = perf_counter()
                _zones.ask(client, "POST", "/v1/refresh")
                until(is_empty, 0.01)
                self.rate = many / (perf_counter() - begun)
                if status(client)["dead"]:
                    raise RuntimeError("the broker has refused some")
            client.close()


def converged_s(folder: Path, each: int) -> float:
    """Seconds from reconnecting until both nodes have what both wrote while they were cut off."""
    folder.mkdir()
    port = _nats.free_port()
    ana, bob = folder / "ana", folder / "bob"
    with ExitStack() as stack:
        with _broker.up(folder / "hub", port=port) as up:
            invite = publish(ana, up)
            with holdfast.open(bob, peer="bob", create=True):
                pass
            holdfast_says(bob, "mesh", "join", invite)
        daemons = [stack.enter_context(_zones.up(home)) for home in (ana, bob)]
        clients = [Client(daemon.unix) for daemon in daemons]
        nodes = [stack.enter_context(holdfast.open(home)) for home in (ana, bob)]
        for node in nodes:
            _write(node, each)
        stack.enter_context(_broker.up(folder / "hub", port=port))
        begun = perf_counter()
        for client in clients:
            _zones.ask(client, "POST", "/v1/refresh")
        last = each - 1
        until(lambda: nodes[0].mesh(MESH).state.get(f"bob-{last}") is not None, 0.002)
        until(lambda: nodes[1].mesh(MESH).state.get(f"ana-{last}") is not None, 0.002)
        took = perf_counter() - begun
        until(lambda: all(waits(client) == 0 for client in clients))
        held = [{one.key: one.value for one in node.mesh(MESH).state.list()} for node in nodes]
        if held[0] != held[1] or len(held[0]) < each:
            raise RuntimeError("the two nodes do not agree")
        for client in clients:
            client.close()
    return took


def _write(node: Node, each: int) -> None:
    state = node.mesh(MESH).state
    for number in range(each):
        # The same key on both sides now and then: one of them has to win.
        shared = number % 10 == 0 and number < each - 1
        state.set(f"both-{number}" if shared else f"{node.peer}-{number}", number)
