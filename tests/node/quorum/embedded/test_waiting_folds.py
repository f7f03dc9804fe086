"""When committed entries are folded on a node where nobody waits for them: many at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from holdfast.node.core.commit import CommittedEntry
from holdfast.node.quorum.embedded.group_driver import GroupDriver
from holdfast.node.quorum.embedded.ports import Folded, GroupHooks, Wrote
from holdfast.rules.limits import QUORUM_FOLD_ENTRIES, QUORUM_FOLD_WAIT_MS
from holdfast.rules.quorum.raft.config import GroupMember, encode_config, first_config
from holdfast.rules.quorum.raft.effects import RaftWrite
from holdfast.rules.quorum.raft.log import RaftLog
from holdfast.rules.quorum.raft.messages import AppendEntries, Message, Proposal, RaftEntry
from holdfast.rules.quorum.raft.state import DurablePast, GroupTiming, restarted

GROUP = b"g" * 16
CONFIG = first_config((("ana", b"a" * 32), ("bob", b"b" * 32), ("cai", b"c" * 32)))
EMPTY = RaftEntry(1, "noop")
"""It is folded like all others: how far the fold is moves with it."""


class Follower:
    """A driver whose disk has everything at once, and whose time stands still until it is told."""

    def __init__(self, *, later: bool = True) -> None:
        self.applied = self.folds = 0
        self.calls: list[Callable[[], None]] = []
        self.timers: list[tuple[int, Callable[[], None]]] = []
        self._wrote: list[Wrote] = []
        past = DurablePast(1, 0, RaftLog(configs=((0, CONFIG),)), 0)
        state = restarted(past, me=1, group=GROUP, incarnation=1, timing=GroupTiming())
        hooks = GroupHooks(
            now_ms=lambda: 1,
            post=self.calls.append,
            later=(lambda ms, call: self.timers.append((ms, call))) if later else None,
        )
        self.driver = GroupDriver("ana", state, self, self, self, hooks)

    def write(self, write: RaftWrite, commit: int, done: Wrote) -> None:
        self._wrote.append(done)

    def entries(self, first: int, last: int, bytes_max: int) -> Sequence[RaftEntry]:
        raise AssertionError("all of them are in memory")

    def has_room(self, to: GroupMember) -> bool:
        return True

    def send(self, to: GroupMember, message: Message) -> None:
        pass

    def fold(self, entries: Sequence[CommittedEntry], upto: int, done: Folded) -> None:
        self.folds += 1

        def folded() -> None:
            self.applied = upto
            done(())

        self.calls.append(folded)

    def commits(self, count: int, entry: RaftEntry = EMPTY) -> None:
        """Bob leads, and so many more entries are committed."""
        last = self.driver.state.log.last
        entries = (entry,) * count
        term = 1 if last else 0
        self.driver.receive(AppendEntries(GROUP, 2, 1, 1, last, term, last + count, 1, entries))
        while self._wrote:
            self._wrote.pop(0)(None)
        self.run()

    def run(self) -> None:
        while self.calls:
            self.calls.pop(0)()


def test_Q3_committed_entries_for_which_nobody_waits_are_folded_together() -> None:
    node = Follower()
    for _ in range(10):
        node.commits(3)
        node.driver.tick(0)
    assert node.folds == 0
    ((after, waited),) = node.timers
    assert after == QUORUM_FOLD_WAIT_MS
    waited()
    node.run()
    assert (node.folds, node.applied) == (1, 30)
    node.commits(1)
    assert (node.applied, len(node.timers)) == (30, 2), "the next ones wait anew"


def test_Q3_so_many_entries_are_folded_without_waiting() -> None:
    node = Follower()
    node.commits(QUORUM_FOLD_ENTRIES - 1)
    assert node.applied == 0
    node.commits(1)
    assert (node.folds, node.applied) == (1, QUORUM_FOLD_ENTRIES)


def test_Q9_who_reads_or_writes_here_waits_for_no_other_entries() -> None:
    node = Follower()
    node.commits(1)
    node.driver.read(100, lambda index: None)
    node.run()
    assert node.applied == 1
    node = Follower()
    node.commits(1)
    node.driver.propose(Proposal(bytes(16), b"payload"), 100, lambda end: None)
    node.run()
    assert node.applied == 1


def test_Q10_who_is_removed_folds_everything_up_to_that_at_once() -> None:
    node = Follower()
    node.commits(1)
    assert node.applied == 0
    without = msgspec.structs.replace(CONFIG, members=CONFIG.members[1:])
    node.commits(1, RaftEntry(1, "config", encode_config(without)))
    assert node.applied == 2


def test_Q3_without_a_clock_nothing_waits() -> None:
    node = Follower(later=False)
    node.commits(1)
    assert node.applied == 1
