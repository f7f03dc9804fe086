"""Pull replication, beside a NATS JetStream mirror over a leaf link; and what readers of a log pay.

Both sides of a comparison run one after the other in the same round, on the same disk, with entries
of the same size. Ours is durable at the receiver (`full` sync) and deduplicates for as long as the
log stands; the mirror syncs every two minutes by default.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, sleep

import holdfast
from bench import _nats, _zones
from holdfast.node.links.registry import Links
from holdfast.node.trust.trust import Trust
from holdfast.protocol.log_wire import ARROW, MSGPACK, NDJSON
from holdfast.storage.sqlite.connection import connect
from holdfast.transport.http_client import Client

ROUNDS = 3
FACTS = 100_000
ALWAYS_FACTS = 10_000
"""Fewer for the mirror that syncs each message: it needs a third of a millisecond for each."""
ENVELOPE_BYTES = 620
LATENCY_FACTS = 500
RANGE_FACTS = 100_000
CONSUMERS = 1000
FETCHES = 300
LARGE = 1_000_000


def run() -> Iterator[tuple[str, float, str]]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        yield from replication(folder)
        yield from growth(folder)
        yield from latency(folder)
        yield from ranges(folder)
        yield from consumers(folder)
    finally:
        shutil.rmtree(folder)


# --- catching up ---------------------------------------------------------------------------------


def replication(folder: Path) -> Iterator[tuple[str, float, str]]:
    ours: list[float] = []
    lazy: list[float] = []
    always: list[float] = []
    payload = b"x" * ENVELOPE_BYTES
    for round in range(ROUNDS):
        ours.append(pulled(folder / f"ours-{round}", FACTS))
        lazy.append(_nats.mirror_rate(folder / f"lazy-{round}", FACTS, payload, "2m"))
        always.append(
            _nats.mirror_rate(folder / f"always-{round}", ALWAYS_FACTS, payload, "always")
        )
        print(f"  facts/s: ours {ours[-1]:,.0f}, mirror {lazy[-1]:,.0f}, synced {always[-1]:,.0f}")
    yield (
        f"pull of {FACTS:,} facts, durable, to a JetStream mirror with lazy sync",
        statistics.median(one / other for one, other in zip(ours, lazy, strict=True)),
        ">= 1.0",
    )
    yield (
        "the same, to the mirror with sync_interval always",
        statistics.median(one / other for one, other in zip(ours, always, strict=True)),
        ">= 8",
    )


def pulled(folder: Path, facts: int, before: int = 0) -> float:
    """Facts a second from one node's log into another's, of which `before` are there already."""
    plant, office = folder / "plant", folder / "office"
    _zones.make(plant, "plant", facts)
    _zones.make(office, "office")
    if before:
        grow(office, before)
    _zones.befriend(office, plant)
    with _zones.up(plant) as source, _zones.up(office) as reader:
        with holdfast.open(office) as node:
            links = Links(node._engine, Trust(node._engine, node._opened.paths))
            links.add("plant", source.tls, "plant", meshes=[_zones.MESH])
        client = Client(reader.unix)
        used = _zones.cpu_s(source.pid), _zones.cpu_s(reader.pid)
        begun = perf_counter()
        _zones.ask(client, "POST", "/v1/refresh")
        while _zones.ask(client, "GET", "/v1/links")["links"][0]["cursor"] < facts:
            sleep(0.01)
        took = perf_counter() - begun
        print(
            f"  µs of CPU a fact: source {(_zones.cpu_s(source.pid) - used[0]) / facts * 1e6:.1f}, "
            f"receiver {(_zones.cpu_s(reader.pid) - used[1]) / facts * 1e6:.1f}"
        )
        client.close()
    return facts / took


def grow(home: Path, facts: int) -> None:
    """Facts of the past, copied by SQL: a million through the library would only take longer."""
    with holdfast.open(home, sync="normal") as node:
        _zones.append(node, _zones.CHUNK)
    connection = connect(home / "data.db", sync="normal")
    with connection:
        connection.execute(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
            "INSERT INTO log (id, mesh, op, entity, origin, lamport, recorded_at, raw) "
            # Ids that grow, as ids do, and lie before those that are to come.
            "SELECT unhex(printf('%032x', i)), mesh, op, entity, origin, lamport, recorded_at, raw "
            "FROM n, (SELECT * FROM log LIMIT 1)",
            (facts - _zones.CHUNK,),
        )
    connection.close()


def growth(folder: Path) -> Iterator[tuple[str, float, str]]:
    small = pulled(folder / "small", FACTS, 10_000)
    large = pulled(folder / "large", FACTS, LARGE)
    print(f"  facts/s: {small:,.0f} into a log of 10,000, {large:,.0f} into one of {LARGE:,}")
    yield f"the same pull into a log of {LARGE:,} facts, to one of 10,000", large / small, ">= 0.8"


# --- one fact ------------------------------------------------------------------------------------


def latency(folder: Path) -> Iterator[tuple[str, float, str]]:
    plant, office = folder / "idle-plant", folder / "idle-office"
    _zones.make(plant, "plant")
    _zones.make(office, "office")
    _zones.befriend(office, plant)
    with _zones.up(plant) as source, _zones.up(office) as reader:
        with holdfast.open(office) as node:
            links = Links(node._engine, Trust(node._engine, node._opened.paths))
            links.add("plant", source.tls, "plant", meshes=[_zones.MESH])
        here, there = Client(source.unix), Client(reader.unix)
        _zones.ask(there, "POST", "/v1/refresh")
        _zones.ask(there, "POST", "/v1/consumers", {"consumer": "watch"})
        times = []
        for number in range(LATENCY_FACTS):
            fact = {"mesh": _zones.MESH, "subject": "s", "predicate": "p", "object": number}
            begun = perf_counter()
            _zones.ask(here, "POST", "/v1/facts/append", fact)
            ask = {"consumer": "watch", "from": number + 1, "wait_ms": 10_000}
            got = _zones.ask(there, "POST", "/v1/facts/fetch", ask)
            times.append(perf_counter() - begun)
            assert got["entries"][0]["object"] == number
        here.close()
        there.close()
    times.sort()
    p50, p99 = times[len(times) // 2] * 1000, times[int(len(times) * 0.99)] * 1000
    print(f"  append on one node to read on the other: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    yield "one fact, append to applied elsewhere, p99, to 20 ms", p99 / 20, "< 1"


# --- readers -------------------------------------------------------------------------------------


def ranges(folder: Path) -> Iterator[tuple[str, float, str]]:
    home = folder / "ranges"
    _zones.make(home, "plant", RANGE_FACTS)
    rates: dict[str, float] = {}
    with _zones.up(home) as source:
        for accept in (ARROW, NDJSON):
            client = Client(source.unix)
            took = []
            for _ in range(ROUNDS):
                begun = perf_counter()
                chunks = client.stream("GET", "/v1/facts/range", headers={"accept": accept})
                size = sum(len(chunk) for chunk in chunks)
                took.append(perf_counter() - begun)
            rates[accept] = RANGE_FACTS / min(took)
            print(f"  {accept}: {rates[accept]:,.0f} rows/s, {size:,} bytes")
            client.close()
        print(f"  the node holds {_memory_mb(source.pid)} MB at most")
    yield "ranged read as Arrow, rows a second, to JSON lines", rates[ARROW] / rates[NDJSON], ">= 3"


def _memory_mb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) // 1024
    return 0


def consumers(folder: Path) -> Iterator[tuple[str, float, str]]:
    home = folder / "consumers"
    _zones.make(home, "plant", 10_000)
    with _zones.up(home) as source:
        client = Client(source.unix)
        _zones.ask(client, "POST", "/v1/consumers", {"consumer": "reader-0"})
        fetch_ms(client)
        alone = fetch_ms(client)
        for number in range(1, CONSUMERS):
            _zones.ask(client, "POST", "/v1/consumers", {"consumer": f"reader-{number}"})
        among = fetch_ms(client)
        client.close()
    print(f"  a fetch of 100: {alone:.2f} ms alone, {among:.2f} ms among {CONSUMERS:,}")
    yield f"a fetch among {CONSUMERS:,} consumers, to a fetch alone", among / alone, "<= 1.15"


def fetch_ms(client: Client) -> float:
    body = b'{"consumer": "reader-0", "limit": 100}'
    headers = {"content-type": "application/json", "accept": MSGPACK}
    took = []
    for _ in range(FETCHES):
        begun = perf_counter()
        client.call("POST", "/v1/facts/fetch", body=body, headers=headers)
        took.append(perf_counter() - begun)
    return statistics.median(took) * 1000
