"""Q4: a run of plain entries that is folded in columns leaves what it leaves entry by entry."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import Final

import pytest

from holdfast.node.core import commit as commit_module
from holdfast.node.core.commit import AppliedRun, CommitRun, Committed
from holdfast.node.core.runs.plain_columns import ColumnsFolded, fold_columns
from holdfast.node.quorum.embedded.committed_entries import LogEntries, readable_entries
from holdfast.rules import compiled
from holdfast.rules.envelope import Envelope, encode
from holdfast.rules.quorum.coordinated import coordinated
from holdfast.rules.quorum.raft.messages import EntryKind, RaftEntry
from holdfast.storage.ports import Store
from node.core.runs.test_plain_commits import named, put
from support.commits import committed_state, context, with_quorum
from support.envelopes import MESH
from support.nodes import KINDS
from support.quorum_state import change, operation
from support.seeds import seeds
from support.stores import make_store, read

pytestmark = pytest.mark.skipif(compiled.part is None, reason="there is no compiled part")


DATA: Final[EntryKind] = "data"


class Pair:
    """Two stores that fold the same log: one in columns where it can, the other entry by entry."""

    def __init__(self, kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.stores: list[Store] = []
        for name in ("columns", "entries"):
            (folder / name).mkdir()
            self.stores.append(with_quorum(make_store(kind, folder / name)))
        self._contexts = [context(), context()]
        self._last = 0
        self.folded = 0
        """Runs that went in columns."""
        patch.setattr(commit_module, "fold_columns", self._noted)

    def _noted(self, *args: object) -> ColumnsFolded | None:
        found = fold_columns(*args)  # type: ignore[arg-type]
        self.folded += found is not None
        return found

    def commit(
        self,
        made: Sequence[Envelope],
        *,
        term: int = 1,
        leader: str = "ana",
        incarnation: int = 1,
        kinds: Sequence[EntryKind] = (),
        first: int | None = None,
    ) -> list[Committed]:
        start = self._last + 1 if first is None else first
        log = [
            RaftEntry(term, kind, coordinated(leader, 1_000 + start + at, encode(one)))
            for at, (one, kind) in enumerate(zip(made, kinds or repeat(DATA), strict=False))
        ]
        self._last = max(self._last, start + len(log) - 1)
        run = LogEntries(incarnation, start, log)
        upto = start + len(log) - 1
        by_columns = self.stores[0].write(
            CommitRun(self._contexts[0], MESH, run, upto, run.in_columns(MESH))
        )
        by_entry = self.stores[1].write(
            CommitRun(self._contexts[1], MESH, readable_entries(incarnation, start, log), upto)
        )
        assert list(by_columns) == list(by_entry)
        if isinstance(by_columns, AppliedRun):
            assert [by_columns[at] for at in range(len(by_columns))] == list(by_entry)
            told = list(by_columns.told())
            assert [one for _, _, one in told] == list(by_entry)
            assert [(index, raw) for index, raw, _ in told] == [
                (entry.index, entry.raw) for entry in run
            ]
        states = [read(store, committed_state) for store in self.stores]
        assert states[0] == states[1]
        return list(by_entry)


@pytest.fixture(params=KINDS)
def pair(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pair]:
    made = Pair(request.param, tmp_path, monkeypatch)
    yield made
    for store in made.stores:
        store.stop()


@pytest.mark.parametrize("seed", seeds(3))
def test_Q4_runs_in_columns_leave_the_same_rows_and_say_the_same(pair: Pair, seed: int) -> None:
    draw, term = random.Random(seed), 1
    made: list[Envelope] = []
    for _ in range(25):
        run = [
            put(
                draw.choice(["a", "b", "cc", "d d", "eeeeee"]),
                "x" * draw.randrange(1, 300),
                base=draw.choice([None, None, None, 0, 1, 2]) if draw.random() < 0.1 else None,
            )
            for _ in range(draw.choice((1, 2, 5, 9)))
        ]
        if made and draw.random() < 0.2:
            run[draw.randrange(len(run))] = draw.choice(made)
        if draw.random() < 0.2:
            run.append(change(operation("delete", "mission", draw.choice("ab"))))
        term += draw.random() < 0.3
        pair.commit(run, term=term, leader=f"leader {term}")
        made += run
    assert pair.folded > 5, "it went in columns"


def test_Q4_bases_are_compared_before_anything_is_stored(pair: Pair) -> None:
    pair.commit([put("a", base=0), put("a", base=1), put("b")])
    assert pair.folded == 1
    results = pair.commit([put("b", base=1), put("a", "other", base=1)])
    assert [one.reason for one in results] == ["", "revision_moved"]
    assert pair.folded == 1


def test_Q4_entries_that_are_not_alike_are_read_one_by_one(pair: Pair) -> None:
    pair.commit([put("a"), put("b")], kinds=["data", "noop"])
    pair.commit([put("a"), change(operation("patch", "mission", "a", {"p": 1}))])
    assert pair.folded == 0
    pair.commit([put("a")])
    assert pair.folded == 1


def test_Q4_columns_under_a_fence_that_is_not_newer_are_refused(pair: Pair) -> None:
    pair.commit([put("a"), put("b")], term=3)
    for given in (
        {"term": 2},
        {"term": 3, "leader": "somebody"},
        {"term": 9, "incarnation": 2},
        {"term": 3, "first": 1},
        {"term": 4, "first": 1},
    ):
        results = pair.commit([put("c"), put("d")], **given)
        assert [one.number for one in results] == [None, None], given
    assert pair.folded == 1


def test_Q8_an_intent_that_is_known_is_found_in_columns(pair: Pair) -> None:
    first = put("a", number=700)
    pair.commit([first, put("c", number=699)])
    again = pair.commit([put("d", number=698), first, put("e", number=702)])
    assert [one.number for one in again] == [3, None, 4]
    twice = named(put("f"), 704)
    assert [one.number for one in pair.commit([twice, twice])] == [5, None]
    assert pair.folded == 1
