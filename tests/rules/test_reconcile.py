"""Q7: what becomes of a replayed write."""

from __future__ import annotations

from itertools import product

import pytest

from holdfast.rules.reconcile import Outcome, reconcile

BOOLEANS = (False, True)

# seen_same seen_other fence_ok newer_exists needs_merge, every row but those that cannot be.
TRUTH_TABLE = """
same  -     -     -     -      noop_already_applied
same  -     -     -     merge  noop_already_applied
same  -     -     newer -      noop_already_applied
same  -     -     newer merge  noop_already_applied
same  -     fence -     -      noop_already_applied
same  -     fence -     merge  noop_already_applied
same  -     fence newer -      noop_already_applied
same  -     fence newer merge  noop_already_applied
-     other -     -     -      conflict_requires_merge
-     other -     -     merge  conflict_requires_merge
-     other -     newer -      conflict_requires_merge
-     other -     newer merge  conflict_requires_merge
-     other fence -     -      conflict_requires_merge
-     other fence -     merge  conflict_requires_merge
-     other fence newer -      conflict_requires_merge
-     other fence newer merge  conflict_requires_merge
-     -     -     -     -      rejected_fenced
-     -     -     -     merge  rejected_fenced
-     -     -     newer -      rejected_fenced
-     -     -     newer merge  rejected_fenced
-     -     fence -     -      applied
-     -     fence -     merge  conflict_requires_merge
-     -     fence newer -      superseded
-     -     fence newer merge  conflict_requires_merge
"""
ROWS = [line.split() for line in TRUTH_TABLE.strip().split("\n")]


@pytest.mark.parametrize("row", ROWS, ids=" ".join)
def test_Q7_a_replayed_write_has_the_outcome_of_the_truth_table(row: list[str]) -> None:
    same, other, fence, newer, merge = (word != "-" for word in row[:5])
    found = reconcile(
        seen_same=same,
        seen_other=other,
        fence_ok=fence,
        newer_exists=newer,
        needs_merge=merge,
    )
    assert found is Outcome(row[5])


def test_Q7_the_truth_table_has_every_possible_row_once() -> None:
    listed = [tuple(word != "-" for word in row[:5]) for row in ROWS]
    possible = [row for row in product(BOOLEANS, repeat=5) if not (row[0] and row[1])]
    assert sorted(listed) == possible


@pytest.mark.parametrize(("fence", "newer", "merge"), list(product(BOOLEANS, repeat=3)))
def test_Q7_an_id_with_two_fingerprints_is_our_own_mistake(
    fence: bool, newer: bool, merge: bool
) -> None:
    with pytest.raises(AssertionError, match="one fingerprint"):
        reconcile(
            seen_same=True,
            seen_other=True,
            fence_ok=fence,
            newer_exists=newer,
            needs_merge=merge,
        )


def test_Q7_outcomes_have_the_words_of_the_contract_and_all_occur() -> None:
    assert list(Outcome) == [
        "applied",
        "noop_already_applied",
        "superseded",
        "conflict_requires_merge",
        "rejected_fenced",
    ]
    assert {row[5] for row in ROWS} == set(Outcome)
