"""Messages of voters: their bytes stay as they are, and no bytes break a reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.errors import BadQuorumMessage
from holdfast.rules.limits import (
    QUORUM_APPEND_BYTES_MAX,
    QUORUM_APPEND_ENTRIES_MAX,
    QUORUM_ENTRY_BYTES_MAX,
    QUORUM_MEMBERS_MAX,
    QUORUM_MESSAGE_BYTES_MAX,
    QUORUM_PART_BYTES_MAX,
    QUORUM_PROPOSALS_MAX,
    QUORUM_SNAPSHOT_BYTES_MAX,
    QUORUM_TERM_MAX,
)
from holdfast.rules.quorum.raft.config import (
    GroupConfig,
    GroupMember,
    decode_config,
    encode_config,
    first_config,
)
from holdfast.rules.quorum.raft.effects import SendAppend, filled
from holdfast.rules.quorum.raft.messages import (
    AppendAnswer,
    AppendEntries,
    AskVote,
    ForwardAnswer,
    ForwardProposals,
    GroupSnapshotBegin,
    GroupSnapshotPart,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    Proposal,
    RaftEntry,
    ReadAnswer,
    ReadAsk,
    RemovedVoter,
    SnapshotOffer,
    SnapshotReceived,
    TimeoutNow,
    VoteAnswer,
    WakeGroup,
    decode_message,
    encode_message,
)

GOLDEN = Path(__file__).parent / "golden" / "messages.json"
CONFIG = first_config((("ana", b"k" * 32), ("bob", b"l" * 32), ("cai", b"m" * 32)))
HEAD: tuple[bytes, int, int, int] = (bytes(range(16)), 1, 2, 7)
ENTRIES = (RaftEntry(5, "data", b"payload"), RaftEntry(7, "noop"))
SAMPLES: dict[str, Message] = {
    "ask_vote": AskVote(*HEAD, False, 12, 6, True),
    "vote_answer": VoteAnswer(*HEAD, True, True),
    "append_entries": AppendEntries(*HEAD, 10, 5, 9, 33, ENTRIES),
    "append_answer": AppendAnswer(*HEAD, False, 10, 8, 33, 7, 4, "full"),
    "heartbeat": Heartbeat(*HEAD, 9, 5, 34, True),
    "heartbeat_answer": HeartbeatAnswer(*HEAD, 34, 9, True, "slow"),
    "snapshot_offer": SnapshotOffer(*HEAD, 40, 6, 0, CONFIG, 35),
    "forward_proposals": ForwardProposals(*HEAD, (Proposal(b"i" * 16, b"payload"),)),
    "forward_answer": ForwardAnswer(*HEAD, (b"i" * 16,), "no_leader"),
    "read_ask": ReadAsk(*HEAD, 3),
    "read_answer": ReadAnswer(*HEAD, 3, -1, "leader_changed"),
    "timeout_now": TimeoutNow(*HEAD),
    "wake_group": WakeGroup(*HEAD),
    "removed_voter": RemovedVoter(*HEAD),
    "snapshot_begin": GroupSnapshotBegin(*HEAD, 2, 40, 6, 3, CONFIG, 600_000, b"d" * 32, 35),
    "snapshot_part": GroupSnapshotPart(*HEAD, 2, 262_144, b"rows"),
    "snapshot_received": SnapshotReceived(*HEAD, 2, 262_148, "taken"),
}

odd = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=9)
    | st.binary(max_size=70) | st.floats(),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=16,
)  # fmt: skip


def test_Q2_the_bytes_of_every_kind_of_message_stay_as_they_were_written_down() -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert {name: encode_message(it).hex() for name, it in SAMPLES.items()} == golden
    assert {name: decode_message(bytes.fromhex(it)) for name, it in golden.items()} == SAMPLES


def test_Q2_every_kind_of_message_has_a_sample() -> None:
    assert {type(sample) for sample in SAMPLES.values()} == set(Message.__args__)


@given(st.binary(max_size=200))
def test_R4_random_bytes_are_refused_and_nothing_else(data: bytes) -> None:
    _read(data)


@given(st.integers(0, 20), st.lists(odd, max_size=14))
def test_R4_odd_fields_are_refused_and_nothing_else(tag: int, fields: list[Any]) -> None:
    _read(msgspec.msgpack.encode([tag, *fields]))


@given(st.sampled_from(sorted(SAMPLES)), st.integers(0, 14), odd)
def test_R4_one_odd_field_in_a_good_message_is_refused_or_read(
    name: str, at: int, value: Any
) -> None:
    fields: list[Any] = msgspec.msgpack.decode(encode_message(SAMPLES[name]))
    fields[at % len(fields)] = value
    _read(msgspec.msgpack.encode(fields))


@given(st.sampled_from(sorted(SAMPLES)), st.integers(0, 300), st.integers(0, 255))
def test_R4_a_changed_byte_is_refused_or_read(name: str, at: int, value: int) -> None:
    data = bytearray(encode_message(SAMPLES[name]))
    data[at % len(data)] = value
    _read(bytes(data))


@pytest.mark.parametrize(
    "bad",
    [
        AskVote(*HEAD[:3], QUORUM_TERM_MAX + 1, False, 1, 1),
        AskVote(b"short", 1, 2, 3, False, 1, 1),
        AskVote(*HEAD[:3], -1, False, 1, 1),
        AppendEntries(*HEAD, 1, 6, 0, 0, (RaftEntry(5, "data"),)),
        AppendEntries(*HEAD, 1, 1, 0, 0, (RaftEntry(8, "data"),)),
        AppendEntries(*HEAD, 1, 1, 0, 0, (RaftEntry(5, "data"),) * (QUORUM_APPEND_ENTRIES_MAX + 1)),
        AppendEntries(
            *HEAD, 1, 1, 0, 0, (RaftEntry(5, "data", bytes(QUORUM_ENTRY_BYTES_MAX + 1)),)
        ),
        SnapshotOffer(*HEAD, 40, 6, 41, CONFIG),
        SnapshotOffer(*HEAD, 40, 8, 1, CONFIG),
        SnapshotOffer(*HEAD, 40, 6, 1, GroupConfig()),
        GroupSnapshotBegin(*HEAD, 1, 40, 6, 41, CONFIG, 1, b"d" * 32),
        GroupSnapshotBegin(*HEAD, 1, 40, 6, 1, CONFIG, QUORUM_SNAPSHOT_BYTES_MAX + 1, b"d" * 32),
        GroupSnapshotPart(*HEAD, 1, 0, bytes(QUORUM_PART_BYTES_MAX + 1)),
        GroupSnapshotPart(*HEAD, 1, 0, b""),
        SnapshotReceived(*HEAD, 1, -1),
        ForwardProposals(*HEAD, (Proposal(b"i" * 16, b""),) * (QUORUM_PROPOSALS_MAX + 1)),
        ForwardProposals(*HEAD, (Proposal(b"i" * 15, b""),)),
        ReadAnswer(*HEAD, 1, -2),
    ],
    ids=lambda it: type(it).__name__,
)
def test_Q2_a_field_out_of_bounds_is_refused(bad: Message) -> None:
    with pytest.raises(BadQuorumMessage):
        decode_message(encode_message(bad))


def test_Q2_a_message_that_is_too_long_is_refused_unread() -> None:
    with pytest.raises(BadQuorumMessage, match="too long"):
        decode_message(bytes(QUORUM_MESSAGE_BYTES_MAX + 1))


@pytest.mark.parametrize(
    "config",
    [
        GroupConfig((), 1),
        GroupConfig((GroupMember(1, "a", b"", "learner"),), 2),
        GroupConfig((GroupMember(1, "a", b"", "voter"),), 1),
        GroupConfig((GroupMember(2, "a", b"", "voter"), GroupMember(1, "b", b"", "voter")), 3),
        GroupConfig((GroupMember(1, "a", b"", "voter"), GroupMember(1, "b", b"", "voter")), 3),
        GroupConfig(tuple(GroupMember(n, "a", b"", "voter") for n in range(1, 9)), 9),
        GroupConfig(
            tuple(GroupMember(n, "a", b"", "voter") for n in range(1, QUORUM_MEMBERS_MAX + 2)), 99
        ),
    ],
)
def test_Q10_a_config_that_no_group_can_have_is_refused(config: GroupConfig) -> None:
    with pytest.raises(BadQuorumMessage):
        decode_config(encode_config(config))


def test_Q4_a_range_is_cut_into_messages_that_are_not_too_large() -> None:
    order = SendAppend(b"g" * 16, 1, 2, 9, 3, 11, 17, 10, 5)
    size = QUORUM_APPEND_BYTES_MAX // 2
    sizes = (1, size, size, size, QUORUM_APPEND_BYTES_MAX + 9, 1, 1)
    entries = tuple(RaftEntry(4 + n, "data", bytes(it)) for n, it in enumerate(sizes))
    messages = filled(order, entries)
    assert [len(it.entries) for it in messages] == [2, 2, 1, 2]
    assert [(it.prev, it.prev_term) for it in messages] == [(10, 3), (12, 5), (14, 7), (15, 8)]
    assert sum((it.entries for it in messages), ()) == entries


def test_Q4_an_empty_range_is_one_message_that_only_asks() -> None:
    (message,) = filled(SendAppend(b"g" * 16, 1, 2, 9, 3, 11, 10, 10, 5), ())
    assert (message.prev, message.entries) == (10, ())


def _read(data: bytes) -> None:
    """Reads bytes; any other error than the typed one fails the test."""
    try:
        message = decode_message(data)
    except BadQuorumMessage:
        return
    assert decode_message(encode_message(message)) == message
