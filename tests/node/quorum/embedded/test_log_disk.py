"""The log of a group on a quorum log: in order, again when there is room, and never twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from holdfast.node.quorum.embedded.log_disk import LogDisk, past_of
from holdfast.rules.errors import DiskFull, HoldfastError, OutcomeUnknown
from holdfast.rules.quorum.log_rows import GroupWrite, SaveAnswer
from holdfast.rules.quorum.raft.config import encode_config, first_config
from holdfast.rules.quorum.raft.effects import RaftWrite
from holdfast.rules.quorum.raft.messages import DiskHealth, RaftEntry
from holdfast.storage.memory.quorum_log import MemoryQuorumLog
from holdfast.storage.quorum_port import Answer

SCOPE = "team"
CONFIG = first_config((("ana", b"a" * 32), ("bob", b"b" * 32), ("cai", b"c" * 32)))


class HeldLog(MemoryQuorumLog):
    """A quorum log whose answers wait until the test lets them go, and may be errors."""

    def __init__(self) -> None:
        super().__init__()
        self.submitted: list[list[GroupWrite]] = []
        self.error: HoldfastError | None = None
        self._answer: Answer | None = None

    def submit(self, writes: Sequence[GroupWrite], answer: Answer) -> int:
        self.submitted.append(list(writes))
        self._answer = answer
        return len(writes)

    def answer(self) -> None:
        assert self._answer is not None
        answers = []
        for write in self.submitted[-1]:
            if self.error is not None and not write.is_promise:
                answers.append(SaveAnswer(write=write, error=self.error))
            else:
                answers.append(SaveAnswer(write=write, saved=self.save(write)))
        self._answer(answers)


class Told:
    def __init__(self) -> None:
        self.done: list[tuple[int, HoldfastError | None]] = []
        self.health: list[DiskHealth] = []

    def of(self, number: int) -> Callable[[HoldfastError | None], None]:
        return lambda error: self.done.append((number, error))


@pytest.fixture
def log() -> HeldLog:
    held = HeldLog()
    held.init(SCOPE, tag=b"t" * 16, voter=1, config=encode_config(CONFIG))
    return held


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def disk(log: HeldLog, told: Told) -> LogDisk:
    return LogDisk(log, SCOPE, 1, post=lambda call: call(), on_health=told.health.append)


def write(number: int, *, cut: int = 0) -> RaftWrite:
    entry = RaftEntry(1, "data", b"payload %d" % number)
    return RaftWrite(number, 1, 1, number, cut_from=cut, first=number, entries=(entry,))


def test_Q3_what_comes_while_a_write_is_synced_shares_the_next_one(
    log: HeldLog, disk: LogDisk, told: Told
) -> None:
    for number in (1, 2, 3):
        disk.write(write(number), 0, told.of(number))
    assert [[one.number for one in group] for group in log.submitted] == [[1]]
    log.answer()
    assert told.done == [(1, None)]
    assert [one.number for one in log.submitted[-1]] == [2, 3]
    log.answer()
    assert told.done == [(1, None), (2, None), (3, None)]
    assert [entry.payload for entry in disk.entries(1, 3, 1 << 20)] == [
        b"payload 1",
        b"payload 2",
        b"payload 3",
    ]


def test_Q3_a_write_that_met_a_full_disk_is_done_as_it_was_when_there_is_room(
    log: HeldLog, disk: LogDisk, told: Told
) -> None:
    log.error = DiskFull("no room")
    disk.write(write(1), 0, told.of(1))
    log.answer()
    disk.write(write(2), 0, told.of(2))
    assert (told.done, told.health, len(log.submitted)) == ([], ["full"], 1)
    log.error = None
    disk.retry()
    assert [one.number for one in log.submitted[-1]] == [1, 2]
    log.answer()
    assert told.done == [(1, None), (2, None)]
    assert told.health == ["full", "fine"]


def test_Q3_a_vote_is_not_saved_before_entries_that_came_first_and_met_a_full_disk(
    log: HeldLog, disk: LogDisk, told: Told
) -> None:
    """The log would take it, and then nothing that came before: the voter would be out for good."""
    disk.write(write(1), 0, told.of(1))
    disk.write(write(2), 0, told.of(2))
    disk.write(RaftWrite(3, 2, 2, 2), 0, told.of(3))
    log.answer()
    assert [one.number for one in log.submitted[-1]] == [2]
    log.error = DiskFull("no room")
    log.answer()
    assert (told.done, told.health) == ([(1, None)], ["full"])
    log.error = None
    disk.retry()
    log.answer()
    log.answer()
    assert told.done == [(1, None), (2, None), (3, None)]
    assert told.health == ["full", "fine"]


def test_Q3_a_disk_that_failed_is_never_asked_again(
    log: HeldLog, disk: LogDisk, told: Told
) -> None:
    log.error = OutcomeUnknown("the disk failed under it")
    disk.write(write(1), 0, told.of(1))
    disk.write(write(2), 0, told.of(2))
    log.answer()
    disk.write(write(3), 0, told.of(3))
    disk.retry()
    assert [number for number, error in told.done if error is log.error] == [1, 2, 3]
    assert len(log.submitted) == 1


class QuickLog(HeldLog):
    """A quorum log that saves at once, as long as the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_quick = True
        self.at_once: list[int] = []

    def save_at_once(self, write: GroupWrite) -> SaveAnswer | None:
        if not self.is_quick:
            return None
        self.at_once.append(write.number)
        if self.error is not None:
            return SaveAnswer(write=write, error=self.error)
        return SaveAnswer(write=write, saved=self.save(write))


