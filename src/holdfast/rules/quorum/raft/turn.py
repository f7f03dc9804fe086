"""One step in the making: the state so far, and the effects so far.

Rules of this package change a turn; only `machine.step` makes and ends one. A state is replaced as
a whole, so what was handed in stays as it was. What a step writes is gathered here and becomes one
write, however many rules had a part in it.
"""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import replace

from holdfast.rules.quorum.raft.effects import (
    NOTHING,
    Alarm,
    AlarmName,
    ChangeOutcome,
    InstalledSnapshot,
    Outgoing,
    ProposalOutcome,
    RaftEffects,
    RaftWrite,
    ReadFailed,
    ReadReady,
    RoleChange,
)
from holdfast.rules.quorum.raft.messages import Message, RaftEntry
from holdfast.rules.quorum.raft.state import GroupState, PeerProgress, UnsyncedWrite

_TERM: Final = attrgetter("term")


class RaftTurn:
    """The state and the effects of one step, while it is under way."""

    def __init__(self, state: GroupState) -> None:
        self.state = state
        self._before = state
        self.send: list[Outgoing] = []
        self.proposals: list[ProposalOutcome] = []
        self.reads: list[ReadReady | ReadFailed] = []
        self.alarms: list[Alarm] = []
        self.change: ChangeOutcome | None = None
        self.retry_held = False
        self._after_write: list[Message] = []
        self._after: list[tuple[int, Message]] = []
        self._cut_from = 0
        self._first = 0
        self._entries: list[RaftEntry] = []
        self._snapshot: InstalledSnapshot | None = None

    def set(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)

    def set_peer(self, peer: PeerProgress, **changes: Any) -> PeerProgress:
        changed = replace(peer, **changes)
        self.set(peers=tuple([changed if it.id == peer.id else it for it in self.state.peers]))
        return changed

    def alarm(self, name: AlarmName, member: int = 0) -> None:
        self.alarms.append(Alarm(name, member))

    def send_durable(self, message: Message, wait: bool) -> None:
        """Sends a message that rests on what this node has saved: when the disk has all writes of
        this step and before. Without `wait`, at once.
        """
        if wait:
            self._after_write.append(message)
        else:
            self.send.append(message)

    def append(self, *entries: RaftEntry) -> int:
        """Adds entries to the log; the index of the last one comes back."""
        log = self.state.log
        if entries and not self._entries:
            self._first = log.last + 1
        self._entries += entries
        for term, run in groupby(entries, _TERM):
            log = log.appended(term, len(list(run)))
        self.set(log=log)
        return log.last

    def cut(self, first: int) -> None:
        """Removes entries from the end of the log. Writes that are under way count only for what is
        left.
        """
        assert not self._entries, "a step cuts before it appends"
        self._cut_from = first
        state = self.state
        self.set(
            log=state.log.cut(first),
            durable=min(state.durable, first - 1),
            unsynced=lowered(state.unsynced, first - 1),
        )

    def install(self, snapshot: InstalledSnapshot) -> None:
        self._snapshot = snapshot

    @property
    def write_number(self) -> int:
        """The number that this step's write gets, if it writes."""
        return self.state.next_write

    def end(self) -> tuple[GroupState, RaftEffects]:
        write = self._write()
        wait = write.number if write else self.state.last_write
        for message in self._after_write:
            if wait:
                self._after.append((wait, message))
            else:
                self.send.append(message)
        if self.state is self._before and not self._told_anything(write):
            return self.state, NOTHING
        return self._ended(write)

    def _told_anything(self, write: RaftWrite | None) -> bool:
        told = (self.send, self._after, self.proposals, self.reads, self.alarms)
        return bool(write or any(told) or self.change or self.retry_held)

    def _ended(self, write: RaftWrite | None) -> tuple[GroupState, RaftEffects]:
        before = self._before
        apply = self._applicable()
        state = self.state
        role = None
        if (state.role, state.term, state.leader) != (before.role, before.term, before.leader):
            role = RoleChange(state.role, state.term, state.leader)
        effects = RaftEffects(
            write=write,
            send=tuple(self.send),
            send_after=tuple(self._after),
            apply=apply,
            proposals=tuple(self.proposals),
            retry_held=self.retry_held,
            reads=tuple(self.reads),
            change=self.change,
            role=role,
            slept=state.asleep and not before.asleep,
            woke=before.asleep and not state.asleep,
            alarms=tuple(self.alarms),
        )
        return state, effects

    def _applicable(self) -> tuple[int, int] | None:
        """Committed entries that this node's own disk has: its fold never gets ahead of its log."""
        first, last = self.state.told + 1, min(self.state.commit, self.state.durable)
        if last < first:
            return None
        self.set(told=last)
        return (first, last)

    def _write(self) -> RaftWrite | None:
        state, before = self.state, self._before
        changed = state.term != before.term or state.vote != before.vote
        if not (changed or self._entries or self._cut_from or self._snapshot):
            return None
        number = state.next_write
        write = RaftWrite(
            number=number,
            term=state.term,
            vote=state.vote,
            last=state.log.last,
            cut_from=self._cut_from,
            first=self._first,
            entries=tuple(self._entries),
            snapshot=self._snapshot,
        )
        under_way = UnsyncedWrite(number, state.term, state.log.last)
        self.set(unsynced=(*state.unsynced, under_way), next_write=number + 1)
        return write


def lowered(unsynced: tuple[UnsyncedWrite, ...], last: int) -> tuple[UnsyncedWrite, ...]:
    """Writes under way whose entries above `last` are no longer the log's."""
    return tuple([replace(it, last=min(it.last, last)) for it in unsynced])
