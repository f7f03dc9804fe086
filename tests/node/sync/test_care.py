"""Corners of the sync where two things go on at once, or one mesh must not harm another."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.node.links.registry import Links
from holdfast.node.sync import epoch
from holdfast.node.sync.connection import BrokerConnection
from holdfast.node.sync.effects import BrokerCall, Send, StoreWork
from holdfast.node.sync.http_side import BrokerRequests
from holdfast.node.sync.mesh_conversation import MeshConversation
from holdfast.node.sync.status import BrokerStatusTracker
from holdfast.node.sync.waiting import WaitingBytes
from holdfast.protocol.frames import (
    Acks,
    Entries,
    Follow,
    FromNode,
    MeshPosition,
    PushAnswer,
    SnapshotNeeded,
    WireError,
)
from holdfast.rules.broker_rows import DestinationRow, FeedRow
from holdfast.rules.envelope import UNCOUNTED
from holdfast.rules.errors import BadAnswer, DiskFull, HoldfastError, NotGranted, Unreachable
from holdfast.rules.ids import id_text
from holdfast.rules.limits import HOUR_MS
from holdfast.rules.outbox import lane_of
from holdfast.rules.rows import KnownMember
from support.envelopes import MESH, state_set
from support.nodes import Nodes, team
from support.source import HandClock
from support.sync_wire import Brokerage, Laptop, now

LANE = lane_of(MESH)


@pytest.fixture
def broker(tmp_path: Path, clock: HandClock) -> Iterator[Brokerage]:
    made = Brokerage(tmp_path / "broker", clock)
    yield made
    made.close()


@pytest.fixture
def ana(nodes: Nodes, broker: Brokerage, tmp_path: Path) -> Laptop:
    laptop = Laptop(nodes.open("ana"), broker, tmp_path / "ana")
    laptop.share()
    return laptop


def states(laptop: Laptop) -> dict[str, int]:
    counts = laptop.engine.read("test", lambda tx: tx.outbox_counts())
    return {state: count for (_, state), count in counts.items() if count}


# --- epochs --------------------------------------------------------------------------------------


def test_D6_a_broker_that_fell_into_an_older_epoch_is_not_pushed_at_without_end(
    ana: Laptop, broker: Brokerage
) -> None:
    now(broker.store.new_epoch(MESH, "test", broker.clock.now_ms()))
    ana.change(broker_epoch=2)
    ana.connect()
    ana.settle()
    team(ana.node).state.set("a", 1)
    assert ana.push()
    (number,) = ana.sync.meshes[MESH].inflight
    no = PushAnswer(number, 409, problem=WireError("epoch_mismatch", "no"))
    told = ana.sync.on_acks(Acks(MESH, 1, [no]))
    assert told.frames == [Follow(MESH, 0, 0)]  # where does it stand?
    assert not ana.push()
    assert not ana.sync.look_for_due(MESH).now


def test_D6_a_new_epoch_that_is_taken_up_ends_the_wait(ana: Laptop, broker: Brokerage) -> None:
    ana.connect()
    ana.settle()
    now(broker.store.new_epoch(MESH, "test", broker.clock.now_ms()))
    team(ana.node).state.set("a", 1)
    ana.settle()  # no clock moves here
    assert states(ana) == {"done": 1}


def test_D6_an_answer_that_comes_while_the_epoch_is_left_is_not_believed(
    ana: Laptop, broker: Brokerage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker answered, went back in time, and says so, all on one connection. What it lost is
    being put back while its answer is stored by another thread.
    """
    ana.connect()
    ana.settle()
    team(ana.node).state.set("a", 1)
    assert ana.push()
    (number,) = ana.sync.meshes[MESH].inflight
    put_back = epoch.put_back

    def answered_meanwhile(*args: Any) -> int:
        count = put_back(*args)
        ana.sync.on_acks(Acks(MESH, 1, [PushAnswer(number, 201, seq=1, message_epoch=1)]))
        return count

    monkeypatch.setattr(epoch, "put_back", answered_meanwhile)
    mesh = broker.mesh()
    place = MeshPosition(
        MESH,
        mesh.server_id,
        2,
        0,
        1,
        0,
        ("read",),
        ((1, 0), (2, 0)),  # all of epoch 1 is gone
    )
    epoch.take_up(ana.engine, ana.sync.meshes[MESH], place, 48)
    assert states(ana) == {"pending": 1}


