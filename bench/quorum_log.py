"""Saves to the Raft log of a voter, beside bare apsw inserting the same rows.

Ours does what every save does: judge the write, sum the entry and the head, group, sync, answer.
The rival writes ready-made rows (one entry each, the head of the log once a commit) in transactions
of as many writes as ours has in flight. Rounds alternate, so that a busy machine slows both.
"""

from __future__ import annotations

import queue
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter, process_time

from holdfast.rules.quorum.log_rows import EntryRow, GroupWrite, HardStateRow, SaveAnswer
from holdfast.storage.sqlite.connection import connect, shut
from holdfast.storage.sqlite.quorum.quorum_log import SqliteQuorumLog

ROUNDS = 5
WRITERS = 64
GROUPED = 12_000
SINGLE = 1_500
PAYLOAD = b"x" * 500
HARD = HardStateRow(term=1, vote=1)


def run() -> Iterator[tuple[str, float, str]]:
    one, many, runs, votes, bare_one, bare_many = [], [], [], [], [], []
    spent: list[float] = []
    for _ in range(ROUNDS):
        one.append(in_fresh_folder(lambda home: ours_alone(home, SINGLE)))
        bare_one.append(in_fresh_folder(lambda home: bare(home, 1, SINGLE)))
        began = process_time()
        many.append(in_fresh_folder(lambda home: ours_grouped(home, GROUPED)))
        spent.append((process_time() - began) / GROUPED * 1e6)
        bare_many.append(in_fresh_folder(lambda home: bare(home, WRITERS, GROUPED)))
        runs.append(in_fresh_folder(lambda home: ours_in_runs(home, GROUPED)))
        votes.append(in_fresh_folder(lambda home: ours_votes(home, SINGLE // 4)))
    for name, rates in (
        ("1 in flight", one),
        ("bare apsw, 1 write a commit", bare_one),
        ("64 in flight", many),
        ("64 entries in a save, 1 in flight", runs),
        ("bare apsw, groups of 64", bare_many),
        ("votes, each with its mark", votes),
    ):
        print(f"  {name:40} {statistics.median(rates):>10,.0f} entries or votes/s")
    print(f"  {'CPU of a save, 64 in flight':40} {statistics.median(spent):>10,.1f} us")
    yield "Raft log, one save in flight, to bare apsw", paired(one, bare_one), "-"
    yield "Raft log, 64 saves in flight, to bare apsw in groups of 64", paired(many, bare_many), "-"
    yield "Raft log, 64 entries a save, to bare apsw in groups of 64", paired(runs, bare_many), "-"


def paired(ours: list[float], rival: list[float]) -> float:
    """The median of the rounds' own ratios: drift of the machine cancels within a round."""
    return statistics.median(a / b for a, b in zip(ours, rival, strict=True))


def in_fresh_folder(measure: Callable[[Path], float]) -> float:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        return measure(folder)
    finally:
        shutil.rmtree(folder)


def _opened(home: Path) -> SqliteQuorumLog:
    log = SqliteQuorumLog(home)
    log.init("team", tag=bytes(16), voter=1, config=b"")
    log.save(GroupWrite(scope="team", voter=1, number=1, hard=HARD))
    return log


def _write(index: int) -> GroupWrite:
    entry = EntryRow(index=index, term=1, kind=1, payload=PAYLOAD)
    return GroupWrite(scope="team", voter=1, number=index + 1, entries=(entry,))


def ours_alone(home: Path, writes: int) -> float:
    log = _opened(home)
    began = perf_counter()
    for index in range(1, writes + 1):
        log.save(_write(index))
    rate = writes / (perf_counter() - began)
    log.close()
    return rate


def ours_grouped(home: Path, writes: int) -> float:
    log = _opened(home)
    answers: queue.SimpleQueue[list[SaveAnswer]] = queue.SimpleQueue()
    began = perf_counter()
    given, answered = 0, 0
    room = WRITERS
    while answered < writes:
        batch = [_write(index) for index in range(given + 1, min(given + room, writes) + 1)]
        given += len(batch)
        log.submit(batch, answers.put)
        got = answers.get()
        assert all(answer.error is None for answer in got)
        room = len(got)
        answered += room
    rate = writes / (perf_counter() - began)
    log.close()
    return rate


def ours_in_runs(home: Path, entries: int) -> float:
    """As a follower saves what a busy leader sends it."""
    log = _opened(home)
    began = perf_counter()
    for number, start in enumerate(range(1, entries + 1, WRITERS), start=2):
        run = [_write(index).entries[0] for index in range(start, start + WRITERS)]
        log.save(GroupWrite(scope="team", voter=1, number=number, entries=tuple(run)))
    rate = entries / (perf_counter() - began)
    log.close()
    return rate


def ours_votes(home: Path, votes: int) -> float:
    log = _opened(home)
    began = perf_counter()
    for term in range(2, votes + 2):
        hard = HardStateRow(term=term, vote=1)
        log.save(GroupWrite(scope="team", voter=1, number=term, hard=hard))
    rate = votes / (perf_counter() - began)
    log.close()
    return rate


def bare(home: Path, group: int, writes: int) -> float:
    _opened(home).close()
    con = connect(home / "quorum.db")
    began = perf_counter()
    for start in range(1, writes + 1, group):
        con.execute("BEGIN IMMEDIATE")
        rows = [(1 << 40 | n, 1, 1, PAYLOAD, bytes(16)) for n in range(start, start + group)]
        con.executemany("INSERT INTO entry VALUES (?, ?, ?, ?, ?)", rows)
        con.execute("UPDATE head SET last = ?, written = ?", (start + group, start + group))
        con.execute("COMMIT")
    rate = writes / (perf_counter() - began)
    shut(con)
    return rate
