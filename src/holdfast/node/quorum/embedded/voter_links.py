"""Carries messages between the members of groups, over links of the bus that prove their keys.

What all groups of this node have to say to one other node in one turn of the loop leaves in one
frame: heartbeats of a thousand groups cost one. Entries have a stream with credit; when there is no
room they wait here, up to a limit, and what is more is dropped: the machine sends again what
matters. Everything else goes on the control stream, past all that waits.

What comes in is worked off by `voter_intake`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from holdfast.bus.ports import Link
from holdfast.node.quorum.embedded.voter_intake import WITH_CREDIT, GroupEvents, VoterIntake
from holdfast.protocol.bus_frames import FrameKind, Stream
from holdfast.protocol.quorum_frames import (
    RaftWords,
    VoterWord,
    encode_word,
)
from holdfast.rules.errors import PeerUnreachable
from holdfast.rules.limits import (
    QUORUM_QUEUE_BYTES,
    QUORUM_WORDS_BYTES,
    QUORUM_WORDS_MAX,
)
from holdfast.rules.quorum.raft.config import GroupMember
from holdfast.rules.quorum.raft.messages import (
    Message,
    encode_message,
)


class VoterEvents(GroupEvents, Protocol):
    """Who hears what comes, and which links there are."""

    def linked(self, keys: Sequence[bytes], up: bool) -> None:
        """The link to a node has come up or gone down."""


class _Way:
    """What is to be said over one link, and what comes over it."""

    def __init__(self, link: Link, intake: VoterIntake) -> None:
        self.link, self.intake = link, intake
        self.control: list[bytes] = []
        self.waiting: deque[bytes] = deque()
        self.waiting_bytes = 0
        self.flushing = False
        self.pumping: asyncio.Task[None] | None = None


class VoterLinks:
    """A `VoterNet` and a `LinkPart`. Belongs to one event loop."""

    def __init__(
        self,
        events: VoterEvents,
        keys: Callable[[bytes], tuple[bytes, ...]] = lambda key: (key,),
    ) -> None:
        """`keys` gives all keys that a linked peer has proved, the newest first."""
        self._events, self._keys = events, keys
        self._ways: dict[bytes, _Way] = {}
        """By every key of the peer at the other end."""
        self._last_linked: dict[bytes, float] = {}
        """By key of a peer without a link: when it had one, by the loop's time."""
        self.counts: Counter[str] = Counter()
        """What was dropped or refused, by reason."""

    # --- VoterNet ------------------------------------------------------------------------------

    def send(self, to: GroupMember, message: Message) -> None:
        way = self._ways.get(to.key)
        if way is None:
            self.counts["no_link"] += 1
            return
        raw = encode_message(message)
        if not isinstance(message, WITH_CREDIT):
            way.control.append(raw)
        elif way.waiting_bytes + len(raw) > QUORUM_QUEUE_BYTES and way.waiting:
            self.counts["no_room"] += 1
            return
        else:
            way.waiting.append(raw)
            way.waiting_bytes += len(raw)
        self._flush_soon(way)

    def has_room(self, to: GroupMember) -> bool:
        way = self._ways.get(to.key)
        return way is not None and way.waiting_bytes < QUORUM_QUEUE_BYTES

    def tell(self, key: bytes, word: VoterWord) -> None:
        """Says something that is not a machine's, if there is a way."""
        way = self._ways.get(key)
        if way is not None:
            self._say(way, Stream.CONTROL, encode_word(word))

    def is_linked(self, key: bytes) -> bool:
        return key in self._ways

    def heard_at(self, key: bytes) -> float | None:
        """When a node was last heard, by the loop's time; None: never. One whose link stands is
        heard now: the link asks it for signs of life, also while its groups sleep.
        """
        if key in self._ways:
            return asyncio.get_running_loop().time()
        return self._last_linked.get(key)

    def _flush_soon(self, way: _Way) -> None:
        if not way.flushing:
            way.flushing = True
            asyncio.get_running_loop().call_soon(self._flush, way)

    def _flush(self, way: _Way) -> None:
        way.flushing = False
        while way.control:
            batch = _taken(way.control)
            del way.control[: len(batch)]
            self._say(way, Stream.CONTROL, encode_word(RaftWords(batch)))
        self._send_waiting(way)

    def _send_waiting(self, way: _Way) -> None:
        while way.waiting and way.pumping is None:
            if not way.link.has_room(Stream.QUORUM):
                way.pumping = asyncio.get_running_loop().create_task(self._pump(way))
                return
            self._send_batch(way)

    def _send_batch(self, way: _Way) -> None:
        batch = _taken(way.waiting)
        for raw in batch:
            way.waiting.popleft()
            way.waiting_bytes -= len(raw)
        self._say(way, Stream.QUORUM, encode_word(RaftWords(batch)))

    async def _pump(self, way: _Way) -> None:
        """Sends what waits as there is room for it."""
        try:
            while way.waiting:
                await way.link.room(Stream.QUORUM)
                if way.waiting:
                    self._send_batch(way)
        except PeerUnreachable:
            way.waiting.clear()
            way.waiting_bytes = 0
        finally:
            way.pumping = None

    def _say(self, way: _Way, stream: Stream, body: bytes) -> None:
        try:
            # At once: this is a turn of its own already, and what else it says goes with it.
            way.link.send(FrameKind.QUORUM, stream, body, at_once=True)
        except PeerUnreachable:
            self.counts["no_link"] += 1  # its end is told in a moment

    # --- LinkPart ------------------------------------------------------------------------------

    def link_up(self, link: Link) -> None:
        keys = self._keys(link.peer)
        way = _Way(link, VoterIntake(link, self._keys, self._events, self.counts))
        for key in keys:
            self._ways[key] = way
            self._last_linked.pop(key, None)
        self._events.linked(keys, True)

    def link_down(self, link: Link) -> None:
        keys = [key for key, way in self._ways.items() if way.link is link]
        self._last_linked.update(dict.fromkeys(keys, asyncio.get_running_loop().time()))
        for key in keys:
            way = self._ways.pop(key)
            way.intake.end()
            if way.pumping is not None:
                way.pumping.cancel()
        if keys:
            self._events.linked(keys, False)

    def frame(self, link: Link, kind: FrameKind, stream: Stream, body: bytes) -> bool:
        if kind is not FrameKind.QUORUM:
            return False
        way = self._ways.get(link.peer)
        if way is not None and way.link is link:
            way.intake.frame(stream, body)
        return True

    async def close(self) -> None:
        """The bus ends; its links go down afterwards."""
        tasks = [way.pumping for way in self._ways.values() if way.pumping is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _taken(waiting: Iterable[bytes]) -> list[bytes]:
    """As many of the first as one frame carries."""
    batch: list[bytes] = []
    size = 0
    for raw in waiting:
        size += len(raw)
        if batch and (size > QUORUM_WORDS_BYTES or len(batch) == QUORUM_WORDS_MAX):
            break
        batch.append(raw)
    return batch
