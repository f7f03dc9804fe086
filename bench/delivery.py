"""Delivery: a broker beside NATS JetStream, Redis Streams and PostgreSQL, and nodes that use it.

The sides of a comparison run in turn, in many short rounds, because a busy machine is a different
one every second: what is told is the median of the rounds' ratios, and their spread is printed.
All servers are processes of their own on this machine, durable before they answer; clients are one
connection each, with a window, and as thin as can be.

Sizes come from the environment, for long runs: DELIVERY_ROUNDS, DELIVERY_MESSAGES (of a round),
DELIVERY_DRAIN, DELIVERY_CONNECTIONS, DELIVERY_OPERATIONS.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

from bench import _broker, _http_load, _postgres, _rivals, _shared
from bench._zones import cpu_s
from holdfast.protocol.frames import Acks, Confirmed, Entries, Follow, Item, Push

ROUNDS = int(os.environ.get("DELIVERY_ROUNDS", "5"))
MESSAGES = int(os.environ.get("DELIVERY_MESSAGES", "4096"))
DRAIN = int(os.environ.get("DELIVERY_DRAIN", "20000"))
CONNECTIONS = int(os.environ.get("DELIVERY_CONNECTIONS", "1000"))
OPERATIONS = int(os.environ.get("DELIVERY_OPERATIONS", "1000"))
WINDOWS = (64, 1024, 1)
AIMS = {64: ("8", "1.5"), 1024: ("10", "2"), 1: ("0.7", "0.5")}
"""By what is in flight: to JetStream, to Redis."""
LONE_SHARE = 8
"""With one in flight, so many times fewer: each waits for the disk."""
HTTP_CONNECTIONS = 64
SYNCED_SHARE = 8
"""JetStream gets so many times fewer: it needs a sync for each."""
DMS = 400

Found = Iterator[tuple[str, float, str]]
PATH = f"/v1/meshes/{_broker.MESH}/envelopes"


def run() -> Found:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        for part in (accepting, over_http, on_postgres, idle, converging, draining):
            yield from part(folder)
    finally:
        shutil.rmtree(folder)


def told(what: str, ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the rounds' ratios. Prints the rates and how far the ratios lie apart."""
    ratios = sorted(one / other for one, other in zip(ours, theirs, strict=True))
    middle = statistics.median(ratios)
    print(
        f"  {what}: {statistics.median(ours):,.0f}/s to {statistics.median(theirs):,.0f}/s; "
        f"ratios {ratios[0]:.2f} to {ratios[-1]:.2f}"
    )
    return middle


# --- accepting -----------------------------------------------------------------------------------


def accepting(folder: Path) -> Found:
    with ExitStack() as stack:
        hub = stack.enter_context(_broker.up(folder / "hub"))
        nats = stack.enter_context(_rivals.jetstream(folder / "nats"))
        redis: int | None = None
        if _rivals.redis_is_there():
            redis = stack.enter_context(_rivals.redis(folder / "redis"))
        else:
            print("  no redis-server on the PATH: nothing is measured beside it")
        ana = _broker.Member("ana")
        ana.prepare(hub)
        for window in WINDOWS:
            yield from accepted(hub, ana, nats, redis, window)
        size, many = (folder / "hub" / "broker.db").stat().st_size, ana.made
        print(f"  {size / many:,.0f} bytes on the disk for a message of {len(ana.messages(1)[0])}")


