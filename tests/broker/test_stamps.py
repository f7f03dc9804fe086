"""A broker refuses stamps that no mesh can have given by now, and knows a mesh that was worn."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import time

from holdfast.rules.lamport import ceiling
from holdfast.rules.limits import HOUR_MS, LAMPORT_STEP_MAX
from support.broker_people import Person, broker_up


def top() -> int:
    """A stamp that is too high for some time to come."""
    return ceiling(int(time() * 1000) + HOUR_MS)


def test_S4_a_stamp_above_its_time_is_refused_and_the_others_of_its_push_are_not(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, stranger = Person("ana"), Person("eve")
            await ana.register(up, "team")
            low, high = ana.change("team", "a", 1), ana.change("team", "b", 1, lamport=top())
            async with ana.connect(up) as wire:
                answers = await wire.push("team", low, high, ana.change("team", "c", 1), low)
            assert [one.status for one in answers] == [201, 400, 201, 200]
            assert answers[1].problem is not None
            assert answers[1].problem.code == "bad_stamp"
            assert (await ana.hand_in(up, "team", high)).code == "bad_stamp"
            async with stranger.connect(up) as wire:
                (answer,) = await wire.push("team", high)
            assert answer.problem is not None
            assert answer.problem.code == "not_a_member", "a stranger learns nothing"

    asyncio.run(run())


def test_S4_the_members_of_a_worn_mesh_go_on_in_steps(tmp_path: Path) -> None:
    """What its members pushed before the broker judged stamps is there."""

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            worn = top() * 2
            accepting = up.broker.accepting
            accepting.take = accepting._take_sane  # type: ignore[method-assign]
            before = ana.change("team", "a", 1, lamport=worn)
            assert (await ana.hand_in(up, "team", before)).status == 201
            del accepting.take
            step = worn + LAMPORT_STEP_MAX
            raws = [
                ana.change("team", "b", 1, lamport=worn + 1),
                ana.change("team", "c", 1, lamport=step),
                ana.change("team", "d", 1, lamport=step + LAMPORT_STEP_MAX + 1),
                before,
            ]
            async with ana.connect(up) as wire:
                answers = await wire.push("team", *raws)
            assert [one.status for one in answers] == [201, 201, 400, 200]

    asyncio.run(run())
