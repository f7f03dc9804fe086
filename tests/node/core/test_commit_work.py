"""What the fold of committed entries costs, in work of SQLite: by the write, and not by what is
there.
"""

from __future__ import annotations

from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import apsw

from holdfast.node.core.commit import CommittedEntry
from holdfast.storage.sqlite.store import SqliteStore
from support.commits import commit, entry, with_quorum
from support.growth import TIMES, counted_work, grown
from support.quorum_state import change, operation

_indexes = count(1)


def puts(*names: str) -> list[CommittedEntry]:
    return [
        entry(change(operation("put", "mission", name, {"title": name})), next(_indexes))
        for name in names
    ]


def test_Q4_a_run_of_plain_entries_takes_four_statements_for_each_and_few_for_all(
    tmp_path: Path,
) -> None:
    """One row each in the log, the commits, the entities and the revisions; what is read, is read
    for the whole run.
    """
    store = with_quorum(SqliteStore(tmp_path / "data.db", sync="normal"))
    assert isinstance(store, SqliteStore)
    seen: list[str] = []
    commit(store, puts("first"))

    def note(event: dict[str, Any]) -> None:
        seen.append(event["sql"])

    store._con.trace_v2(apsw.SQLITE_TRACE_STMT, note)
    counts: dict[int, Counter[str]] = {}
    for size in (8, 64):
        seen.clear()
        commit(store, puts(*(f"{size}-{at}" for at in range(size))))
        counts[size] = Counter(seen)
    more = {sql: counts[64][sql] - counts[8][sql] for sql in counts[64]}
    per_entry = {sql.split(" ")[2]: times for sql, times in more.items() if times}
    assert per_entry == dict.fromkeys(("log", "quorum_commit", "entity", "entity_revision"), 56)
    assert sum(counts[64].values()) - 4 * 64 < 24, "and these do not grow"
    store.stop()


def test_Q4_a_write_costs_no_more_where_there_are_more_entities_and_a_longer_past(
    tmp_path: Path,
) -> None:
    work: dict[int, dict[str, int]] = {}
    for times in (1, TIMES):
        with counted_work() as meter:
            store = with_quorum(SqliteStore(tmp_path / f"{times}.db", sync="normal"))
            many = [f"e{at}" for at in range(60 * times)]
            commit(store, puts(*many))
            for _ in range(6 * times):
                commit(store, puts("much"))
            calls = {
                "one with a long past": puts("much"),
                "new ones": puts(*(f"new{at}" for at in range(16))),
                "known ones": puts(*many[:16]),
                "a deletion": [entry(change(operation("delete", "mission", "e3")), next(_indexes))],
            }
            work[times] = {}
            for name, call in calls.items():
                before = meter.total()
                commit(store, call)
                work[times][name] = meter.total() - before
            store.stop()
    assert grown(work[1], work[TIMES]) == {}
