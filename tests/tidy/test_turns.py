"""The order of the tests: nothing is left out, and what takes long begins each stretch."""

from __future__ import annotations

import pytest

from support.turns import in_turns

TESTS = [*(f"short {n}" for n in range(60)), *(f"spark {n}" for n in range(9))]
TESTS += [f"long {file} {n}" for file in "abc" for n in range(4)]


def ordered(workers: int) -> list[str]:
    return in_turns(
        TESTS,
        workers,
        shares_spark=lambda test: test.startswith("spark"),
        long_file=lambda test: test.split()[1] if test.startswith("long") else None,
    )


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 40, 200])
def test_every_test_has_one_turn(workers: int) -> None:
    assert sorted(ordered(workers)) == sorted(TESTS)
    assert ordered(workers)[0].startswith("spark")


def test_each_stretch_begins_with_what_takes_long_and_keeps_files_together() -> None:
    turns = ordered(3)
    first, second, third = turns[:27], turns[27:54], turns[54:]
    assert [test.split()[0] for test in first] == ["spark"] * 9 + ["short"] * 18
    assert [test.split()[:2] for test in second[:8]] == [["long", "a"]] * 4 + [["long", "c"]] * 4
    assert [test.split()[:2] for test in third[:4]] == [["long", "b"]] * 4
    assert all(test.startswith("short") for test in (*second[8:], *third[4:]))
