"""One group on one node: hands events to the machine, and carries out what it wants done.

For every event, in this order:

1. Save: the machine's write goes to the disk. 2. Send: messages that may leave at once leave, and
others when the disk has the write that they wait for. 3. Apply: committed entries that our disk has
are folded, in order, one batch after the other. 4. Tell: a caller hears of its proposal when this
node has applied it, and of its read when this node has applied enough.

A log that has grown long is shortened (`rules/quorum/compaction.py`), a member that lacks what is
gone gets a snapshot (`sent_snapshots`), and so may this node (`incoming_snapshot`): the log begins
after it first, and then the fold takes in what the parts on the disk say.

The coordinator's name and clock get into an entry here (`rules/quorum/coordinated.py`), when this
node leads and takes a proposal, its own or a forwarded one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from holdfast.node.quorum.embedded.commit_words import CommitWords
from holdfast.node.quorum.embedded.committed_entries import LogEntries
from holdfast.node.quorum.embedded.entry_cache import EntryCache
from holdfast.node.quorum.embedded.fold_wait import FoldWait
from holdfast.node.quorum.embedded.incoming_snapshot import IncomingSnapshot
from holdfast.node.quorum.embedded.open_changes import (
    ChangeAnswered,
    OpenChanges,
    OpenTransfers,
    TransferAnswered,
)
from holdfast.node.quorum.embedded.open_proposals import (
    Answered,
    OpenProposals,
    ProposalEnd,
    stamped,
)
from holdfast.node.quorum.embedded.open_reads import OpenReads, ReadAnswered
from holdfast.node.quorum.embedded.ports import (
    CommitFold,
    FoldedEntry,
    GroupDisk,
    GroupHooks,
    SnapshotPorts,
    VoterNet,
)
from holdfast.node.quorum.embedded.sent_snapshots import SentSnapshots
from holdfast.rules.errors import HoldfastError, MustRejoin
from holdfast.rules.limits import (
    QUORUM_CACHE_BYTES,
    QUORUM_FOLD_BYTES,
    QUORUM_MEMBERS_MAX,
    QUORUM_SEND_BYTES,
)
from holdfast.rules.quorum.compaction import LOG_LIMITS, LogLimits, LogSizes, compact_to
from holdfast.rules.quorum.group_room import ProposalRoom, is_too_much
from holdfast.rules.quorum.raft.admission import is_removed
from holdfast.rules.quorum.raft.config import GroupMember, encode_config
from holdfast.rules.quorum.raft.effects import (
    NOTHING,
    Outgoing,
    ProposalOutcome,
    ProposalsForwarded,
    ProposalsHeld,
    ProposalsRefused,
    ProposalsTaken,
    RaftEffects,
    RaftWrite,
    ReadReady,
    SendAppend,
    SendSnapshot,
    filled,
)
from holdfast.rules.quorum.raft.events import (
    AskRead,
    ChangeMembers,
    DiskChanged,
    DiskWrote,
    LogCompacted,
    Propose,
    RaftEvent,
    Receive,
    SnapshotFinished,
    StepDown,
    Tick,
    TransferLeadership,
)
from holdfast.rules.quorum.raft.machine import step
from holdfast.rules.quorum.raft.messages import (
    ForwardAnswer,
    ForwardProposals,
    GroupSnapshotBegin,
    GroupSnapshotPart,
    Message,
    Proposal,
    RaftEntry,
    SnapshotMessage,
    SnapshotOffer,
    SnapshotReceived,
)
from holdfast.rules.quorum.raft.state import GroupState

log = logging.getLogger("holdfast")


class GroupDriver:
    """Belongs to one thread. `state` is the machine's; only `handle` replaces it."""

    def __init__(
        self,
        name: str,
        state: GroupState,
        disk: GroupDisk,
        net: VoterNet,
        fold: CommitFold,
        hooks: GroupHooks,
        contacts: Sequence[GroupMember] = (),
        snapshots: SnapshotPorts | None = None,
        limits: LogLimits = LOG_LIMITS,
    ) -> None:
        """`name` is the peer name of this node. `contacts` are members that a node knows which
        joins, before the log has told it of any. Without `snapshots` no log is shortened.
        """
        self.state = state
        self.proposals, self.reads = OpenProposals(), OpenReads()
        self.changes, self.transfers = OpenChanges(), OpenTransfers()
        self.fold_error: HoldfastError | None = None
        """Why committed entries are not applied at the moment; the next tick tries again."""
        self._name = name
        self._disk, self._net, self._fold, self._hooks = disk, net, fold, hooks
        self._cache = EntryCache(state.log.last + 1, QUORUM_CACHE_BYTES)
        self._events: deque[RaftEvent] = deque()
        self._stepping = False
        self._after: deque[tuple[int, Message]] = deque()
        self._committed = state.told
        self._folding = False
        self._fold_wait = FoldWait(hooks, self._fold_next)
        self._pumping = False
        self._later: set[bytes] = set()
        """Proposals that are tried again with the next tick."""
        self._room, self._words = ProposalRoom(), CommitWords(hooks, self.send)
        self._ticks = 0
        self._known = {member.id: member for member in contacts}
        self._met: dict[int, GroupMember] = {}
        """Who has spoken to this node under ids that no config here tells of yet."""
        self._learn_members()
        self._config_at = state.log.config_at(state.commit)[0]
        self._limits, self._sizes = limits, LogSizes(state.log.last)
        self._saved_commit = 0
        """The disk knows that entries up to here are committed."""
        self._compacting = False
        self._snapshots = snapshots
        if snapshots is not None:
            self.sent = SentSnapshots(
                snapshots.states, self, lambda to: self.handle(SnapshotFinished(to))
            )
            self.incoming = IncomingSnapshot(
                snapshots.disk, snapshots.states, self, lambda offer: self.handle(Receive(offer))
            )

    # --- what happens ----------------------------------------------------------------------------

    def handle(self, event: RaftEvent) -> None:
        """Something has happened. Events that follow from it are handled before this returns."""
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                self._step(self._events.popleft())
        finally:
            self._stepping = False
        self._fold_next()

    def receive(self, message: Message, contact: GroupMember | None = None) -> None:
        """A member has sent this, over a link that belongs to its key. `contact` says whose link
        that is: a member that has been away may be led by one that it has not heard of, and could
        not answer it otherwise.
        """
        if contact is not None and message.sender not in self._known:
            self._meet(contact)
        state = self.state
        unsynced_bytes = self._sizes.between(state.durable, state.log.last)
        if is_too_much(message, len(state.unsynced), unsynced_bytes):
            return
        if isinstance(message, SnapshotMessage):
            self._receive_snapshot(message)
        elif isinstance(message, SnapshotOffer):
            log.error("member %d offers a snapshot without its parts", message.sender)
        elif isinstance(message, ForwardProposals) and state.role == "leader":
            self._receive_forwarded(message)
        else:
            self.handle(Receive(message))

    def _receive_forwarded(self, message: ForwardProposals) -> None:
        if self._room.is_full(message.sender):
            ids = tuple([one.id for one in message.proposals])
            self._tell_proposals(ProposalsHeld(ids, "too_many", message.sender))
            return
        taken = stamped(message.proposals, self._name, self._hooks.now_ms())
        replaced = msgspec.structs.replace(message, proposals=taken)
        self._take(message.sender, taken, Receive(replaced))

    def _take(self, origin: int, proposals: Sequence[Proposal], event: RaftEvent) -> None:
        """Hands the leader's machine proposals, and notes whose entries they have become."""
        before = self.state.log.last
        self.handle(event)
        last = self.state.log.last
        if self.state.role == "leader" and last > self.state.commit and last > before:
            size = sum([len(one.payload) for one in proposals])
            self._room.took(origin, last, len(proposals), size)

    def tick(self, draw: int) -> None:
        """One heartbeat interval has passed; `draw` is a fresh random number."""
        self._ticks += 1
        self.handle(Tick(draw))
        self.proposals.tick()
        self.reads.tick()
        self.changes.tick()
        self.transfers.tick()
        if self._ticks % self.state.timing.election == 0:
            # A message to the leader may have been lost: what is asked again is done once. What a
            # leader has taken stands in its own log; to add it again would only make that longer.
            if self.state.role != "leader":
                self.proposals.again()
            self.reads.again()
        self.proposals.again(self._later)
        self._later.clear()
        self._pump()
        self._fold_next()
        if self._snapshots is not None:
            self._keep_snapshots(self._snapshots)

    def send(self, message: Message) -> None:
        """Sends a message to the member that it names, if that is known."""
        member = self._member(message.to)
        if member is not None:
            self._net.send(member, message)

    def has_room(self, to: int) -> bool:
        """Whether a payload for that member would be sent or wait."""
        member = self._member(to)
        return member is not None and self._net.has_room(member)

    def key_of(self, id: int) -> bytes | None:
        """The key of a member, or of one that was a member once; None if no config has told of it:
        then whoever may vote may speak under this id.
        """
        member = self._known.get(id)
        return None if member is None else member.key

    def _member(self, id: int) -> GroupMember | None:
        return self._known.get(id) or self._met.get(id)

    def _meet(self, contact: GroupMember) -> None:
        self._met.pop(contact.id, None)
        self._met[contact.id] = contact
        if len(self._met) > QUORUM_MEMBERS_MAX:
            del self._met[next(iter(self._met))]

    # --- callers ---------------------------------------------------------------------------------

    def propose(self, proposal: Proposal, ticks: int, answered: Answered) -> None:
        """Wants an envelope in the order; `answered` hears what became of it within so many
        ticks.
        """
        self.proposals.add(proposal, ticks, answered)
        self._pump_soon()

    def read(self, ticks: int, answered: ReadAnswered) -> None:
        """Wants to read what is committed now."""
        self.reads.add(ticks, answered)
        self._pump_soon()

    def change(self, change: ChangeMembers, ticks: int, answered: ChangeAnswered) -> None:
        """Wants a member added, promoted or removed. `answered` hears what became of it when this
        node has applied the change, at once if it is refused (who does not lead refuses all), and
        None if that is unknown after so many ticks.
        """
        self.changes.add(ticks, answered)
        self.handle(change)

    def transfer(self, to: int, ticks: int, answered: TransferAnswered) -> None:
        """Wants that voter to lead, or the best one (0). `answered` hears True when another voter
        leads, and False if this node goes on, does not lead itself, or time is over.
        """
        if self.state.role != "leader":
            answered(False)
            return
        self.transfers.add(ticks, answered)
        self.handle(TransferLeadership(to))

    def step_down(self) -> None:
        """Stops leading at once, if this node leads."""
        self.handle(StepDown())

    def end(self, *, closed: bool = False) -> None:
        """The node stops: outcomes are open, or `closed` by the end of the order that is folded."""
        self.proposals.end_all(ProposalEnd.CLOSED if closed else None)
        self.reads.end_all()
        self.changes.end_all()
        self.transfers.end_all(handed_over=False)

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._hooks.post(self._pump)

    def _pump(self) -> None:
        """Hands the machine what callers have brought since the last time, together."""
        self._pumping = False
        me = self.state.me
        while not self._room.is_full(me) and (due := self.proposals.due()):
            if self.state.role == "leader":
                taken = stamped(due, self._name, self._hooks.now_ms())
                self._take(me, taken, Propose(taken))
            else:
                self.handle(Propose(tuple(due)))
        number = self.reads.ask()
        if number is not None:
            self.handle(AskRead(number))

    # --- carrying out ----------------------------------------------------------------------------

    def _step(self, event: RaftEvent) -> None:
        before = self.state.commit
        self.state, effects = step(self.state, event)
        if effects is NOTHING:
            return
        if effects.write is not None:
            self._save(effects.write)
        for message in effects.send:
            self._send(message)
        self._after.extend(effects.send_after)
        if self.state.role == "leader":
            self._make_room()
        else:
            self._room.clear()
        if effects.apply is not None:
            self._committed = effects.apply[1]
        self._tell(effects)
        if self.state.commit > before:
            at, config = self.state.log.config_at(self.state.commit)
            if at > self._config_at:
                self._config_at = at
                self._hooks.on_config(config)

    def _make_room(self) -> None:
        """What is committed takes no room any more."""
        was_full = self._room.is_full(self.state.me)
        self._room.committed(self.state.commit)
        if was_full and not self._room.is_full(self.state.me):
            self._pump_soon()

    def _save(self, write: RaftWrite) -> None:
        if write.snapshot is not None:
            self._cache.clear(write.snapshot.index + 1)
            self._sizes = LogSizes(write.snapshot.index)
        if write.cut_from:
            self._cache.cut(write.cut_from)
            self._sizes.cut(write.cut_from)
        if write.entries:
            self._cache.put(write.first, write.entries)
            self._sizes.put(write.first, write.entries)
        self._learn_members()
        commit = self.state.commit
        self._disk.write(write, commit, partial(self._wrote, write, commit))

    def _wrote(self, write: RaftWrite, commit: int, error: HoldfastError | None) -> None:
        if error is not None:
            log.error("the disk failed under the votes of this node: %s", error.message)
            self._after.clear()
            self.handle(DiskChanged("failed"))
            return
        self._saved_commit = commit
        while self._after and self._after[0][0] <= write.number:
            self._send(self._after.popleft()[1])
        self.handle(DiskWrote(write.number, write.term, write.last))
        self._cache.shrink(self.state.durable)

    def _send(self, message: Outgoing) -> None:
        if isinstance(message, SendSnapshot):
            assert self._snapshots is not None, "without snapshots no log is shortened"
            self.sent.begin(message)
            return
        if not isinstance(message, SendAppend):
            if not self._words.keep(message, self._room):
                self.send(message)
            return
        member = self._member(message.to)
        has_entries = message.last >= message.first
        if member is None or (has_entries and not self._net.has_room(member)):
            return
        entries: Sequence[RaftEntry] = ()
        if has_entries:
            entries = self._entries(message.first, message.last, QUORUM_SEND_BYTES)
        self._words.carried(message.to)
        for one in filled(message, entries):
            self._net.send(member, one)

    def _entries(self, first: int, last: int, bytes_max: int) -> Sequence[RaftEntry]:
        cached = self._cache.run(first, last, bytes_max)
        if cached is not None:
            return cached
        return self._disk.entries(first, min(last, self._cache.first - 1), bytes_max)

    def _learn_members(self) -> None:
        for _, config in self.state.log.configs:
            for member in config.members:
                self._known[member.id] = member

    def _tell(self, effects: RaftEffects) -> None:
        for outcome in effects.proposals:
            self._tell_proposals(outcome)
        for read in effects.reads:
            if isinstance(read, ReadReady):
                self.reads.confirmed(read.number, read.index, self._fold.applied)
                if self.reads.is_due:
                    self._pump_soon()
            else:
                self.reads.failed(read.number)
        if effects.change is not None:
            self.changes.judged(effects.change, self.state.term)
        if effects.role is not None:
            self.transfers.role(effects.role, self.state.me)
            if effects.role.leader:
                # Another leader may lack what the last one had.
                self.proposals.again()
                self.reads.again()
                self._pump_soon()
            self._hooks.on_role(effects.role)
        elif effects.retry_held:
            self.proposals.again()
            self._pump_soon()
        for alarm in effects.alarms:
            if alarm.name == "transfer_failed":
                self.transfers.end_all(handed_over=False)
            self._hooks.on_alarm(alarm)

    def _tell_proposals(self, outcome: ProposalOutcome) -> None:
        if isinstance(outcome, ProposalsTaken | ProposalsForwarded):
            self.proposals.exposed(outcome.ids)
        elif isinstance(outcome, ProposalsHeld) and outcome.origin != self.state.me:
            state = self.state
            self._send(
                ForwardAnswer(
                    state.group, state.me, outcome.origin, state.term, outcome.ids, outcome.reason
                )
            )
        elif isinstance(outcome, ProposalsRefused) and self._is_out:
            self.proposals.end_all(ProposalEnd.REFUSED)
        else:
            self._later.update(outcome.ids)

    @property
    def _is_out(self) -> bool:
        """Whether this node proposes nothing more. Another member's word ends nothing here."""
        return self.state.removed or self.state.disk == "failed"

    # --- the fold --------------------------------------------------------------------------------

    def _fold_next(self) -> None:
        first = self._fold.applied + 1
        if self._folding:
            return
        if first <= self.state.log.boundary:
            self._take_in()
            return
        waiting = self._committed - first + 1
        callers = bool(self.proposals or self.reads or self.changes)
        if waiting <= 0 or self._fold_wait.for_more(waiting, self.state, callers=callers):
            return
        entries = self._entries(first, self._committed, QUORUM_FOLD_BYTES)
        upto = first + len(entries) - 1
        self._folding = True
        self._fold.fold(LogEntries(self.state.incarnation, first, entries), upto, self._folded)

    def _folded(self, results: Iterable[FoldedEntry] | HoldfastError) -> None:
        self._folding = False
        if isinstance(results, HoldfastError):
            self.fold_error = results
            log.error("committed entries cannot be applied: %s", results.message)
            return
        self.fold_error = None
        for one in results if self.proposals else ():
            self._later.discard(one.id)
            self.proposals.applied(one.id, one.index, one.result)
        self.reads.applied(self._fold.applied)
        self.changes.applied(self._fold.applied, self.state.log.term_at)
        self._fold_next()

    # --- snapshots -------------------------------------------------------------------------------

    def _receive_snapshot(self, message: SnapshotMessage) -> None:
        """The machine judges the offer at the end; here is what concerns parts only."""
        state = self.state
        if self._snapshots is None or self._is_out:
            return
        if (message.group, message.to) != (state.group, state.me) or message.sender == state.me:
            return
        if is_removed(state, message.sender):
            return
        if isinstance(message, SnapshotReceived):
            self.sent.received(message)
        elif (message.sender, message.term) != (state.leader, state.term):
            return  # Only a leader sends one, and it has told us first that it leads.
        elif self._fold.applied < state.log.boundary:
            return  # The last snapshot is still being taken in.
        elif isinstance(message, GroupSnapshotBegin):
            self.incoming.begin(message)
        elif isinstance(message, GroupSnapshotPart):
            self.incoming.part(message)

    def _take_in(self) -> None:
        """The log begins after a snapshot that the fold has not got yet."""
        boundary = self.state.log.boundary
        if self.state.durable < boundary or self._snapshots is None:
            return
        intake = self._snapshots.disk.intake()
        if intake is None or not intake.installed or intake.snapshot.index != boundary:
            self.fold_error = MustRejoin(
                f"the log begins after entry {boundary}, and what was applied ends at "
                f"{self._fold.applied}: this node has lost what lies between",
                hint="remove this voter from the group, then add the node again",
            )
            return
        self._folding = True
        self._snapshots.states.take_in(
            intake.snapshot, self._snapshots.disk.intake_part, self._taken_in
        )

    def _taken_in(self, error: HoldfastError | None) -> None:
        self._folding = False
        self.fold_error = error
        if error is not None:
            log.error("a snapshot cannot be taken in: %s", error.message)
            return
        self._drop_intake()
        self.reads.applied(self._fold.applied)
        self.changes.applied(self._fold.applied, self.state.log.term_at)
        self._fold_next()

    def _drop_intake(self) -> None:
        assert self._snapshots is not None

        def dropped(error: HoldfastError | None) -> None:
            if error is not None:
                log.warning("parts of a snapshot stay on the disk: %s", error.message)

        self._snapshots.disk.intake_drop(dropped)

    def _keep_snapshots(self, ports: SnapshotPorts) -> None:
        """With every tick: transfers go on, and the log is shortened."""
        if self._ticks == 1:
            intake = ports.disk.intake()
            if (
                intake is not None
                and intake.installed
                and intake.snapshot.index <= self._fold.applied
            ):
                self._drop_intake()  # It was taken in, and the process ended then.
        self.sent.tick()
        if self._ticks % self.state.timing.election == 0:
            self._compact(ports)

    def _compact(self, ports: SnapshotPorts) -> None:
        state = self.state
        if self._compacting or self.sent.under_way or self._is_out or state.disk == "full":
            return
        safe = min(self._fold.applied, self._saved_commit, state.told)
        voters = state.log.config.voters
        matched = [peer.match for peer in state.peers if peer.id in voters and not peer.restored]
        boundary = state.log.boundary
        index = compact_to(self._limits, self._sizes, boundary=boundary, safe=safe, matched=matched)
        if index <= boundary:
            return
        config = encode_config(state.log.config_at(index)[1])
        self._compacting = True
        # First the machine, so that it asks for no entry that is about to go.
        self.handle(LogCompacted(index))
        self._sizes.drop(index)
        ports.disk.compact(index, config, self._compacted)

    def _compacted(self, error: HoldfastError | None) -> None:
        self._compacting = False
        if error is not None:
            log.warning("the log of a group stays as long as it is: %s", error.message)
