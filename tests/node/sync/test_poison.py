"""A row that the broker fails at: real stores, a real broker's session, and a fault at one row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.broker.effects import Accept
from holdfast.broker.session import BrokerInfo
from holdfast.broker.verdicts import Outcome
from holdfast.node.messages.send import prepare
from holdfast.protocol.frames import Push
from holdfast.rules.errors import OutcomeUnknown, Unreachable
from holdfast.rules.limits import OUTBOX_ATTEMPTS_MAX
from holdfast.rules.outbox import FAILS_ALONE, Policy, lane_of
from holdfast.rules.rows import OutboxRow
from support.envelopes import MESH
from support.nodes import Nodes, team
from support.source import HandClock
from support.sync_wire import SEED, Brokerage, BrokerEnd, Laptop

LANE = lane_of(MESH)
POISON = "poison"
HOWS = ("fails", "hangs up")


class FailingEnd(BrokerEnd):
    """Answers 5xx to every group in which there is a poisoned row; or to all."""

    down = False

    def _accept(self, accept: Accept) -> Sequence[Outcome]:
        poisoned = any(POISON.encode() in one.raw for one in accept.slice.good)
        if self.down or poisoned:
            return [OutcomeUnknown("something went wrong")] * len(accept.slice.good)
        return super()._accept(accept)


class Line:
    """A node that connects anew whenever its broker hangs up."""

    def __init__(self, ana: Laptop, how: str) -> None:
        self.ana, self.how, self.down = ana, how, False
        self._connect()

    def _connect(self) -> None:
        broker = self.ana.broker
        end = FailingEnd(broker, BrokerInfo(name="hub", seed=SEED, supported=broker.supported))
        self.ana.connect(end)
        while self.ana.speak() or self.ana.listen():
            pass

    def turn(self) -> None:
        """What is due is pushed, and answered; then time passes."""
        ana = self.ana
        assert isinstance(ana.talk, FailingEnd)
        ana.talk.down = self.down
        if ana.push():
            push = ana.to_broker[-1]
            assert isinstance(push, Push)
            poisoned = any(POISON.encode() in item.raw for item in push.items)
            if self.how == "hangs up" and (self.down or poisoned):
                ana.to_broker.clear()
                ana.sync.dropped(Unreachable("the broker hung up (1011)"))
                self._connect()
        while ana.speak() or ana.listen():
            pass
        ana.broker.clock.advance(40_000)

    def rows(self) -> dict[str, OutboxRow]:
        """By key."""
        found = self.ana.engine.read("test", lambda tx: tx.outbox_list(LANE, (), 0, 999))
        return {row.entity.rpartition("/")[2] or f"message {row.number}": row for row in found}

    def done(self) -> set[str]:
        return {key for key, row in self.rows().items() if row.state == "done"}


@pytest.fixture(params=HOWS)
def line(request: pytest.FixtureRequest, nodes: Nodes, clock: HandClock, tmp_path: Path) -> Line:
    return made(nodes, clock, tmp_path, str(request.param))


def made(
    nodes: Nodes, clock: HandClock, folder: Path, how: str, policy: Policy = Policy.PARK
) -> Line:
    broker = Brokerage(folder / "broker", clock)
    ana = Laptop(nodes.open("ana"), broker, folder / "ana", policy=policy)
    ana.share()
    return Line(ana, how)


def test_D12_one_poisoned_row_holds_up_nothing_and_ends_dead(line: Line) -> None:
    state = team(line.ana.node).state
    for number in range(40):
        state.set(f"k{number}", POISON if number == 17 else number)
    state.set("k17", "later")
    good = {f"k{number}" for number in range(40)} - {"k17"}
    for _ in range(30):
        line.turn()
    assert line.done() == good
    for number in range(40, 70):  # somebody goes on working
        state.set(f"k{number}", number)
        good.add(f"k{number}")
        line.turn()
        line.turn()
    assert line.done() == good
    rows = line.ana.engine.read("test", lambda tx: tx.outbox_list(LANE, (), 0, 999))
    dead, later = [row for row in rows if row.entity.endswith("k17")]
    assert (dead.state, dead.attempts, dead.code) == ("dead", OUTBOX_ATTEMPTS_MAX, FAILS_ALONE)
    assert ("outcome_unknown" if line.how == "fails" else "1011") in dead.error
    assert (later.state, later.attempts) == ("pending", 0), "it must not overtake what it changes"
    assert all(row.attempts == 0 for row in rows if row is not dead)


def test_D12_a_broker_that_fails_at_everything_costs_no_row_an_attempt(line: Line) -> None:
    state = team(line.ana.node).state
    for number in range(10):
        state.set(f"k{number}", number)
    line.turn()
    assert len(line.done()) == 10
    for number in range(10, 20):
        state.set(f"k{number}", number)
    line.down = True
    for _ in range(60):
        line.turn()
    assert all(row.attempts == 0 for row in line.rows().values())
    line.down = False
    for _ in range(30):
        line.turn()
    assert len(line.done()) == 20
    assert all(row.attempts == 0 for row in line.rows().values())


def test_D12_a_poisoned_row_that_is_alone_waits_for_others_to_judge_it(line: Line) -> None:
    """Nobody can tell whether it is the row or the broker; it is tried on and on."""
    engine = line.ana.engine
    engine.write("message.send", prepare(engine, MESH, "topic", "news", POISON))
    for _ in range(20):
        line.turn()
    (row,) = line.rows().values()
    assert (row.state, row.attempts) == ("pending", 0)
    assert line.ana.sync.meshes[MESH].trial.suspects.keys() == {row.number}


def test_D12_a_lane_that_halts_waits_for_its_poisoned_row(
    nodes: Nodes, clock: HandClock, tmp_path: Path
) -> None:
    line = made(nodes, clock, tmp_path, "fails", Policy.HALT)
    state = team(line.ana.node).state
    for number in range(10):
        state.set(f"k{number}", POISON if number == 4 else number)
    for _ in range(40):
        line.turn()
    assert line.done() == {"k0", "k1", "k2", "k3"}
    assert all(row.attempts == 0 for row in line.rows().values())


def test_D12_an_operator_who_drops_what_is_set_aside_is_heeded(line: Line) -> None:
    state = team(line.ana.node).state
    for number in range(6):
        state.set(f"k{number}", POISON if number == 2 else number)
    for _ in range(12):
        line.turn()
    suspect = line.rows()["k2"]
    assert line.ana.sync.meshes[MESH].trial.suspects.keys() == {suspect.number}
    line.ana.node.outbox.drop(str(suspect.id.hex()))
    state.set("another", 1)
    for _ in range(4):
        line.turn()
    assert line.ana.sync.meshes[MESH].trial.suspects == {}
    assert "another" in line.done()
    assert line.rows()["k2"].state == "aborted"
