"""What one voter says, worked off in turns: whoever says much waits for itself.

A frame may carry thousands of messages, and a voter that lies may send as many frames as it likes.
So only so many messages of one link are handled in a turn of the loop. Until the rest is done
nothing more is read from that link, so that what waits here is a frame or two, and other voters,
callers and the clock have their turns in between.

A message is handed to its group only if the link belongs to the key of the member that the message
says it is from. What carries payloads comes on the stream with credit, or not at all.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from holdfast.bus.ports import Link
from holdfast.protocol.bus_frames import Stream
from holdfast.protocol.quorum_frames import GroupOffered, VoterWord, decode_word
from holdfast.rules.errors import BadQuorumMessage, HoldfastError, NotAllowed, TooMany
from holdfast.rules.limits import (
    QUORUM_COSTS_A_TURN,
    QUORUM_ENTRIES_A_COST,
    QUORUM_OFFER_COSTS,
    QUORUM_STRAYS_MAX,
)
from holdfast.rules.quorum.raft.config import GroupMember
from holdfast.rules.quorum.raft.messages import (
    AppendEntries,
    ForwardProposals,
    GroupSnapshotPart,
    Message,
    SnapshotOffer,
    decode_message,
)

WITH_CREDIT: Final = (AppendEntries, ForwardProposals, GroupSnapshotPart)
"""Messages that carry payloads. An append without entries goes with them, to keep its place."""


class GroupSide(Protocol):
    """One group of this node, as its links know it."""

    def key_of(self, id: int) -> bytes | None:
        """The key of a member; None if nobody here has heard of it yet."""

    def may_speak(self, keys: Sequence[bytes]) -> bool:
        """Whether somebody with these keys may be a member that we have not heard of yet."""

    def receive(self, message: Message, contact: GroupMember) -> None:
        """`contact`: the sender, by the key of its link."""


class GroupEvents(Protocol):
    """Who hears what comes."""

    def group(self, tag: bytes) -> GroupSide | None: ...
    def offered(self, link: Link, offer: GroupOffered) -> None: ...


class _Frame(msgspec.Struct):
    stream: Stream
    size: int
    word: VoterWord
    done: int = 0
    """So many of its messages are handled."""


class VoterIntake:
    """What comes over one link. Belongs to one event loop."""

    def __init__(
        self,
        link: Link,
        keys: Callable[[bytes], tuple[bytes, ...]],
        events: GroupEvents,
        counts: Counter[str],
    ) -> None:
        """`keys` gives all keys that a linked peer has proved; `counts` what was refused, by
        reason.
        """
        self._link, self._keys, self._events, self._counts = link, keys, events, counts
        self._waiting: deque[_Frame] = deque()
        self._left = QUORUM_COSTS_A_TURN
        """What this link may still cost in this turn of the loop."""
        self._turning = False
        self._stopped = False
        """Nothing is read from the link until this is worked off."""
        self._ended = False
        self._strays, self._strays_since = 0, 0.0

    def frame(self, stream: Stream, body: bytes) -> None:
        try:
            word = decode_word(body)
        except HoldfastError as error:
            self._refuse(stream, len(body), error)
            return
        self._waiting.append(_Frame(stream, len(body), word))
        if not self._stopped:
            self._work()

    def end(self) -> None:
        """The link is down: what it brought and nobody has handled is as lost as what it did not
        bring any more.
        """
        self._ended = True
        self._waiting.clear()

    # --- turns -----------------------------------------------------------------------------------

    def _work(self) -> None:
        """Handles what waits, as much as a turn allows."""
        while self._waiting and not self._ended:
            if self._left <= 0:
                if not self._stopped:
                    self._stopped = True
                    self._link.stop_reading()
                return
            frame = self._waiting[0]
            try:
                is_done = self._handle_some(frame)
            except HoldfastError as error:
                self._waiting.popleft()
                self._refuse(frame.stream, frame.size, error)
                continue
            if is_done:
                self._waiting.popleft()
                self._give_back(frame.stream, frame.size)

    def _handle_some(self, frame: _Frame) -> bool:
        """Handles messages of a frame while there is room in this turn; True if it was all."""
        word = frame.word
        if isinstance(word, GroupOffered):
            self._spend(QUORUM_OFFER_COSTS)
            self._events.offered(self._link, word)
            return True
        keys, messages = self._keys(self._link.peer), word.messages
        while frame.done < len(messages):
            if self._left <= 0:
                return False
            raw = messages[frame.done]
            frame.done += 1
            self._handle(decode_message(raw), keys, frame.stream)
        return True

    def _handle(self, message: Message, keys: Sequence[bytes], stream: Stream) -> None:
        self._spend(_cost(message))
        if stream is Stream.CONTROL and isinstance(message, WITH_CREDIT):
            raise BadQuorumMessage("a payload comes on the stream that has no credit")
        if isinstance(message, SnapshotOffer):
            raise BadQuorumMessage("a snapshot is offered without its parts")
        group = self._events.group(message.group)
        if group is None:
            self._stray()
            return
        _check_sender(group, keys, message)
        contact = GroupMember(message.sender, self._link.name, self._link.peer, "learner")
        group.receive(message, contact)

    def _spend(self, cost: int) -> None:
        self._left -= cost
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turning, self._left = False, QUORUM_COSTS_A_TURN
        self._work()
        if self._stopped and not self._waiting and not self._ended:
            self._stopped = False
            self._link.read_on()

    # --- what is refused -------------------------------------------------------------------------

    def _stray(self) -> None:
        """A message of a group that is not known here. We may not have heard yet that we belong to
        it, or do so no longer; but nobody has that much to say to such a node.
        """
        self._counts["no_group"] += 1
        now = asyncio.get_running_loop().time()
        if now >= self._strays_since + 1:
            self._strays, self._strays_since = 0, now
        self._strays += 1
        if self._strays > QUORUM_STRAYS_MAX:
            raise TooMany(f"more than {QUORUM_STRAYS_MAX} messages a second of unknown groups")

    def _refuse(self, stream: Stream, size: int, error: HoldfastError) -> None:
        self._counts[error.code] += 1
        self._link.blame(error)
        self._give_back(stream, size)

    def _give_back(self, stream: Stream, size: int) -> None:
        if stream is not Stream.CONTROL and not self._ended:
            self._link.taken(stream, size)


def _cost(message: Message) -> int:
    if isinstance(message, AppendEntries):
        return 1 + len(message.entries) // QUORUM_ENTRIES_A_COST
    if isinstance(message, ForwardProposals):
        return 1 + len(message.proposals) // QUORUM_ENTRIES_A_COST
    return 1


def _check_sender(group: GroupSide, keys: Sequence[bytes], message: Message) -> None:
    known = group.key_of(message.sender)
    if known is None:
        if not group.may_speak(keys):
            raise NotAllowed("a peer that may not vote speaks for a group of this node")
    elif known not in keys:
        raise NotAllowed(f"a peer speaks as member {message.sender}, whose key it has not got")
