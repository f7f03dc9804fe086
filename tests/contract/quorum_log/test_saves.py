"""Terms, votes and entries: kept as they were saved, in the order in which they came."""

from __future__ import annotations

import random
import threading

import pytest

from holdfast.rules.errors import BadValue, HoldfastError, LogMismatch, OverLimit, Truncated
from holdfast.rules.limits import QUORUM_ENTRY_BYTES_MAX, QUORUM_WRITE_ENTRIES_MAX
from holdfast.rules.quorum.log_rows import GroupWrite, SaveAnswer, TermRun
from holdfast.storage.quorum_port import QuorumLog
from support.quorum_logs import TAG, entry, filled, write
from support.seeds import seeds


def runs_of(log: QuorumLog, scope: str = "team") -> list[tuple[int, int, int]]:
    return [(run.first, run.last, run.term) for run in log.term_runs(scope)]


def indexes(log: QuorumLog, scope: str = "team") -> list[tuple[int, int]]:
    first = log.head(scope).first
    return [(e.index, e.term) for e in log.entries(scope, first, 1 << 30, 1 << 30)]


def test_Q3_what_is_saved_is_answered_with_its_number_and_can_be_read(log: QuorumLog) -> None:
    log.init("team", tag=TAG, voter=1, config=b"")
    saved = log.save(write(7, entry(1, 2), entry(2, 2), term=2, vote=3, commit=1))
    assert (saved.scope, saved.number, saved.last, saved.last_term) == ("team", 7, 2, 2)
    head = log.head("team")
    assert (head.term, head.vote, head.commit, head.written) == (2, 3, 1, 7)
    assert (head.first, head.last, head.last_term) == (1, 2, 2)
    assert log.entries("team", 1, 3, 999) == [entry(1, 2), entry(2, 2)]
    assert log.oldest_unsynced_ms() is None


def test_Q4_terms_never_fall_and_a_vote_is_given_once(log: QuorumLog) -> None:
    log.init("team", tag=TAG, voter=1, config=b"")
    log.save(write(1, term=5))
    log.save(write(2, term=5, vote=2))
    for term, vote in ((4, 2), (5, 3), (5, 0)):
        with pytest.raises(LogMismatch):
            log.save(write(3, term=term, vote=vote))
    log.save(write(3, term=6, vote=3))
    head = log.head("team")
    assert (head.term, head.vote, head.written) == (6, 3, 3)


def test_Q4_a_write_that_comes_late_changes_nothing(log: QuorumLog) -> None:
    filled(log, 1)
    log.save(write(5, term=9))
    for number in (5, 4, 0):
        with pytest.raises(LogMismatch, match="late"):
            log.save(write(number, entry(2, 9), term=9))
    assert log.head("team").last == 1


@pytest.mark.parametrize(
    "bad",
    [
        write(2, entry(3, 2)),
        write(2, entry(1, 2)),
        write(2, entry(2, 2), entry(4, 2)),
        write(2, entry(2, 1)),
        write(2, entry(2, 3)),
        write(2, entry(2, 2), cut=1),
        write(2, cut=3 + 1),
        write(2, cut=0),
    ],
    ids=["gap", "again", "gap inside", "term falls", "above its term", "cut", "past", "before"],
)
def test_Q3_what_does_not_follow_is_refused_and_nothing_changes(
    log: QuorumLog, bad: GroupWrite
) -> None:
    log.init("team", tag=TAG, voter=1, config=b"")
    log.save(write(1, entry(1, 2), term=2))
    with pytest.raises(LogMismatch):
        log.save(bad)
    head = log.head("team")
    assert (head.last, head.written) == (1, 1)
    assert indexes(log) == [(1, 2)]


def test_Q3_a_conflicting_tail_is_replaced_in_one_write(log: QuorumLog) -> None:
    filled(log, 1, 1, 2, 2, 2)
    log.save(write(2, entry(4, 3), entry(5, 4), term=4, cut=4))
    assert indexes(log) == [(1, 1), (2, 1), (3, 2), (4, 3), (5, 4)]
    assert runs_of(log) == [(1, 2, 1), (3, 3, 2), (4, 4, 3), (5, 5, 4)]
    log.save(write(3, cut=2))
    assert runs_of(log) == [(1, 1, 1)]
    log.save(write(4, cut=1))
    assert log.term_runs("team") == []
    log.save(write(5, entry(1, 4)))
    assert runs_of(log) == [(1, 1, 4)]


