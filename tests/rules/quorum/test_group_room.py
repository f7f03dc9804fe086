"""Each member has room of its own in a leader, and a slow disk is not buried."""

from __future__ import annotations

from holdfast.rules.limits import (
    QUORUM_MEMBER_ENTRIES_MAX,
    QUORUM_MEMBER_PROPOSED_BYTES,
    QUORUM_UNSYNCED_BYTES,
    QUORUM_UNSYNCED_MAX,
)
from holdfast.rules.quorum.group_room import ProposalRoom, is_too_much
from holdfast.rules.quorum.raft.messages import AppendEntries, Heartbeat

GROUP = bytes(16)


def test_Q3_one_member_takes_its_own_room_only_in_entries_and_in_bytes() -> None:
    room = ProposalRoom()
    room.took(2, QUORUM_MEMBER_ENTRIES_MAX - 1, QUORUM_MEMBER_ENTRIES_MAX - 1, 0)
    assert not room.is_full(2)
    room.took(2, QUORUM_MEMBER_ENTRIES_MAX, 1, 0)
    room.took(3, QUORUM_MEMBER_ENTRIES_MAX + 1, 1, QUORUM_MEMBER_PROPOSED_BYTES)
    assert (room.is_full(1), room.is_full(2), room.is_full(3)) == (False, True, True)


def test_Q3_what_is_committed_takes_no_room() -> None:
    room = ProposalRoom()
    room.took(2, 10, 10, QUORUM_MEMBER_PROPOSED_BYTES - 1)
    room.took(2, 11, 1, 1)
    room.took(3, 12, 1, QUORUM_MEMBER_PROPOSED_BYTES)
    room.committed(9)
    assert room.is_full(2)
    room.committed(10)
    assert (room.is_full(2), room.is_full(3)) == (False, True)
    room.committed(12)
    assert not room.is_full(3)
    room.took(2, 13, 1, QUORUM_MEMBER_PROPOSED_BYTES)
    room.clear()
    assert not room.is_full(2)


def test_Q3_a_voter_whose_disk_is_far_behind_takes_nothing_more() -> None:
    append, beat = AppendEntries(GROUP, 2, 1, 1, 0, 0, 0, 0), Heartbeat(GROUP, 2, 1, 1, 0, 0, 1)
    assert not is_too_much(append, QUORUM_UNSYNCED_MAX - 1, QUORUM_UNSYNCED_BYTES - 1)
    assert is_too_much(append, 1, QUORUM_UNSYNCED_BYTES)
    assert not is_too_much(beat, 1, QUORUM_UNSYNCED_BYTES), "it still hears its leader"
    assert is_too_much(beat, QUORUM_UNSYNCED_MAX, 0)
