"""What a write, a read and an opening cost does not grow with the length of the log, and no
transaction of a compaction is long.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from holdfast.rules.limits import QUORUM_SWEEP_ROWS
from support.growth import TIMES, WorkMeter, counted_work, grown
from support.quorum_logs import TAG, entry, opened, write

ENTRIES = 400


def work(home: Path, entries: int, meter: WorkMeter) -> dict[str, int]:
    home.mkdir()
    log = opened(home)
    log.init("team", tag=TAG, voter=1, config=b"voters")
    log.save(write(1, *(entry(at, 1, kind=at % 3) for at in range(1, entries)), term=2))
    log.save(write(2, entry(entries, 2), term=2))
    log.close()
    log = opened(home)
    numbers = iter(range(3, 99))

    def save() -> None:
        number = next(numbers)
        log.save(write(number, entry(entries + number - 2, 2), term=2, commit=entries))

    def vote() -> None:
        number = next(numbers)
        log.save(write(number, term=number, vote=1))

    def reopen() -> None:
        nonlocal log
        log.close()
        log = opened(home)

    found = {
        "save": meter.of(save),
        "vote": meter.of(vote),
        "term_at": meter.of(lambda: log.term_at("team", entries // 2)),
        "term_runs": meter.of(lambda: log.term_runs("team")),
        "entries": meter.of(lambda: log.entries("team", entries // 2, entries, 200)),
        "open": meter.of(reopen),
    }
    log.close()
    return found


def test_Q3_what_a_log_costs_does_not_grow_with_its_length(tmp_path: Path) -> None:
    with counted_work() as meter:
        small = work(tmp_path / "small", ENTRIES, meter)
        large = work(tmp_path / "large", ENTRIES * TIMES, meter)
    assert not grown(small, large)


def test_Q4_a_compaction_never_keeps_a_vote_waiting_for_long(tmp_path: Path) -> None:
    with counted_work() as meter:
        log = opened(tmp_path)
        log.init("team", tag=TAG, voter=1, config=b"voters")
        longest = {}
        for number, count in enumerate((QUORUM_SWEEP_ROWS, 4 * QUORUM_SWEEP_ROWS), start=1):
            last = log.head("team").last
            new = [entry(last + at, 1) for at in range(1, count + 1)]
            log.save(write(number, *new, term=1, commit=last + count))
            longest[count] = meter.longest_of(partial(log.compact, "team", last + count, b""))
        log.close()
    small, large = longest.values()
    assert large < 1.5 * small, "four times the rows, in four times the transactions"
