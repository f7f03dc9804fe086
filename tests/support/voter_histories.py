"""Histories of clients on a group of voters, under faults: quick ones, many of them.

Their numbers tell what happens in them: a storm with one of the 64 directed cuts of three voters,
or a siege. `linearizability` judges each of them twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from support.linearizability import Register, culprits, judge, narrowed
from support.voter_members import change_members
from support.voter_sieges import SIEGES
from support.voter_storms import storm
from support.voter_world import KEYS, TICK_MS, TRIES, WAYS, HistoryWorld

CALLS: Final = 400
CUTS: Final = 1 << len(WAYS)
FIRST_WAVE_MS, WAVES_MS, LAST_WAVE_MS = 2_000, 3_500, 20_000
MEMBERS_EVERY: Final = 5
"""In one of so many histories members change."""

Siege = Callable[[HistoryWorld], None]


def siege_of(number: int) -> Siege | None:
    """Every other history is a siege; after 64 of them it is the turn of the other cuts."""
    if (number + number // CUTS) % 2:
        return SIEGES[number // 2 % len(SIEGES)]
    return None


def tell_number(number: int) -> HistoryWorld:
    """The history of that number."""
    world = HistoryWorld(number, CALLS)
    siege = siege_of(number)
    if siege is None:
        storm(world, cuts(number % CUTS))
    else:
        besiege(world, siege)
    if number % MEMBERS_EVERY == 0:
        change_members(world)
    return told(world)


def tell_siege(seed: int, siege: Siege, tries: int = TRIES) -> HistoryWorld:
    """A history in which nothing else happens."""
    world = HistoryWorld(seed, CALLS)
    world.tries = tries
    besiege(world, siege)
    return told(world)


def cuts(number: int) -> Sequence[tuple[str, str]]:
    """One of the 64 sets of the six ways between three voters."""
    return tuple(way for bit, way in enumerate(WAYS) if number >> bit & 1)


def besiege(world: HistoryWorld, siege: Siege) -> None:
    for at in range(FIRST_WAVE_MS, LAST_WAVE_MS, WAVES_MS):
        world.at(at, partial(siege, world))


def told(world: HistoryWorld) -> HistoryWorld:
    """Lets it happen, and then all voters be well again: they must come to an end together, which
    is judged with the rest.
    """
    while not world.is_done and world.now < 60_000 and not world.problems:
        world.run(world.now + 500)
    world.cut.clear()
    world.slow.clear()
    world.loss = 0.0
    for voter in world.voters.values():
        voter.resume()
        voter.start()
    until = world.now + 30_000
    while world.now < until and not world.problems and not _is_settled(world):
        world.run(world.now + TICK_MS)
    if not world.problems and not _is_settled(world):
        world.problems.append("all is well again, and voters do not come to an end together")
    return world


def _is_settled(world: HistoryWorld) -> bool:
    """Whether somebody leads, and a majority has applied all that is committed."""
    leader = world.leader()
    if leader is None or leader.driver is None or not leader.driver.state.leads_settled:
        return False
    state = leader.driver.state
    voters = [one.peer for one in state.log.config.members if one.place == "voter"]
    applied = sum(world.voters[name].applied >= state.commit for name in voters)
    return applied * 2 > len(voters)


def wrong(world: HistoryWorld) -> list[str]:
    """What a history shows that no order of its calls explains; by the calls, and by the log."""
    found = list(world.problems)
    history = [call for call in world.history if call.ended is not None or call.asked != ("read",)]
    for key in KEYS:
        calls = [call for call in history if call.key == key]
        log = world.commits(key)
        found += culprits(calls, log, Register())
        committed = {id for _, id in log}
        verdicts = judge(narrowed(calls, committed), Register())
        found += [f"{one}" for one in verdicts if one.verdict != "linearizable"]
    return found
