"""R3: the checkers of histories are right, and find what is planted."""

from __future__ import annotations

import random
from itertools import permutations
from typing import Any

import pytest

from support.linearizability import (
    AppendList,
    Call,
    Model,
    Register,
    culprits,
    expect_linearizable,
    judge,
    narrowed,
)
from support.seeds import seeds

REGISTER, LIST = Register(), AppendList()


def verdict(history: list[Call], model: Model = REGISTER) -> str:
    found = {one.verdict for one in judge(history, model)}
    return "violated" if "violated" in found else found.pop()


def write(id: int, value: int, began: float, ended: float | None, index: int | None = None) -> Call:
    return Call(id, "k", began, ended, ("write", value), None, index)


def read(id: int, value: Any, began: float, ended: float, index: int | None = None) -> Call:
    return Call(id, "k", began, ended, ("read",), value, index)


def cas(id: int, old: Any, new: Any, answer: bool, began: float, ended: float | None) -> Call:
    return Call(id, "k", began, ended, ("cas", old, new), answer)


# --- histories that people can check -------------------------------------------------------------


def test_R3_a_read_may_see_a_write_that_is_under_way_or_not() -> None:
    for value in (None, 7):
        assert verdict([write(1, 7, 0, 10), read(2, value, 5, 6)]) == "linearizable"


def test_R3_a_stale_read_is_found() -> None:
    history = [write(1, 7, 0, 1), read(2, None, 2, 3)]
    assert verdict(history) == "violated"
    assert judge(history, REGISTER)[0].stuck == (history[1],)
    # First new, then old again: a read from a deposed coordinator.
    back = [write(1, 7, 0, 10), read(2, 7, 1, 2), read(3, None, 3, 4)]
    assert verdict(back) == "violated"


def test_R3_times_that_touch_overlap() -> None:
    assert verdict([write(1, 7, 0, 2), read(2, None, 2, 3)]) == "linearizable"


def test_R3_an_unknown_write_may_come_late_or_never_but_not_early_and_not_twice() -> None:
    unknown = write(1, 7, 5, None)
    assert verdict([unknown, read(2, None, 90, 91)]) == "linearizable"
    assert verdict([unknown, read(2, None, 90, 91), read(3, 7, 95, 96)]) == "linearizable"
    assert verdict([unknown, read(2, 7, 1, 2)]) == "violated"
    twice = [unknown, read(2, 7, 6, 7), write(3, 8, 8, 9), read(4, 7, 10, 11)]
    assert verdict(twice) == "violated"


def test_R3_an_unknown_read_says_nothing() -> None:
    lost = Call(2, "k", 2, None, ("read",), None)
    assert verdict([write(1, 7, 0, 1), lost]) == "linearizable"


def test_R3_two_compare_and_sets_from_one_value_cannot_both_win() -> None:
    race = [write(1, 0, 0, 1), cas(2, 0, 5, True, 2, 9), cas(3, 0, 6, True, 2, 9)]
    assert verdict(race) == "violated"
    fair = [write(1, 0, 0, 1), cas(2, 0, 5, True, 2, 9), cas(3, 0, 6, False, 2, 9)]
    assert verdict(fair) == "linearizable"
    # An unknown one may have failed.
    assert verdict([*race[:2], cas(3, 0, 6, True, 2, None)]) == "linearizable"


def test_R3_lost_and_doubled_appends_are_found() -> None:
    def append(id: int, value: int, began: float) -> Call:
        return Call(id, "k", began, began + 1, ("append", value))

    both = [append(1, 1, 0), append(2, 2, 2)]
    assert verdict([*both, read(3, (1, 2), 4, 5)], LIST) == "linearizable"
    for wrong in ((1,), (2,), (2, 1), (1, 2, 2), (1, 1, 2)):
        assert verdict([*both, read(3, wrong, 4, 5)], LIST) == "violated"


def test_R3_keys_are_judged_apart() -> None:
    mixed = [
        write(1, 7, 0, 1),
        read(2, None, 2, 3)._replace(key="other"),
        read(3, None, 4, 5),
    ]
    found = {one.key: one.verdict for one in judge(mixed, REGISTER)}
    assert found == {"k": "violated", "other": "linearizable"}


def test_R3_what_is_not_decided_in_time_is_not_taken_for_a_yes() -> None:
    # Many at once, and an answer that none of their orders gives.
    history = [write(number, number, 0, 100) for number in range(1, 13)]
    history.append(read(90, 99, 101, 102))
    assert judge(history, REGISTER, steps_max=200)[0].verdict == "undecided"
    with pytest.raises(AssertionError, match="undecided"):
        expect_linearizable(history, REGISTER, steps_max=200)
    assert verdict(history) == "violated"


