"""What a broker does costs what it touches, however much its store holds.

Two stores are filled alike, one with eight times as much of everything, and the verbs that members
cause run on both. A verb whose work grows turns red, unless it is named here among those that count
or list something.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any, Final

from holdfast.broker.access import mesh_positions
from holdfast.broker.queue_delivery import require_queue
from holdfast.rules.broker_rows import DestinationRow
from holdfast.storage.broker.port import BrokerStore
from support.broker_stores import (
    ANA,
    BOB,
    NOW,
    OWNER,
    QUEUE,
    TEAM,
    accept,
    arriving,
    dm,
    feed,
    member,
    queued,
    sqlite_store,
    topic,
    with_team,
)
from support.envelopes import make_id
from support.growth import TIMES, counted_work, grown

_SMALL: Final = 30
_GROWS: Final = {
    "destination_list": "lists them all",
    "member_list": "lists them all",
    "mesh_list": "lists them all",
    "queue_counts": "counts; asked for after pauses",
    "counts": "counts; asked for after pauses",
    "standings": "counts; asked for after pauses",
}

Call = Callable[[], Awaitable[object]]


async def fill(store: BrokerStore, rows: int) -> None:
    """So many of everything: meshes, members, destinations, messages of each kind."""
    await with_team(store)
    for n in range(rows):
        await store.mesh_register(f"mesh-{n}", "M", OWNER, "olga", f"id-{n}", NOW)
        key = n.to_bytes(32, "big")
        await store.member_put(TEAM, member(key, f"member-{n}"))
        for kind in ("topic", "queue"):
            await store.destination_put(TEAM, DestinationRow(kind=kind, ref=f"r{n}", made_at=NOW))
        await store.subscribe(TEAM, key, f"r{n}")
        made = (arriving, topic, dm, queued)
        await accept(store, *(make(10 * n + at) for at, make in enumerate(made, 1)))


def verbs(store: BrokerStore) -> dict[str, Call]:
    numbers = count(100_000)
    lease = b"L" * 16

    async def take_and_settle(how: str) -> None:
        (taken,) = await store.take(TEAM, QUEUE, ANA, 1, [lease], NOW)
        assert await store.settle(TEAM, QUEUE, taken.seq, taken.lease, how, "", NOW)

    async def take_nothing() -> None:
        await store.destination_put(TEAM, DestinationRow(kind="queue", ref="none", made_at=NOW))
        assert await store.take(TEAM, "none", ANA, 1, [lease], NOW) == []

    def accepted(make: Callable[..., Any]) -> Call:
        return lambda: accept(store, make(next(numbers)))

    return {
        "a hello": lambda: mesh_positions(store, ANA),
        "require_queue": lambda: require_queue(store, TEAM, QUEUE),
        "accept a change": accepted(arriving),
        "accept a topic": accepted(topic),
        "accept a dm": accepted(dm),
        "accept a queued": accepted(queued),
        "accept again": lambda: accept(store, arriving(1)),
        "known": lambda: store.known(TEAM, [(make_id(1), b"f" * 32)]),
        "member_get": lambda: store.member_get(TEAM, BOB),
        "member_got": lambda: store.member_got(TEAM, BOB, 1, 1, NOW),
        "feed, a page": lambda: store.feed(TEAM, BOB, 3, 5, 1_000_000, own=False),
        "feed, at the end": lambda: feed(store, BOB, after=10**9),
        "express": lambda: store.express(TEAM, BOB, 0, 5),
        "log_page": lambda: store.log_page(TEAM, 0, 10**9, 5, 1_000_000),
        "take and finish": lambda: take_and_settle("done"),
        "take and give back": lambda: take_and_settle("again"),
        "take and bury": lambda: take_and_settle("dead"),
        "take from an empty queue": take_nothing,
        "dead_letters": lambda: store.dead_letters(TEAM, QUEUE, 3),
        "subscribe": lambda: store.subscribe(TEAM, ANA, "r1"),
        "subscriptions": lambda: store.subscriptions(TEAM, BOB),
        "epochs": lambda: store.epochs(TEAM),
        "sweep, nothing to do": lambda: store.sweep(NOW, 100),
        "destination_list": lambda: store.destination_list(TEAM),
        "member_list": lambda: store.member_list(TEAM),
        "mesh_list": store.mesh_list,
        "queue_counts": lambda: store.queue_counts(TEAM),
        "counts": store.counts,
        "standings": store.standings,
    }


def work_of(folder: Path, rows: int) -> dict[str, int]:
    with asyncio.Runner() as runner, counted_work() as meter:
        opening = sqlite_store(folder)
        store = runner.run(opening.__aenter__())
        try:
            runner.run(fill(store, rows))

            def once(call: Call) -> Callable[[], object]:
                async def run() -> None:
                    await call()

                return lambda: runner.run(run())

            return {name: meter.of(once(call)) for name, call in verbs(store).items()}
        finally:
            runner.run(opening.__aexit__(None, None, None))


def test_D5_what_a_verb_costs_does_not_grow_with_the_broker(tmp_path: Path) -> None:
    small = work_of(tmp_path / "small", _SMALL)
    large = work_of(tmp_path / "large", TIMES * _SMALL)
    found = grown(small, large)
    assert found.keys() - _GROWS.keys() == set(), found
    assert set(_GROWS) <= found.keys(), "these do not grow any more: take them off the list"
