"""Two members under one id, through a broker; and what a node says aloud about its answers."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import pytest

from holdfast.protocol.frames import Acks, PushAnswer, WireError
from holdfast.rules.broker_rows import DestinationRow
from holdfast.rules.envelope import decode
from holdfast.rules.limits import HOUR_MS, OUTBOX_ATTEMPTS_MAX
from holdfast.rules.outbox import lane_of
from support.envelopes import MESH
from support.nodes import Nodes, team
from support.source import HandClock
from support.sync_wire import Brokerage, Laptop, now, settle

LANE = lane_of(MESH)
ID = "0197f2a0-0000-7000-8000-000000000001"
NEWS = "news"


class Trio:
    """Three members that get a topic."""

    def __init__(self, nodes: Nodes, folder: Path, clock: HandClock) -> None:
        self.broker = Brokerage(folder / "broker", clock)
        ana, bob, cyd = (
            Laptop(nodes.open(name), self.broker, folder / name) for name in ("ana", "bob", "cyd")
        )
        self.ana, self.bob, self.cyd = self.all = ana, bob, cyd
        ana.share()
        bob.join()
        cyd.join()
        made = DestinationRow(kind="topic", ref=NEWS, made_at=clock.now_ms())
        now(self.broker.store.destination_put(MESH, made))
        for laptop in self.all:
            now(self.broker.store.subscribe(MESH, laptop.key, NEWS))


@pytest.fixture
def trio(nodes: Nodes, tmp_path: Path, clock: HandClock) -> Iterator[Trio]:
    made = Trio(nodes, tmp_path, clock)
    yield made
    made.broker.close()


def quarantined(laptop: Laptop) -> int:
    return laptop.engine.read("test", lambda tx: tx.quarantine_count(LANE))


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_D4_of_two_members_under_one_id_one_is_accepted_and_reaches_everybody(
    trio: Trio, order: tuple[int, int, int]
) -> None:
    """Whoever is first, and whether the other hears of it before its own answer or after: the
    accepted one arrives at all the others, the refused one has its reason, and nothing lies in a
    quarantine.
    """
    team(trio.ana.node).send("ana's", topic=NEWS, id=ID)
    team(trio.bob.node).send("bob's", topic=NEWS, id=ID)
    for at in order:
        trio.all[at].connect()
        trio.all[at].settle()
    settle(*trio.all)
    first, second = (trio.all[at] for at in order if at < 2)
    said = f"{first.node.peer}'s".encode()
    assert second.node.inbox.get(ID).content == said
    assert trio.cyd.node.inbox.get(ID).content == said
    assert first.node.inbox.counts() == (0, 0)
    assert [quarantined(laptop) for laptop in trio.all] == [0, 0, 0]
    (item,) = second.node.outbox.list(failed=True)
    assert (item.code, item.sent_as) == ("idempotency_key_reused", ID)
    assert first.node.outbox.get(ID).state == "done"
    new = second.node.outbox.requeue(item.id)
    settle(*trio.all)
    assert first.node.inbox.get(new.id).content == f"{second.node.peer}'s".encode()


def test_D4_a_send_that_the_broker_refused_is_corrected_under_its_key(trio: Trio) -> None:
    for laptop in trio.all:
        laptop.connect()
    wrong = team(trio.ana.node).send("hello", topic="nwes", id="order-4711")
    trio.ana.push()
    (number,) = trio.ana.sync.meshes[MESH].inflight
    problem = WireError("bad_input", "no such thing")
    trio.ana.sync.on_acks(Acks(MESH, 1, [PushAnswer(number, 400, problem=problem)]))
    right = team(trio.ana.node).send("hello", topic=NEWS, id="order-4711")
    assert right.id == wrong.id
    settle(*trio.all)
    assert trio.bob.node.inbox.get(right.id).text == "hello"
    assert trio.ana.node.outbox.get(right.id).state == "done"


# --- said aloud ----------------------------------------------------------------------------------


def test_D2_a_conflict_is_said_aloud_with_both_fingerprints_and_no_content(
    trio: Trio, caplog: pytest.LogCaptureFixture
) -> None:
    for node in (trio.ana.node, trio.bob.node):
        team(node).send(f"secret of {node.peer}", topic=NEWS, id=ID)
    marks = [decode(next(laptop.node.log.range(1)).raw).fingerprint for laptop in trio.all[:2]]
    with caplog.at_level(logging.WARNING, "holdfast"):
        for laptop in (trio.ana, trio.bob):
            laptop.connect()
            laptop.settle()
    (said,) = [text for line in caplog.records if "refused for good" in (text := line.getMessage())]
    assert all(mark[:8].hex() in said for mark in marks)
    assert "secret" not in said
    assert trio.bob.node.outbox.get(ID).id in said or ID in said


def test_D16_what_the_broker_had_already_is_told_and_counted(
    trio: Trio, caplog: pytest.LogCaptureFixture
) -> None:
    ana = trio.ana
    ana.connect()
    for text in ("one", "two"):
        team(ana.node).send(text, topic=NEWS)
    ana.push()
    mesh = ana.sync.meshes[MESH]
    one, two = list(mesh.inflight)
    answers = [
        PushAnswer(one, 200, 1, 1, b"B" * 16, True, 5),
        PushAnswer(two, 200, 1, 2, b"C" * 16, False, 5),
    ]
    with caplog.at_level(logging.INFO, "holdfast"):
        ana.sync.on_acks(Acks(MESH, 1, answers))
    told = [(line.levelname, line.getMessage()) for line in caplog.records]
    assert [level for level, _ in told] == ["WARNING", "INFO"]
    assert "holds it no longer" in told[0][1]
    assert (mesh.pushed, mesh.pruned) == (2, 1)
    assert [item.state for item in ana.node.outbox.list()] == ["done", "done"]


def test_D11_every_row_that_dies_is_an_event_whatever_it_dies_of(
    trio: Trio, clock: HandClock
) -> None:
    ana = trio.ana
    old = team(ana.node).send("too old", topic=NEWS)
    clock.advance(30 * 24 * HOUR_MS)
    ana.connect()  # it learns how long the broker remembers ids, and gives up what is older
    assert [row.code for row in ana.died] == ["outbox_expired"]
    for number in range(3):
        team(ana.node).send(f"bad {number}", topic=NEWS)
    ana.push()
    problem = WireError("bad_input", "no")
    numbers = list(ana.sync.meshes[MESH].inflight)
    ana.sync.on_acks(Acks(MESH, 1, [PushAnswer(n, 400, problem=problem) for n in numbers]))
    assert [row.code for row in ana.died] == ["outbox_expired", *["bad_input"] * 3]
    assert len({row.id for row in ana.died}) == 4
    team(ana.node).send("worn out", topic=NEWS)
    for _ in range(OUTBOX_ATTEMPTS_MAX):
        clock.advance(HOUR_MS)
        ana.push()
        (number,) = ana.sync.meshes[MESH].inflight
        later = WireError("unknown_destination", "no")
        ana.sync.on_acks(Acks(MESH, 1, [PushAnswer(number, 404, problem=later)]))
    assert [row.code for row in ana.died][4:] == ["unknown_destination"], "once, when it is dead"
    assert ana.node.outbox.get(old.id).state == "dead"
