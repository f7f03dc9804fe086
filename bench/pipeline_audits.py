"""Audits and verification: what they cost beside reading the rows that they are about.

Audits: a lake that two nodes fill and both hear everything of, all audits and measures against one
plain scan of the columns that they look at. Verification: a node against its lake, against reading
both sides: the node's digests, and the rows of bronze. CPU is measured, of this process and of all
that it started.

Sizes come from the environment: HOLDFAST_BENCH_AUDIT_ROWS (3 000 000) envelopes for audits and
HOLDFAST_BENCH_VERIFY_ROWS (200 000) for the node. Lake and home are made once and kept in
HOLDFAST_BENCH_CACHE, or beside other temporary files.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import holdfast
from bench import pipeline_run
from holdfast.pipeline.audits import AUDITS, MEASURES
from holdfast.pipeline.audits.gold import run_audits
from holdfast.pipeline.audits.job import bronze_job
from holdfast.pipeline.audits.live_facts import LiveFacts
from holdfast.pipeline.fold.silver import fold_lake
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.reads import Read, note_reads
from holdfast.pipeline.logs.log import open_log
from holdfast.pipeline.logs.unpack import decode_header
from holdfast.pipeline.spark.workers import DriverWorkers
from holdfast.pipeline.verify.node_digests import node_digests
from holdfast.pipeline.verify.verify import VerifyReport, verify_nodes
from holdfast.rules.limits import DAY_MS, MIB

ROWS = int(os.environ.get("HOLDFAST_BENCH_AUDIT_ROWS", "3000000"))
NODE_ROWS = int(os.environ.get("HOLDFAST_BENCH_VERIFY_ROWS", "200000"))
START_MS = 1_760_000_000_000
PEERS = ("ana", "bob")
BLOCK = 1000
"""A node hears of so many changes of the other at once."""
KEYS_PER_ROW = 0.1
CHUNK = 100_000


def run() -> Iterator[tuple[str, float, str]]:
    cache = Path(
        os.environ.get("HOLDFAST_BENCH_CACHE", Path(tempfile.gettempdir()) / "holdfast-bench-lakes")
    )
    cache.mkdir(parents=True, exist_ok=True)
    yield from audits(cache)
    yield from verification(cache)


def cpu_s(act: Callable[[], object]) -> float:
    """CPU of this process and of all that it started and that still run."""
    began, before = process_time(), children_s()
    act()
    return process_time() - began + children_s() - before


def children_s() -> float:
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        pid = int(path.parent.name)
        parents[pid] = int(words[1])
        used[pid] = sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sum(used[pid] for pid in found - {os.getpid()})


# --- audits --------------------------------------------------------------------------------------


def audits(cache: Path) -> Iterator[tuple[str, float, str]]:
    lake = audited_lake(cache / f"audited-{ROWS}")
    names = [*AUDITS, *MEASURES]
    job = bronze_job(DriverWorkers(), lake, names, LiveFacts(), {})

    def scan() -> None:
        for number in range(len(job.scan.ranges)):
            job.scan.share(number)

    plain = cpu_s(scan)
    print(f"    reading {ROWS:,} envelopes: {plain:.1f} s of CPU", flush=True)
    took = cpu_s(lambda: run_audits(None, lake))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB
    print(f"    all audits: {took:.1f} s of CPU, {peak:.0f} MiB", flush=True)
    yield "all audits, microseconds of CPU a row", took / ROWS * 1e6, "<= 10"
    yield "all audits, to reading the same columns once", took / plain, "<= 5"


def audited_lake(folder: Path) -> Lake:
    """A lake in which each of two logs has all envelopes, its own ones first."""
    if (folder / "ready").exists():
        return Lake.open(folder)
    shutil.rmtree(folder, ignore_errors=True)
    lake = Lake.open(folder, create=True)
    chance = np.random.default_rng(1)
    bronze, sightings = lake.bronze.writer(), lake.sightings.writer()
    first, again = [], []
    for begin in range(0, ROWS, CHUNK):
        numbers = np.arange(begin, min(ROWS, begin + CHUNK))
        rows, heard = envelopes(numbers, chance)
        first += bronze.write([rows])
        again += sightings.write([heard])
    lake.sightings.commit(again)
    lake.bronze.commit(first)
    ends = [
        Read(
            log=peer, epoch=1, first=1, last=-(-ROWS // (2 * BLOCK)) * 2 * BLOCK, rows=ROWS, batch=0
        )
        for peer in PEERS
    ]
    note_reads(lake.reads, ends)
    (folder / "ready").touch()
    return lake.fresh()


def envelopes(numbers: np.ndarray, chance: np.random.Generator) -> tuple[pa.Table, pa.Table]:
    """Rows of bronze and the sightings of the same envelopes in the other log."""
    count, times = len(numbers), START_MS + numbers // 20
    who, seqs = numbers % 2, numbers // 2 + 1
    block, inside = numbers // (2 * BLOCK) * (2 * BLOCK), numbers % (2 * BLOCK) // 2
    ids = pa.array(
        [
            f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7{n % 4096:03x}-8{0:03x}-{n:012x}"
            for ms, n in zip(times.tolist(), numbers.tolist(), strict=True)
        ]
    )
    peers = pa.array([PEERS[one] for one in who.tolist()])
    stamps = pa.array(times * 1000).cast(pa.timestamp("us", "UTC"))
    came = pa.array((times + 3) * 1000).cast(pa.timestamp("us", "UTC"))
    late = pa.array((times + 50 + numbers % 977) * 1000).cast(pa.timestamp("us", "UTC"))
    keys = chance.integers(0, max(1, int(ROWS * KEYS_PER_ROW)), count)
    ones, none = pa.array(np.ones(count, np.int64)), pa.nulls(count, pa.string())
    known = {
        **{"log": peers, "origin": peers, "id": ids, "epoch": ones, "origin_epoch": ones},
        **{"offset": pa.array(block + inside + 1), "seq": pa.array(seqs)},
        **{"lamport": pa.array(numbers + 1), "mesh": same("team", count)},
        **{"op": same("state.set", count), "family": same("state", count)},
        "entity": pa.array([f"service/key-{key:09}" for key in keys.tolist()]),
        **{"recorded_at": came, "created_at": stamps, "owner": same("", count)},
        **{"write_class": same("queued", count), "state": same("committed", count)},
        **{"base_lamport": pa.nulls(count, pa.int64()), "base_peer": none, "meta": none},
        "raw": pa.array([bytes(150) + id.encode() for id in ids.to_pylist()]),
        "fingerprint": pa.array([bytes(32)] * count),
        **{"model": same("", count), "batch": pa.array(np.zeros(count, np.int64))},
        "day": pa.array((times // DAY_MS).astype(np.int32)).cast(pa.date32()),
    }
    heard = {
        "log": pa.array([PEERS[1 - one] for one in who.tolist()]),
        "offset": pa.array(block + BLOCK + inside + 1),
        **{"id": ids, "epoch": ones, "recorded_at": late, "batch": known["batch"]},
    }
    return pa.table(known), pa.table(heard).sort_by([("log", "ascending"), ("offset", "ascending")])


def same(text: str, count: int) -> pa.Array:
    return pa.array([text]).take(pa.array(np.zeros(count, np.int64)))


# --- verification --------------------------------------------------------------------------------


def verification(cache: Path) -> Iterator[tuple[str, float, str]]:
    home, lake = verified(cache / f"verified-{NODE_ROWS}")
    log = open_log(str(home))
    source = node_digests(log)
    assert source is not None
    of_node = cpu_s(source.digests)
    of_lake = cpu_s(lambda: read_all(lake))
    print(f"    reading both sides: {of_node:.1f} s and {of_lake:.1f} s of CPU", flush=True)
    reports: list[VerifyReport] = []
    took = cpu_s(lambda: reports.append(verify_nodes(None, lake, [log])))
    (found,) = reports[0].logs
    assert (found.status, found.astray["state"]) == ("same", 0), found
    print(f"    verify {NODE_ROWS:,} rows: {took:.1f} s of CPU", flush=True)
    yield "verify of a node, to reading both sides", took / (of_node + of_lake), "<= 2"


def read_all(lake: Lake) -> None:
    """Every row of bronze, with its bytes."""
    reader = lake.bronze.reader()
    for file in lake.bronze.files():
        with reader.open(file) as opened:
            for group in range(opened.groups):
                opened.group(group)


def verified(folder: Path) -> tuple[Path, Lake]:
    """A node with so many entries in its log, and a lake that has read and folded it."""
    home, root = folder / "bob", folder / "lake"
    if (folder / "ready").exists():
        return home, Lake.open(root)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    chance = random.Random(1)
    with holdfast.open(home, peer=home.name, create=True, sync="normal") as node:
        node.create_mesh("team")
        for begin in range(1, NODE_ROWS + 1, CHUNK // 20):
            numbers = range(begin, min(NODE_ROWS + 1, begin + CHUNK // 20))
            rows: list[Any] = [pipeline_run.entry("ana", n, n, chance)[-1] for n in numbers]
            applied = node.apply(rows)
            assert all(one.error is None for one in applied)
    lake = Lake.open(root, create=True)
    log = open_log(str(home))
    place, writer, files = log.place(), lake.bronze.writer(), []
    for batch in log.batches(place.epoch, 1, place.head + 1):
        files += writer.write([_bronze(pa.Table.from_batches([decode_header(batch)]))])
    log.close()
    lake.bronze.commit(files)
    read = Read(
        log=place.log, epoch=place.epoch, first=1, last=place.head, rows=place.head, batch=0
    )
    note_reads(lake.reads, [read])
    fold_lake(DriverWorkers(), lake.fresh())
    (folder / "ready").touch()
    return home, lake.fresh()


def _bronze(rows: pa.Table) -> pa.Table:
    count = rows.num_rows
    times = [int(id[:8] + id[9:13], 16) // DAY_MS for id in rows["id"].to_pylist()]
    more = {
        "family": pc.replace_substring_regex(rows["op"], r"\..*", ""),
        "batch": pa.array(np.zeros(count, np.int64)),
        "day": pa.array(times, pa.int32()).cast(pa.date32()),
    }
    for name, column in more.items():
        rows = rows.append_column(name, column)
    return rows.sort_by([("day", "ascending"), ("id", "ascending")])
