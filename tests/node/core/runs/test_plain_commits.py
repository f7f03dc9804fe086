"""Q4: a run of plain entries that is folded in sets leaves what it leaves entry by entry."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from holdfast.node.core import commit as commit_module
from holdfast.node.core.commit import CommitRun, Committed, CommittedEntry
from holdfast.node.core.context import NodeContext
from holdfast.node.core.runs.plain_commits import PlainFolded, fold_plain
from holdfast.node.core.write_queue import queue_add
from holdfast.rules.envelope import Envelope, encode
from holdfast.rules.ids import id_text
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.intents import IntentAbandon
from holdfast.rules.quorum.write_queue import WriteFailure
from holdfast.storage.ports import Store
from support.commits import commit, committed_state, context, entry, with_quorum
from support.envelopes import MESH, make_id
from support.nodes import KINDS
from support.quorum_state import change, fence, intent, operation
from support.seeds import seeds
from support.stores import make_store, read


class Pair:
    """Two stores that get the same runs: one folds them as it likes, the other entry by entry."""

    def __init__(self, kind: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.stores: list[Store] = []
        for name in ("short", "long"):
            (folder / name).mkdir()
            self.stores.append(with_quorum(make_store(kind, folder / name)))
        self._contexts = [context(), context()]
        self._patch = patch
        self.folded = 0
        """Runs that went the short way."""

    def commit(self, entries: Sequence[CommittedEntry]) -> list[Committed]:
        results = []
        for store, ctx, long in zip(self.stores, self._contexts, (False, True), strict=True):
            with self._patch.context() as patch:
                if long:
                    patch.setattr(commit_module, "read_all_plain", lambda mesh, raws, known: None)
                else:
                    patch.setattr(commit_module, "fold_plain", self._noted)
                results.append(commit(store, entries, ctx))
        short, by_entry = results
        assert short == by_entry
        states = [read(store, committed_state) for store in self.stores]
        assert states[0] == states[1]
        return short

    def _noted(self, *args: object) -> PlainFolded | None:
        found = fold_plain(*args)  # type: ignore[arg-type]
        self.folded += found is not None
        return found


@pytest.fixture(params=KINDS)
def pair(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pair]:
    made = Pair(request.param, tmp_path, monkeypatch)
    yield made
    for store in made.stores:
        store.stop()


def put(name: str, text: str = "t", *, base: int | None = None, number: int = 0) -> Envelope:
    made = change(operation("put", "mission", name, {"z": 1, "title": text}, base=base))
    return made if not number else named(made, number)


def named(made: Envelope, number: int) -> Envelope:
    return msgspec.structs.replace(made, id=make_id(number), intent=make_id(number))


def entries(made: Sequence[Envelope], first: int, epoch: int = 1) -> list[CommittedEntry]:
    return [entry(one, first + at, fence(first + at, epoch)) for at, one in enumerate(made)]


@pytest.mark.parametrize("seed", seeds(3))
def test_Q4_runs_of_plain_writes_leave_the_same_rows_and_say_the_same(
    pair: Pair, seed: int
) -> None:
    draw, index, epoch = random.Random(seed), 1, 1
    made: list[Envelope] = []
    for _ in range(25):
        size = draw.choice((1, 2, 5, 9))
        run = [
            put(
                draw.choice("abcde"),
                "x" * draw.randrange(1, 9),
                base=0 if draw.random() < 0.05 else None,
            )
            for _ in range(size)
        ]
        if made and draw.random() < 0.2:
            run[draw.randrange(size)] = draw.choice(made)
        if draw.random() < 0.2:
            run.append(change(operation("delete", "mission", draw.choice("abcde"))))
        if draw.random() < 0.3:
            epoch += 1
        pair.commit(entries(run, index, epoch))
        index += len(run)
        made += run
    assert pair.folded > 5, "the short way was taken"


def test_Q4_a_run_in_which_one_entry_is_not_plain_goes_the_long_way(pair: Pair) -> None:
    pair.commit(entries([put("a"), put("b"), put("a", "again")], 1))
    assert pair.folded == 1
    pair.commit(entries([put("a"), change(operation("patch", "mission", "a", {"p": 1}))], 4))
    assert pair.folded == 1
    results = pair.commit(entries([put("a", base=4), put("a", "other", base=4)], 6))
    assert [one.reason for one in results] == ["", "revision_moved"]
    assert pair.folded == 1


def test_Q8_an_intent_that_is_known_is_found_in_a_run_of_plain_ones(pair: Pair) -> None:
    first, void = put("a", number=700), put("b", number=701)
    give_up = intent("intent.abandon", id_text(void.id), IntentAbandon(void.id))
    pair.commit(entries([first, give_up], 1))
    again = pair.commit(entries([put("c", number=699), first, put("d", number=702)], 3))
    assert [one.number for one in again] == [3, None, 4]
    assert [one.number for one in pair.commit(entries([void, put("e", number=703)], 6))] == [
        None,
        5,
    ]
    twice = put("f", number=704)
    assert [one.number for one in pair.commit(entries([twice, twice], 8))] == [6, None]


def test_Q4_a_fence_that_is_not_newer_stops_a_run_of_plain_entries(pair: Pair) -> None:
    pair.commit(entries([put("a")], 1, epoch=3))
    strange: list[FenceToken] = [
        fence(2, 2),
        fence(1, 3),
        fence(9, 3, coordinator="somebody"),
        FenceToken(9, 9, "ana", 9),
    ]
    for index, token in enumerate(strange, 2):
        (one,) = pair.commit([entry(put("b"), index, token)])
        assert one.number is None, token
    for index, (first, second) in enumerate(
        [
            (fence(10, 3), fence(10, 3)),
            (fence(11, 3), fence(12, 3, coordinator="somebody")),
            (fence(13, 4), fence(14, 3)),
        ]
    ):
        run = [entry(put("c"), 20 + 2 * index, first), entry(put("d"), 21 + 2 * index, second)]
        results = pair.commit(run)
        assert [one.number is None for one in results] == [False, True]


def test_Q6_a_plain_intent_that_waited_in_the_log_is_not_appended_again(pair: Pair) -> None:
    waits = change(operation("put", "mission", "a", {"title": "t"}), origin="dan")
    failure = WriteFailure(503, "no_quorum", "nobody answers")
    for store in pair.stores:
        store.write(lambda tx: queue_add(tx, context(), waits, failure))
    pair.commit(entries([put("b"), waits, put("c")], 1))
    assert pair.folded == 0


def test_Q4_an_intent_that_was_kept_for_another_mesh_is_no_part_of_a_plain_run(
    tmp_path: Path,
) -> None:
    store = with_quorum(make_store("memory", tmp_path))
    ctx: NodeContext = context()
    strange = msgspec.structs.replace(put("a"), mesh="elsewhere")
    ctx.read_intents.keep(encode(strange), strange)
    results = store.write(CommitRun(ctx, MESH, entries([strange, put("b")], 1)))
    assert [one.number for one in results] == [None, 1]
    store.stop()
