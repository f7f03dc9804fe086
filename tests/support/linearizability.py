"""Whether a history of calls can have happened one after the other, each while it was under way.

Two checks that believe different things:

`judge` is the search of Wing and Gong with Lowe's cache. It believes nobody: it has only when each
call began and ended, what was asked and what was answered. Calls are kept in a linked list in the
order of time; one that can be next is taken out, and put back when its successors fail. What was
taken out (as the bits of a number) together with the state that resulted is never tried twice. Keys
are judged apart, because each key is an object of its own. A call whose answer never came may have
taken effect at any time after it began, or never; it is under way for ever. Reads without an
answer say nothing and are left out. If the search needs too many steps the verdict is `undecided`,
which no test may take for a yes.

`culprits` is linear and takes any length: it believes the commit indexes that answers carry, and
the log. Order by index must not contradict the order of time, every acknowledged write stands in
the log once, and every answer is what a replay of the log gives. It names the calls that are wrong.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

STEPS_MAX: Final = 1_000_000
"""Enough for hundreds of calls of eight clients on a key. With more clients at once the search
seldom ends: such a test has too few keys."""


class Call(NamedTuple):
    """One operation of a client. Times are of one clock that all clients share."""

    id: int
    key: str
    began: float
    ended: float | None
    """None if no answer came: it may have happened, or may happen yet."""
    asked: tuple[Any, ...]
    answer: Any = None
    commit_index: int | None = None
    """The commit index that the answer carried: of a write its own, of a read that of the state."""


class Model(Protocol):
    """An object whose calls are judged."""

    initial: Hashable

    def step(self, state: Any, asked: tuple[Any, ...]) -> tuple[Any, Any]:
        """The answer, and the state after it."""


class Register:
    """`("read",)`, `("write", value)`, `("cas", old, new)`, which answers whether it was done."""

    initial: Hashable = None

    def step(self, state: Any, asked: tuple[Any, ...]) -> tuple[Any, Any]:
        if asked[0] == "read":
            return state, state
        if asked[0] == "write":
            return None, asked[1]
        assert asked[0] == "cas", asked
        return (True, asked[2]) if state == asked[1] else (False, state)


class AppendList:
    """`("read",)`, which answers all values as a tuple, and `("append", value)`."""

    initial: Hashable = ()

    def step(self, state: Any, asked: tuple[Any, ...]) -> tuple[Any, Any]:
        if asked[0] == "read":
            return state, state
        assert asked[0] == "append", asked
        return None, (*state, asked[1])


class Verdict(NamedTuple):
    """What came of one key."""

    verdict: str
    """`linearizable`, `violated` or `undecided`."""
    key: str = ""
    steps: int = 0
    stuck: tuple[Call, ...] = ()
    """Calls that had ended and found no place, behind the longest order that was found."""


def expect_linearizable(history: Sequence[Call], model: Model, steps_max: int = STEPS_MAX) -> None:
    """Fails unless every key is judged linearizable. Undecided is not enough."""
    for verdict in judge(history, model, steps_max):
        assert verdict.verdict == "linearizable", verdict


def judge(history: Iterable[Call], model: Model, steps_max: int = STEPS_MAX) -> list[Verdict]:
    """The verdict on each key."""
    keys: dict[str, list[Call]] = defaultdict(list)
    for call in history:
        keys[call.key].append(call)
    return [_judge_key(key, calls, model, steps_max) for key, calls in sorted(keys.items())]


def narrowed(history: Sequence[Call], committed: Collection[int] | None = None) -> list[Call]:
    """The same history with less that is unknown, so that the search ends sooner. No two writes of
    a key may write the same value.

    A write without an answer whose value some read has shown had happened when that read ended.
    With `committed`, the ids of all calls in the log at the end, one that is not there never
    happened and is left out; `culprits` checks that log against the answers.
    """
    shown: dict[tuple[str, Any], float] = {}
    for call in history:
        if call.asked[0] == "read" and call.ended is not None:
            for value in call.answer if isinstance(call.answer, tuple) else (call.answer,):
                key = (call.key, value)
                shown[key] = min(shown.get(key, call.ended), call.ended)
    written = Counter((call.key, call.asked[-1]) for call in history if call.asked[0] != "read")
    assert max(written.values(), default=0) <= 1, "a value is written twice"
    found = []
    for call in history:
        if call.ended is None and call.asked[0] != "read":
            seen_at = shown.get((call.key, call.asked[-1]))
            if seen_at is not None and seen_at >= call.began:
                call = call._replace(ended=seen_at, answer=True if call.asked[0] == "cas" else None)
            elif committed is not None and call.id not in committed:
                continue
        found.append(call)
    return found


class _Place:
    """A beginning or an end in the list. Of a beginning, `end` is the place of its end."""

    __slots__ = ("after", "before", "bit", "call", "end")

    def __init__(self, call: Call | None, bit: int = 0) -> None:
        self.call, self.bit = call, bit
        self.before: _Place | None = None
        self.after: _Place | None = None
        self.end: _Place | None = None

    def lift(self) -> None:
        """Takes a beginning and its end out of the list."""
        for place in (self, self.end):
            if place is not None and place.before is not None:
                place.before.after = place.after
                if place.after is not None:
                    place.after.before = place.before

    def put_back(self) -> None:
        for place in (self.end, self):
            if place is not None and place.before is not None:
                place.before.after = place
                if place.after is not None:
                    place.after.before = place


def _linked(calls: Sequence[Call]) -> _Place:
    """The head of the list of all places in the order of time. Where an end and a beginning have
    the same time they overlap.
    """
    places: list[tuple[float, int, _Place]] = []
    for number, call in enumerate(calls):
        begin = _Place(call, 1 << number)
        places.append((call.began, 0, begin))
        if call.ended is not None:
            assert call.began <= call.ended, call
            begin.end = _Place(None)
            places.append((call.ended, 1, begin.end))
    head = last = _Place(None)
    for _, _, place in sorted(places, key=lambda one: one[:2]):
        last.after, place.before = place, last
        last = place
    return head


def _judge_key(key: str, calls: Sequence[Call], model: Model, steps_max: int) -> Verdict:
    told = [call for call in calls if call.ended is not None or call.asked[0] != "read"]
    head = _linked(told)
    state: Any = model.initial
    done, waiting = 0, sum(call.ended is not None for call in told)
    tried: set[tuple[int, Any]] = set()
    stack: list[tuple[_Place, Any]] = []
    best, steps = -1, 0
    stuck: tuple[Call, ...] = ()
    place = head.after
    while waiting:
        steps += 1
        if steps > steps_max:
            return Verdict("undecided", key, steps)
        assert place is not None, "an end stands behind every beginning that waits"
        if place.call is not None:
            answer, after = model.step(state, place.call.asked)
            fits = place.call.ended is None or answer == place.call.answer
            if fits and (done | place.bit, after) not in tried:
                tried.add((done | place.bit, after))
                stack.append((place, state))
                state, done = after, done | place.bit
                waiting -= place.call.ended is not None
                place.lift()
                place = head.after
            else:
                place = place.after
            continue
        # An end was reached whose call found no place before it.
        if len(stack) > best:
            best, stuck = len(stack), _open_at(head, place)
        if not stack:
            return Verdict("violated", key, steps, stuck)
        place, state = stack.pop()
        assert place.call is not None
        done &= ~place.bit
        waiting += place.call.ended is not None
        place.put_back()
        place = place.after
    return Verdict("linearizable", key, steps)


def _open_at(head: _Place, end: _Place) -> tuple[Call, ...]:
    found = []
    place = head.after
    while place is not None and place is not end:
        if place.call is not None and place.call.ended is not None:
            found.append(place.call)
        place = place.after
    return tuple(found)


# --- by the commit index -------------------------------------------------------------------------


def culprits(history: Sequence[Call], log: Sequence[tuple[int, int]], model: Model) -> list[str]:
    """What is wrong with the calls of one key, given the log: (index, id) of every committed write
    in its order. Empty if nothing is.
    """
    calls = {call.id: call for call in history}
    found = _check_log(calls, log)
    indexes = [index for index, _ in log]
    states: list[Any] = [model.initial]
    answers: dict[int, Any] = {}
    for _, id in log:
        call = calls.get(id)
        answer, state = (None, states[-1]) if call is None else model.step(states[-1], call.asked)
        states.append(state)
        answers.setdefault(id, answer)
    for call in history:
        if call.ended is None:
            continue
        if call.asked[0] == "read":
            if call.commit_index is None:
                found.append(f"{call}: the answer carries no index")
                continue
            expected = model.step(states[bisect_right(indexes, call.commit_index)], call.asked)[0]
        elif call.id in answers:
            expected = answers[call.id]
        else:
            continue  # lost, and named already
        if call.answer != expected:
            found.append(f"{call}: by the log the answer is {expected!r}")
    return found + _check_time(history, dict(reversed([(id, index) for index, id in log])))


def _check_log(calls: dict[int, Call], log: Sequence[tuple[int, int]]) -> list[str]:
    found = [
        f"index {index} of call {id} stands behind {before}"
        for (before, _), (index, id) in pairwise(log)
        if index <= before
    ]
    counted = Counter(id for _, id in log)
    found += [
        f"call {id} is in the log {times} times" for id, times in counted.items() if times > 1
    ]
    found += [f"call {id} is in the log, and nobody made it" for id in counted if id not in calls]
    places = {id: index for index, id in reversed(log)}
    for call in calls.values():
        if call.asked[0] == "read" or call.ended is None:
            continue
        if call.id not in counted:
            found.append(f"{call}: acknowledged, and not in the log")
        elif call.commit_index is not None and call.commit_index != places[call.id]:
            found.append(f"{call}: the log has it at index {places[call.id]}")
    return found


def _check_time(history: Sequence[Call], places: dict[int, int]) -> list[str]:
    """Whether a call that began after another had ended is behind it by index too."""
    found = []
    moments: list[tuple[float, int, Call]] = []
    for call in history:
        moments.append((call.began, 0, call))
        if call.ended is not None:
            moments.append((call.ended, 1, call))
    highest, highest_call = 0, None
    for _, is_end, call in sorted(moments, key=lambda one: one[:2]):
        write = call.asked[0] != "read"
        index = places.get(call.id) if write else call.commit_index
        if index is None:
            continue
        if not is_end:
            if index < highest or (write and index == highest):
                found.append(f"{call}: at index {index}, but began after {highest_call} had ended")
        elif index > highest:
            highest, highest_call = index, call
    return found
