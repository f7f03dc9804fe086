"""What a member is sent: in order, without gaps, no faster than it confirms."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from holdfast.broker.daemon import BrokerDaemon
from holdfast.broker.feed import FeedSizes
from holdfast.protocol.commit_page import check_page
from holdfast.protocol.frames import (
    CommitsAt,
    Confirmed,
    Entries,
    Follow,
    MeshMoved,
    Refusal,
    SnapshotNeeded,
    SnapshotWanted,
    Unfollow,
    Urgent,
)
from holdfast.rules import limits
from holdfast.rules.broker_rows import DestinationRow, SnapshotRow
from support.broker_people import Person, ask, broker_up, rows_of
from support.commit_pages import mission, page_of, voter_with


def test_D6_ranges_follow_each_other_and_hold_what_is_meant_for_the_member(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob = Person("ana"), Person("bob")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob)
            for topic in ("news", "gossip"):
                await ana.declare(up, "team", "topic", topic)
            await ana.declare(up, "team", "queue", "jobs")
            await bob.subscribe(up, "team", "news")
            for_bob = [
                ana.change("team", "k", 1),
                ana.message("team", "topic", "news"),
                ana.message("team", "dm", bob.key.hex()),
            ]
            others = [
                ana.message("team", "topic", "gossip"),
                ana.message("team", "queue", "jobs"),
                ana.message("team", "dm", ana.key.hex()),
            ]
            own = bob.change("team", "mine", 1)
            async with ana.connect(up) as a, bob.connect(up) as b:
                await b.follow("team")
                await a.push("team", for_bob[0], others[0], for_bob[1])
                await b.push("team", own)
                await a.push("team", others[1], others[2], for_bob[2])
                entries = await b.entries("team", 7)
                assert rows_of(entries) == for_bob
                assert entries[0].after == 0
                assert all(one.to == other.after for one, other in pairwise(entries))
                assert [row.kind for one in entries for row in one.rows] == [
                    *("change", "topic", "dm")
                ]
                # One that may have lost what it wrote gets that too.
                await b.follow("team", own=True)
                assert own in rows_of(await b.entries("team", 7))

    asyncio.run(run())


def test_Q3_only_who_asks_for_it_is_told_how_far_the_broker_is_in_an_order(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob = Person("ana"), Person("bob")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob)
            order = page_of(voter_with([mission("a"), mission("b")]))
            first = msgspec.structs.replace(order, rows=order.rows[:1])
            async with ana.connect(up) as a, bob.connect(up) as b:
                await up.broker.store.commits_add("team", check_page(first), 0)
                await a.send(Follow("team", 1, 0, False, True))
                assert (await a.get(CommitsAt)).number == 1
                await up.broker.store.commits_add("team", check_page(order), 0)
                assert (await a.get(CommitsAt)).number == 2
                # A node of an older version would not know the word: what it gets next is a change.
                await b.follow("team")
                await a.push("team", ana.change("team", "k", 1))
                assert isinstance(await b.next(), Entries)

    asyncio.run(run())


def test_D14_a_push_wakes_a_follower_without_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FEED_LOOK_MS", 3_600_000)
    monkeypatch.setattr(limits, "FEED_CATCH_UP_MS", 3_600_000)

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob = Person("ana"), Person("bob")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob)
            async with ana.connect(up) as a, bob.connect(up) as b:
                await b.follow("team")
                for number in range(1, 21):
                    raw = (
                        ana.change("team", "k", number)
                        if number % 2
                        else ana.message("team", "dm", bob.key.hex())
                    )
                    await a.push("team", raw)
                    assert rows_of(await b.entries("team", number)) == [raw]

    asyncio.run(run())


def test_D5_a_dm_wakes_only_whom_it_concerns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FEED_CATCH_UP_MS", 3_600_000)

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob, eve = Person("ana"), Person("bob"), Person("eve")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob, eve)
            async with ana.connect(up) as a, bob.connect(up) as b, eve.connect(up) as e:
                await b.follow("team")
                await e.follow("team")
                await a.push("team", ana.change("team", "k", 1))
                await b.entries("team", 1)
                await e.entries("team", 1)
                # The first one may wake both: whether one came in between is not known yet.
                await a.push("team", ana.message("team", "dm", bob.key.hex()))
                await b.entries("team", 2)
                await e.quiet()
                asked: list[bytes] = []
                feed = up.broker.store.feed

                async def watched(mesh: str, key: bytes, *args: int, own: bool) -> object:
                    asked.append(key)
                    return await feed(mesh, key, *args, own=own)

                up.broker.store.feed = watched  # type: ignore[method-assign, assignment]
                for _ in range(5):
                    await a.push("team", ana.message("team", "dm", bob.key.hex()))
                await b.entries("team", 7)
                assert set(asked) == {bob.key}
                # Eve is told of the range by and by, with nothing in it.
                monkeypatch.setattr(limits, "FEED_CATCH_UP_MS", 0)
                entries = await e.entries("team", 7)
                assert rows_of(entries) == []

    asyncio.run(run())


def test_D14_one_that_does_not_confirm_is_not_overrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FEED_ROWS", 2)

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob = Person("ana"), Person("bob")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob)
            raws = [ana.change("team", f"k{n}", n) for n in range(40)]
            async with ana.connect(up) as a, bob.connect(up) as b:
                await a.push("team", *raws)
                await b.follow("team")
                first = [await b.get(Entries) for _ in range(limits.FEED_FRAMES_MAX)]
                assert await b.quiet() == []
                await b.send(Confirmed("team", 1, first[0].to))
                assert (await b.get(Entries)).after == first[-1].to
                assert await b.quiet() == []
                await b.send(Confirmed("team", 1, first[-1].to + 2))
                rest = await b.entries("team", 40)
                assert rows_of(first) + raws[8:10] + rows_of(rest) == raws

    asyncio.run(run())


def test_D5_an_urgent_message_overtakes_when_the_receiver_lags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FEED_ROWS", 1)

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob = Person("ana"), Person("bob")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob)
            to = bob.key.hex()
            async with ana.connect(up) as a, bob.connect(up) as b:
                await b.follow("team")
                await a.push("team", *(ana.change("team", f"k{n}", n) for n in range(10)))
                for _ in range(limits.FEED_FRAMES_MAX):
                    await b.get(Entries)
                urgent = ana.message("team", "dm", to, b"fire", priority="now")
                await a.push("team", ana.message("team", "dm", to, priority="low"), urgent)
                assert [row.raw for row in (await b.get(Urgent)).rows] == [urgent]
                await b.send(Confirmed("team", 1, limits.FEED_FRAMES_MAX))
                assert urgent in rows_of(await b.entries("team", 12))
                # It was in its turn by then: nothing overtakes.
                await a.push("team", ana.message("team", "dm", to, b"again", priority="now"))
                await b.entries("team", 13)
                assert not any(isinstance(one, Urgent) for one in await b.quiet())

    asyncio.run(run())


def test_D6_a_confirmation_of_what_was_not_sent_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            async with ana.connect(up) as wire:
                await wire.follow("team")
                await wire.send(Confirmed("team", 1, 5))
                assert (await wire.get(Refusal)).problem.code == "bad_value"
                await wire.send(Confirmed("team", 7, 5), Unfollow("team"), Confirmed("team", 1, 5))
                assert await wire.quiet() == []

    asyncio.run(run())


def test_D6_a_new_epoch_is_told_to_those_who_follow_and_to_those_who_come(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob = Person("ana"), Person("bob")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob)
            async with ana.connect(up) as a, bob.connect(up) as b:
                await b.follow("team")
                await a.push("team", ana.change("team", "k", 1))
                await b.entries("team", 1)
                await ask(up, "POST", "/v1/new-epoch", {}, unix=True)
                place = (await b.get(MeshMoved)).place
                assert (place.epoch, place.base, place.seq) == (2, 1, 1)
                assert place.epochs == ((1, 0), (2, 1))
                await b.follow("team", after=1, epoch=1)
                assert (await b.get(MeshMoved)).place.epoch == 2
                await b.follow("team", after=1, epoch=2)
                await a.push("team", ana.change("team", "k", 2))
                entries = await b.entries("team", 2)
                assert (entries[0].epoch, entries[0].after) == (2, 1)

    asyncio.run(run())


def test_D6_a_member_that_has_seen_more_makes_the_broker_begin_a_new_epoch_once(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob = Person("ana"), Person("bob")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob)
            async with ana.connect(up) as a, bob.connect(up) as b:
                await a.push("team", ana.change("team", "k", 1))
                await b.follow("team", after=5)
                place = (await b.get(MeshMoved)).place
                assert (place.epoch, place.base) == (2, 1)
                await b.follow("team", after=9, epoch=2)
                assert (await b.get(MeshMoved)).place.epoch == 2  # not again and again
            rows = await up.broker.store.epochs("team")
            assert "has seen seq 5" in rows[-1].reason

    asyncio.run(run())


def test_D6_who_fell_behind_is_sent_to_the_snapshot(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path, keep_days=1) as up:
            ana = Person("ana")
            await ana.register(up, "team")
            store, now = up.broker.store, up.broker.source.now_ms()
            async with ana.connect(up) as wire:
                await wire.push("team", *(ana.change("team", f"k{n}", n) for n in range(5)))
                row = SnapshotRow(
                    *(), id="01a1dfde-e2e9-7132-974a-2603dc0d1095", epoch=1, seq=3, parts=0,
                    rows=0, ready=False, made_by=ana.key, began_at=now,
                )  # fmt: skip
                await store.snapshot_begin("team", row)
                from hashlib import sha256

                await store.snapshot_commit("team", row.id, sha256(b"").digest(), now)
                await store.sweep(now + 2 * limits.DAY_MS, 100)
                await wire.follow("team", own=True)
                behind = await wire.get(SnapshotNeeded)
                assert (behind.first, behind.snapshot, behind.snapshot_seq) == (4, row.id, 3)
                await wire.follow("team", after=3, own=True)
                assert len(rows_of(await wire.entries("team", 5))) == 2

    asyncio.run(run())


def test_D7_a_member_is_asked_for_a_snapshot_when_old_changes_could_go(tmp_path: Path) -> None:
    async def run() -> None:
        from holdfast.broker.upkeep import BrokerUpkeep

        async with broker_up(tmp_path, keep_days=1) as up:
            ana, bob = Person("ana"), Person("bob")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob)
            async with ana.connect(up) as a, bob.connect(up) as b:
                await a.follow("team", own=True)
                await b.follow("team")
                await a.push("team", ana.change("team", "k", 1))
                await a.entries("team", 1)
                await b.entries("team", 1)
                await BrokerUpkeep(up.broker).sweep()
                assert await a.quiet() == []
                real = up.broker.source.now_ms
                up.broker.source.now_ms = lambda: real() + 3 * limits.DAY_MS  # type: ignore[method-assign]
                ticks = up.broker.ticks_ms() + 3 * limits.DAY_MS  # they have passed: it is no leap
                up.broker.ticks_ms = lambda: ticks  # type: ignore[method-assign]
                await BrokerUpkeep(up.broker).sweep()
                assert (await a.get(SnapshotWanted)).mesh == "team"
                assert not any(isinstance(one, SnapshotWanted) for one in await b.quiet())

    asyncio.run(run())


def test_D5_a_subscription_counts_from_now_on_and_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FEED_CATCH_UP_MS", 0)

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob = Person("ana"), Person("bob")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob)
            store = up.broker.store
            await store.destination_put("team", DestinationRow(kind="topic", ref="a/b", made_at=1))
            async with ana.connect(up) as a, bob.connect(up) as b:
                await b.follow("team")
                texts = [ana.message("team", "topic", "a/b", b"%d" % n) for n in range(3)]
                await a.push("team", texts[0])
                await bob.subscribe(up, "team", "a/b")
                await a.push("team", texts[1])
                assert rows_of(await b.entries("team", 2)) == [texts[1]]
                path = "/api/my/meshes/team/subscriptions/a/b"
                assert (await bob.ask(up, "DELETE", path)).json == {"dropped": True}
                await a.push("team", texts[2])
                assert rows_of(await b.entries("team", 3)) == []

    asyncio.run(run())


def test_D15_how_far_a_member_is_survives_its_connection(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob = Person("ana"), Person("bob")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob)
            async with ana.connect(up) as a, bob.connect(up) as b:
                await b.follow("team")
                await a.push("team", ana.change("team", "k", 1))
                await b.entries("team", 1)
                await b.send(Unfollow("team"))
                await b.quiet()
            row = await up.broker.store.member_get("team", bob.key)
            assert row is not None
            assert (row.got_epoch, row.got_seq) == (1, 1)

    asyncio.run(run())


def test_D14_a_member_whose_line_breaks_under_its_frames_gets_smaller_ones(tmp_path: Path) -> None:
    """Else a line that never lasts for a full frame would never get on."""

    async def first_rows(up: BrokerDaemon, bob: Person, *, confirm: bool = False) -> int:
        async with bob.connect(up) as line:
            await line.follow("team")
            entries = await line.get(Entries)
            if confirm:
                await line.send(Confirmed("team", entries.epoch, entries.to))
                await line.get(Entries)
        return len(entries.rows)

    async def run() -> None:
        async with broker_up(tmp_path) as up:
            ana, bob = Person("ana"), Person("bob")
            await ana.register(up, "team")
            await ana.invite(up, "team", bob)
            async with ana.connect(up) as line:
                big = "x" * (32 * limits.KIB)
                await line.push("team", *(ana.change("team", f"k{n}", big) for n in range(64)))
            counts = [await first_rows(up, bob) for _ in range(8)]
            assert counts == [31, 15, 7, 3, 1, 1, 1, 1], "half of it each time, down to one"
            assert await first_rows(up, bob, confirm=True) == 1
            assert up.broker.feed_sizes.of(bob.key) < limits.FEED_BYTES
            sizes = FeedSizes()
            for _ in range(3):
                sizes.broke(b"k")
            for _ in range(3):
                sizes.arrived(b"k")
            assert sizes.of(b"k") == limits.FEED_BYTES, "and twice as much with each that arrives"

    asyncio.run(run())
