"""What a quorum has committed, on a node without a vote: the same tables, or a loud complaint."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.node.core.commit import CommittedEntry
from holdfast.node.core.committed_intake import (
    CommitPageIntake,
    commit_trouble,
    forget_trouble,
    raise_fork,
)
from holdfast.node.core.write_queue import queue_add, queue_get
from holdfast.protocol.commit_page import CommitLine, check_page
from holdfast.rules.errors import CommitForked, NoVoters, Truncated, UnknownMesh
from holdfast.rules.limits import COMMIT_PAGE_BYTES, COMMIT_TROUBLES_KEPT
from holdfast.rules.quorum.commit_record import decode_record
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.write_queue import WriteFailure, WriteStatus
from holdfast.rules.reconcile import Outcome
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.ports import Store
from model.test_quorum_model import run
from support.commit_pages import mission, page_of, take, voter_with, with_mesh, with_record
from support.commits import (
    commit,
    committed_state,
    context,
    entries_of,
    entry,
    with_quorum,
)
from support.envelopes import MESH
from support.nodes import KINDS
from support.quorum_state import fence
from support.seeds import seeds
from support.stores import make_store, read

ORDER = [mission("a"), mission("b"), mission("a", "u", base=1), mission("a", "v", base=1)]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = make_store(request.param, tmp_path)
    yield with_mesh(made)
    made.stop()


def shared(store: Store) -> dict[str, object]:
    """What all nodes have alike of a committed order."""
    state = read(store, committed_state)
    records = [row.record for row in read(store, lambda tx: tx.commit_range(MESH, 1, 999))]
    return {**{k: state[k] for k in ("entities", "revisions", "leases", "nodes")}, "r": records}


def standing(store: Store) -> tuple[int, int, int | None]:
    row = read(store, lambda tx: tx.quorum_get(MESH))
    assert row is not None
    return row.number, row.incarnation, row.voter


def trouble(store: Store) -> list[tuple[str, int]]:
    return [(one.kind, one.number) for one in read(store, lambda tx: commit_trouble(tx, MESH))]


def in_sequence(entries: list[CommittedEntry]) -> list[CommittedEntry]:
    """The entries whose sequence grows, as every engine counts."""
    kept: list[CommittedEntry] = []
    for one in entries:
        if not kept or one.fence.sequence > kept[-1].fence.sequence:
            kept.append(one)
    return kept


@pytest.mark.parametrize("seed", seeds(4))
def test_Q4_a_node_without_a_vote_makes_the_tables_of_the_voters_however_pages_are_cut(
    store: Store, seed: int
) -> None:
    _, order, _ = run(seed)
    voter = with_quorum(MemoryStore())
    commit(voter, in_sequence(entries_of(order)))
    draw, at = random.Random(seed), 1
    end = standing(voter)[0]
    assert end > 50
    while at <= end:
        page = page_of(voter, max(1, at - draw.choice((0, 0, 3))), draw.choice((1, 7, 40)))
        taken = take(store, page)
        assert taken.trouble == ()
        at = taken.number + 1
    assert shared(store) == shared(voter)
    assert standing(store) == (end, 1, None)
    with store.read() as tx, voter.read() as other:
        tasks, expected = (
            {row.task: (row.status, row.generation, row.holder) for row in rows}
            for rows in (
                tx.task_scan(MESH, None, "", 999, known_only=False),
                other.task_scan(MESH, None, "", 999, known_only=False),
            )
        )
    assert tasks == expected


def test_Q4_pages_that_come_twice_or_too_early_change_nothing_and_say_so(store: Store) -> None:
    voter = voter_with(ORDER)
    assert take(store, page_of(voter, 3)).outcome == "gap"
    assert read(store, lambda tx: tx.quorum_get(MESH)) is None
    first = take(store, page_of(voter, 1, 2))
    assert (first.outcome, first.new, first.number) == ("folded", 2, 2)
    again = take(store, page_of(voter, 1, 2), source="bob")
    assert (again.outcome, again.known, again.number) == ("known", 2, 2)
    assert take(store, page_of(voter, 4)).outcome == "gap"
    overlap = take(store, page_of(voter, 2), source="bob")
    assert (overlap.outcome, overlap.known, overlap.new, overlap.number) == ("folded", 1, 2, 4)
    assert [one.outcome for one in overlap.results] == [
        Outcome.APPLIED,
        Outcome.CONFLICT_REQUIRES_MERGE,
    ]
    assert take(store, page_of(voter, 5)).outcome == "known"
    assert shared(store) == shared(voter)
    assert trouble(store) == []


def test_Q4_a_page_for_a_mesh_that_is_not_here_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownMesh):
        take(MemoryStore(), page_of(voter_with(ORDER)))
    with pytest.raises(NoVoters):
        page_of(with_mesh(MemoryStore()))


def test_Q4_where_our_rules_differ_the_record_stands_and_the_node_says_so(store: Store) -> None:
    """As if the voters ran rules that refuse what ours apply."""
    voter = voter_with(ORDER)
    page = with_record(
        page_of(voter), 1, outcome=Outcome.CONFLICT_REQUIRES_MERGE, reason="base", revisions=()
    )
    taken = take(store, page)
    assert (taken.outcome, taken.new) == ("folded", 4)
    assert [(one.kind, one.number) for one in taken.trouble] == [("commit_diverged", 2)]
    assert "mission/b at 1" in taken.trouble[0].detail
    assert taken.results[1].outcome is Outcome.CONFLICT_REQUIRES_MERGE
    rows = read(store, lambda tx: tx.commit_range(MESH, 1, 9))
    assert [row.record for row in rows] == [row.record for row in page.rows]
    missions = read(store, lambda tx: tx.entity_list(MESH, "mission", "", 9))
    assert [row.id for row in missions] == ["a"]
    # What it hands on is what the quorum said, not its own opinion.
    assert page_of(store).rows == page.rows
    assert take(store, page).trouble == ()
    assert trouble(store) == [("commit_diverged", 2)]
    store.write(lambda tx: forget_trouble(tx, MESH))
    assert trouble(store) == []


def test_Q4_one_number_of_two_entries_is_a_fork_that_is_reported_and_not_folded(
    store: Store,
) -> None:
    here = voter_with([mission("a"), mission("b")])
    take(store, page_of(here))
    there = page_of(voter_with([mission("c"), mission("d"), mission("e")]))
    before = shared(store)
    taken = take(store, there, source="eve")
    assert (taken.outcome, taken.number, taken.new) == ("forked", 2, 0)
    assert [(one.kind, one.number, one.source) for one in taken.trouble] == [
        ("commit_forked", 1, "eve")
    ]
    assert shared(store) == before
    assert take(store, there, source="eve").trouble == ()  # told once
    assert trouble(store) == [("commit_forked", 1)]
    with pytest.raises(CommitForked, match="after commit 2"):
        raise_fork(MESH, taken)


def test_Q4_a_voter_takes_nothing_from_pages_but_reports_a_fork() -> None:
    order = [mission("a"), mission("b")]
    voter = voter_with(order[:1])
    ahead = take(voter, page_of(voter_with(order)))
    assert (ahead.outcome, ahead.number, ahead.new, ahead.known) == ("voter", 1, 0, 1)
    restored = voter_with(order[:1])
    checked = check_page(page_of(voter_with(order)))
    idle = restored.write(CommitPageIntake(context(), checked, "ana", idle_voter=True))
    assert (idle.outcome, idle.number) == ("folded", 2)
    forked = take(voter, page_of(voter_with([mission("c")])))
    assert (forked.outcome, trouble(voter)) == ("forked", [("commit_forked", 1)])


def test_Q4_a_group_that_claims_a_mesh_of_another_is_a_fork(store: Store) -> None:
    order = [mission("a"), mission("b")]
    take(store, page_of(voter_with(order), 1, 1))
    other = msgspec.structs.replace(page_of(voter_with(order)), tag=b"u" * 16)
    assert take(store, other).outcome == "forked"
    assert standing(store)[0] == 1


@pytest.mark.parametrize("later", [fence(2), fence(9, coordinator="eve")])
def test_Q4_a_row_that_cannot_follow_what_is_here_is_a_fork(
    store: Store, later: FenceToken
) -> None:
    voter = voter_with(ORDER)
    take(store, page_of(voter, 1, 2))
    taken = take(store, with_record(page_of(voter, 3, 1), 0, fence=later))
    assert (taken.outcome, taken.number) == ("forked", 2)
    assert trouble(store) == [("commit_forked", 3)]


def test_Q4_an_intent_that_is_committed_here_cannot_be_another_commit(store: Store) -> None:
    take(store, page_of(voter_with(ORDER[:2])))
    other = page_of(voter_with([mission("x"), mission("y"), ORDER[0]]), 3)
    assert take(store, other).outcome == "forked"
    assert standing(store)[0] == 2


def test_Q4_an_order_goes_on_in_another_incarnation_with_indexes_from_one(store: Store) -> None:
    voter = voter_with(ORDER[:2])
    take(store, page_of(voter))
    row = read(voter, lambda tx: tx.quorum_get(MESH))
    assert row is not None
    again = msgspec.structs.replace(row, incarnation=2, tag=b"v" * 16, applied=0)
    voter.write(lambda tx: tx.quorum_put(again))
    commit(voter, [entry(ORDER[2], 1, fence(1, epoch=5, incarnation=2))])
    for source in (store, with_mesh(MemoryStore())):
        taken = take(source, page_of(voter))
        assert (taken.outcome, taken.number) == ("folded", 3)
        assert standing(source) == (3, 2, None)
        assert shared(source) == shared(voter)
        kept = read(source, lambda tx: tx.quorum_get(MESH))
        assert kept is not None
        assert kept.tag == b"v" * 16
    # What a recovery has lost, and only this node still has, is a fork: people have to know.
    lost = voter_with(ORDER[:3])
    assert take(lost, page_of(voter)).outcome == "forked"


def test_Q6_an_intent_that_waits_here_ends_when_its_commit_comes_in_a_page(store: Store) -> None:
    ctx = context("bob")
    failure = WriteFailure(503, "no_quorum", "the others are away")
    store.write(lambda tx: queue_add(tx, ctx, ORDER[0], failure))
    take(store, page_of(voter_with(ORDER[:1])), ctx=ctx)
    write = read(store, lambda tx: queue_get(tx, MESH, ORDER[0].id))
    assert write is not None
    assert (write.status, write.outcome) == (WriteStatus.APPLIED, Outcome.APPLIED)
    assert read(store, lambda tx: tx.log_bounds()[1]) == 1  # it is in the log once


def test_Q4_a_page_ends_where_it_is_large_enough() -> None:
    big = "x" * (COMMIT_PAGE_BYTES // 3)
    voter = voter_with([mission("a", big), mission("b", big), mission("c", big), mission("d")])
    assert [len(page_of(voter, first).rows) for first in (1, 2, 4, 5)] == [3, 3, 1, 0]
    assert page_of(voter, 1).end == 4


def test_Q4_commits_whose_envelopes_are_gone_are_not_served_in_part() -> None:
    voter = voter_with(ORDER)
    voter.write(lambda tx: tx.log_truncate(3, 99, 1))
    with pytest.raises(Truncated) as gone:
        page_of(voter, 1)
    assert gone.value.first_available == 3
    assert [decode_record(row.record).number for row in page_of(voter, 3).rows] == [3, 4]


def test_Q4_only_the_first_troubles_of_a_mesh_are_kept(store: Store) -> None:
    order = [mission(f"m{at}") for at in range(COMMIT_TROUBLES_KEPT + 4)]
    page = page_of(voter_with(order))
    for at in range(len(order)):
        page = with_record(page, at, outcome=Outcome.SUPERSEDED, revisions=())
    take(store, page)
    assert [number for _, number in trouble(store)] == list(range(1, COMMIT_TROUBLES_KEPT + 1))


def test_Q2_fields_of_a_record_that_a_later_version_has_added_are_kept(store: Store) -> None:
    page = page_of(voter_with(ORDER[:1]))
    fields = msgspec.msgpack.decode(page.rows[0].record)
    newer = msgspec.msgpack.encode([2, *fields[1:], "more"])
    taken = take(store, msgspec.structs.replace(page, rows=(CommitLine(newer, page.rows[0].raw),)))
    assert (taken.outcome, taken.trouble) == ("folded", ())
    assert page_of(store).rows[0].record == newer
