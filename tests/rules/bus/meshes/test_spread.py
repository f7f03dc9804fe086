"""How often a change crosses a link, in a world of machines with delays between them."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial
from itertools import combinations, count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.rules.bus.meshes.coverage import NOTHING, StreamName, cover, ranges_of, without
from holdfast.rules.bus.meshes.spread import AskEntries, Effect, PushEntries, Spread, TellStreams
from holdfast.rules.errors import OverLimit
from holdfast.rules.frontier import Frontier, Range
from holdfast.rules.limits import (
    BUS_ASK_MS,
    BUS_IN_HAND_RANGES_MAX,
    BUS_STORE_MS,
    BUS_STREAMS_MAX,
)
from support.seeds import seeds

MESH = "team"


class World:
    """Machines that are linked, and what crosses between them after how long."""

    def __init__(
        self,
        size: int,
        linked: list[tuple[int, int]],
        seed: int,
        lose: float = 0,
        store_ms: float = 5,
    ) -> None:
        """`store_ms`: how long it may take to store what came."""
        self.rng = random.Random(seed)
        self.lose, self.store_ms = lose, store_ms
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.nodes = [Spread(f"n{at}") for at in range(size)]
        self._wakes: list[float | None] = [None] * size
        self._last: dict[tuple[int, int], float] = {}
        self.copies = [0] * size
        """Numbers that a node got over links, known ones too."""
        self.words = 0
        self.links: set[tuple[int, int]] = set()
        self._lives: dict[tuple[int, int], int] = {}
        """How often a line came up: what was under way when it broke is lost."""
        for a, b in linked:
            self.connect(a, b)

    def connect(self, a: int, b: int) -> None:
        self.links |= {(a, b), (b, a)}
        for pair in ((a, b), (b, a)):
            self._lives[pair] = self._lives.get(pair, 0) + 1
        for here, there in ((a, b), (b, a)):
            self.run(here, self.nodes[here].link_up(str(there), f"n{there}", [MESH]))

    def cut(self, a: int, b: int) -> None:
        self.links -= {(a, b), (b, a)}
        for here, there in ((a, b), (b, a)):
            self.run(here, self.nodes[here].link_down(str(there), self.now))

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._order), what))

    def cross(self, here: int, there: int, what: Callable[[], None]) -> None:
        """Something arrives on a line that keeps its order, if the line still stands then."""
        when = max(self.now + self.rng.uniform(0.3, 1.5), self._last.get((here, there), 0.0))
        self._last[here, there] = when
        life = self._lives[here, there]

        def arrive() -> None:
            if (here, there) in self.links and self._lives[here, there] == life:
                what()

        self.at(when, arrive)

    def run(self, here: int, effects: list[Effect]) -> None:
        node = self.nodes[here]
        for effect in effects:
            there = int(effect.link)
            if isinstance(effect, TellStreams):
                self.words += 1
                for stream in effect.streams:
                    has = node.mine[stream]
                    self.cross(here, there, partial(self._hear, there, here, stream, has))
            elif isinstance(effect, AskEntries):
                self.cross(here, there, partial(self._answer, there, here, effect))
            elif not (self.lose and self.rng.random() < self.lose):
                self._send(here, there, effect.stream, effect.ranges)
        self._wake(here)

    def _hear(self, here: int, teller: int, stream: StreamName, has: Frontier) -> None:
        self.run(here, self.nodes[here].heard(str(teller), stream, has, 0, self.now))

    def _answer(self, here: int, asker: int, ask: AskEntries) -> None:
        has = self.nodes[here].mine[ask.stream]
        held = [r for r in ask.ranges if not without([r], has)]
        assert held == list(ask.ranges), "nobody is asked for what it did not tell"
        for start, end in ask.ranges:
            self.nodes[here].sent(str(asker), ask.stream, start, end)
        self._send(here, asker, ask.stream, ask.ranges)

    def _send(self, here: int, there: int, stream: StreamName, ranges: tuple[Range, ...]) -> None:
        for start, end in ranges:
            self.cross(here, there, partial(self._arrive, there, here, stream, start, end))

    def _arrive(self, here: int, sender: int, stream: StreamName, start: int, end: int) -> None:
        node = self.nodes[here]
        self.copies[here] += end - start
        self.run(here, node.came(str(sender), stream, start, end, self.now))
        stored = partial(self._stored, here, sender, stream, start, end)
        self.at(self.now + self.rng.uniform(0, self.store_ms), stored)

    def _stored(self, here: int, sender: int, stream: StreamName, start: int, end: int) -> None:
        node = self.nodes[here]
        has = cover(node.mine.get(stream, NOTHING), start, end)
        self.run(here, node.has(stream, has, self.now, self.rng.random(), str(sender)))

    def write(self, here: int, many: int = 1) -> None:
        stream = StreamName(MESH, f"n{here}", 1)
        before = self.nodes[here].mine.get(stream, NOTHING)
        self.run(here, self.nodes[here].wrote(stream, Frontier(before.prefix + many)))

    def _wake(self, here: int) -> None:
        due = self.nodes[here].next_at()
        if due is not None and due != self._wakes[here]:
            self._wakes[here] = due
            self.at(due, lambda: self._tick(here))

    def _tick(self, here: int) -> None:
        self._wakes[here] = None
        self.run(here, self.nodes[here].tick(self.now))

    def settle(self) -> None:
        steps = 0
        while self._queue:
            self.now, _, what = heapq.heappop(self._queue)
            what()
            steps += 1
            assert steps < 500_000, "it never comes to rest"

    def check_equal(self) -> None:
        first = self.nodes[0].mine
        for node in self.nodes[1:]:
            assert node.mine == first


def all_linked(size: int) -> list[tuple[int, int]]:
    return list(combinations(range(size), 2))


def half_linked(size: int, rng: random.Random) -> list[tuple[int, int]]:
    """Half of all pairs, and a ring so that nobody is left out."""
    ring = [(at, (at + 1) % size) for at in range(size)]
    pairs = {tuple(sorted(pair)) for pair in ring}
    pairs |= {pair for pair in all_linked(size) if rng.random() < 0.4}
    return sorted((a, b) for a, b in pairs)


@pytest.mark.parametrize("seed", seeds(5))
def test_B4_with_ten_linked_peers_a_change_crosses_to_each_once(seed: int) -> None:
    world = World(10, all_linked(10), seed)
    world.settle()
    writes = [(world.rng.uniform(0, 2000), world.rng.randrange(10)) for _ in range(50)]
    for when, who in writes:
        world.at(when, partial(world.write, who))
    world.settle()
    world.check_equal()
    assert sum(world.copies) == 50 * 9, "1.00 copies"
    assert world.words / (50 * 9) < 9, "and fewer words than an announcement to everybody"


@pytest.mark.parametrize("seed", seeds(3))
def test_B4_what_is_being_stored_is_not_asked_for(seed: int) -> None:
    """However slow the disks are, and whatever others tell meanwhile."""
    world = World(10, all_linked(10), seed, store_ms=3 * BUS_ASK_MS)
    world.settle()
    for at in range(50):
        world.at(at * 40.0, partial(world.write, at % 3))
    world.settle()
    world.check_equal()
    assert sum(world.copies) == 50 * 9


@pytest.mark.parametrize("seed", seeds(5))
def test_B4_with_half_of_the_links_each_still_gets_it_once(seed: int) -> None:
    world = World(10, half_linked(10, random.Random(seed)), seed)
    world.settle()
    for at in range(30):
        world.at(at * 300.0, partial(world.write, at % 10))
    world.settle()
    world.check_equal()
    assert sum(world.copies) == 30 * 9


@pytest.mark.parametrize("seed", seeds(3))
def test_B4_lost_pushes_are_made_up_for_by_one_neighbour(seed: int) -> None:
    world = World(10, all_linked(10), seed, lose=0.02)
    world.settle()
    for at in range(100):
        world.at(at * 300.0, partial(world.write, at % 10))
    world.settle()
    world.check_equal()
    assert sum(world.copies) <= 100 * 9 * 1.02


@pytest.mark.parametrize("seed", seeds(3))
def test_B4_a_lost_push_is_asked_for_when_the_next_one_comes_and_nobody_else_has_it(
    seed: int,
) -> None:
    world = World(2, [(0, 1)], seed)
    world.settle()
    world.lose = 0.3
    for at in range(100):
        world.at(world.now + at * 3.0, partial(world.write, at % 2))
    world.settle()
    world.lose = 0
    world.write(0)
    world.write(1)
    world.settle()
    world.check_equal()
    assert sum(world.copies) == 102, "each came once"


def test_B4_what_an_origin_wrote_before_its_page_is_asked_of_it() -> None:
    node = Spread("me")
    told, new, relayed = (
        StreamName(MESH, name, epoch) for name, epoch in (("a", 1), ("a", 2), ("far", 1))
    )
    node.link_up("a", "a", [MESH])
    node.heard("a", told, Frontier(9), 9, 0.0)
    assert ask_of(node.came("a", told, 12, 13, 1.0)) == [("a", ((10, 12),))], "not what is gone"
    assert ask_of(node.came("a", told, 13, 14, 2.0)) == [], "once"
    assert ask_of(node.came("a", new, 2, 3, 3.0)) == [("a", ((1, 2),))]
    assert ask_of(node.came("a", relayed, 5, 6, 4.0)) == [], "a relay may lack some"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9), st.integers(2, 6))
def test_B4_after_cuts_and_returns_all_have_the_same(seed: int, size: int) -> None:
    rng = random.Random(seed)
    world = World(size, half_linked(size, rng), seed)
    for _ in range(30):
        when = world.now + rng.uniform(0, 60)
        a, b = rng.sample(range(size), 2)
        what = rng.random()

        def step(a: int = a, b: int = b, what: float = what) -> None:
            if what < 0.5:
                world.write(a, rng.randint(1, 50))
            elif (a, b) in world.links:
                world.cut(a, b)
            else:
                world.connect(a, b)

        world.at(when, step)
        if rng.random() < 0.3:
            world.settle()
    world.settle()
    for a, b in all_linked(size):
        if (a, b) not in world.links:
            world.connect(a, b)
    world.settle()
    world.check_equal()
    written = sum(f.prefix for f in world.nodes[0].mine.values())
    assert written or not world.nodes[0].mine


def ask_of(effects: list[Effect]) -> list[tuple[str, tuple[Range, ...]]]:
    return [(effect.link, effect.ranges) for effect in effects if isinstance(effect, AskEntries)]


def test_B4_one_neighbour_is_asked_and_another_when_nothing_comes() -> None:
    node = Spread("me", ask_ms=200)
    stream = StreamName(MESH, "far", 1)
    for link in ("a", "b"):
        node.link_up(link, link, [MESH])
    assert ask_of(node.heard("a", stream, Frontier(9), 0, 0.0)) == [("a", ((1, 10),))]
    assert ask_of(node.heard("b", stream, Frontier(9), 0, 1.0)) == [], "one is enough"
    assert ask_of(node.tick(199.0)) == []
    assert ask_of(node.tick(200.0)) == [("b", ((1, 10),))]
    assert ask_of(node.tick(400.0)) == [], "both still owe it"


def test_B4_a_neighbour_that_never_sends_what_it_says_costs_nothing_and_others_are_asked() -> None:
    node = Spread("me", ask_ms=200)
    node.link_up("liar", "liar", [MESH])
    streams = [StreamName(MESH, "liar", epoch) for epoch in range(1, 100)]
    for stream in streams:
        assert ask_of(node.heard("liar", stream, Frontier(9), 0, 0.0)) == [("liar", ((1, 10),))]
    assert node.next_at() == 200.0
    assert node.tick(200.0) == []
    assert node.next_at() is None, "no clock runs for what does not come"
    for n in range(10, 2000):  # it tells of more and more
        asked = ask_of(node.heard("liar", streams[0], Frontier(n), 0, 200.0 + n))
        assert asked == [("liar", ((n, n + 1),))]
        node.tick(200.0 + n)
        assert sum(map(len, node._awaited.values())) <= len(streams) + 4
        assert len(node._due) <= 4
    node.tick(3000.0)
    assert node.next_at() is None
    node.link_up("honest", "honest", [MESH])
    assert ask_of(node.heard("honest", streams[0], Frontier(1999), 0, 3001.0)) == []
    assert ask_of(node.tick(3201.0)) == [("honest", ((1, 2000),))], "its origin did not push it"
    node.has(streams[0], Frontier(1999), 3300.0, 0.5, "honest")
    assert ask_of(node.tick(3401.0)) == []
    node.link_down("liar", 3300.0)
    assert node._awaited == {}
    assert node._busy == {}


def test_B4_what_comes_slowly_is_not_asked_for_twice() -> None:
    node = Spread("me", ask_ms=200)
    stream = StreamName(MESH, "far", 1)
    for link in ("a", "b"):
        node.link_up(link, link, [MESH])
        node.heard(link, stream, Frontier(9), 0, 0.0)
    assert ask_of(node.has(stream, Frontier(3), 150.0, 0.0, "a")) == []
    assert ask_of(node.tick(250.0)) == [], "a page came: the rest follows"
    assert ask_of(node.tick(350.0)) == [("b", ((4, 10),))]


def test_B4_a_page_that_cannot_be_stored_does_not_keep_others_from_being_asked() -> None:
    node = Spread("me", ask_ms=200)
    stream = StreamName(MESH, "far", 1)
    for link in ("a", "b"):
        node.link_up(link, link, [MESH])
    assert ask_of(node.heard("a", stream, Frontier(9), 0, 0.0)) == [("a", ((1, 10),))]
    node.came("a", stream, 1, 10, 50.0)
    assert ask_of(node.heard("b", stream, Frontier(9), 0, 60.0)) == [], "it is here already"
    assert node.next_at() == 50.0 + BUS_STORE_MS
    assert ask_of(node.tick(50.0 + BUS_STORE_MS)) == [("b", ((1, 10),))]
    node.came("b", stream, 1, 10, 6000.0)
    assert ask_of(node.link_down("b", 6001.0)) == [("a", ((1, 10),))], "it went with its link"


def test_B4_who_has_truncated_is_not_asked_for_it() -> None:
    node = Spread("me")
    stream = StreamName(MESH, "far", 1)
    node.link_up("a", "a", [MESH])
    node.link_up("b", "b", [MESH])
    assert ask_of(node.heard("a", stream, Frontier(9), 5, 0.0)) == [("a", ((6, 10),))]
    assert node.lacks(stream) == [(1, 10)], "it shows that five are missing"
    assert ask_of(node.heard("b", stream, Frontier(9), 2, 0.0)) == [("b", ((3, 6),))]


def test_B4_who_refuses_is_not_asked_again_and_others_are() -> None:
    node = Spread("me")
    stream = StreamName(MESH, "far", 1)
    for link in ("a", "b"):
        node.link_up(link, link, [MESH])
        node.heard(link, stream, Frontier(9), 0, 0.0)
    assert ask_of(node.refused("a", stream, 1.0)) == [("b", ((1, 10),))]
    assert ask_of(node.refused("b", stream, 2.0)) == []
    assert ask_of(node.heard("a", stream, Frontier(9), 0, 3.0)) == [("a", ((1, 10),))]


def test_B4_a_mesh_that_is_not_shared_is_neither_pushed_nor_heard() -> None:
    node = Spread("me")
    ours, theirs = StreamName("secret", "me", 1), StreamName("secret", "a", 1)
    node.mine[ours] = Frontier(3)
    assert node.link_up("a", "a", [MESH]) == [TellStreams("a", (), True)]
    assert node.wrote(ours, Frontier(4)) == []
    assert node.heard("a", theirs, Frontier(4), 0, 0.0) == []
    assert node.has(theirs, Frontier(1), 0.0, 0.0) == []
    assert node.next_at() is None, "nothing to tell"


def test_B4_a_mesh_that_is_no_longer_shared_when_its_word_is_due_is_not_told_of() -> None:
    node, stream = Spread("ana"), StreamName(MESH, "bob", 1)
    node.link_up("one", "cyd", {MESH})
    node.has(stream, Frontier(3), 0.0, 0.5)
    del node.mine[stream]
    due = node.next_at()
    assert due is not None
    assert node.tick(due) == []


def test_B4_what_a_neighbour_has_is_not_pushed_to_it() -> None:
    node = Spread("me")
    stream = StreamName(MESH, "me", 1)
    node.link_up("a", "a", [MESH])
    node.heard("a", stream, Frontier(2), 0, 0.0)
    assert node.wrote(stream, Frontier(4)) == [PushEntries("a", stream, ((3, 5),))]
    assert node.wrote(stream, Frontier(4)) == []
    assert ranges_of(node.known("a", stream)) == [(1, 5)]


def test_B4_memory_for_one_link_is_bounded() -> None:
    node = Spread("me")
    node.link_up("a", "a", [MESH])
    for number in range(BUS_STREAMS_MAX):
        node.heard("a", StreamName(MESH, f"p{number}", 1), NOTHING, 0, 0.0)
    with pytest.raises(OverLimit):
        node.heard("a", StreamName(MESH, "one more", 1), NOTHING, 0, 0.0)


def test_B4_pages_that_lie_far_apart_make_no_long_list() -> None:
    ana = Spread("ana")
    ana.link_up("b", "bo", ["m"])
    stream = StreamName("m", "far", 1)
    for number in range(1, 1001):
        ana.came("b", stream, 2 * number, 2 * number + 1, float(number))
    (in_hand,) = ana._awaited[stream]
    assert len(in_hand.ranges) == BUS_IN_HAND_RANGES_MAX
    # Those that follow each other, as an honest peer sends them, are one range.
    for number in range(5000, 6000):
        ana.came("b", StreamName("m", "far", 2), number, number + 1, float(number))
    assert sum(len(one.ranges) for one in ana._awaited[StreamName("m", "far", 2)]) == 1
