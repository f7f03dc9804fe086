"""What voters say to each other on links of the bus: in order, and only as themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.node.quorum.embedded.voter_links import VoterLinks
from holdfast.protocol.bus_frames import FrameKind, Stream
from holdfast.protocol.quorum_frames import (
    GroupOffered,
    RaftWords,
    VoterWord,
    decode_word,
    encode_word,
)
from holdfast.rules.errors import BadQuorumMessage, HoldfastError, PeerUnreachable
from holdfast.rules.limits import QUORUM_QUEUE_BYTES
from holdfast.rules.quorum.raft.config import GroupMember, first_config
from holdfast.rules.quorum.raft.messages import (
    AppendEntries,
    Heartbeat,
    Message,
    RaftEntry,
    decode_message,
    encode_message,
)

TAG, OTHER = b"g" * 16, b"h" * 16
BO, EVE = b"b" * 32, b"e" * 32
MEMBER = GroupMember(2, "bo", BO, "voter")


class Line:
    """A link that keeps what is sent; with `room` False its stream of entries is full."""

    def __init__(self, peer: bytes = BO) -> None:
        self.peer, self.name, self.up, self.is_open = peer, "bo", True, True
        self.sent: list[tuple[Stream, VoterWord]] = []
        self.blamed: list[HoldfastError] = []
        self.given_back = 0
        self._room = asyncio.Event()
        self._room.set()

    def has_room(self, stream: Stream, size: int = 0) -> bool:
        return self._room.is_set()

    async def room(self, stream: Stream, size: int = 0) -> None:
        await self._room.wait()
        if not self.up:
            raise PeerUnreachable("it is gone")

    def fill(self) -> None:
        self._room.clear()

    def drain(self) -> None:
        self._room.set()

    def send(self, kind: FrameKind, stream: Stream, body: bytes, *, at_once: bool = False) -> None:
        assert kind is FrameKind.QUORUM
        if not self.up:
            raise PeerUnreachable("it is gone")
        self.sent.append((stream, decode_word(body)))

    def taken(self, stream: Stream, size: int) -> None:
        assert stream is Stream.QUORUM, "the control stream has no credit"
        self.given_back += size

    def stop_reading(self) -> None:
        raise AssertionError("nobody floods here")

    def read_on(self) -> None: ...

    def blame(self, error: HoldfastError) -> None:
        self.blamed.append(error)


class Side:
    def __init__(self, may_speak: bool = False) -> None:
        self.came: list[Message] = []
        self._may_speak = may_speak

    def key_of(self, id: int) -> bytes | None:
        return BO if id == 2 else None

    def may_speak(self, keys: Sequence[bytes]) -> bool:
        return self._may_speak

    def receive(self, message: Message, contact: GroupMember) -> None:
        assert (contact.id, contact.key) == (message.sender, EVE if message.sender == 9 else BO)
        self.came.append(message)


class Heard:
    def __init__(self, side: Side | None = None) -> None:
        self.side = side or Side()
        self.offers: list[GroupOffered] = []
        self.links: list[tuple[tuple[bytes, ...], bool]] = []

    def group(self, tag: bytes) -> Side | None:
        return self.side if tag == TAG else None

    def offered(self, link: object, offer: GroupOffered) -> None:
        self.offers.append(offer)

    def linked(self, keys: Sequence[bytes], up: bool) -> None:
        self.links.append((tuple(keys), up))


def beat(group: bytes = TAG, sender: int = 1, to: int = 2) -> Heartbeat:
    return Heartbeat(group, sender, to, 1, 0, 0, 1)


def append(size: int, prev: int = 0) -> AppendEntries:
    return AppendEntries(TAG, 1, 2, 1, prev, 1, 0, 1, (RaftEntry(1, "data", b"x" * size),))


def words(sent: list[tuple[Stream, VoterWord]]) -> list[tuple[Stream, list[Message]]]:
    return [
        (stream, [decode_message(raw) for raw in word.messages])
        for stream, word in sent
        if isinstance(word, RaftWords)
    ]


def frame(*messages: Message) -> bytes:
    return encode_word(RaftWords([encode_message(one) for one in messages]))


def told(story: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            await story()

    asyncio.run(run())


def test_Q4_heartbeats_of_many_groups_share_one_frame_and_entries_have_their_own_stream() -> None:
    async def story() -> None:
        links, line = VoterLinks(Heard()), Line()
        links.link_up(line)  # type: ignore[arg-type]
        for number in range(1000):
            links.send(MEMBER, beat(number.to_bytes(16, "big")))
        links.send(MEMBER, append(10))
        links.send(MEMBER, append(10, prev=1))
        await asyncio.sleep(0)
        control, entries = words(line.sent)
        assert (control[0], len(control[1])) == (Stream.CONTROL, 1000)
        assert (entries[0], [one.prev for one in entries[1]]) == (Stream.QUORUM, [0, 1])  # type: ignore[union-attr]

    told(story)


def test_Q4_without_room_entries_wait_in_order_heartbeats_go_and_too_much_is_dropped() -> None:
    async def story() -> None:
        links, line = VoterLinks(Heard()), Line()
        links.link_up(line)  # type: ignore[arg-type]
        line.fill()
        size = QUORUM_QUEUE_BYTES // 4
        for prev in range(6):
            links.send(MEMBER, append(size, prev))
        links.send(MEMBER, beat())
        await asyncio.sleep(0)
        assert [stream for stream, _ in line.sent] == [Stream.CONTROL]
        assert links.counts["no_room"] == 3
        line.drain()
        while len(line.sent) < 4:
            await asyncio.sleep(0)
        sent = [
            one for stream, batch in words(line.sent) if stream is Stream.QUORUM for one in batch
        ]
        assert [one.prev for one in sent] == [0, 1, 2]  # type: ignore[union-attr]
        await links.close()

    told(story)


def test_Q4_a_link_that_ends_while_entries_wait_leaves_nothing_behind() -> None:
    async def story() -> None:
        heard = Heard()
        links, line = VoterLinks(heard), Line()
        links.link_up(line)  # type: ignore[arg-type]
        line.fill()
        links.send(MEMBER, append(10))
        await asyncio.sleep(0)
        line.up = False
        line.drain()
        links.link_down(line)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert heard.links == [((BO,), True), ((BO,), False)]
        assert not links.is_linked(BO)
        links.send(MEMBER, beat())
        assert links.counts["no_link"] == 1
        await links.close()

    told(story)


def test_Q12_a_node_is_heard_while_its_link_stands_and_silent_from_its_end_on() -> None:
    """Also while nothing is said on it: groups that sleep are silent, and nobody is lost."""

    async def story() -> None:
        links, line = VoterLinks(Heard()), Line()
        loop = asyncio.get_running_loop()
        assert links.heard_at(BO) is None
        links.link_up(line)  # type: ignore[arg-type]
        up = links.heard_at(BO)
        assert up is not None
        while loop.time() <= up:
            await asyncio.sleep(0)
        later = links.heard_at(BO)
        assert later is not None
        assert later > up, "nothing was said since, and it is there"
        links.link_down(line)  # type: ignore[arg-type]
        down = links.heard_at(BO)
        assert down is not None
        while loop.time() <= down:
            await asyncio.sleep(0)
        assert links.heard_at(BO) == down

    told(story)


def test_Q4_a_voter_is_heard_only_over_a_link_of_its_own_key() -> None:
    async def story() -> None:
        heard = Heard()
        links, bo, eve = VoterLinks(heard), Line(), Line(EVE)
        links.link_up(bo)  # type: ignore[arg-type]
        links.link_up(eve)  # type: ignore[arg-type]
        good = frame(beat(sender=2, to=1))
        assert links.frame(bo, FrameKind.QUORUM, Stream.CONTROL, good)  # type: ignore[arg-type]
        assert len(heard.side.came) == 1
        assert links.frame(eve, FrameKind.QUORUM, Stream.QUORUM, good)  # type: ignore[arg-type]
        assert (len(heard.side.came), len(eve.blamed)) == (1, 1)
        assert eve.given_back == len(good)
        stranger = frame(beat(sender=9, to=1))
        links.frame(eve, FrameKind.QUORUM, Stream.CONTROL, stranger)  # type: ignore[arg-type]
        assert (len(heard.side.came), len(eve.blamed)) == (1, 2)
        assert not links.frame(bo, FrameKind.MESH, Stream.MESH, good)  # type: ignore[arg-type]

    told(story)


def test_Q10_a_member_that_is_not_known_yet_is_heard_if_its_mesh_lets_it_vote() -> None:
    async def story() -> None:
        heard = Heard(Side(may_speak=True))
        links, eve = VoterLinks(heard), Line(EVE)
        links.link_up(eve)  # type: ignore[arg-type]
        links.frame(eve, FrameKind.QUORUM, Stream.CONTROL, frame(beat(sender=9)))  # type: ignore[arg-type]
        assert (len(heard.side.came), eve.blamed) == (1, [])
        links.frame(eve, FrameKind.QUORUM, Stream.CONTROL, frame(beat(OTHER, 9)))  # type: ignore[arg-type]
        assert (links.counts["no_group"], eve.blamed) == (1, [])

    told(story)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        encode_word(RaftWords([b"no message"])),
        encode_word(GroupOffered("team", 1, TAG, 7, first_config((("bo", BO),)))),
    ],
)
def test_U2_what_no_voter_can_have_said_is_blamed_on_its_link(body: bytes) -> None:
    async def story() -> None:
        heard = Heard()
        links, bo = VoterLinks(heard), Line()
        links.link_up(bo)  # type: ignore[arg-type]
        assert links.frame(bo, FrameKind.QUORUM, Stream.CONTROL, body)  # type: ignore[arg-type]
        assert [type(error) for error in bo.blamed] == [BadQuorumMessage]
        assert (heard.side.came, heard.offers) == ([], [])

    told(story)