def test_D6_a_message_that_the_broker_may_have_had_and_forgotten_is_not_put_back(
    ana: Laptop, broker: Brokerage, clock: HandClock
) -> None:
    """It went back to a copy from before our epoch: nobody knows what of it came again since."""
    topic = DestinationRow(kind="topic", ref="news", made_at=clock.now_ms())
    now(broker.store.destination_put(MESH, topic))
    ana.connect()
    ana.settle()
    team(ana.node).send("old", topic="news")
    team(ana.node).state.set("a", 1)
    ana.settle()
    clock.advance(47 * HOUR_MS)
    young = team(ana.node).send("young", topic="news")
    ana.settle()
    assert states(ana) == {"done": 3}
    ana.change(broker_epoch=2)
    clock.advance(2 * HOUR_MS)
    epochs = ((1, 0), (3, 0))
    place = MeshPosition(MESH, broker.mesh().server_id, 3, 0, 1, 0, ("read",), epochs)
    epoch.take_up(ana.engine, ana.sync.meshes[MESH], place, 48)
    waiting = ana.engine.read("test", lambda tx: tx.outbox_list(LANE, ("pending",), 0, 10))
    assert [row.entity for row in waiting if row.entity] == ["state//a"], "known by its id"
    assert [id_text(row.id) for row in waiting if not row.entity] == [young.id]


# --- meshes that come and go ---------------------------------------------------------------------


def test_D14_a_mesh_that_was_left_and_shared_anew_between_two_looks_is_the_new_one(
    ana: Laptop,
) -> None:
    ana.connect()
    ana.settle()
    ana.change(server_id="server-2", broker_seq=0)
    assert ana.sync.look() == [Follow(MESH, 0, 0)]
    assert ana.sync.meshes[MESH].server_id == "server-2"


# --- one mesh among others -----------------------------------------------------------------------


