"""Storms over a broker and nodes that share meshes through it; what delivery promises is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from holdfast.node.core import receive
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.intake import Applied
from holdfast.node.core.receive import ReceivedPiece
from holdfast.rules.arrivals import Arrivals
from holdfast.rules.limits import DAY_MS, HOUR_MS
from holdfast.simulate.delivery.books import CHANGE, BookRow, Books
from holdfast.simulate.delivery.delivery import tell
from holdfast.simulate.delivery.traits import traits_of
from holdfast.simulate.world.log_history import LogHistory
from holdfast.simulate.world.seeds import PromiseBroken
from holdfast.storage.ports import Transaction
from support.seeds import rotating

pytestmark = pytest.mark.sim

WORLDS = 3
KNOWN = 1000
"""Each day some of so many are told."""
TELLING = (0, 6, 4, 9)
"""Worlds that show all of `EXPECTED` together, told every day; if they no longer do, others may."""
WORLDS_MAX = 60

# What must have happened in these worlds together.
EXPECTED = {
    *("cut", "no answer", "answer lost", "closed 1006", "finished", "taken again", "lease ended"),
    *("hub kill", "hub power", "hub disk full", "hub io error", "forgotten", "restored"),
    *("remove a member", "snapshot wanted", "behind", "snapshot taken"),
    *("published by backfill", "published by snapshot", "joined", "died of sharing"),
    *("sleep", "far ahead", "far behind", "held back", "poison", "failed alone"),
}


@pytest.mark.timeout(600)
def test_D2_delivery_keeps_every_promise_through_a_storm() -> None:
    """Those of D2 to D7, D11 and S14 together: see `holdfast.simulate.delivery.delivery`. A storm
    in which nothing happens shows nothing, so there are more of them until everything has.
    """
    happened: Counter[str] = Counter()
    worlds = dict.fromkeys((*rotating(WORLDS, KNOWN), *TELLING))
    for seed in worlds:
        happened += tell(seed).happened
    more = (seed for seed in range(WORLDS_MAX) if seed not in worlds)
    while missing := sorted(EXPECTED - happened.keys()):
        another = next(more, None)
        assert another is not None, f"the worlds no longer show {missing}"
        happened += tell(another).happened


def test_R1_the_same_seed_tells_the_same_story_of_delivery() -> None:
    first = [tell(seed).digest for seed in (1, 4)]
    assert first == [tell(seed).digest for seed in (1, 4)]
    assert len(set(first)) == 2


def test_R1_a_seed_tells_the_same_story_of_delivery_in_another_process() -> None:
    """Where sets and dictionaries of text go round in another order."""
    told = [
        subprocess.run(
            [sys.executable, "-m", "holdfast.simulate", "delivery", "4"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert tell(4).digest in told[0]


def test_R1_a_broken_promise_of_delivery_names_the_command_that_plays_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forget(
        engine: NodeEngine, tx: Transaction, arrivals: Arrivals, **more: object
    ) -> ReceivedPiece:
        return ReceivedPiece([Applied(None, None)] * len(arrivals), 0, 0, 0)

    monkeypatch.setattr(receive, "receive_arrivals", forget)
    with pytest.raises(PromiseBroken, match=r"seed 4: .* its cursor has passed") as caught:
        tell(4)
    assert caught.value.__notes__[-1] == (
        "play it again with: python -m holdfast.simulate delivery 4"
    )


def test_R1_every_trait_is_drawn() -> None:
    drawn = [traits_of(seed) for seed in range(WORLDS_MAX)]
    for name in ("relay", "broker_goes_back", "nodes_go_back", "removing", "sleeping"):
        assert {getattr(traits, name) for traits in drawn} == {True, False}
    assert {traits.broker_far_ahead for traits in drawn} == {True, False}
    assert {traits.broker_far_behind for traits in drawn} == {True, False}
    assert {traits.publishing for traits in drawn} == {"", "backfill", "snapshot"}
    assert {len(traits.meshes) for traits in drawn} == {1, 2}


# --- the rules that the worlds are held to -------------------------------------------------------


def _books(*rows: BookRow) -> Books:
    books = Books(("team",), {b"a": "ana", b"b": "bob"})
    book = books.meshes["team"]
    for seq, row in enumerate(rows, 1):
        book.rows.append(row)
        book.seqs[row.id] = seq
    return books


def test_D4_a_message_that_is_not_in_an_inbox_is_owed_until_it_is_swept() -> None:
    id = bytes(16)
    books = _books(BookRow(id, "dm", "bob", "ana", frozenset({"bob"})))
    (line,) = books.undelivered()
    assert line.endswith("never came to bob")
    books.meshes["team"].had_its_time(id)
    assert books.undelivered() == []
    books.meshes["team"].went_back(books.meshes["team"].rows)
    assert books.undelivered() == [], "who has passed its place does not look there again"


def test_D6_a_change_is_owed_to_everybody_but_who_has_it_in_a_snapshot() -> None:
    books = _books(BookRow(bytes(16), CHANGE, "", "ana", frozenset()))
    log = LogHistory("bob")
    assert len(books.unseen("bob", log)) == 1
    books.meshes["team"].jumped["bob"] = 1
    assert books.unseen("bob", log) == []


def test_D4_an_id_that_was_forgotten_before_its_time_is_a_broken_promise() -> None:
    id = bytes(16)
    books = _books(BookRow(id, "dm", "bob", "ana", frozenset({"bob"})))
    book = books.meshes["team"]
    book.since[id] = 0
    assert book.ids_lost({1: id}, HOUR_MS) == [], "it is known"
    (line,) = book.ids_lost({}, 5 * DAY_MS)
    assert "forgotten after 120 hours" in line, "its message is still there"
    book.forgotten.clear()
    book.had_its_time(id)
    (line,) = book.ids_lost({}, 2 * DAY_MS)
    assert "forgotten after 48 hours" in line
    book.forgotten.clear()
    assert book.ids_lost({}, 5 * DAY_MS) == []


def test_D4_a_change_may_be_taken_again_when_its_id_is_forgotten_and_a_message_never() -> None:
    books = _books(BookRow(bytes(16), CHANGE, "", "ana", frozenset()))
    book = books.meshes["team"]
    assert book.may_come(b"new", "dm")
    assert not book.may_come(bytes(16), CHANGE)
    book.forgotten.add(1)
    assert book.may_come(bytes(16), CHANGE)
    assert not book.may_come(bytes(16), "dm")
