"""What goes wrong among voters in a history: a storm is a cut and a few other things, drawn from
the seed. For bugs that show themselves in a rare moment only there are `voter_sieges`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from support.voter_calls import PATIENCE_TICKS
from support.voter_world import DISK_MS_MAX, HOUR_MS, WAYS, HistoryWorld, Voter

STRIKES: Final = (
    *("kill", "power", "pause", "slow", "full", "clock", "transfer", "step", "loss", "link"),
    *("isolate", "isolate", "isolate"),
)


def storm(world: HistoryWorld, ways: Sequence[tuple[str, str]]) -> None:
    """Cuts these ways for a while, and lets other things happen besides."""
    chance, at = world.chance, world.at
    voters = list(world.voters.values())
    begun = chance.uniform(1500, 2500)  # somebody leads by then
    at(begun, lambda: world.cut.update(ways))
    at(begun + chance.uniform(1000, 4000), world.cut.clear)
    for _ in range(chance.randrange(1, 4)):
        voter, when = chance.choice(voters), chance.uniform(1500, 6000)
        at(when, partial(_strike, world, voter, chance.choice(STRIKES)))


def _strike(world: HistoryWorld, voter: Voter, what: str) -> None:
    later = world.chance.uniform(200, 3000)
    if what == "kill":
        voter.crash()
        world.at(later, voter.start)
    elif what == "power":
        cut_power(world, later)
    elif what == "pause":
        voter.pause()
        world.at(later, voter.resume)
    elif what == "isolate":
        isolate(world, world.leader() or voter, max(later, 1500))
    elif what == "slow":
        voter.disk_ms = 300
        world.at(later, partial(setattr, voter, "disk_ms", DISK_MS_MAX))
    elif what == "clock":
        voter.clock_ms = world.chance.choice((-HOUR_MS, HOUR_MS))
    elif what == "loss":
        world.loss, world.delay_ms = 0.1, 60.0
        world.at(later, partial(setattr, world, "loss", 0.0))
    elif what == "link":
        world.slow[world.chance.choice(WAYS)] = world.chance.uniform(100, 1500)
        world.at(later, world.slow.clear)
    elif what == "full":
        voter.fill(later)
    elif voter.driver is None or voter.paused is not None:
        return
    elif what == "transfer":
        voter.driver.transfer(0, PATIENCE_TICKS, lambda handed: None)
    else:
        voter.driver.step_down()


def cut_power(world: HistoryWorld, for_ms_max: float = 500) -> None:
    """All of them are gone at once, with what their disks had not acknowledged."""
    for one in world.voters.values():
        one.crash()
        world.at(world.chance.uniform(0, for_ms_max), one.start)


def isolate(world: HistoryWorld, voter: Voter, for_ms: float) -> None:
    """Whoever leads still believes it for a while, and others are elected meanwhile."""
    world.cut.update(way for way in WAYS if voter.name in way)
    world.at(for_ms, world.cut.clear)
    if world.chance.random() < 0.5:  # its clock says that no time has passed
        voter.clock_ms -= HOUR_MS


def hand_over(world: HistoryWorld) -> None:
    """Whoever leads hands over to another voter."""
    leader = world.leader()
    if leader is not None and leader.driver is not None:
        leader.driver.transfer(0, PATIENCE_TICKS, world.handed.append)