class Poisoned(BrokerRequests):
    """A broker whose snapshot of the mesh cannot be read."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked: list[str] = []

    def finish_join(self, mesh: str) -> None:
        self.asked.append("join")

    def take_snapshot(self, mesh: str) -> bool:
        self.asked.append("snapshot")
        raise self.error

    def keep_snapshot(self, mesh: str) -> None:
        self.asked.append("keep")
        raise self.error

    def members(self, mesh: str) -> list[KnownMember]:
        return []


class Unfinished(Poisoned):
    """The same, met while joining."""

    def finish_join(self, mesh: str) -> None:
        self.asked.append("join")
        raise self.error


def taken(ana: Laptop, calls: Poisoned, frames: Sequence[Any]) -> list[FromNode]:
    """What the node says while it takes these frames; raises what ends its connection."""
    talk = MeshConversation(
        ana.sync, MESH, lambda: 0, look_ms=1000, push_items=1, waiting=WaitingBytes()
    )
    talk.closing = True  # nothing is pushed
    said: list[FromNode] = []
    effects = deque(talk.begin())
    for frame in frames:
        effects.extend(talk.on_frame(frame, 100))
    while effects:
        effect = effects.popleft()
        result = None
        try:
            if isinstance(effect, StoreWork):
                result = effect.run(ana.sync)
            elif isinstance(effect, BrokerCall):
                result = effect.run(calls)
        except HoldfastError as error:
            effects.extend(talk.failed(effect, error))
            continue
        if isinstance(effect, Send):
            said.extend(effect.frames)
        elif effect.mesh:
            effects.extend(talk.done(effect, result))
    return said


def test_D13_a_snapshot_that_cannot_be_read_stops_its_mesh_and_not_the_connection(
    ana: Laptop,
) -> None:
    ana.connect()
    ana.settle()
    calls = Poisoned(BadAnswer("a part of the snapshot cannot be read"))
    taken(ana, calls, [SnapshotNeeded(MESH, 9, "snap", 8)])
    mesh = ana.sync.meshes[MESH]
    assert "snapshot" in calls.asked
    assert mesh.trouble is not None
    assert mesh.trouble.code == "bad_answer"
    assert ana.sync.retry() == [Follow(MESH, 0, 0)]


def test_D13_a_join_whose_snapshot_cannot_be_read_is_tried_again_later(ana: Laptop) -> None:
    ana.connect()
    ana.settle()
    calls = Unfinished(BadAnswer("a part of the snapshot cannot be read"))
    taken(ana, calls, [Entries(MESH, 1, 0, 1, [], 1)])
    assert ana.sync.meshes[MESH].trouble is not None
    taken(ana, calls, [SnapshotNeeded(MESH, 9, "", 0)])
    assert calls.asked.count("join") >= 3


def test_D6_a_snapshot_that_may_not_be_made_again_does_not_end_the_connection(
    ana: Laptop,
) -> None:
    ana.connect()
    ana.settle()
    ana.sync.meshes[MESH].went_back = True
    calls = Poisoned(NotGranted("no relay"))
    taken(ana, calls, [Entries(MESH, 1, 0, 1, [], 1)])
    assert calls.asked == ["join", "keep"]
    assert ana.row.broker_seq == 1


# --- what was set aside --------------------------------------------------------------------------


def test_D13_what_was_set_aside_does_not_get_into_another_mesh_by_a_second_try(
    ana: Laptop, broker: Brokerage
) -> None:
    ana.node.mesh("private", create=True)
    ana.connect()
    ana.settle()
    raw = state_set("k", 1, origin="mallory", mesh="private")
    row = FeedRow(1, "change", b"b" * 16, raw)
    ana.take(Entries(MESH, 1, 0, 1, [row], 1))
    links = Links(ana.engine, ana.trust)
    links.retry_quarantined(LANE)
    assert len(links.quarantine(LANE)) == 1
    assert list(ana.node.mesh("private").state.list()) == []


def test_D13_what_we_wrote_and_somebody_told_again_is_ours(ana: Laptop) -> None:
    """After a restore: the log of whoever brings it had forgotten the envelope that we made."""
    ana.connect()
    ana.settle()
    raw = state_set("k", 1, origin="ana", epoch=UNCOUNTED)
    ana.take(Entries(MESH, 1, 0, 1, [FeedRow(1, "change", b"b" * 16, raw)], 1))
    assert [entry.key for entry in team(ana.node).state.list()] == ["k"]


def delays(ana: Laptop, *errors: Exception, good: bool = False) -> list[int]:
    """How long it is waited after each, of connections that each began well; `good`: something
    came of each.
    """

    async def main(threads: ThreadPoolExecutor) -> list[int]:
        tracker = BrokerStatusTracker(ana.sync.broker, ana.engine.ctx.now_ms, lambda unit: None)
        link = BrokerConnection(
            *(ana.engine, ana.trust, ana.sync.broker, tracker),
            threads=threads,
            chance=lambda: 0.99,
        )
        found = []
        for error in errors:
            tracker.connected()
            link._progressed = good
            tracker.failed(link.plan(error, tracker.attempts, 0.99), error)
            retry_at = tracker.supervision.retry_at
            assert retry_at is not None
            found.append(retry_at - ana.engine.ctx.now_ms())
        return found

    with ThreadPoolExecutor(1) as threads:
        return asyncio.run(main(threads))


def test_D14_a_broker_that_greets_and_then_refuses_is_asked_less_and_less_often(
    ana: Laptop,
) -> None:
    """As one that is full, and would be sent the same large object again at once."""
    waited = delays(ana, *[DiskFull("the broker's disk is full")] * 4)
    assert waited == sorted(set(waited))


def test_D14_a_broker_that_is_restarted_is_found_again_at_once(ana: Laptop) -> None:
    assert len(set(delays(ana, *[Unreachable("gone")] * 4, good=True))) == 1


def test_D14_a_broker_that_greets_and_then_hangs_up_is_tried_less_and_less_often(
    ana: Laptop,
) -> None:
    """That it opened the connection is no reason to come back at once: nothing came of it."""
    waited = delays(ana, *[Unreachable("gone")] * 4)
    assert waited == sorted(set(waited))
