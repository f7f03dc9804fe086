"""The decisions of a conversation: what is begun when, what waits for what, and what ends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.node.sync.effects import (
    Close,
    DecodePage,
    Effect,
    FinishJoin,
    KeepMembers,
    NoteActive,
    PushDue,
    ReadMembers,
    StoreAcks,
    StoreFrame,
    StorePage,
    StoreUrgent,
    UploadSnapshot,
)
from holdfast.node.sync.mesh_conversation import FRAMES_MAX
from holdfast.protocol.frames import (
    Acks,
    Confirmed,
    Entries,
    MeshMoved,
    MeshPosition,
    Push,
    PushAnswer,
    SnapshotNeeded,
    SnapshotWanted,
    Urgent,
    encode_frame,
)
from holdfast.rules.broker_rows import FeedRow
from holdfast.rules.errors import BadAnswer, DiskFull, Unreachable
from holdfast.rules.limits import (
    HELLO_MS_MAX,
    SEQ_MAX,
    SYNC_ANSWER_MS_MAX,
    SYNC_CLOSE_MS_MAX,
    SYNC_SNAPSHOT_MS,
    SYNC_TURN_MS,
    SYNC_TURNS_MAX,
)
from support.effects import HeldLine
from support.envelopes import MESH, state_set
from support.nodes import Nodes, team
from support.source import HandClock
from support.sync_wire import Brokerage, Laptop


@pytest.fixture
def ana(nodes: Nodes, clock: HandClock, tmp_path: Path) -> Laptop:
    laptop = Laptop(nodes.open("ana"), Brokerage(tmp_path / "broker", clock), tmp_path / "ana")
    laptop.share()
    return laptop


@pytest.fixture
def line(ana: Laptop) -> HeldLine:
    made = HeldLine(ana)
    made.open()
    return made


def page(seq: int, *, epoch: int = 1) -> Entries:
    row = FeedRow(seq, "change", bytes([seq]) * 16, state_set(f"k{seq}", seq))
    return Entries(MESH, epoch, seq - 1, seq, [row], seq)


def answers(*numbers: int, epoch: int = 1) -> Acks:
    found = [PushAnswer(number, 201, epoch, number, bytes(16), True, 0) for number in numbers]
    return Acks(MESH, epoch, found)


def pushed(line: HeldLine, *keys: str) -> list[int]:
    """Writes something and pushes it; returns the numbers of the rows."""
    for key in keys:
        team(line.laptop.node).state.set(key, 1)
    line.driver.feed(line.talk.wake)
    line.finish(PushDue)
    push = line.sent.pop()
    assert isinstance(push, Push)
    return [item.number for item in push.items]


# --- order ---------------------------------------------------------------------------------------


def test_D2_nothing_is_sent_before_its_rows_are_marked_as_in_flight(line: HeldLine) -> None:
    team(line.laptop.node).state.set("a", 1)
    line.driver.feed(line.talk.wake)
    line.driver.feed(line.talk.wake)
    assert line.kinds == ["PushDue"], "one push at a time"
    assert line.sent == []
    line.finish(PushDue)
    assert [type(frame) for frame in line.sent] == [Push]


def test_D6_a_page_is_confirmed_when_it_is_stored_and_not_before(line: HeldLine) -> None:
    line.hear(page(1))
    line.finish(DecodePage)
    assert line.sent == []
    line.finish(StorePage)
    assert line.sent == [Confirmed(MESH, 1, 1)]
    assert line.laptop.row.broker_seq == 1


def test_D6_a_page_that_could_not_be_stored_ends_the_connection_unconfirmed(
    line: HeldLine,
) -> None:
    line.hear(page(1))
    line.finish(DecodePage)
    line.finish(StorePage, DiskFull("no room"))
    assert line.closed is not None
    assert isinstance(line.closed.error, DiskFull)
    assert line.sent == []


def test_D6_pages_that_wait_and_follow_each_other_are_stored_together(line: HeldLine) -> None:
    line.hear(page(1), page(2), page(3), page(5))
    line.finish(DecodePage)
    assert line.kinds == ["StorePage"], "one page at a time"
    line.finish(StorePage)
    both = line.finish(DecodePage).entries
    assert (both.after, both.to, len(both.rows)) == (1, 3, 2), "and not what comes behind a gap"


def test_D12_answers_that_wait_are_stored_together_but_not_those_of_two_epochs(
    line: HeldLine,
) -> None:
    first, second, third = pushed(line, "a", "b", "c")
    line.hear(answers(first))
    line.hear(answers(second), answers(third), answers(third, epoch=2))
    line.finish(StoreAcks)
    together = line.finish(StoreAcks).acks
    assert [answer.number for answer in together.answers] == [second, third]
    assert line.finish(StoreAcks).acks.epoch == 2


def test_D13_a_push_and_an_answer_wait_for_no_page_and_no_snapshot(line: HeldLine) -> None:
    line.hear(SnapshotNeeded(MESH, 9, "snapshot", 8))
    line.finish(StoreFrame)
    assert line.kinds == ["FinishJoin"] or line.kinds == ["TakeSnapshot"]
    (number,) = pushed(line, "a")
    line.hear(answers(number), Urgent(MESH, []))
    line.finish(StoreUrgent)
    line.finish(StoreAcks)
    assert line.kinds == ["TakeSnapshot"]


def test_D14_a_list_of_members_that_cannot_be_read_ends_nothing(line: HeldLine) -> None:
    line.driver.feed(line.talk._meshes[MESH].read_members)
    line.finish(ReadMembers, Unreachable("gone"))
    line.driver.feed(line.talk._meshes[MESH].read_members)
    line.finish(ReadMembers)
    line.finish(KeepMembers, DiskFull("no room"))
    assert line.closed is None


# --- time ----------------------------------------------------------------------------------------


def test_D14_a_broker_that_owes_an_answer_for_too_long_is_left(line: HeldLine) -> None:
    line.after(SYNC_ANSWER_MS_MAX)
    assert line.closed is None, "it owes nothing"
    (number,) = pushed(line, "a")
    assert line.wakes_at is not None
    assert line.wakes_at <= line.ticks + SYNC_ANSWER_MS_MAX
    line.after(SYNC_ANSWER_MS_MAX - 1)
    assert line.closed is None
    line.hear(answers(number))
    line.after(1)
    assert line.closed is None, "it has come, and is being stored"
    line.finish(StoreAcks)
    pushed(line, "b")
    line.after(SYNC_ANSWER_MS_MAX)
    assert line.closed is not None
    assert isinstance(line.closed.error, Unreachable)


def test_D14_a_broker_owes_no_answer_to_rows_that_are_marked_and_not_sent(line: HeldLine) -> None:
    """A thread marks rows as in flight; the conversation hears of it a moment later."""
    line.after(2 * SYNC_ANSWER_MS_MAX)
    team(line.laptop.node).state.set("a", 1)
    line.driver.feed(line.talk.wake)
    pushed_now = line.work(PushDue)
    line.after(1)
    assert line.closed is None, "nothing was sent yet"
    pushed_now()
    assert isinstance(line.sent.pop(), Push)
    line.after(SYNC_ANSWER_MS_MAX - 1)
    assert line.closed is None
    line.after(1)
    assert line.closed is not None


def test_D14_a_broker_that_does_not_say_hello_is_left(ana: Laptop) -> None:
    line = HeldLine(ana)
    line.driver.begin()
    assert line.wakes_at == HELLO_MS_MAX
    line.after(HELLO_MS_MAX)
    assert line.closed is not None
    assert isinstance(line.closed.error, Unreachable)


def test_D14_a_node_that_stops_waits_for_answers_a_moment_and_no_longer(line: HeldLine) -> None:
    (number,) = pushed(line, "a")
    team(line.laptop.node).state.set("b", 1)
    line.driver.feed(line.talk.stop)
    line.driver.feed(line.talk.wake)
    assert line.closed is None
    assert line.kinds == [], "nothing more is pushed"
    line.hear(answers(number))
    line.finish(StoreAcks)
    assert line.closed == Close(code=1001)


def test_D14_a_node_that_gets_no_answer_stops_all_the_same(line: HeldLine) -> None:
    pushed(line, "a")
    line.driver.feed(line.talk.stop)
    line.after(SYNC_CLOSE_MS_MAX)
    assert line.closed == Close(code=1001)


# --- a broker that is not honest -----------------------------------------------------------------


def test_D15_a_broker_that_sends_more_than_was_asked_for_is_left(line: HeldLine) -> None:
    line.hear(*(page(2 * n + 1) for n in range(FRAMES_MAX + 1)))
    assert line.closed is None
    line.hear(page(99))
    assert line.closed is not None
    assert isinstance(line.closed.error, BadAnswer)


def test_D15_urgent_messages_beyond_the_limit_are_left_to_their_pages(line: HeldLine) -> None:
    line.hear(*[Urgent(MESH, [])] * (2 * FRAMES_MAX))
    assert line.closed is None
    for _ in range(FRAMES_MAX + 1):
        line.finish(StoreUrgent)
    assert line.kinds == []


def test_D15_what_waits_is_counted_in_bytes_and_reading_stops(ana: Laptop) -> None:
    """Frames of every kind; and what was taken counts until it is stored."""
    line = HeldLine(ana, waiting_bytes=1000)
    line.open()
    for seq in range(1, 9):
        line.hear(page(seq))
        if line.held_back:
            break
    assert line.held_back, "however few frames they are"
    waits = sum(len(encode_frame(page(n))) for n in range(1, seq + 1))
    assert 1000 < waits < 1000 + 2 * len(encode_frame(page(seq)))
    line.finish(DecodePage)
    assert line.held_back, "the first page is not stored yet"
    line.finish(StorePage)
    assert not line.held_back
    line.finish(DecodePage)
    line.finish(StorePage)
    assert line.talk._waiting.bytes == 0
    for frame in (Urgent(MESH, page(30).rows * 9), answers(*range(70, 170))):
        line.hear(frame)
        assert line.held_back
        line.finish(StoreUrgent if isinstance(frame, Urgent) else StoreAcks)
        assert not line.held_back
    assert line.talk._waiting.bytes == 0


def test_D15_an_answer_that_was_not_read_yet_is_not_late(ana: Laptop) -> None:
    line = HeldLine(ana, waiting_bytes=100)
    line.open()
    (number,) = pushed(line, "a")
    line.hear(page(1))
    assert line.held_back
    line.after(2 * SYNC_ANSWER_MS_MAX)
    assert line.closed is None, "it may be among what waits on the line"
    line.finish(DecodePage)
    line.finish(StorePage)
    line.after(SYNC_ANSWER_MS_MAX - 1)
    assert line.closed is None
    line.after(1)
    assert line.closed is not None
    assert number


def test_D15_answers_about_rows_that_are_not_ours_are_none(line: HeldLine) -> None:
    pushed(line, "a")
    line.after(SYNC_ANSWER_MS_MAX // 2)
    line.hear(answers(998, 999))
    line.finish(StoreAcks)
    line.after(SYNC_ANSWER_MS_MAX // 2)
    assert line.closed is not None
    assert isinstance(line.closed.error, Unreachable)
    assert not line.talk.progressed


def test_D15_a_broker_that_sends_a_node_round_in_circles_is_left(line: HeldLine) -> None:
    """Each time the mesh stands elsewhere, so it is asked for again, and stands elsewhere."""
    place = MeshPosition(MESH, "server", 1, 0, 1, 0, ("read", "write"))
    for _ in range(SYNC_TURNS_MAX):
        line.hear(MeshMoved(place))
        line.finish(StoreFrame)
        if "FinishJoin" in line.kinds:
            line.finish(FinishJoin)
    assert line.closed is None
    line.after(SYNC_TURN_MS)
    line.hear(MeshMoved(place))
    line.finish(StoreFrame)
    assert line.closed is None, "with time there may be another"
    line.hear(MeshMoved(place))
    assert line.closed is not None
    assert isinstance(line.closed.error, BadAnswer)
    assert not line.talk.progressed


def test_D15_a_broker_gets_no_snapshot_after_the_other(ana: Laptop) -> None:
    line = HeldLine(ana)
    line.open()
    line.hear(SnapshotWanted(MESH), SnapshotWanted(MESH))
    line.finish(UploadSnapshot, Unreachable("the line broke"))
    line.hear(SnapshotWanted(MESH))
    assert line.kinds == []
    again = HeldLine(ana)
    again.ticks = line.ticks + SYNC_SNAPSHOT_MS - 1
    again.open()
    again.hear(SnapshotWanted(MESH))
    assert again.kinds == [], "nor on the next connection"
    again.ticks += 1
    again.hear(SnapshotWanted(MESH))
    assert again.kinds == ["UploadSnapshot"]


def test_D15_a_broker_that_names_an_epoch_far_away_is_not_followed_there(line: HeldLine) -> None:
    """Nothing of that many epochs is looked through, and the cursor stays where it was."""
    ana = line.laptop
    for epochs in ((), ((1, 0), (5_000_000, 0))):
        server_id = ana.row.server_id or ""
        place = MeshPosition(MESH, server_id, 5_000_000, 0, 1, 0, ("read",), epochs)
        line.hear(MeshMoved(place))
        line.finish(StoreFrame)
        assert line.closed is None, "other meshes go on"
        trouble = ana.sync.meshes[MESH].trouble
        assert trouble is not None
        assert trouble.code == "epoch_mismatch"
        assert ana.row.broker_epoch == 1


@pytest.mark.parametrize("seq", [SEQ_MAX + 1, 2**63, 2**64 - 1, -1])
def test_D15_a_number_that_no_store_can_hold_is_refused_where_it_comes_in(
    line: HeldLine, seq: int
) -> None:
    number, *_ = pushed(line, "a")
    for frame in (
        Entries(MESH, 1, 0, seq, [], seq),
        Entries(MESH, 1, 0, 1, [], seq),
        Acks(MESH, 1, [PushAnswer(number, 201, 1, seq, bytes(16))]),
        MeshMoved(MeshPosition(MESH, "server", 1, 0, 1, seq, ())),
        SnapshotNeeded(MESH, 1, "s", seq),
    ):
        with pytest.raises(BadAnswer, match="cannot be read"):
            line.talk.on_frame(encode_frame(frame))


# --- the driver ----------------------------------------------------------------------------------


def test_R1_an_effect_that_ends_at_once_does_not_overtake_those_that_wait(line: HeldLine) -> None:
    """A commit wakes the node while it is carrying something out."""
    begun: list[Effect] = []
    begin = line.begin

    def note(effect: Effect, ended: object) -> None:
        begun.append(effect)
        begin(effect, ended)  # type: ignore[arg-type]

    line.begin = note  # type: ignore[method-assign]
    team(line.laptop.node).state.set("a", 1)
    last = NoteActive()
    line.driver.feed(lambda: [*line.talk.wake(), last])
    kinds = [type(effect).__name__ for effect in begun]
    assert kinds == ["LookForDue", "NoteActive", "PushDue"]


def test_R1_nothing_is_begun_after_the_end(line: HeldLine) -> None:
    line.hear(page(1))
    line.driver.lost(Unreachable("gone"))
    line.finish(DecodePage)
    line.driver.feed(line.talk.wake)
    assert line.kinds == []
    assert line.sent == []