# --- against all orders there are ----------------------------------------------------------------


def brute_force(history: list[Call], model: Model) -> bool:
    """Tries every order of every choice of the unknown calls."""
    known = [call for call in history if call.ended is not None]
    unknown = [call for call in history if call.ended is None and call.asked[0] != "read"]
    for choice in range(1 << len(unknown)):
        chosen = known + [call for n, call in enumerate(unknown) if choice >> n & 1]
        for order in permutations(chosen):
            if _is_in_time(order) and _replays(order, model):
                return True
    return False


def _is_in_time(order: tuple[Call, ...]) -> bool:
    return not any(
        later.ended is not None and later.ended < earlier.began
        for place, earlier in enumerate(order)
        for later in order[place + 1 :]
    )


def _replays(order: tuple[Call, ...], model: Model) -> bool:
    state: Any = model.initial
    for call in order:
        answer, state = model.step(state, call.asked)
        if call.ended is not None and answer != call.answer:
            return False
    return True


def tiny(draw: random.Random, *, lists: bool) -> list[Call]:
    """A few calls with arbitrary times and answers: about half of them fit."""
    history = []
    for id in range(draw.randint(1, 5)):
        began = draw.randint(0, 8)
        ended = None if draw.random() < 0.2 else began + draw.randint(0, 5)
        value = draw.randint(1, 2)
        asked: tuple[Any, ...]
        answer: Any = None
        if draw.random() < 0.45:
            asked = ("read",)
            answer = draw.choice(((), (1,), (2,), (1, 2))) if lists else draw.choice((None, 1, 2))
        elif lists:
            asked = ("append", value)
        elif draw.random() < 0.5:
            asked = ("write", value)
        else:
            asked, answer = ("cas", draw.choice((None, 1, 2)), value), draw.random() < 0.6
        history.append(Call(id, "k", began, ended, asked, answer))
    return history


@pytest.mark.parametrize("lists", [False, True])
def test_R3_the_search_agrees_with_trying_all_orders(lists: bool) -> None:
    model: Model = LIST if lists else REGISTER
    counts = {True: 0, False: 0}
    for seed in seeds(700):
        history = tiny(random.Random(seed), lists=lists)
        expected = brute_force(history, model)
        assert (verdict(history, model) == "linearizable") == expected, (seed, history)
        counts[expected] += 1
    assert min(counts.values()) > 100, counts


# --- long histories of a register that is right, and of ones that are not ------------------------


class World:
    """Clients of one key. Every write is committed at some moment while it is under way; of those
    without an answer some never are. Reads are served from the committed state.
    """

    def __init__(self, seed: int, calls: int, *, clients: int = 5, unknown: float = 0.05) -> None:
        draw = random.Random(seed)
        self.history: list[Call] = []
        self.log: list[tuple[int, int]] = []
        free = [0.0] * clients
        plans = []
        for id in range(calls):
            client = draw.randrange(len(free))
            began = free[client] + draw.random()
            ended = began + draw.random() * 3
            at = draw.uniform(began, ended)
            lost = draw.random() < unknown
            kind = draw.choice(("read", "write", "cas"))
            if lost and kind != "read":
                # The client goes away. What it asked for may be committed much later, or never.
                at = began + draw.random() * 20 if draw.random() < 0.6 else -1.0
            free[client] = ended
            plans.append((at, id, kind, began, None if lost else ended))
        state: Any = None
        index = 0
        for at, id, kind, began, ended_at in sorted(plans):
            asked: tuple[Any, ...] = ("read",)
            if kind == "write":
                asked = ("write", id)
            elif kind == "cas":
                asked = ("cas", state if draw.random() < 0.7 else -1, id)
            answer, after = REGISTER.step(state, asked)
            if at >= 0 and kind != "read":
                index += draw.randint(1, 3)
                self.log.append((index, id))
                state = after
            told = None if ended_at is None else answer
            place = None if ended_at is None else index
            self.history.append(Call(id, "k", began, ended_at, asked, told, place))
        self.draw = draw

    def change(self, kind: str) -> bool:
        """Plants a fault in the history; False if it has no place for one."""
        reads = [
            call
            for call in self.history
            if call.asked[0] == "read" and call.ended is not None and call.commit_index
        ]
        writes = {id: place for place, (_, id) in enumerate(self.log)}
        if kind == "stale read":
            for call in reversed(reads):
                older = [
                    (index, id)
                    for index, id in self.log
                    if self.call(id).ended is not None and (self.call(id).ended or 0) < call.began
                ]
                if len(older) > 3:
                    index = older[0][0]
                    value = self.replay(index)
                    if value != call.answer:
                        self.put(call._replace(answer=value, commit_index=index))
                        return True
        elif kind == "lost write":
            for call in reversed(self.history):
                if call.asked[0] == "write" and call.ended is not None and call.id in writes:
                    del self.log[writes[call.id]]
                    return True
        elif kind == "doubled write":
            done = next(id for _, id in self.log if self.call(id).asked[0] == "write")
            self.log.append((self.log[-1][0] + 1, done))
            return True
        return False

    def call(self, id: int) -> Call:
        return next(call for call in self.history if call.id == id)

    def put(self, new: Call) -> None:
        self.history = [new if call.id == new.id else call for call in self.history]

    def replay(self, upto: int) -> Any:
        state: Any = None
        for index, id in self.log:
            if index <= upto:
                _, state = REGISTER.step(state, self.call(id).asked)
        return state


