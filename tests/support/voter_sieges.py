"""Sieges: whoever leads is struck again and again, in the moment in which a mistake would show.

Each of them is what one of the known mistakes of others needs to be seen by a client. Chance alone
brings such a moment about once in a hundred histories, or never.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from holdfast.rules.quorum.raft.events import ChangeMembers
from support.voter_calls import PATIENCE_TICKS
from support.voter_storms import cut_power, isolate
from support.voter_world import HOUR_MS, NAMES, HistoryWorld, Voter

AWAY_MS: Final = 2_500
"""Long enough for others to be elected, and for clients to write there."""
MISSED_MS: Final = 1_200
"""Long enough for clients to write, with whoever is not away."""
AGAIN_MS: Final = 2_000


def depose(world: HistoryWorld) -> None:
    """Whoever leads is cut off, and its clock says that no time has passed."""
    leader = world.leader()
    if leader is not None:
        leader.clock_ms -= HOUR_MS
        isolate(world, leader, AWAY_MS)


def stun(world: HistoryWorld) -> None:
    """Whoever leads stands still until another does, and finds its clients waiting; its clock has
    been set meanwhile, and what others had to tell may have been given up.
    """
    leader = world.leader()
    if leader is None:
        return
    leader.pause()
    leader.clock_ms += world.chance.choice((-HOUR_MS, HOUR_MS))
    world.at(AWAY_MS, leader.resume)
    if world.chance.random() < 0.5:
        world.cut.update((name, leader.name) for name in world.voters if name != leader.name)
        world.at(AWAY_MS, world.cut.clear)


def deafen(world: HistoryWorld) -> None:
    """Whoever leads is heard and hears nobody, or the other way round."""
    leader = world.leader()
    if leader is None:
        return
    leader.clock_ms -= HOUR_MS
    is_heard = world.chance.random() < 0.5
    for name in world.voters:
        if name != leader.name:
            world.cut.add((name, leader.name) if is_heard else (leader.name, name))
    world.at(AWAY_MS, world.cut.clear)


def take_power_after_a_write(world: HistoryWorld) -> None:
    """A client has just heard that it has written, and all voters are gone; soon once more, when
    clients ask again what they had asked before.
    """
    world.after_write = partial(cut_power, world)
    world.at(AGAIN_MS, partial(setattr, world, "after_write", world.after_write))


def shrink(world: HistoryWorld) -> None:
    """Whoever leads is cut off and told to go on without the others, one after the other: alone it
    would be a majority.
    """
    leader = world.leader()
    if leader is None or leader.driver is None or leader.paused is not None:
        return
    isolate(world, leader, AWAY_MS)
    state = leader.driver.state
    others = [id for id in state.log.config.voters if id != state.me]
    if len(others) < len(NAMES) - 1:
        return  # somebody was removed before
    for id in others:
        leader.driver.change(ChangeMembers("remove", id), PATIENCE_TICKS, lambda outcome: None)


def restore_one(world: HistoryWorld) -> None:
    """One voter has missed what another is made to forget, and whoever knows it is cut off. Once in
    a history: no more may be lost of three.
    """
    leader = world.leader()
    followers = [world.voters[name] for name in NAMES if world.voters[name] is not leader]
    if leader is None or any(voter.is_restored for voter in world.voters.values()):
        return
    world.chance.shuffle(followers)
    lagging, restored = followers[0], followers[1]
    isolate(world, lagging, MISSED_MS)
    world.at(MISSED_MS, partial(_forget, world, restored))


def _forget(world: HistoryWorld, restored: Voter) -> None:
    leader = world.leader()
    if leader is not None and leader is not restored:
        isolate(world, leader, AWAY_MS)
    restored.restore()


SIEGES: Final = (depose, take_power_after_a_write, shrink, stun, restore_one, deafen)
