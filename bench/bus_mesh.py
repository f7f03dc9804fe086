"""A mesh that two nodes share over the bus, beside a pull of the same entries over a link of zones.

Both sides run one after the other in the same run, in two processes each, durable at the receiver
(`full` sync). A pull brings the entries of one node to another. Over the bus both nodes bring each
other theirs at once, so what is compared is the processor time for an entry that was brought, of
both processes together; machines that share their cores give no other figure that holds.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import process_time, sleep
from typing import NamedTuple

import holdfast
from bench import _zones
from holdfast.node.bus.meshes import backfill
from holdfast.node.core import operations
from holdfast.node.library.node import Node
from holdfast.node.links.registry import Links
from holdfast.node.trust.trust import Trust
from holdfast.storage.ports import Transaction
from holdfast.storage.sqlite.connection import connect
from holdfast.transport.http_client import Client

FACTS = 100_000
STATES = 20_000
EQUAL = 1_000_000
ORIGINS = 10
WRITES = 20_000


def run() -> Iterator[tuple[str, float, str]]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        yield from converging(folder)
        yield from equal(folder)
        yield from appending(folder)
    finally:
        shutil.rmtree(folder)


class Met(NamedTuple):
    """What it took two peers to find that they have the same."""

    cpu_s: float
    """Of both."""
    wall_s: float
    """Of the slower one."""
    sent: int
    """Bytes of both."""


# --- different -----------------------------------------------------------------------------------


def converging(folder: Path) -> Iterator[tuple[str, float, str]]:
    for what, many in (("facts", FACTS), ("states", STATES)):
        pull = pulled(folder / f"pull-{what}", what, many)
        met = exchanged(folder / f"bus-{what}", what, many)
        bus = met.cpu_s / (2 * many)
        print(
            f"  {what}: µs of CPU an entry: pull {pull * 1e6:.1f}, bus {bus * 1e6:.1f}; "
            f"{2 * many / met.wall_s:,.0f} entries/s over the bus"
        )
        yield (
            f"{what}: two nodes with {many:,} each over the bus / a pull of as many",
            pull / bus,
            ">= 0.8",
        )


def fill(node: Node, what: str, many: int) -> None:
    if what == "facts":
        return _zones.append(node, many)
    ctx, value = node._engine.ctx, {"value": "x" * _zones.BODY_BYTES}

    def work(first: int, tx: Transaction) -> None:
        for number in range(first, first + _zones.CHUNK):
            operations.state_set(ctx, _zones.MESH, f"{node.peer}/{number}", value)(tx)

    for first in range(0, many, _zones.CHUNK):
        node._engine.write("bench", partial(work, first))
    return None


def pulled(folder: Path, what: str, many: int) -> float:
    """Seconds of both processors for an entry that a link of zones brings."""
    plant, office = folder / "plant", folder / "office"
    for home, peer in ((plant, "plant"), (office, "office")):
        _zones.make(home, peer)
    with holdfast.open(plant, sync="normal") as node:
        fill(node, what, many)
    _zones.befriend(office, plant)
    with _zones.up(plant) as source, _zones.up(office) as reader:
        with holdfast.open(office) as node:
            links = Links(node._engine, Trust(node._engine, node._opened.paths))
            links.add("plant", source.tls, "plant", meshes=[_zones.MESH])
        client = Client(reader.unix)
        used = _zones.cpu_s(source.pid) + _zones.cpu_s(reader.pid)
        _zones.ask(client, "POST", "/v1/refresh")
        while _zones.ask(client, "GET", "/v1/links")["links"][0]["cursor"] < many:
            sleep(0.05)
        used = _zones.cpu_s(source.pid) + _zones.cpu_s(reader.pid) - used
        client.close()
    return used / many


def exchanged(folder: Path, what: str, many: int) -> Met:
    ana, bob = folder / "ana", folder / "bob"
    befriended(ana, bob)
    for home in (ana, bob):
        with holdfast.open(home, sync="normal") as node:
            share(node)
            fill(node, what, many)
    return met(ana, bob, many)


def befriended(ana: Path, bob: Path) -> None:
    for home in (ana, bob):
        _zones.make(home, home.name)
    with holdfast.open(ana) as one, holdfast.open(bob) as other:
        first, second = (Trust(node._engine, node._opened.paths) for node in (one, other))
        first.trust(second.card(), reads=[_zones.MESH])
        second.trust(first.card(), reads=[_zones.MESH])


def share(node: Node) -> None:
    backfill.switch_on(node._engine, _zones.MESH)
    while backfill.count_next(node._engine, _zones.MESH):
        pass


def met(ana: Path, bob: Path, wanted: int) -> Met:
    """Links two homes and waits until both have the same."""
    first = _peer(ana, wanted)
    _, card, address = _said(first)
    second = _peer(bob, wanted, f"{card}@{address}")
    _said(second)
    for peer in (first, second):
        assert _said(peer) == ["linked"]
    for peer in (first, second):
        _go(peer)
    told = [[float(figure) for figure in _said(peer)[1:]] for peer in (first, second)]
    for peer in (first, second):
        _go(peer)
        peer.wait()
    cpu, wall, sent = zip(*told, strict=True)
    return Met(sum(cpu), max(wall), int(sum(sent)))


def _peer(home: Path, wanted: int, *dials: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench._mesh_peer", str(home), str(wanted), *dials]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _said(peer: subprocess.Popen[str]) -> list[str]:
    assert peer.stdout is not None
    return peer.stdout.readline().split()


def _go(peer: subprocess.Popen[str]) -> None:
    assert peer.stdin is not None
    print("go", file=peer.stdin, flush=True)


# --- equal ---------------------------------------------------------------------------------------


def equal(folder: Path) -> Iterator[tuple[str, float, str]]:
    ana, bob = folder / "equal" / "ana", folder / "equal" / "bob"
    befriended(ana, bob)
    for home in (ana, bob):
        with holdfast.open(home, sync="normal") as node:
            share(node)
            _zones.append(node, _zones.CHUNK)
    met(ana, bob, _zones.CHUNK)
    for home in (ana, bob):
        _grow(home)
    found = met(ana, bob, 0)
    print(
        f"  equal: {found.wall_s * 1e3:.1f} ms, {found.cpu_s * 1e3:.1f} ms CPU, {found.sent} bytes"
    )
    yield f"equal nodes of {EQUAL:,} find out, ms", found.wall_s * 1e3, "< 50"
    yield f"equal nodes of {EQUAL:,}: kB of both", found.sent / 1000, "< 10"


def _grow(home: Path) -> None:
    """The same entries of ten origins in both homes, copied by SQL."""
    connection = connect(home / "data.db", sync="normal")
    each = EQUAL // ORIGINS
    with connection:
        for origin in range(ORIGINS):
            connection.execute(
                "INSERT INTO stream (mesh, origin, epoch, prefix, entries, d0) "
                "VALUES (?, ?, 1, ?, ?, ?)",
                (_zones.MESH, f"origin-{origin}", each, each, origin),
            )
            number, head = (
                connection.last_insert_rowid(),
                connection.execute("SELECT max(offset) FROM log").get,
            )
            connection.execute(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
                "INSERT INTO log (id, mesh, op, entity, origin, lamport, recorded_at, raw) "
                "SELECT unhex(printf('%08x%024x', ?, i)), mesh, op, entity, ?, lamport, "
                "recorded_at, raw FROM n, (SELECT * FROM log LIMIT 1)",
                (each, origin, f"origin-{origin}"),
            )
            connection.execute(
                "INSERT INTO stream_place (stream, seq, offset) "
                "SELECT ?, offset - ?, offset FROM log WHERE offset > ?",
                (number, head, head),
            )
    connection.close()


# --- one append ----------------------------------------------------------------------------------


def appending(folder: Path) -> Iterator[tuple[str, float, str]]:
    took: list[float] = []
    for shared in (False, True):
        home = folder / f"append-{shared}"
        _zones.make(home, "ana")
        with holdfast.open(home, sync="normal") as node:
            if shared:
                share(node)
            begun = process_time()
            fill(node, "facts", WRITES)
            took.append((process_time() - begun) / WRITES)
    print(f"  µs of CPU an append: {took[0] * 1e6:.1f}, in a shared mesh {took[1] * 1e6:.1f}")
    yield "an append to a shared mesh / to another one, by CPU", took[1] / took[0], "-"
