"""A lone push of a member needs no task, and pushes that come together share a group."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.broker.connection import Connection
from holdfast.protocol.frames import Acks, Item, Push
from holdfast.protocol.frames import encode_frame as encoded
from support.broker_people import Person, broker_up


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The members of the connections that began a task."""
    begun: list[str] = []
    work = Connection._work

    async def noted(self: Connection) -> None:
        begun.append(self._session.name)
        await work(self)

    monkeypatch.setattr(Connection, "_work", noted)
    return begun


def test_D2_a_lone_push_of_a_member_needs_no_task_and_one_of_a_stranger_does(
    tmp_path: Path, tasks: list[str]
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, eve = Person("ana"), Person("eve")
            await ana.register(up, "team")
            async with ana.connect(up) as wire, eve.connect(up) as stranger:
                await wire.push("team", ana.change("team", "k", 0))
                tasks.clear()
                for value in range(1, 9):
                    (one,) = await wire.push("team", ana.change("team", "k", value))
                    assert (one.status, one.seq) == (201, value + 1)
                assert tasks == []
                assert [one.status for one in await stranger.push("team", b"no envelope")] == [403]
                assert tasks == ["eve"]

    asyncio.run(run())


def test_D2_pushes_that_come_together_are_accepted_and_answered_together(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            async with ana.connect(up) as wire:
                raws = [ana.change("team", f"k{n}", n) for n in range(9)]
                await wire.push("team", raws[0])
                (connection,) = up.broker.connections
                groups = up.broker.counts.groups
                for number, raw in enumerate(raws):
                    connection.message(encoded(Push("team", 0, [Item(number, raw)])))
                answers = (await wire.get(Acks)).answers
                assert [one.number for one in answers] == list(range(9))
                assert [one.status for one in answers] == [200, *[201] * 8]
                assert up.broker.counts.groups == groups + 1

    asyncio.run(run())
