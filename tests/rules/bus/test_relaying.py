"""To whom a message of a topic is passed on."""

from __future__ import annotations

from collections import Counter, deque

from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.bus.relaying import Neighbour, Step, first_steps, next_steps, tag_of
from holdfast.rules.limits import BUS_RELAY_GIVEN_MAX, BUS_RELAY_HOPS_MAX


def key(number: int) -> bytes:
    return bytes([number + 1]) * 32


@given(
    st.integers(2, 7).flatmap(
        lambda count: st.tuples(
            st.just(count),
            st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))),
            st.sets(st.integers(0, count - 1)),
        )
    )
)
def test_B5_everybody_in_reach_gets_a_message_and_nobody_from_whom_it_came(
    world: tuple[int, set[tuple[int, int]], set[int]],
) -> None:
    """Peers in any net of links, of which some pass on; all listen, and take a message once."""
    count, links, relays = world
    linked = {(a, b) for a, b in links if a != b} | {(b, a) for a, b in links if a != b}

    def neighbours(of: int) -> list[Neighbour]:
        return [
            Neighbour(str(other), key(other), True, True, other in relays)
            for other in range(count)
            if (of, other) in linked
        ]

    hops = {0: 0}
    way: deque[tuple[int, Step]] = deque((0, step) for step in first_steps(neighbours(0), ()))
    copies: Counter[tuple[int, int]] = Counter()
    while way:
        giver, step = way.popleft()
        taker = int(step.name)
        copies[giver, taker] += 1
        assert taker not in (0, giver)
        assert len(step.given) <= BUS_RELAY_GIVEN_MAX
        assert tag_of(key(taker)) not in step.given
        if taker in hops:
            continue
        hops[taker] = step.hops
        following = next_steps(
            neighbours(taker),
            came_from=key(giver),
            origin=key(0),
            hops=step.hops,
            given=step.given,
        )
        assert not following or taker in relays
        way.extend((taker, one) for one in following)
    assert max(copies.values(), default=0) <= 1
    assert set(hops) == _in_reach(count, linked, relays)


def _in_reach(count: int, linked: set[tuple[int, int]], relays: set[int]) -> set[int]:
    """Over peers that pass on, and not too far."""
    reached, edge = {0}, [0]
    for _ in range(BUS_RELAY_HOPS_MAX + 1):
        edge = [
            other
            for at in edge
            if at == 0 or at in relays
            for other in range(count)
            if (at, other) in linked and other not in reached
        ]
        reached.update(edge)
    return reached


def test_B5_who_gets_a_message_in_another_way_is_told_so_and_gets_it_only_to_pass_it_on() -> None:
    near = [Neighbour("a", key(1), True, False, True), Neighbour("b", key(2), True, True, False)]
    carrier, listener = first_steps(near, [key(1)])
    assert tag_of(key(1)) in carrier.given
    assert (carrier.hops, listener.hops) == (0, BUS_RELAY_HOPS_MAX)
    assert next_steps(near, came_from=key(3), origin=key(4), hops=listener.hops, given=()) == []


def test_B5_the_list_of_those_who_have_a_message_ends() -> None:
    near = [Neighbour(str(at), at.to_bytes(32), True, True, True) for at in range(1, 200)]
    near = [one._replace(key=one.key[::-1]) for one in near]
    assert {len(step.given) for step in first_steps(near, ())} == {BUS_RELAY_GIVEN_MAX}