def test_Q3_what_is_committed_is_never_cut(log: QuorumLog) -> None:
    filled(log, 1, 1, 1)
    log.save(write(2, term=1, commit=2))
    with pytest.raises(LogMismatch, match="committed"):
        log.save(write(3, cut=2))
    log.save(write(3, term=1, commit=1, cut=3))
    assert log.head("team").commit == 2, "the hint never falls"


def test_Q3_terms_are_told_without_the_entries(log: QuorumLog) -> None:
    filled(log, 1, 1, 3)
    log.save(write(2, entry(4, 3), entry(5, 8), term=8))
    assert runs_of(log) == [(1, 2, 1), (3, 4, 3), (5, 5, 8)]
    assert [log.term_at("team", index) for index in range(7)] == [0, 1, 1, 3, 3, 8, None]


def test_Q3_entries_are_read_by_bytes_and_one_always_fits(log: QuorumLog) -> None:
    log.init("team", tag=TAG, voter=1, config=b"")
    log.save(write(1, *(entry(at, 1, b"x" * 100) for at in range(1, 6)), term=1))

    def got(start: int, end: int, bytes_max: int) -> list[int]:
        return [e.index for e in log.entries("team", start, end, bytes_max)]

    assert got(1, 99, 250) == [1, 2]
    assert got(2, 99, 1) == [2]
    assert got(2, 4, 999) == [2, 3]
    assert got(6, 99, 999) == []
    assert got(4, 3, 999) == []


def test_Q3_entries_that_change_the_voters_are_found_by_themselves(log: QuorumLog) -> None:
    log.init("team", tag=TAG, voter=1, config=b"")
    kinds = [1, 2, 0, 2, 255]
    log.save(write(1, *(entry(at, 1, kind=kind) for at, kind in enumerate(kinds, 1)), term=1))
    assert [e.index for e in log.configs("team")] == [2, 4]
    log.save(write(2, term=1, commit=5))
    log.compact("team", 2, b"voters at 2")
    assert [e.index for e in log.configs("team")] == [4]
    log.save(write(3, entry(6, 1)))
    assert [e.index for e in log.configs("team")] == [4]


def test_Q3_the_limits_of_a_write(log: QuorumLog) -> None:
    log.init("team", tag=TAG, voter=1, config=b"")
    large = b"x" * QUORUM_ENTRY_BYTES_MAX
    log.save(write(1, entry(1, 1, large), term=1))
    with pytest.raises(OverLimit):
        log.save(write(2, entry(2, 1, large + b"x")))
    with pytest.raises(BadValue):
        log.save(write(2, entry(2, 1, kind=256)))
    many = [entry(at, 1, b"") for at in range(2, QUORUM_WRITE_ENTRIES_MAX + 3)]
    with pytest.raises(OverLimit):
        log.save(write(2, *many))
    log.save(write(2, *many[:-1]))
    assert log.entries("team", 1, 2, 1)[0].payload == large


def test_Q3_compaction_moves_the_beginning_and_keeps_the_rest(log: QuorumLog) -> None:
    filled(log, 1, 1, 2, 2, 3)
    with pytest.raises(LogMismatch):
        log.compact("team", 1, b"")  # it is not known to be committed
    log.save(write(2, term=3, commit=4))
    log.compact("team", 3, b"voters at 3")
    boundary = log.boundary("team")
    assert (boundary.index, boundary.term, boundary.config) == (3, 2, b"voters at 3")
    assert indexes(log) == [(4, 2), (5, 3)]
    assert runs_of(log) == [(4, 4, 2), (5, 5, 3)]
    assert [log.term_at("team", index) for index in (2, 3, 4)] == [None, 2, 2]
    with pytest.raises(Truncated) as refused:
        log.entries("team", 3, 9, 999)
    assert refused.value.first_available == 4
    for index in (2, 5):
        with pytest.raises(LogMismatch):
            log.compact("team", index, b"")
    log.save(write(3, entry(6, 3), term=3, commit=6))
    log.compact("team", 6, b"voters at 6")
    assert (log.term_runs("team"), log.head("team").last_term) == ([], 3)
    log.save(write(4, entry(7, 3)))
    assert runs_of(log) == [(7, 7, 3)]
    assert log.term_at("team", 6) == 3


