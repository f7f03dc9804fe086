"""Vector search and storing against sqlite-vec's own plain table.

The rival is `vec0(embedding float[384])` with the extension's defaults, on a connection with the
same settings as ours. Both sides answer the same queries in turns, and the CPU time of this thread
is compared, because that is what a search costs here: the file is in the system's cache.

`python -m bench.vectors --quick` takes a tenth of the vectors.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import numpy as np
from numpy.typing import NDArray

from holdfast.rules.vectors import Model
from holdfast.storage.sqlite import migrations, vector_index
from holdfast.storage.sqlite.connection import connect

DIM = 384
ROWS = 100_000
QUERIES = 40
LIMIT = 10
BATCH = 200
MESHES = 10
MODEL = Model(provider="bench", name="synthetic", dim=DIM)

Floats = NDArray[np.float32]
Hits = list[tuple[int, float]]


def run(quick: bool = False) -> Iterable[tuple[str, float, str]]:
    rows = ROWS // 10 if quick else ROWS
    chance = np.random.default_rng(7)
    yield from one_mesh(f"{rows} clustered", clustered(chance), rows, "<= 0.35")
    yield from one_mesh(f"{rows // 2} all-positive", positive(chance), rows // 2, "no target")
    yield from one_mesh(f"{rows // 2} unrelated", unrelated(chance), rows // 2, "no target")
    yield from one_among_ten(clustered(chance), rows // 5)


# --- what is searched ----------------------------------------------------------------------------

Maker = Callable[[int], Floats]


def clustered(chance: np.random.Generator) -> Maker:
    """Topics within topics, all leaning the same way, as embeddings of texts do."""
    lean = 0.8 * chance.normal(size=DIM)
    wide = chance.normal(size=(50, DIM))
    middle = wide[chance.integers(0, 50, 2000)] + 0.7 * chance.normal(size=(2000, DIM))
    narrow = middle[chance.integers(0, 2000, 20_000)] + 0.5 * chance.normal(size=(20_000, DIM))

    def make(rows: int) -> Floats:
        near = narrow[chance.integers(0, 20_000, rows)]
        return unit(lean + near + 0.4 * chance.normal(size=(rows, DIM)))

    return make


def positive(chance: np.random.Generator) -> Maker:
    """Mixtures of sixteen topics without a negative number."""
    topics = chance.exponential(size=(16, DIM))
    return lambda rows: unit(chance.gamma(0.3, size=(rows, 16)) @ topics)


def unrelated(chance: np.random.Generator) -> Maker:
    """Any two vectors are about equally far from each other: sketches cannot help."""
    return lambda rows: unit(chance.normal(size=(rows, DIM)))


def unit(values: NDArray[np.float64]) -> Floats:
    scaled = values / np.linalg.norm(values, axis=1, keepdims=True)
    return np.asarray(scaled, dtype=np.float32)


# --- the comparisons -----------------------------------------------------------------------------


def one_mesh(what: str, make: Maker, rows: int, target: str) -> Iterator[tuple[str, float, str]]:
    data, queries = make(rows), [row.tobytes() for row in make(QUERIES)]
    with files() as (ours, rival):
        our_us, rival_us = stored_in_turns(ours, rival, data)
        found: list[list[Hits]] = [[], [], []]
        ms = in_turns(
            queries,
            [
                lambda query: found[0].append(vector_index.search(ours, MODEL, "m", query, LIMIT)),
                lambda query: found[1].append(plain_search(rival, query)),
                lambda query: found[2].append(
                    vector_index.search(ours, MODEL, "m", query, LIMIT, exact=True)
                ),
            ],
        )
        sizes = [Path(con.filename).stat().st_size / 2**20 for con in (ours, rival)]
    share = recall(found[0], found[1])
    print(f"  {what}: search {ms[0]:.1f} ms, exact {ms[2]:.1f}, plain {ms[1]:.1f}; ", end="")
    print(f"recall {share:.4f}; store {our_us:.0f} µs, plain {rival_us:.0f}; ", end="")
    print(f"file {sizes[0]:.0f} MiB, plain {sizes[1]:.0f}")
    yield f"search, {what}, against sqlite-vec plain", ms[0] / ms[1], target
    yield f"recall of 10, {what}", share, ">= 0.99"
    yield f"exact search, {what}, against sqlite-vec plain", ms[2] / ms[1], "no target"
    if target != "no target":
        yield f"store, {what}, against sqlite-vec plain", our_us / rival_us, "no target"
        yield f"file, {what}, against sqlite-vec plain", sizes[0] / sizes[1], "no target"


def one_among_ten(make: Maker, rows: int) -> Iterator[tuple[str, float, str]]:
    """Half of the mesh's vectors are stored before those of the others and half after them."""
    data, queries = make(rows), [row.tobytes() for row in make(QUERIES)]
    with files() as (among, alone):
        for con, others in ((among, MESHES - 1), (alone, 0)):
            with con:
                vector_index.ensure_table(con, MODEL, 0)
            store(con, data[: rows // 2], "mesh0", 0)
            for other in range(1, others + 1):
                store(con, data, f"mesh{other}", other * rows)
            store(con, data[rows // 2 :], "mesh0", rows // 2)
            con.pragma("wal_checkpoint", "truncate")
        searches: list[Callable[[bytes], object]] = [
            lambda query: vector_index.search(among, MODEL, "mesh0", query, LIMIT),
            lambda query: vector_index.search(alone, MODEL, "mesh0", query, LIMIT),
            lambda query: vector_index.search(among, MODEL, "mesh0", query, LIMIT, exact=True),
            lambda query: vector_index.search(alone, MODEL, "mesh0", query, LIMIT, exact=True),
        ]
        as_set = in_turns(queries, searches)
        # A file of ten meshes does not fit what a connection maps into memory, and its pages are
        # copied instead. With both files mapped whole, what remains is the filter.
        for con in (among, alone):
            con.pragma("mmap_size", 2**30)
        mapped = in_turns(queries, searches)
    for how, ms in (("as set", as_set), ("mapped", mapped)):
        print(f"  {rows} of one mesh, {how}: {ms[0]:.2f} ms among ten, {ms[1]:.2f} alone; ", end="")
        print(f"exact {ms[2]:.2f} and {ms[3]:.2f}")
    yield "search in one mesh among ten, against alone", as_set[0] / as_set[1], "no target"
    yield "the same with both files mapped", mapped[0] / mapped[1], "<= 1.10"
    yield "exact search in one mesh among ten, against alone", as_set[2] / as_set[3], "no target"
    yield "the same, exact, with both files mapped", mapped[2] / mapped[3], "<= 1.10"


def in_turns(queries: list[bytes], searches: list[Callable[[bytes], object]]) -> list[float]:
    """The median CPU time of each search in ms. Who begins changes with each query."""
    times: list[list[float]] = [[] for _ in searches]
    for turn, query in enumerate(queries):
        for step in range(len(searches)):
            which = (turn + step) % len(searches)
            times[which].append(cpu_s(searches[which], query) * 1000)
    return [statistics.median(each) for each in times]


def cpu_s(work: Callable[[bytes], object], query: bytes) -> float:
    started = time.thread_time()
    work(query)
    return time.thread_time() - started


def recall(found: list[Hits], truth: list[Hits]) -> float:
    pairs = zip(found, truth, strict=True)
    hits = [len({row for row, _ in one} & {row for row, _ in two}) for one, two in pairs]
    return sum(hits) / (LIMIT * len(hits))


# --- storing -------------------------------------------------------------------------------------


@contextmanager
def files() -> Iterator[tuple[apsw.Connection, apsw.Connection]]:
    with tempfile.TemporaryDirectory() as folder:
        opened = [connect(Path(folder) / f"{name}.db", sync="normal") for name in ("one", "two")]
        for con in opened:
            migrations.migrate(con)
        yield opened[0], opened[1]
        for con in opened:
            con.close()


def stored_in_turns(
    ours: apsw.Connection, rival: apsw.Connection, data: Floats
) -> tuple[float, float]:
    """CPU time per vector in µs, ours and the rival's, batch by batch."""
    vector_index.load_extension(rival)
    rival.execute(f"CREATE VIRTUAL TABLE plain USING vec0(embedding float[{DIM}])")
    with ours:
        vector_index.ensure_table(ours, MODEL, 0)
    spent = [0.0, 0.0]
    for first in range(0, len(data), BATCH):
        batch = [(first + n, row.tobytes()) for n, row in enumerate(data[first : first + BATCH])]
        started = time.thread_time()
        with ours:
            for number, packed in batch:
                vector_index.put(ours, MODEL, number, "m", packed)
        between = time.thread_time()
        with rival:
            for number, packed in batch:
                rival.execute(
                    "INSERT INTO plain (rowid, embedding) VALUES (?, ?)", (number, packed)
                )
        spent[0] += between - started
        spent[1] += time.thread_time() - between
    for con in (ours, rival):
        con.pragma("wal_checkpoint", "truncate")
    return spent[0] / len(data) * 1e6, spent[1] / len(data) * 1e6


def store(con: apsw.Connection, data: Floats, mesh: str, first: int) -> None:
    for start in range(0, len(data), BATCH):
        with con:
            for offset, row in enumerate(data[start : start + BATCH]):
                vector_index.put(con, MODEL, first + start + offset, mesh, row.tobytes())


def plain_search(con: apsw.Connection, query: bytes) -> Hits:
    rows = con.execute(
        "SELECT rowid, distance FROM plain WHERE embedding MATCH ? AND k = ?", (query, LIMIT)
    )
    return [(int(row[0]), float(row[1])) for row in rows]


if __name__ == "__main__":
    for line, ratio, wanted in run(quick="--quick" in sys.argv):
        print(f"{line:70} {ratio:6.3f}  {wanted}", flush=True)
