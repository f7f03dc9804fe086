"""Whole runs: from the logs of two homes into a lake, by the command that users type.

CPU seconds are those of the whole machine while a run lasts, so nothing else should run meanwhile.
The figure beside them is what reading and unpacking the same logs costs in one plain process,
without Spark and without a lake.

Sizes come from the environment: HOLDFAST_BENCH_RUN_ROWS (1 000 000 envelopes; the larger lake has
three times as many).
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import holdfast
from bench._cluster import Cluster
from holdfast.rules.bodies import StateSet, encode_body
from holdfast.rules.envelope import Envelope, encode
from holdfast.storage.sqlite.connection import connect

ROWS = int(os.environ.get("HOLDFAST_BENCH_RUN_ROWS", "1000000"))
LARGER = 3
NEW_ROWS = 1000
ROWS_PER_KEY = 10
VALUE_CHARS = 100
CHUNK = 10_000
START_MS = 1_760_000_000_000
LAMPORT = 1 << 40
"""Stamps begin here, so that all take as many bytes."""
PEERS = ("ana", "bob")
_READ = """
import sys
from holdfast.pipeline.logs.log import open_log
from holdfast.pipeline.logs.unpack import decode_header
for home in sys.argv[1:]:
    log = open_log(home)
    place = log.place()
    for batch in log.batches(place.epoch, place.first, place.head + 1):
        decode_header(batch)
"""


def run() -> Iterator[tuple[str, float, str]]:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        homes = [folder / peer for peer in PEERS]
        lake = folder / "lake"
        for home in homes:
            fill(home, 1, ROWS // 2)
        plain = cpu_s(sys.executable, "-c", _READ, *map(str, homes))
        first = pipeline(lake, *homes)
        print(f"    reading and unpacking alone: {plain / ROWS * 1e6:.1f} µs a row", flush=True)
        yield f"run of {ROWS:,} envelopes from two homes, CPU s", first, "<= 30"
        yield "  the same, to reading and unpacking alone", first / plain, "-"
        for home in homes:
            fill(home, ROWS // 2 + 1, (LARGER - 1) * ROWS // 2)
        pipeline(lake)
        larger = pipeline(folder / "larger", *homes)
        each = (larger - first) / ((LARGER - 1) * ROWS)
        yield f"CPU µs a row, between {ROWS:,} and {LARGER * ROWS:,}", each * 1e6, "<= 12"
        fill(homes[0], LARGER * ROWS // 2 + 1, NEW_ROWS)
        began = perf_counter()
        pipeline(lake)
        yield f"{NEW_ROWS:,} more, one run, s", perf_counter() - began, "<= 8"
        yield from same_twice(folder, homes[0])
        yield from workers(folder, homes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def same_twice(folder: Path, home: Path) -> Iterator[tuple[str, float, str]]:
    """Two nodes of one mesh hold the same, so half of what is read is a repetition."""
    copy = folder / "copy"
    shutil.copytree(home, copy)
    rows = LARGER * ROWS + 2 * NEW_ROWS
    used = pipeline(folder / "twice", home, copy, "--name", f"copy={copy}")
    yield "CPU µs a row, two nodes that hold the same", used / rows * 1e6, "-"


def workers(folder: Path, homes: list[Path]) -> Iterator[tuple[str, float, str]]:
    """The same run on a standalone cluster of one worker and of two, by the clock."""
    took: list[float] = []
    for count in (1, 2):
        with Cluster(folder / f"cluster-{count}", workers=count, memory="2g") as cluster:
            began = perf_counter()
            pipeline(folder / f"lake-{count}", *homes, "--master", cluster.url)
            took.append(perf_counter() - began)
    print(f"    one worker {took[0]:.1f} s, two {took[1]:.1f} s", flush=True)
    yield "two workers to one, standalone", took[0] / took[1], ">= 1.7"


def pipeline(lake: Path, *words: Path | str) -> float:
    """Runs the command; returns CPU seconds."""
    command = (sys.executable, "-m", "holdfast", "pipeline", "run", *map(str, words))
    return cpu_s(*command, "--lake", str(lake), "--json")


def cpu_s(*command: str) -> float:
    """CPU seconds that all cores were busy while a command ran."""
    before = busy_s()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return busy_s() - before


def busy_s() -> float:
    """CPU seconds of the whole machine. Spark's workers are nobody's children in the end, so that
    the seconds of a tree of processes would leave them out.
    """
    user, nice, system, _, _, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def fill(home: Path, first: int, rows: int) -> None:
    """Adds real envelopes to the log of a home. Writing them through the node would take longer
    than everything that is measured.
    """
    peer = home.name
    if not home.exists():
        with holdfast.open(home, peer=peer, create=True, sync="normal") as node:
            node.create_mesh("team")
    chance = random.Random(f"{peer} {first}")
    connection = connect(home / "data.db", sync="normal")
    (head,) = next(connection.execute("SELECT coalesce(max(offset), 0) FROM log"))
    for begin in range(0, rows, CHUNK):
        numbers = range(begin, min(rows, begin + CHUNK))
        entries = [entry(peer, head + 1 + n, first + n, chance) for n in numbers]
        with connection:
            connection.executemany(
                "INSERT INTO log (offset, id, mesh, op, entity, origin, lamport, recorded_at, raw) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                entries,
            )
    connection.close()


def entry(peer: str, offset: int, seq: int, chance: random.Random) -> tuple[object, ...]:
    now = START_MS + seq * 7
    id = now.to_bytes(6, "big") + (0x7 << 76 | 0b10 << 62 | chance.getrandbits(62)).to_bytes(
        10, "big"
    )
    key = f"key-{chance.randrange(ROWS // ROWS_PER_KEY):08}"
    value = f'"{chance.getrandbits(VALUE_CHARS * 4):0{VALUE_CHARS}x}"'.encode()
    envelope = Envelope(
        id=id,
        mesh="team",
        op="state.set",
        entity=key,
        origin=peer,
        epoch=1,
        seq=seq,
        lamport=LAMPORT + seq,
        created_at=now,
        fingerprint=bytes(32),
        body=encode_body(StateSet(value=value)),
    )
    return (offset, id, "team", "state.set", key, peer, LAMPORT + seq, now, encode(envelope))
