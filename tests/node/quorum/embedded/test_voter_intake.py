"""What one voter says is worked off in turns, and what it must not say is blamed on it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdfast.node.quorum.embedded.voter_intake import VoterIntake
from holdfast.protocol.bus_frames import Stream
from holdfast.protocol.quorum_frames import GroupOffered, RaftWords, encode_word
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import (
    QUORUM_COSTS_A_TURN,
    QUORUM_ENTRIES_A_COST,
    QUORUM_OFFER_COSTS,
    QUORUM_STRAYS_MAX,
    QUORUM_WORDS_MAX,
)
from holdfast.rules.quorum.raft.config import GroupMember, first_config
from holdfast.rules.quorum.raft.messages import (
    AppendEntries,
    ForwardProposals,
    Message,
    Proposal,
    RaftEntry,
    ReadAsk,
    SnapshotOffer,
    encode_message,
)
from support.bus_links import in_loop

TAG, OTHER = b"g" * 16, b"h" * 16
BO = b"b" * 32


class Line:
    """A link that says how often it was stopped."""

    def __init__(self) -> None:
        self.peer, self.name = BO, "bo"
        self.blamed: list[HoldfastError] = []
        self.given_back, self.stops, self.is_read = 0, 0, True

    def stop_reading(self) -> None:
        assert self.is_read
        self.stops, self.is_read = self.stops + 1, False

    def read_on(self) -> None:
        assert not self.is_read
        self.is_read = True

    def taken(self, stream: Stream, size: int) -> None:
        self.given_back += size

    def blame(self, error: HoldfastError) -> None:
        self.blamed.append(error)


class Heard:
    """A group of this node, and how many messages it got in each turn of the loop."""

    def __init__(self) -> None:
        self.came: list[Message] = []
        self.offers = 0
        self.turn = 0
        self.in_turn: Counter[int] = Counter()

    def group(self, tag: bytes) -> Heard | None:
        return self if tag == TAG else None

    def offered(self, link: object, offer: GroupOffered) -> None:
        self.offers += 1
        self.in_turn[self.turn] += QUORUM_OFFER_COSTS

    def key_of(self, id: int) -> bytes | None:
        return BO

    def may_speak(self, keys: Sequence[bytes]) -> bool:
        return True

    def receive(self, message: Message, contact: GroupMember) -> None:
        self.came.append(message)
        self.in_turn[self.turn] += 1

    async def until_read(self, line: Line) -> None:
        while not line.is_read:
            self.turn += 1
            await asyncio.sleep(0)


def ask(number: int, group: bytes = TAG) -> ReadAsk:
    return ReadAsk(group, 2, 1, 1, number)


def frame(messages: Sequence[Message]) -> bytes:
    return encode_word(RaftWords([encode_message(one) for one in messages]))


def intake(line: Any, heard: Any) -> VoterIntake:
    return VoterIntake(line, lambda key: (key,), heard, Counter())


@in_loop
async def test_Q4_a_voter_that_floods_waits_for_itself_and_is_heard_in_order() -> None:
    line, heard = Line(), Heard()
    links = intake(line, heard)
    asks = [ask(number) for number in range(QUORUM_WORDS_MAX)]
    links.frame(Stream.CONTROL, frame(asks))
    assert len(heard.came) == QUORUM_COSTS_A_TURN, "the first of them are heard at once"
    assert not line.is_read
    await heard.until_read(line)
    assert max(heard.in_turn.values()) == QUORUM_COSTS_A_TURN
    assert heard.came == asks
    assert (line.stops, line.blamed) == (1, [])


@in_loop
async def test_Q4_many_frames_of_one_turn_share_what_a_turn_allows() -> None:
    line, heard = Line(), Heard()
    links = intake(line, heard)
    for number in range(QUORUM_COSTS_A_TURN + 50):
        links.frame(Stream.CONTROL, frame([ask(number)]))
    assert len(heard.came) == QUORUM_COSTS_A_TURN
    await heard.until_read(line)
    assert heard.came == [ask(number) for number in range(QUORUM_COSTS_A_TURN + 50)]


@in_loop
async def test_Q4_whoever_says_little_is_never_stopped() -> None:
    line, heard = Line(), Heard()
    links = intake(line, heard)
    for _ in range(5):
        links.frame(Stream.CONTROL, frame([ask(1)] * QUORUM_COSTS_A_TURN))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert (line.stops, len(heard.came)) == (0, 5 * QUORUM_COSTS_A_TURN)


@in_loop
async def test_Q4_what_costs_more_counts_for_more() -> None:
    many = QUORUM_COSTS_A_TURN * QUORUM_ENTRIES_A_COST
    entries, proposals = (RaftEntry(1, "data"),) * many, (Proposal(bytes(16), b""),) * many
    offer = GroupOffered("team", 1, TAG, 1, first_config((("bo", BO),)))
    for body, fit in (
        (frame([AppendEntries(TAG, 2, 1, 1, 0, 0, 0, 0, entries)]), 1),
        (frame([ForwardProposals(TAG, 2, 1, 1, proposals)]), 1),
        (encode_word(offer), QUORUM_COSTS_A_TURN // QUORUM_OFFER_COSTS),
    ):
        line, heard = Line(), Heard()
        links = intake(line, heard)
        for _ in range(fit + 1):
            links.frame(Stream.QUORUM, body)
        assert len(heard.came) + heard.offers == fit
        assert line.given_back == fit * len(body), "credit comes back when it is worked off"
        await heard.until_read(line)
        assert line.given_back == (fit + 1) * len(body)


@in_loop
async def test_Q4_messages_of_unknown_groups_are_blamed_when_there_are_many() -> None:
    line, heard = Line(), Heard()
    links = intake(line, heard)
    asyncio.get_running_loop().time = lambda: 7.0  # type: ignore[method-assign]
    stray = frame([ask(0, OTHER)] * QUORUM_WORDS_MAX)
    for _ in range(QUORUM_STRAYS_MAX // QUORUM_WORDS_MAX):
        links.frame(Stream.CONTROL, stray)
        await heard.until_read(line)
    assert not line.blamed, "a node may be spoken to before it knows that it belongs to a group"
    for _ in range(3):
        links.frame(Stream.CONTROL, stray)
        await heard.until_read(line)
    assert [error.code for error in line.blamed] == ["too_many"] * 3, "once for a frame"
    asyncio.get_running_loop().time = lambda: 8.0  # type: ignore[method-assign]
    links.frame(Stream.CONTROL, stray)
    await heard.until_read(line)
    assert len(line.blamed) == 3, "a second later it may speak again"


@in_loop
async def test_Q4_payloads_that_evade_credit_are_refused() -> None:
    line, heard = Line(), Heard()
    links = intake(line, heard)
    append = AppendEntries(TAG, 2, 1, 1, 0, 0, 0, 0)
    links.frame(Stream.CONTROL, frame([append]))
    assert [error.code for error in line.blamed] == ["bad_quorum_message"]
    links.frame(Stream.QUORUM, frame([append]))
    assert heard.came == [append]


@in_loop
async def test_Q4_a_snapshot_without_its_parts_is_refused() -> None:
    line, heard = Line(), Heard()
    offer = SnapshotOffer(TAG, 2, 1, 1, 1, 1, 0, first_config((("bo", BO),)))
    intake(line, heard).frame(Stream.QUORUM, frame([offer]))
    assert [error.code for error in line.blamed] == ["bad_quorum_message"]
    assert heard.came == []


@in_loop
async def test_Q4_a_link_that_ends_in_the_middle_of_a_flood_leaves_nothing_behind() -> None:
    line, heard = Line(), Heard()
    links = intake(line, heard)
    links.frame(Stream.CONTROL, frame([ask(1)] * QUORUM_WORDS_MAX))
    links.end()
    for _ in range(3):
        await asyncio.sleep(0)
    assert (len(heard.came), line.is_read) == (QUORUM_COSTS_A_TURN, False)