def accepted(
    hub: _broker.Up, ana: _broker.Member, nats: int, redis: int | None, window: int
) -> Found:
    ours: list[float] = []
    synced: list[float] = []
    streams: list[float] = []
    before = cpu_s(hub.pid)
    messages = MESSAGES if window > 1 else MESSAGES // LONE_SHARE
    to_jetstream, to_redis = AIMS[window]
    for _ in range(ROUNDS):
        raws = ana.messages(messages)
        bodies = [os.urandom(_broker.BODY_BYTES) for _ in raws]
        ours.append(_broker.accept_rate(hub, ana, raws, window))
        few = max(2 * window, messages // SYNCED_SHARE)
        synced.append(_rivals.jetstream_rate(nats, bodies[:few], window))
        if redis is not None:
            streams.append(_rivals.redis_rate(redis, bodies, window))
    print(f"  µs of the broker's CPU: {(cpu_s(hub.pid) - before) / ROUNDS / messages * 1e6:.0f}")
    what = f"accept on SQLite, {window:,} in flight, to JetStream with sync_interval always"
    yield what, told("to JetStream", ours, synced), f">= {to_jetstream}"
    if streams:
        what = f"accept on SQLite, {window:,} in flight, to Redis Streams with appendfsync always"
        yield what, told("to Redis", ours, streams), f">= {to_redis}"


def over_http(folder: Path) -> Found:
    """Beside the same server with an application that does nothing, and with the broker's own
    short way of answering that does nothing.
    """
    command = [sys.executable, "-m", "bench._empty_server"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert server.stdout is not None
    ours: list[float] = []
    empty: list[float] = []
    quick: list[float] = []
    try:
        port = int(server.stdout.readline())
        with _broker.up(folder / "hub-http") as hub:
            ana = _broker.Member("ana")
            token = f"authorization: Bearer {ana.prepare(hub)}"
            for _ in range(ROUNDS):
                asked = [_http_load.request(PATH, raw, token) for raw in ana.messages(MESSAGES)]
                nothing = [_http_load.request("/empty")] * MESSAGES
                empty.append(_http_load.rate(port, nothing, HTTP_CONNECTIONS, 200))
                ours.append(_http_load.rate(hub.port, asked, HTTP_CONNECTIONS, 201))
                least = [_http_load.request("/quick", b"x")] * MESSAGES
                quick.append(_http_load.rate(port, least, HTTP_CONNECTIONS, 200))
    finally:
        server.terminate()
        server.stdout.close()
        server.wait()
    what = "accept over HTTP, 64 connections, to an empty POST at the same server"
    yield what, told("to an empty POST", ours, empty), ">= 0.55"
    what = "the same, to an empty POST that takes the broker's own short way"
    yield what, told("to the short way", ours, quick), "-"


def on_postgres(folder: Path) -> Found:
    ours: list[float] = []
    singles: list[float] = []
    with _postgres.server() as where:
        _postgres.make(where, "hub", "singles")
        _postgres.make_tables(where, "singles")
        with _broker.up(folder / "hub-postgres", _postgres.dsn(where, "hub")) as hub:
            ana = _broker.Member("ana")
            ana.prepare(hub)
            for _ in range(ROUNDS):
                raws = ana.messages(MESSAGES)
                ours.append(_broker.accept_rate(hub, ana, raws, WINDOWS[0]))
                singles.append(_postgres.singles_rate(where, "singles", raws))
    what = "accept on PostgreSQL, 64 in flight, to a transaction each on 32 connections"
    yield what, told("to single transactions", ours, singles), ">= 2.5"


# --- many who wait -------------------------------------------------------------------------------


def idle(folder: Path) -> Found:
    with ExitStack() as stack:
        hub = stack.enter_context(_broker.up(folder / "hub-idle"))
        ana = _broker.Member("ana")
        session = ana.prepare(hub)
        asked = {"uses": CONNECTIONS}
        made = _broker.call(hub, session, "POST", f"/api/my/meshes/{_broker.MESH}/invites", asked)
        before_mb = _broker.memory_mb(hub.pid)
        wires: list[tuple[_broker.Member, _broker.Wire]] = []
        for number in range(CONNECTIONS):
            member = _broker.Member(f"member-{number}")
            wire = stack.enter_context(_broker.Wire(hub, member))
            _broker.call(hub, wire.session, "POST", "/v1/join", {"secret": made["secret"]})
            wire.send(Follow(_broker.MESH, 1, 0))
            wires.append((member, wire))
        sender = stack.enter_context(_broker.Wire(hub, ana))
        times_ms = sorted(one_dm_ms(ana, sender, *random.choice(wires)) for _ in range(DMS))
        grown_mb = _broker.memory_mb(hub.pid) - before_mb
    p50, p99 = times_ms[len(times_ms) // 2], times_ms[int(len(times_ms) * 0.99)]
    print(f"  {CONNECTIONS:,} connections: {grown_mb:.0f} MB; a dm p50 {p50:.1f}, p99 {p99:.1f} ms")
    yield f"{CONNECTIONS:,} idle connections, MB that the broker grows by", grown_mb, "< 100"
    yield "a message to one of them, handed in to received, p99, ms", p99, "< 10"


def one_dm_ms(
    ana: _broker.Member, sender: _broker.Wire, member: _broker.Member, wire: _broker.Wire
) -> float:
    (raw,) = ana.messages(1, "dm", member.key.hex())
    begun = perf_counter()
    sender.send(Push(_broker.MESH, 0, [Item(1, raw)]))
    while True:
        found = wire.get(Entries)
        wire.send(Confirmed(_broker.MESH, found.epoch, found.to))
        if any(row.raw == raw for row in found.rows):
            took = perf_counter() - begun
            sender.get(Acks)
            return took * 1000


# --- nodes that were cut off ---------------------------------------------------------------------


def converging(folder: Path) -> Found:
    took = [
        _shared.converged_s(folder / f"apart-{round}", OPERATIONS) for round in range(ROUNDS // 2)
    ]
    print(f"  seconds: {', '.join(f'{one:.2f}' for one in sorted(took))}")
    what = f"{OPERATIONS:,} offline operations on each of two nodes, seconds until both have all"
    yield what, statistics.median(took), "< 1"


def draining(folder: Path) -> Found:
    with _broker.up(folder / "hub-drain") as hub:
        ana = _broker.Member("ana")
        ana.prepare(hub)
        rate = _broker.accept_rate(hub, ana, ana.messages(DRAIN), WINDOWS[1])
    found = _shared.Drained(folder / "drain", DRAIN)
    half = len(found.held_mb) // 2
    early, late = max(found.held_mb[:half]), max(found.held_mb[half:])
    print(
        f"  {found.rate:,.0f}/s to {rate:,.0f}/s; the node held {found.before_mb:.0f} MB before, "
        f"{early:.0f} at most in the first half, {late:.0f} in the second"
    )
    yield f"outbox of {DRAIN:,} messages drained, to the accept rate", found.rate / rate, ">= 0.8"
    yield "memory of the node in the second half of that, to the first", late / early, "< 1.1"