def test_Q3_submitted_writes_are_answered_in_order_each_with_its_own_outcome(
    log: QuorumLog,
) -> None:
    filled(log, 1)
    filled(log, 1, scope="other")
    answers: list[SaveAnswer] = []
    done = threading.Event()

    def answer(some: list[SaveAnswer]) -> None:
        answers.extend(some)
        if len(answers) == 4:
            done.set()

    writes = [
        write(2, entry(2, 1)),
        write(2, entry(9, 1), scope="other"),
        write(3, entry(3, 1)),
        write(3, entry(2, 1), scope="other"),
    ]
    assert log.submit(writes, answer) == 4
    assert done.wait(30)
    assert [a.write for a in answers] == writes
    assert isinstance(answers[1].error, LogMismatch)
    assert [a.saved and a.saved.last for a in answers] == [2, None, 3, 2]
    assert log.submit([], answer) == 0


def test_Q3_a_tail_may_be_cut_by_the_write_that_comes_right_after_it(log: QuorumLog) -> None:
    filled(log, 1)
    done = threading.Event()
    errors: list[BaseException | None] = []

    def answer(some: list[SaveAnswer]) -> None:
        errors.extend(a.error for a in some)
        if len(errors) == 2:
            done.set()

    both = [write(2, entry(2, 1), entry(3, 1)), write(3, entry(3, 2), term=2, cut=3)]
    log.submit(both, answer)
    assert done.wait(30)
    assert errors == [None, None]
    assert indexes(log) == [(1, 1), (2, 1), (3, 2)]
    assert runs_of(log) == [(1, 2, 1), (3, 3, 2)]


class Model:
    """What a log must show, kept in the plainest way."""

    def __init__(self) -> None:
        self.base, self.entries, self.commit = (0, 0), list[tuple[int, int]](), 0


@pytest.mark.parametrize("seed", seeds(4))
def test_Q3_random_writes_leave_what_a_plain_list_says(log: QuorumLog, seed: int) -> None:
    rng, model, term = random.Random(seed), Model(), 1
    log.init("team", tag=TAG, voter=1, config=b"")
    for number in range(1, 60):
        last = model.base[0] + len(model.entries)
        term += rng.random() < 0.3
        low = max(model.base[0], model.commit) + 1
        cut = rng.randint(low, last + 1) if rng.random() < 0.3 and low <= last else None
        kept = model.entries if cut is None else model.entries[: cut - model.base[0] - 1]
        begins = model.base[0] + len(kept) + 1
        floor = kept[-1][1] if kept else model.base[1]
        terms = sorted(rng.randint(floor, term) for _ in range(rng.randint(0, 4)))
        new = [(begins + at, t) for at, t in enumerate(terms)]
        model.entries = kept + new
        last = model.base[0] + len(model.entries)
        model.commit = max(model.commit, rng.randint(model.base[0], last))
        log.save(write(number, *(entry(*e) for e in new), term=term, commit=model.commit, cut=cut))
        if rng.random() < 0.2:
            upto = rng.randint(model.base[0], model.commit)
            dropped = model.entries[: upto - model.base[0]]
            model.base = dropped[-1] if dropped else model.base
            model.entries = model.entries[len(dropped) :]
            log.compact("team", upto, b"")
        assert indexes(log) == model.entries
        expected = [TermRun(first=i, last=i, term=t) for i, t in model.entries]
        assert [
            (index, run.term)
            for run in log.term_runs("team")
            for index in range(run.first, run.last + 1)
        ] == [(run.first, run.term) for run in expected]
        assert log.term_at("team", model.base[0]) == model.base[1]


def test_Q3_writers_in_many_threads_keep_their_own_order(log: QuorumLog) -> None:
    scopes = [f"team-{at}" for at in range(4)]
    for scope in scopes:
        log.init(scope, tag=TAG, voter=1, config=b"")
    failures: list[HoldfastError] = []

    def work(scope: str) -> None:
        try:
            for at in range(1, 31):
                log.save(write(at, entry(at, 1), scope=scope, term=1))
        except HoldfastError as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(scope,)) for scope in scopes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for scope in scopes:
        assert indexes(log, scope) == [(at, 1) for at in range(1, 31)]
