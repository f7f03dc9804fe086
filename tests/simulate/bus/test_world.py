"""Storms over peers without a broker; what the bus promises is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from holdfast.bus.memory_store import MemoryMeshStore
from holdfast.rules.bus.mesh_store import ArrivalVerdict, OutboxMessage, SignedArrival
from holdfast.rules.bus.message import BusMessage, MessageKind
from holdfast.simulate.bus.books import BusBooks
from holdfast.simulate.bus.bus import tell
from holdfast.simulate.bus.traits import traits_of
from holdfast.simulate.world.seeds import PromiseBroken
from support.seeds import rotating

pytestmark = pytest.mark.sim

WORLDS = 2
KNOWN = 1000
"""Each day some of so many are told: as many with homes as without."""
RICH = (0, 3, 14)
"""Worlds in which most things happen."""
WORLDS_MAX = 40
STORY = 108
"""A world of homes, one of which is restored."""

# What must have happened in these worlds together.
EXPECTED = {
    *("delivered", "spooled", "request replied", "request cancelled", "published", "heard"),
    *("kill", "power", "restart", "cut", "reset", "injected", "asked again", "disk full"),
    *("wrote", "lied", "restored", "equal"),
}


@pytest.mark.timeout(300)
def test_B4_the_bus_keeps_every_promise_through_a_storm() -> None:
    """Those of B1 to B6 together, with meshes in every other world: see `simulate/bus/bus.py`. A
    storm in which nothing happens shows nothing, so there are more of them until everything has.
    """
    happened: Counter[str] = Counter()
    worlds = list(rotating(WORLDS, KNOWN))
    for seed in worlds:
        happened += tell(seed).happened
    more = (seed for seed in (*RICH, *range(WORLDS_MAX)) if seed not in worlds)
    while missing := sorted(EXPECTED - happened.keys()):
        another = next(more, None)
        assert another is not None, f"the worlds no longer show {missing}"
        happened += tell(another).happened


def test_R1_a_seed_tells_the_same_story_of_the_bus_in_another_process() -> None:
    """Where sets and dictionaries of text go round in another order, and names of files differ."""
    told = subprocess.run(
        [sys.executable, "-m", "holdfast.simulate", "bus", str(STORY)],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert tell(STORY).digest in told


def test_R1_a_broken_promise_of_the_bus_names_the_command_that_plays_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def forget(store: MemoryMeshStore, *given: object, **more: object) -> list[object]:
        return [ArrivalVerdict.DUPLICATE for _ in given[1]]  # type: ignore[attr-defined]

    monkeypatch.setattr(MemoryMeshStore, "accept", forget)
    seed = next(seed for seed in range(100) if not traits_of(seed).durable)
    with pytest.raises(PromiseBroken) as caught:
        tell(seed)
    assert caught.value.__notes__[-1] == (
        f"play it again with: python -m holdfast.simulate bus {seed}"
    )


def test_R1_every_trait_of_the_bus_is_drawn() -> None:
    drawn = [traits_of(seed) for seed in range(WORLDS_MAX)]
    for name in ("batch", "restoring", "moving", "attacked", "two_networks", "busy", "homes"):
        assert {getattr(traits, name) for traits in drawn} == {True, False}
    assert {len(traits.peers) for traits in drawn} == {2, 3, 4}
    assert any(len(traits.relays) < len(traits.peers) for traits in drawn if traits.homes)


# --- the rules that the worlds are held to -------------------------------------------------------

KEY = bytes(32)


class Case:
    """Books, and what they complain of."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.books = BusBooks(lambda: 7, self.said.append)

    def message(self, number: int) -> BusMessage:
        id = bytes((1, *bytes(5), 0x70, 0, 0x80, *bytes(6), number))
        return BusMessage(id=id, kind=MessageKind.SEND, topic="mail")

    def send(self, number: int) -> bytes:
        item = OutboxMessage(peer="bob", message=self.message(number))
        self.books.trying("ana", item)
        self.books.placed(item)
        return item.message.id

    def arrive(self, number: int, verdict: ArrivalVerdict, sequence: int) -> None:
        arrival = SignedArrival(sequence, bytes(24), self.message(number), True)
        self.books.accepted("bob", KEY, arrival, verdict)


def test_B4_a_promised_message_is_owed_until_a_handler_has_had_it() -> None:
    case = Case()
    id = case.send(1)
    assert not list(case.books.owed())
    case.books.answered("ana", "bob", id, "spooled")
    assert [line.endswith("never came, unhandled") for line in case.books.owed()] == [True]
    case.arrive(1, ArrivalVerdict.NEW, 1)
    assert [line.endswith("is stored there, unhandled") for line in case.books.owed()] == [True]
    case.books.handed_out("bob", 1, "ana", id)
    assert not list(case.books.owed())
    assert not case.said


def test_B4_a_receipt_says_delivered_only_for_what_is_stored() -> None:
    case = Case()
    case.books.answered("ana", "bob", case.send(1), "delivered")
    assert "which has not" in case.said[0]


def test_B4_a_message_is_handled_once_and_in_order() -> None:
    case = Case()
    first, second = case.send(1), case.send(2)
    case.books.handed_out("bob", 1, "ana", second)
    case.books.handed_out("bob", 1, "ana", first)
    case.books.handed_out("bob", 1, "ana", first)
    assert [line.partition(" of ")[2] for line in case.said[:1]] == ["ana after a later one"]
    assert case.said[1].endswith("twice in one life")
    case.books.finished("bob", [first])
    case.books.handed_out("bob", 2, "ana", first)
    assert case.said[2].endswith("after it was finished with it")


def test_B3_a_number_or_an_id_is_taken_once_in_an_era() -> None:
    case = Case()
    case.send(1)
    case.arrive(1, ArrivalVerdict.NEW, 5)
    case.arrive(1, ArrivalVerdict.REPLAY, 5)
    case.arrive(1, ArrivalVerdict.DUPLICATE, 6)
    assert not case.said
    case.arrive(1, ArrivalVerdict.NEW, 6)
    assert len(case.said) == 2
    case.books.went_back("bob", 0)
    case.arrive(1, ArrivalVerdict.NEW, 6)
    assert len(case.said) == 2


def test_B5_a_request_is_handled_once_in_a_life_and_under_its_own_id() -> None:
    case = Case()
    case.books.asks("ana", b"id" * 8, b"body", 1_000)
    case.books.handles("bob", 1, b"id" * 8, b"body")
    case.books.handles("bob", 2, b"id" * 8, b"body")
    assert not case.said
    case.books.handles("bob", 2, b"id" * 8, b"body")
    case.books.handles("bob", 2, b"di" * 8, b"body")
    assert [line.rpartition(" ")[2] for line in case.said] == ["time", "asked"]
