"""Decisions of the machine that need a state of their own, and its limits."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.rules.limits import (
    INCARNATION_MAX,
    QUORUM_ENTRY_BYTES_MAX,
    QUORUM_MEMBERS_MAX,
    QUORUM_PROPOSALS_MAX,
    QUORUM_READS_MAX,
    QUORUM_TERM_LEAP_MAX,
    QUORUM_TERM_MAX,
    QUORUM_TERM_SPAN,
    QUORUM_TERM_STEP_MAX,
    QUORUM_UNCOMMITTED_MAX,
    QUORUM_VOTERS_MAX,
    QUORUM_WINDOW_ENTRIES,
)
from holdfast.rules.quorum.raft import election, membership
from holdfast.rules.quorum.raft.config import GroupConfig, GroupMember
from holdfast.rules.quorum.raft.effects import (
    Alarm,
    ProposalsHeld,
    ProposalsRefused,
    ReadFailed,
    SendAppend,
)
from holdfast.rules.quorum.raft.events import (
    AskRead,
    ChangeMembers,
    DiskWrote,
    Propose,
    Receive,
    Tick,
)
from holdfast.rules.quorum.raft.log import RaftLog
from holdfast.rules.quorum.raft.machine import step
from holdfast.rules.quorum.raft.messages import (
    AppendAnswer,
    AppendEntries,
    AskVote,
    Heartbeat,
    HeartbeatAnswer,
    Proposal,
    RaftEntry,
    RaftMessage,
    ReadAnswer,
    ReadAsk,
    RemovedVoter,
)
from holdfast.rules.quorum.raft.state import GroupState, PeerProgress, last_term
from support.raft_world import GROUP, RaftWorld


def _leader() -> GroupState:
    """1 leads term 3; its log is of terms 1, 1, 3, all on its disk, and only the first is
    committed.
    """
    config = RaftWorld(3).config
    log = RaftLog(configs=((0, config),)).appended(1, 2).appended(3, 1)
    state = RaftWorld(3).nodes[1].state
    peers = tuple(PeerProgress(id, next=4, mode="stream") for id in (2, 3))
    return replace(
        state,
        log=log,
        term=3,
        vote=1,
        role="leader",
        leader=1,
        peers=peers,
        durable=3,
        commit=1,
        told=1,
        round=1,
        term_start=3,
    )


def _match(sender: int, match: int) -> Receive:
    return Receive(AppendAnswer(GROUP, sender, 1, 3, True, match, match, 1))


def test_Q3_an_entry_of_an_older_term_is_not_committed_by_counting() -> None:
    state = _leader()
    for sender in (2, 3):
        state, _ = step(state, _match(sender, 2))
    assert state.commit == 1, "2 is of term 1, and all three have it"
    state, effects = step(state, _match(2, 3))
    assert (state.commit, effects.apply) == (3, (2, 3))


def test_Q3_the_leader_commits_nothing_that_its_own_disk_has_not() -> None:
    state = replace(_leader(), durable=2)
    for sender in (2, 3):
        state, _ = step(state, _match(sender, 3))
    assert state.commit == 1


def test_Q4_a_fence_is_incarnation_term_and_index() -> None:
    state = _leader()
    assert state.fence(2) == (7, 1, 2)
    assert state.fence(3) == (7, 3, 3) > state.fence(2)


@pytest.mark.parametrize(
    ("change", "alarm"),
    [
        ({"group": b"another group 16"}, "another_group"),
        ({"to": 2}, "another_recipient"),
        ({"sender": 1}, "own_id"),
    ],
)
def test_Q2_a_message_that_is_not_for_this_member_is_refused_by_name(
    change: dict[str, object], alarm: str
) -> None:
    message: RaftMessage = Heartbeat(GROUP, 2, 1, 3, 0, 0, 1)
    state = _leader()
    after, effects = step(state, Receive(replace(message, **change)))  # type: ignore[arg-type]
    assert after == state
    assert [it.name for it in effects.alarms] == [alarm]
    assert not effects.send


def test_Q2_a_term_leaps_only_so_far_and_once_in_an_election_timeout() -> None:
    """Else a liar uses up the terms with a few messages, and nobody is ever elected again."""
    state = _leader()
    lie = HeartbeatAnswer(GROUP, 2, 1, last_term(7), 1, 3)
    state, effects = step(state, Receive(lie))
    assert (state.role, state.term) == ("follower", 3 + QUORUM_TERM_LEAP_MAX)
    assert Alarm("term_leap", 2) in effects.alarms
    for lies in (lie, replace(lie, term=state.term + QUORUM_TERM_STEP_MAX + 1)):
        after, _ = step(state, Receive(lies))
        assert after.term == state.term, "it has leapt a moment ago"
    near, _ = step(state, Receive(replace(lie, term=state.term + QUORUM_TERM_STEP_MAX)))
    assert near.term == state.term + QUORUM_TERM_STEP_MAX, "steps are free"
    for _ in range(state.timing.election):
        state, _ = step(state, Tick(0))
    vote = AskVote(GROUP, 2, 1, state.term + QUORUM_TERM_STEP_MAX + 1, False, 9, 3, True)
    state, _ = step(state, Receive(vote))
    assert (state.term, state.no_leap) == (vote.term, state.timing.election)


def test_Q4_a_liar_can_use_up_the_terms_of_one_incarnation_and_no_more() -> None:
    last = last_term(7)
    state = replace(_leader(), term=last - 1)
    beyond, effects = step(state, Receive(HeartbeatAnswer(GROUP, 2, 1, last + 1, 1, 3)))
    assert (beyond, effects.alarms) == (state, (Alarm("term_beyond", 2),))
    state, effects = step(state, Receive(HeartbeatAnswer(GROUP, 2, 1, last, 1, 3)))
    assert (state.role, state.term) == ("follower", last)
    assert effects.write is not None
    written = DiskWrote(effects.write.number, effects.write.term, effects.write.last)
    state, _ = step(state, written)  # else it would not stand because its disk hangs
    for _ in range(4 * state.timing.election):
        state, effects = step(state, Tick(0))
        assert not effects.send, "there is no term to stand for election in"
    assert state.terms_are_used
    recovered = replace(state, incarnation=8)
    assert not recovered.terms_are_used
    assert last_term(8) - last == QUORUM_TERM_SPAN
    assert last_term(INCARNATION_MAX) == QUORUM_TERM_MAX


def test_Q2_a_leap_ends_at_the_last_term_of_the_incarnation() -> None:
    last = last_term(7)
    state = replace(_leader(), term=last - QUORUM_TERM_LEAP_MAX + 9)
    state, _ = step(state, Receive(HeartbeatAnswer(GROUP, 2, 1, last, 1, 3)))
    assert state.term == last


def test_Q2_Q5_voters_whose_terms_a_liar_has_driven_apart_elect_again() -> None:
    world = RaftWorld(3)
    world.elect()
    misled = world.nodes[1]
    for _ in range(3):
        term = misled.state.term + QUORUM_TERM_LEAP_MAX
        misled.step(Receive(HeartbeatAnswer(GROUP, 3, 1, term, 1, 1)))
        for _ in range(misled.state.timing.election):
            misled.step(Tick(0))
    world.nodes[3].crash()
    apart = misled.state.term - world.nodes[2].state.term
    assert apart > 2 * QUORUM_TERM_LEAP_MAX, "it was not misled far enough"
    for _ in range(20 * misled.state.timing.election):
        world.tick()
        world.settle()
    leader = world.leader()
    assert leader is not None, "one bad voter of three has ended the group"
    before = leader.state.commit
    world.propose(leader)
    world.settle()
    assert leader.state.commit > before


def test_Q10_an_id_that_no_config_names_yet_is_heard() -> None:
    """A node that lags behind may hear from a leader that joined meanwhile."""
    state = RaftWorld(3).nodes[1].state
    after, _ = step(state, Receive(AppendEntries(GROUP, 9, 1, 4, 0, 0, 0, 1)))
    assert (after.term, after.leader) == (4, 9)


def test_Q10_one_voter_alone_takes_nobodys_vote() -> None:
    """It may be mistaken, or lie: most of the others are believed, and until a leader speaks."""
    world = RaftWorld(3)
    world.elect()
    leads = world.nodes[1].state
    state = world.nodes[3].state

    def told(state: GroupState, *senders: int) -> GroupState:
        for sender in senders:
            state, _ = step(state, Receive(RemovedVoter(GROUP, sender, 3, leads.term)))
        return state

    assert not told(state, 1, 1, 9, 9).removed
    after = told(state, 1)
    beat = Heartbeat(GROUP, 1, 3, leads.term, 0, 0, leads.round + 1)
    after, _ = step(after, Receive(beat))
    assert not told(after, 2).removed, "a leader has spoken to it in between"
    assert told(state, 1, 2).removed


def test_Q4_two_leaders_of_one_term_are_not_believed() -> None:
    _, effects = step(_leader(), Receive(Heartbeat(GROUP, 2, 1, 3, 0, 0, 1)))
    assert effects.alarms == (Alarm("two_leaders", 2),)


def test_Q4_an_entry_that_contradicts_a_committed_one_changes_nothing() -> None:
    state = replace(_leader(), role="follower", leader=0, peers=(), commit=3, told=3)
    lie = AppendEntries(GROUP, 2, 1, 5, 1, 1, 0, 1, (RaftEntry(5, "data"),))
    after, effects = step(state, Receive(lie))
    assert after.log == state.log
    assert Alarm("contradicts_commit", 2) in effects.alarms


def test_Q4_a_config_that_cannot_be_read_changes_nothing() -> None:
    state = replace(_leader(), role="follower", leader=0, peers=())
    odd = AppendEntries(GROUP, 2, 1, 5, 3, 3, 0, 1, (RaftEntry(5, "config", b"odd"),))
    after, effects = step(state, Receive(odd))
    assert after.log == state.log
    assert Alarm("bad_config", 2) in effects.alarms


def test_Q4_an_acknowledgement_of_a_write_that_was_not_given_out_counts_for_nothing() -> None:
    state = replace(_leader(), durable=2)
    after, effects = step(state, DiskWrote(9, 3, 3))
    assert after.durable == 2
    assert effects.alarms == (Alarm("unknown_write"),)


def test_Q4_votes_are_counted_over_the_config_and_once_each() -> None:
    config = RaftWorld(5).config
    votes = election.count_vote(((2, True),), 2, True)
    assert votes == ((2, True),)
    assert election.count_vote(votes, 2, False) == votes, "the first answer stands"
    assert election.outcome(config, ((2, True), (8, True), (9, True))) == "open"
    assert election.outcome(config, ((1, True), (2, True), (3, True))) == "won"
    assert election.outcome(config, ((1, False), (2, False), (3, False))) == "lost"


def test_Q4_every_election_draws_a_new_timeout() -> None:
    state = RaftWorld(3).nodes[1].state
    state, _ = step(state, Tick(3))
    assert state.timeout == 8
    while state.role == "follower":
        state, _ = step(state, Tick(0))
    assert state.timeout == 0, "the next tick draws"
    state, _ = step(state, Tick(1))
    assert state.timeout == 6


def test_Q4_only_so_many_entries_are_under_way_to_one_member() -> None:
    state, under_way = _leader(), 0
    for _ in range(20):
        batch = tuple(Proposal(bytes(16), b"") for _ in range(QUORUM_PROPOSALS_MAX))
        state, effects = step(state, Propose(batch))
        orders = [it for it in effects.send if isinstance(it, SendAppend) and it.to == 2]
        under_way += sum(it.last - it.first + 1 for it in orders)
    assert QUORUM_WINDOW_ENTRIES <= under_way <= QUORUM_WINDOW_ENTRIES + QUORUM_PROPOSALS_MAX
    assert isinstance(effects.proposals[0], ProposalsHeld)
    assert effects.proposals[0].reason == "too_many"
    assert state.log.last - state.commit >= QUORUM_UNCOMMITTED_MAX
    assert len(state.log.runs) == 2, "and the log is still a few numbers"


def test_Q9_only_so_many_reads_wait_for_a_confirmation() -> None:
    state = _leader()
    for number in range(QUORUM_READS_MAX):
        state, effects = step(state, AskRead(number))
        assert not effects.reads
    _, effects = step(state, AskRead(QUORUM_READS_MAX))
    assert effects.reads == (ReadFailed(QUORUM_READS_MAX, "too_many"),)


def test_Q9_a_member_that_asks_for_ever_refuses_itself_and_nobody_else() -> None:
    state = _leader()
    for number in range(QUORUM_READS_MAX + 5):
        state, effects = step(state, Receive(ReadAsk(GROUP, 2, 1, state.term, number)))
    assert effects.send == (
        ReadAnswer(GROUP, 1, 2, state.term, QUORUM_READS_MAX + 4, -1, "too_many"),
    )
    for event in (AskRead(1), Receive(ReadAsk(GROUP, 3, 1, state.term, 1))):
        state, effects = step(state, event)
        assert (effects.reads, effects.send) == ((), ()), "they share the next round"
    assert len(state.reads) == QUORUM_READS_MAX + 2


def test_Q4_proposals_that_others_could_not_read_are_refused() -> None:
    state = _leader()
    large = Proposal(bytes(16), bytes(QUORUM_ENTRY_BYTES_MAX + 1))
    after, effects = step(state, Propose((large,)))
    assert after.log == state.log
    assert effects.proposals == (ProposalsRefused((bytes(16),), "too_large"),)


def test_Q10_a_member_that_others_could_not_read_is_refused() -> None:
    state = replace(_leader(), commit=3, told=3)
    after, effects = step(state, ChangeMembers("add", peer="x" * 200, key=bytes(32)))
    assert after.log == state.log
    assert effects.change is not None
    assert effects.change.reason == "bad_member"


def test_Q10_a_group_has_at_most_seven_voters_and_so_many_members() -> None:
    state = replace(_leader(), commit=3, told=3)
    members = tuple(GroupMember(id, f"n{id}", b"", "voter") for id in range(1, 8))
    for id in range(8, QUORUM_MEMBERS_MAX + 1):
        members = (*members, GroupMember(id, f"n{id}", b"", "learner"))
    config = GroupConfig(members, QUORUM_MEMBERS_MAX + 1)
    state = replace(state, log=replace(state.log, configs=((0, config),)))
    assert QUORUM_VOTERS_MAX == 7
    assert membership.refusal(state, ChangeMembers("promote", 8)) == "too_many_voters"
    assert membership.refusal(state, ChangeMembers("add", peer="y")) == "too_many_members"
    assert membership.refusal(state, ChangeMembers("promote", 7)) == "already_a_voter"
    assert membership.refusal(state, ChangeMembers("remove", 99)) == "unknown_member"


def test_Q4_a_leader_of_whom_a_majority_has_hung_disks_steps_down() -> None:
    state = _leader()
    for tick in range(12):
        for sender in (2, 3):
            slow = HeartbeatAnswer(GROUP, sender, 1, 3, state.round, 3, False, "slow")
            state, _ = step(state, Receive(slow))
        state, effects = step(state, Tick(tick))
        if state.role != "leader":
            assert effects.alarms == (Alarm("lost_quorum", 1),)
            return
    raise AssertionError("it still leads")


def test_Q10_a_stranger_does_not_wake_a_sleeping_group() -> None:
    state = replace(_leader(), role="follower", leader=2, peers=(), asleep=True)
    stranger = AskVote(b"another group 16", 3, 1, 9, True, 9, 9)
    after, effects = step(state, Receive(stranger))
    assert after.asleep
    assert not effects.woke
    member = AskVote(GROUP, 3, 1, 9, True, 9, 9)
    after, effects = step(state, Receive(member))
    assert effects.woke
    assert not after.asleep


def test_Q4_a_step_changes_no_state_that_it_was_given() -> None:
    state = _leader()
    before = hash(state)
    step(state, Propose((Proposal(bytes(16), b"x"),)))
    assert hash(state) == before
    assert step(state, Tick(5)) == step(state, Tick(5)), "the same event gives the same result"