@pytest.mark.parametrize("seed", seeds(12))
def test_R3_long_histories_of_a_right_register_pass_both_checks(seed: int) -> None:
    world = World(seed, 400)
    expect_linearizable(world.history, REGISTER)
    assert culprits(world.history, world.log, REGISTER) == []


def test_R3_facts_about_unknown_calls_shorten_the_search_and_change_no_verdict() -> None:
    long = short = 0
    for seed in seeds(6):
        world = World(seed, 100, unknown=0.1)
        committed = {id for _, id in world.log}
        long += judge(world.history, REGISTER)[0].steps
        for facts in (None, committed):
            narrow = narrowed(world.history, facts)
            expect_linearizable(narrow, REGISTER)
        short += judge(narrow, REGISTER)[0].steps
        assert world.change("stale read"), seed
        assert verdict(narrowed(world.history, committed)) == "violated", seed
    assert short < long


def test_R3_a_value_that_was_read_before_it_was_written_stays_a_fault() -> None:
    early = [write(1, 7, 5, None), read(2, 7, 1, 2)]
    assert verdict(narrowed(early)) == "violated"
    assert verdict(narrowed(early, ())) == "violated"
    late = [write(1, 7, 0, None), read(2, 7, 3, 4), read(3, None, 5, 6)]
    assert narrowed(late)[0].ended == 4
    assert narrowed([*late, read(4, 7, 8, 9)])[0].ended == 4
    assert verdict(narrowed(late)) == "violated"
    assert narrowed([write(1, 7, 0, None)], ()) == []
    with pytest.raises(AssertionError, match="twice"):
        narrowed([write(1, 7, 0, 1), write(2, 7, 2, 3)])


def test_R3_planted_faults_are_found_by_the_search_and_named_by_the_index() -> None:
    for seed in seeds(8):
        world, right = World(seed, 80), World(seed, 80)
        assert world.change("stale read"), seed
        changed = next(call for call in world.history if call not in right.history)
        assert verdict(world.history) == "violated", seed
        named = culprits(world.history, world.log, REGISTER)
        assert any(str(changed) in one for one in named), seed


@pytest.mark.parametrize("kind", ["lost write", "doubled write"])
def test_R3_a_log_that_lost_or_doubled_a_write_is_found(kind: str) -> None:
    for seed in seeds(6):
        world = World(seed, 120)
        assert world.change(kind)
        named = culprits(world.history, world.log, REGISTER)
        assert any("not in the log" in one or "2 times" in one for one in named), seed


def test_R3_the_index_check_finds_order_that_contradicts_time() -> None:
    log = [(5, 1), (6, 2)]
    early, late = write(1, 7, 10, 11, 5), write(2, 8, 0, 1, 6)
    assert any("began after" in one for one in culprits([early, late], log, REGISTER))
    assert culprits([write(1, 7, 0, 1, 5), write(2, 8, 2, 3, 6)], log, REGISTER) == []
    # A write that nobody heard of may not stand before what had ended when it was sent.
    ghost = [write(1, 7, 10, None), write(2, 8, 0, 1, 6)]
    assert any("began after" in one for one in culprits(ghost, log, REGISTER))


def test_R3_the_index_check_names_answers_without_or_with_a_wrong_index() -> None:
    log = [(5, 1)]
    done = write(1, 7, 0, 1, 5)
    assert "no index" in culprits([done, read(2, 7, 2, 3)], log, REGISTER)[0]
    assert "the log has it" in culprits([write(1, 7, 0, 1, 4)], log, REGISTER)[0]
    assert "by the log the answer is 7" in culprits([done, read(2, 8, 2, 3, 5)], log, REGISTER)[0]
    assert "nobody made" in culprits([], log, REGISTER)[0]
    assert "stands behind" in culprits([done], [(5, 1), (5, 9)], REGISTER)[0]
