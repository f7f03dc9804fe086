"""Time in a world of delivery: everybody sleeps for days, and the broker's clock is weeks ahead, or
behind.

**Sleep.** Everybody is asleep for longer than the broker remembers ids. Lines do not survive it.
When all wake, an operator sweeps the broker. What nodes had still to send then: changes go as ever,
for a node that gets one twice knows it; messages must not, for nobody could tell a second one from
the first.

**Far ahead.** The broker's clock shows a day that is weeks ahead, for a while. Nothing may be swept
by it.

**Far behind.** It shows a day that is weeks behind, for a while. What is stored meanwhile must not
be old when the clock is right again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from holdfast.rules.ids import id_time_ms
from holdfast.rules.limits import DAY_MS, HOUR_MS, SECOND_MS
from holdfast.rules.message import MESSAGE
from holdfast.rules.rows import Entry

if TYPE_CHECKING:
    from holdfast.simulate.delivery.delivery import DeliveryWorld

SLEEP_MS: Final = 5 * DAY_MS
"""Longer than ids are remembered, with their grace; shorter than tombstones are kept."""
AHEAD_MS: Final = 40 * DAY_MS
AHEAD_FOR_MS_MAX: Final = 3 * HOUR_MS
LOOK_MS: Final = 20
EVENING_LOOKS: Final = 300
SWEEP_MS_MAX: Final = 20 * 60 * SECOND_MS


def evening(world: DeliveryWorld, rng: random.Random) -> None:
    """Everybody sends something, and all fall asleep when the broker has the first of it: the
    answer is still under way.
    """
    sent: list[bytes] = []
    for peer, machine in world.machines.items():
        chore = world.message_watch.message()
        if machine.up and world.perform(machine, chore):
            sent += chore.ids
            world.ends[peer].wake()
    _wait(world, rng, sent, EVENING_LOOKS)


def _wait(world: DeliveryWorld, rng: random.Random, sent: Sequence[bytes], looks: int) -> None:
    has = any(id in book.seqs for book in world.books.meshes.values() for id in sent)
    if has or not looks:
        sleep(world, rng)
    else:
        world.at(LOOK_MS, _wait, world, rng, sent, looks - 1, name="it gets late")


def sleep(world: DeliveryWorld, rng: random.Random) -> None:
    back_in_time(world)
    for end in world.ends.values():
        if end.wire is not None:
            end.wire.cut()
    for machine in (*world.machines.values(), world.broker_machine):
        machine.clock.frozen_ms = None
    world.happened["sleep"] += 1
    world.slept_at = world.now_ms
    world.now_ms += SLEEP_MS
    world.copies.forget()
    wait = rng.choice((1, 1, rng.randrange(1, SWEEP_MS_MAX)))
    world.at(wait, sweep, world, name="somebody sweeps")


def sweep(world: DeliveryWorld) -> None:
    """The broker sweeps by itself. After a sleep it does not trust its clock; an operator asks."""
    asked = world.slept_at is not None and not world.broker_machine.is_far_ahead
    world.broker_sweeps(asked=asked)


def run_ahead(world: DeliveryWorld, rng: random.Random) -> None:
    """The broker's clock, and no other, shows a day that is weeks ahead."""
    world.happened["far ahead"] += 1
    world.broker_machine.clock.frozen_ms = None
    world.broker_machine.clock.skew_ms = AHEAD_MS
    world.at(rng.randrange(1, AHEAD_FOR_MS_MAX), back_in_time, world, name="the clock is set right")


def fall_behind(world: DeliveryWorld, rng: random.Random) -> None:
    """The broker's clock, and no other, shows a day that is weeks behind."""
    world.happened["far behind"] += 1
    world.broker_machine.clock.frozen_ms = None
    world.broker_machine.clock.skew_ms = -AHEAD_MS
    world.broker_ticks()
    world.at(rng.randrange(1, AHEAD_FOR_MS_MAX), back_in_time, world, name="the clock is set right")


def back_in_time(world: DeliveryWorld) -> None:
    if world.broker_machine.is_far_off:
        world.broker_machine.clock.skew_ms = 0
        world.broker_ticks()


def is_old(world: DeliveryWorld, entry: Entry) -> bool:
    """Is it a message from before the sleep? One that a broker lost then, and nobody had brought
    again, stays lost: nobody could tell a second one from the first.
    """
    slept = world.slept_at
    if slept is None or entry.op != MESSAGE:
        return False
    return (id_time_ms(entry.id) or entry.recorded_at) <= slept