class Turns:
    """Turns of a loop, by hand."""

    def __init__(self) -> None:
        self._next: list[Callable[[], None]] = []

    def soon(self, call: Callable[[], None]) -> None:
        self._next.append(call)

    def turn(self) -> None:
        calls, self._next = self._next, []
        for call in calls:
            call()


@pytest.fixture
def quick() -> QuickLog:
    log = QuickLog()
    log.init(SCOPE, tag=b"t" * 16, voter=1, config=encode_config(CONFIG))
    return log


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def here(quick: QuickLog, told: Told, turns: Turns) -> LogDisk:
    """One that may save in the driver's thread."""
    return LogDisk(
        quick,
        SCOPE,
        1,
        post=lambda call: call(),
        on_health=told.health.append,
        soon=turns.soon,
    )


def test_Q3_a_lone_write_is_saved_here_when_what_was_sent_with_it_has_left(
    quick: QuickLog, here: LogDisk, told: Told, turns: Turns
) -> None:
    here.write(write(1), 0, told.of(1))
    turns.turn()
    assert (quick.at_once, told.done) == ([], []), "in this turn the links send"
    turns.turn()
    assert (quick.at_once, told.done) == ([1], [(1, None)])
    assert not quick.submitted


def test_Q3_writes_that_came_together_or_meet_a_slow_disk_leave_the_loop_alone(
    quick: QuickLog, here: LogDisk, told: Told, turns: Turns
) -> None:
    here.write(write(1), 0, told.of(1))
    here.write(write(2), 0, told.of(2))
    turns.turn()
    turns.turn()
    assert [one.number for one in quick.submitted[-1]] == [1, 2]
    quick.answer()
    quick.is_quick = False
    here.write(write(3), 0, told.of(3))
    turns.turn()
    turns.turn()
    assert [one.number for one in quick.submitted[-1]] == [3]
    quick.answer()
    assert (quick.at_once, told.done) == ([], [(1, None), (2, None), (3, None)])


def test_Q3_a_full_disk_that_was_met_here_is_tried_again_as_any_other(
    quick: QuickLog, here: LogDisk, told: Told, turns: Turns
) -> None:
    quick.error = DiskFull("no room")
    here.write(write(1), 0, told.of(1))
    turns.turn()
    turns.turn()
    here.write(write(2), 0, told.of(2))
    assert (told.done, told.health) == ([], ["full"])
    quick.error = None
    here.retry()
    quick.answer()
    assert (told.done, told.health) == ([(1, None), (2, None)], ["full", "fine"])


def test_Q3_a_disk_that_failed_here_is_never_asked_again(
    quick: QuickLog, here: LogDisk, told: Told, turns: Turns
) -> None:
    quick.error = OutcomeUnknown("the disk failed under it")
    here.write(write(1), 0, told.of(1))
    turns.turn()
    turns.turn()
    here.write(write(2), 0, told.of(2))
    turns.turn()
    turns.turn()
    assert [number for number, error in told.done if error is quick.error] == [1, 2]
    assert (quick.at_once, quick.submitted) == ([1], [])


def test_Q8_a_restart_finds_terms_votes_entries_and_voters(
    log: HeldLog, disk: LogDisk, told: Told
) -> None:
    for number in (1, 2, 3):
        disk.write(write(number), 0, told.of(number))
        log.answer()
    larger = CONFIG.with_learner("dee", b"d" * 32)
    config = RaftEntry(4, "config", encode_config(larger))
    disk.write(RaftWrite(4, 4, 2, 3, cut_from=3, first=3, entries=(config,)), 0, told.of(4))
    log.answer()
    past = past_of(log, SCOPE, 2)
    assert (past.term, past.vote, past.applied) == (4, 2, 2)
    assert past.log.runs == ((1, 1), (3, 4))
    assert (past.log.last, past.log.last_term) == (3, 4)
    assert past.log.configs == ((0, CONFIG), (3, larger))


def test_Q13_after_its_group_has_ended_no_answer_of_the_log_is_taken_for_a_failed_disk(
    log: HeldLog, disk: LogDisk, told: Told
) -> None:
    """The log refuses what was on its way when the vote of this node ended."""
    disk.write(write(1), 0, told.of(1))
    disk.write(write(2), 0, told.of(2))
    disk.end()
    log.error = OutcomeUnknown("this voter takes no part")
    log.answer()
    disk.write(write(3), 0, told.of(3))
    assert (told.done, told.health, len(log.submitted)) == ([], [], 1)
