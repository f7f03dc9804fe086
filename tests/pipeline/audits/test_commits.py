"""What quorums have committed is one order in all logs, or an audit says what is wrong with it."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.pipeline.audits.commits import (
    COLUMNS,
    CommitOrder,
    empty_commits,
    judge_commit_fences,
    judge_commit_gaps,
    judge_left_behind,
    judge_order,
)
from holdfast.pipeline.audits.gold import run_audits
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import COMMITS, arrow_schema
from holdfast.rules.envelope import UNCOUNTED
from holdfast.rules.ids import id_text
from support.audit_world import World
from support.envelopes import MESH, make_id

_ids = count(1)


def row(number: int, *, id: int | None = None, log: str = "ana", **changed: Any) -> dict[str, Any]:
    given = {
        **{"log": log, "epoch": 1, "mesh": MESH, "number": number},
        **{"id": id_text(make_id(number if id is None else id)), "incarnation": 1},
        **{"lease_epoch": 1, "coordinator": "ana", "sequence": number},
        "committed_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    return {**given, **changed}


def table(*rows: dict[str, Any]) -> pa.Table:
    schema = pa.schema([arrow_schema(COMMITS).field(name) for name in COLUMNS])
    return pa.Table.from_pylist(list(rows), schema=schema)


def wrong(*rows: dict[str, Any]) -> list[str]:
    order = CommitOrder(table(*rows))
    parts = judge_order(order) + judge_commit_fences(order) + judge_commit_gaps(table(*rows))
    return sorted(one.detail for part in parts for one in part.rows)


GOOD = [row(number, log=log) for log in ("ana", "bob") for number in (1, 2, 3)]


def test_Q4_an_order_that_all_logs_have_alike_is_right() -> None:
    assert wrong(*GOOD) == []
    assert wrong(*GOOD, *(row(n, mesh="other", log="cyd") for n in (1, 2))) == []
    later = row(4, incarnation=2, lease_epoch=0, sequence=1)
    assert wrong(*GOOD, later) == []
    assert wrong() == []
    assert judge_commit_gaps(empty_commits()) == []


def test_Q4_one_number_with_two_entries_is_found() -> None:
    said = wrong(*GOOD, row(4, log="ana"), row(4, id=44, sequence=5, log="bob"))
    assert said == ["commit 4 of team is not the same entry in all logs"] * 2


def test_Q4_two_commits_under_one_fence_are_found() -> None:
    said = wrong(*GOOD, row(4, sequence=3))
    under = "more than one entry of team was committed under sequence 3 of ana in lease epoch 1"
    assert said.count(under) == 2
    assert len(said) == 3  # and the second of them is not newer than the first


def test_Q4_two_coordinators_of_one_lease_epoch_are_found() -> None:
    said = wrong(*GOOD, row(4, coordinator="eve"))
    assert said == ["lease epoch 1 of team has more than one coordinator"] * 4


@pytest.mark.parametrize(
    "fence",
    [
        {"sequence": 2, "lease_epoch": 0},
        {"sequence": 9, "lease_epoch": 0},
        {"incarnation": 0, "sequence": 9, "lease_epoch": 9},
    ],
)
def test_Q4_what_was_committed_but_not_in_its_leaders_order_is_found(fence: dict[str, Any]) -> None:
    (said,) = wrong(*GOOD, row(4, **fence))
    assert said.startswith("commit 4 of team has the fence")
    assert said.endswith("it was not committed in its leader's order")


def test_Q13_commits_that_a_recovery_left_behind_are_a_notice_and_break_no_order() -> None:
    lost = [row(4, log="ana"), row(5, log="ana")]
    anew = [
        row(number, log="bob", id=40 + number, incarnation=2, lease_epoch=2, sequence=number - 3)
        for number in (4, 5, 6)
    ]
    assert wrong(*GOOD, *lost, *anew) == []
    order = CommitOrder(table(*GOOD, *lost, *anew))
    (part,) = judge_left_behind(order)
    assert sorted(one.detail for one in part.rows) == [
        f"commit {number} of team was left behind by a recovery" for number in (4, 5)
    ]
    assert not any(part.rows for part in judge_left_behind(CommitOrder(table(*GOOD, *anew))))
    # A log that says of itself that it went back is not one of a recovery.
    assert len(wrong(*GOOD, *lost, *anew, row(7, log="bob"))) == 1


def test_Q4_commits_that_a_log_leaves_out_are_found() -> None:
    assert wrong(*GOOD, row(6, log="ana"), row(6, log="bob"), row(2, log="cyd")) == [
        "ana has no commits 4 to 5 of team, and later ones",
        "bob has no commits 4 to 5 of team, and later ones",
        "cyd has no commit 1 of team, and later ones",
    ]


def test_Q4_audits_read_commits_and_count_no_number_that_no_origin_gave(tmp_path: Path) -> None:
    world = World()
    world.own("ana", "ana", "1 2 3")
    # Strong writes bear an epoch that counts in no stream, and stamps for numbers.
    for offset, lamport in ((4, 10), (5, 40)):
        world.entry("ana", offset, MESH, "ana", lamport, lamport, origin_epoch=UNCOUNTED)
    lake = world.lake(tmp_path / "lake")
    assert findings(lake) == {"gaps": (0, 0), "fences": (0, 0)}
    schema = arrow_schema(COMMITS)
    rows = [{**one, "record": b"", "outcome": "applied"} for one in (*GOOD, row(5, sequence=2))]
    commits = lake.commits
    commits.commit(commits.stage_rows(pa.Table.from_pylist(rows, schema=schema)).files)
    assert findings(lake.fresh()) == {"gaps": (1, 0), "fences": (3, 0)}


def findings(lake: Lake) -> dict[str, tuple[int, int]]:
    report = run_audits(None, lake, ["gaps", "fences"], write=False)
    return {one.name: (one.findings, one.notices) for one in report.audits}
