"""The broker's side of one conversation: a machine that takes frames and returns effects.

    receive(raw)          a frame arrived; it waits here until a step takes it
    await step()          does the next piece of work: one frame, one slice of a push, or pages
    push_step()           the same for a push that may be read without asking the store
    accepted(…)           the acceptor has the outcomes of a slice
    tick(…), stop()       a second is over; the broker stops

Each returns what the shell has to do (`effects`). All decisions are made here: what is refused,
which pushes are read together, how much may wait unanswered, when to hang up. Nothing here knows a
socket or a task; clock and randomness are handed in. `connection` drives it, in the daemon and in
the simulator alike.

A push is handed in without waiting for the outcome of the one before: so the next group of the
acceptor fills while the last one is written.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from math import inf
from typing import Final

import msgspec

from holdfast.broker.access import mesh_positions
from holdfast.broker.effects import Accept, Effect, HangUp, Listen, Proved, SendFrames
from holdfast.broker.feed import Feeds, FeedSizes
from holdfast.broker.pushes.decode_push import (
    SLICE_ITEMS,
    NewId,
    Sender,
    decode_slice,
    slice_size,
)
from holdfast.broker.pushes.push_frame import PackedPush, joined_pushes, read_push
from holdfast.broker.queue_delivery import QueueDelivery
from holdfast.broker.strangers import Strangers
from holdfast.broker.verdicts import Outcome, answer_of, problem_of
from holdfast.protocol.frames import (
    Acks,
    Challenge,
    Confirmed,
    Follow,
    FromBroker,
    FromNode,
    Hello,
    MeshMoved,
    Push,
    Refusal,
    Settle,
    SnapshotNeeded,
    SnapshotWanted,
    Take,
    Unfollow,
    Welcome,
    read_from_node,
)
from holdfast.rules import close_codes, features, keys, limits
from holdfast.rules.broker_rows import AcceptVerdict
from holdfast.rules.errors import (
    BadAnswer,
    BadInput,
    HoldfastError,
    NotAMember,
    Refused,
    ZoneNotTrusted,
)
from holdfast.rules.features import Supported
from holdfast.rules.names import check_mesh, check_peer
from holdfast.rules.push_columns import Created
from holdfast.storage.broker.port import BrokerStore

log = logging.getLogger("holdfast")

_QUICK_S: Final = 0.002
"""A store that takes less for a group is quick: about as long as a hundred items are read."""
_CHANGES_FOLLOWING: Final = (Follow, Unfollow, Take)
_OUT: Final = (AcceptVerdict.NOT_A_MEMBER, AcceptVerdict.UNKNOWN_MESH)
_ENDS_FOLLOWING: Final = (MeshMoved, SnapshotNeeded, Refusal)


class BrokerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's name and key, and the features that it offers."""

    name: str
    seed: bytes
    supported: Supported

    @property
    def key(self) -> bytes:
        return keys.public_key(self.seed)

    def __repr__(self) -> str:
        return f"BrokerInfo(name={self.name!r})"


_Frame = Hello | Follow | Unfollow | Confirmed | Take | Settle | PackedPush
"""What a node sends; pushes are opened item by item when it is their turn."""


class _Push(msgspec.Struct):
    """A push that is read slice by slice: its items, and how many of them were read."""

    items: PackedPush
    size: int
    slice_items: int
    read: int = 0


class Session:
    """The broker's side of one conversation."""

    def __init__(
        self,
        store: BrokerStore,
        me: BrokerInfo,
        certificate: bytes,
        clock: Callable[[], int],
        random: Callable[[int], bytes],
        *,
        new_id: NewId,
        open_session: Callable[[str, bytes], tuple[str, int]] | None = None,
        may_begin_epoch: Callable[[str], bool] | None = None,
        accept_s: Callable[[], float] = lambda: inf,
        admit: Callable[[bytes], bool] = lambda key: True,
        feed_sizes: FeedSizes | None = None,
        strangers: Strangers | None = None,
    ) -> None:
        """`certificate` is what a hello is bound to. `open_session` gives a bearer token and how
        long it lasts. `may_begin_epoch` says whether a new epoch may begin for a mesh because a
        member has seen more than there is. `accept_s` is how long a store in another process took
        for its last group. `strangers` and `feed_sizes` are what all connections share. `admit`
        says whether one more connection of a member is welcome.
        """
        self._store, self._me = store, me
        self._certificate, self._clock, self._random = certificate, clock, random
        self._new_id = new_id
        self._open_session = open_session or (lambda name, key: ("", 0))
        self._may_begin_epoch = may_begin_epoch or (lambda mesh: True)
        self._accept_s, self._admit, self._feed_sizes = accept_s, admit, feed_sizes
        self._strangers = strangers or Strangers(store, lambda: clock() / limits.SECOND_MS)
        self._member = False
        """Whether the other side was seen to belong to a mesh here."""
        self._nonce = random(keys.NONCE_BYTES)
        self.name = ""
        self.key = b""
        """The member's, once it has proved it."""
        self.feeds = Feeds(store, "", b"", clock, self._may_begin_epoch)
        self.queue_delivery = QueueDelivery(store, b"", clock, random)
        self._inbox: deque[tuple[_Frame, int]] = deque()
        self._push: _Push | None = None
        self.items = self.bytes = 0
        """What was received and has no answer yet."""
        self._accepting = 0
        self._stepping = self._stopping = self._closed = False
        self._looked_at: int | None = None
        self._caught_up_at = 0

    # --- hello ---------------------------------------------------------------------------------

    def opening(self) -> Challenge:
        """The first frame of a connection."""
        me = self._me
        supported = {name: dict(params) for name, params in me.supported.items()}
        return Challenge(self._nonce, me.name, me.key, supported)

    def hello_late(self) -> list[Effect]:
        """The time for a hello is over."""
        return [] if self.key else self._close(close_codes.TOO_SLOW, "no hello came")

    async def _on_hello(self, frame: Hello) -> list[Effect]:
        if self.key:
            return self._close(close_codes.BAD_FRAME, "hello was said before")
        if self._strangers.are_too_many(frame.key):
            # Before any signature is checked: only who has proved this key can have been refused.
            return self._close_stranger()
        try:
            proof = self._check_hello(frame)
            features.check_needs(frame.needs, self._me.supported)
        except Refused as error:
            code = close_codes.close_code(error)
            if code != close_codes.NOT_TRUSTED:
                # All that was offered and asked for: without it nobody can tell why.
                log.warning(
                    "no agreement with %r (%d %s): it needs %r, this broker has %r",
                    *(frame.name, code, error.message, frame.needs, self._me.supported),
                )
            return self._close(code, close_codes.close_reason(error))
        try:
            places = await mesh_positions(self._store, frame.key)
        except HoldfastError as error:
            log.warning("no welcome for %r: %s", frame.name, error.message)
            return self._close(close_codes.INTERNAL, "the broker's store does not answer")
        if not self._admit(frame.key):
            return self._close(close_codes.ANOTHER_CONNECTION, "another_connection")
        token, expires_in_ms = self._open_session(frame.name, frame.key)
        self.name, self.key = frame.name, frame.key
        self.feeds = Feeds(
            *(self._store, self.name, self.key, self._clock, self._may_begin_epoch),
            self._feed_sizes,
        )
        self.queue_delivery = QueueDelivery(self._store, self.key, self._clock, self._random)
        self._member = bool(places)
        for place in places:
            self._strangers.found(place.mesh, self.key)
        welcome = Welcome(proof, token, expires_in_ms, places)
        return [Proved(self._member), SendFrames([welcome])]

    def _check_hello(self, frame: Hello) -> bytes:
        """Returns our own proof; raises if theirs is no good."""
        check_peer(frame.name)
        keys.check_key_bytes(frame.key)
        if len(frame.nonce) != keys.NONCE_BYTES:
            raise BadInput(f"the nonce of a hello has {keys.NONCE_BYTES} bytes")
        me = self._me
        hello = keys.HelloTranscript(
            client_zone=frame.name,
            client_key=frame.key,
            client_nonce=frame.nonce,
            server_zone=me.name,
            server_key=me.key,
            server_nonce=self._nonce,
            certificate=self._certificate,
        )
        if not keys.check_proof(frame.key, "client", hello, frame.proof):
            raise ZoneNotTrusted("the proof is not that of this key on this connection")
        return keys.prove(me.seed, "server", hello)

    # --- frames --------------------------------------------------------------------------------

    def receive(self, raw: bytes) -> list[Effect]:
        """Takes a frame from the line. It is answered by the steps that follow."""
        if self._stopping or self._closed:
            return []
        try:
            frame = read_push(raw) or _packed(read_from_node(raw))
            if not isinstance(frame, Hello):
                check_mesh(frame.mesh)  # once: it stands in everything that is answered
        except (BadAnswer, BadInput) as error:
            return self._close(close_codes.BAD_FRAME, error.message)
        self._inbox.append((frame, len(raw)))
        self.items += len(frame) if isinstance(frame, PackedPush) else 1
        self.bytes += len(raw)
        return []

    @property
    def has_ended(self) -> bool:
        """Nothing that still comes is looked at."""
        return self._closed

    @property
    def is_full(self) -> bool:
        """So much waits for an answer that nothing more should be read from the line."""
        return self.items > limits.CONNECTION_ITEMS_MAX or self.bytes > limits.CONNECTION_BYTES_MAX

    @property
    def in_push(self) -> bool:
        """The next step reads another slice of the same push: others may have their turn before."""
        return self._push is not None

    def has_work(self, *, may_page: bool) -> bool:
        """Would a step do something? Pages are looked for if the line takes them."""
        if self._closed:
            return False
        waiting = bool(self._inbox) or self.in_push
        return waiting or (may_page and (self.feeds.eager or self.queue_delivery.eager))

    async def step(self) -> list[Effect]:
        """The next piece of work. There is one step at a time."""
        assert not self._stepping, "one step at a time"
        self._stepping = True
        try:
            if self._push is not None:
                out = self._next_slice(self._push)
            elif self._inbox:
                out = await self._on_frame(*self._inbox.popleft())
            else:
                out = await self._pages()
        finally:
            self._stepping = False
        return [*out, *self._goodbye()]

    @property
    def has_plain_push(self) -> bool:
        """What waits is a push of which the store needs not be asked before it is read."""
        if self._closed or self._push is not None or not self._inbox:
            return False
        frame = self._inbox[0][0]
        return isinstance(frame, PackedPush) and self._strangers.was_member(frame.mesh, self.key)

    def push_step(self) -> list[Effect]:
        """The step that reads a plain push; it waits for nothing."""
        assert not self._stepping, "one step at a time"
        frame, size = self._inbox.popleft()
        assert isinstance(frame, PackedPush), "it was looked at before"
        items, size = self._joined(frame, size)
        return [*self._begin_push(items, size), *self._goodbye()]

    async def _on_frame(self, frame: _Frame, size: int) -> list[Effect]:
        if isinstance(frame, PackedPush) and self.key:
            return await self._on_push(frame, size)
        try:
            if isinstance(frame, Hello):
                return await self._on_hello(frame)
            if not self.key:
                return self._close(close_codes.NOT_TRUSTED, "say hello first")
            replies = await self._on_other(frame)
            out = self._replied(replies, listens=isinstance(frame, _CHANGES_FOLLOWING))
            return [*out, *self._judge(frame, replies)]
        finally:
            self.items -= 1
            self.bytes -= size

    async def _on_other(
        self, frame: Follow | Unfollow | Confirmed | Take | Settle | PackedPush
    ) -> list[FromBroker]:
        try:
            match frame:
                case Follow():
                    return await self.feeds.follow(frame)
                case Unfollow():
                    await self.feeds.unfollow(frame.mesh)
                case Confirmed():
                    await self.feeds.confirmed(frame)
                case Take():
                    await self.queue_delivery.take(frame)
                case Settle():
                    await self.queue_delivery.settle(frame)
                case PackedPush():
                    raise AssertionError("a push is looked at before")
        except HoldfastError as error:
            if error.http_status >= 500:
                log.warning("%s of %r: %s", type(frame).__name__, self.name, error.message)
            return [Refusal(frame.mesh, problem_of(error))]
        return []

    def _judge(self, frame: _Frame, replies: list[FromBroker]) -> list[Effect]:
        """A member may send frames of full size from now on; a stranger only so many."""
        refused = [reply for reply in replies if isinstance(reply, Refusal)]
        out = any(reply.problem.code == NotAMember.code for reply in refused)
        if not self._member and not out and isinstance(frame, Follow | Take):
            self._member = True
            return [Proved(member=True)]
        if not out and self._member:
            return []
        self._strangers.refused(self.key)
        return self._end_patience()

    def _end_patience(self) -> list[Effect]:
        if self._strangers.are_too_many(self.key):
            return self._close_stranger()
        return []

    def _close_stranger(self) -> list[Effect]:
        why = "this key was refused too often lately"
        return self._close(close_codes.TOO_MANY, why, limits.STRANGER_WAIT_MS)

    def _replied(self, replies: list[FromBroker], *, listens: bool = False) -> list[Effect]:
        """`replies`, and what wakes us from now on if that may have changed."""
        out: list[Effect] = [SendFrames(replies)] if replies else []
        if listens or any(isinstance(frame, _ENDS_FOLLOWING) for frame in replies):
            queues = frozenset(self.queue_delivery.by_queue)
            out.append(Listen(frozenset(self.feeds.by_mesh), queues))
        return out

    # --- pushes --------------------------------------------------------------------------------

    def _joined(self, frame: PackedPush, size: int) -> tuple[PackedPush, int]:
        """A push, with those that wait behind it for the same mesh, and how large they are."""
        pushes, count = [frame], len(frame)
        while self._inbox and count < SLICE_ITEMS:
            after, more = self._inbox[0]
            if (
                not isinstance(after, PackedPush)
                or (after.mesh, after.epoch) != (frame.mesh, frame.epoch)
                or count + len(after) > limits.PUSH_ITEMS_MAX
            ):
                break
            self._inbox.popleft()
            pushes.append(after)
            count += len(after)
            size += more
        return joined_pushes(pushes), size

    async def _on_push(self, frame: PackedPush, size: int) -> list[Effect]:
        """Reads the first slice of a push, if its sender is a member."""
        items, size = self._joined(frame, size)
        admitted: list[Effect] = []
        if len(items) <= limits.PUSH_ITEMS_MAX and not self._strangers.was_member(
            frame.mesh, self.key
        ):
            try:
                await self._strangers.require_member(frame.mesh, self.key)
            except HoldfastError as error:
                return self._refuse_push(items, size, error)
            if not self._member:
                self._member = True
                admitted = [Proved(member=True)]
        return [*admitted, *self._begin_push(items, size)]

    def _begin_push(self, items: PackedPush, size: int) -> list[Effect]:
        if len(items) > limits.PUSH_ITEMS_MAX:
            return self._close(close_codes.TOO_LARGE, "so many items are too many for one push")
        most = slice_size(len(items), by_halves=self._accept_s() < _QUICK_S)
        return self._next_slice(_Push(items, size, most))

    def _refuse_push(self, items: PackedPush, size: int, error: HoldfastError) -> list[Effect]:
        """One answer for all items, none of which was read."""
        self.items -= len(items)
        self.bytes -= size
        answers = [answer_of(number, error) for number in items.numbers]
        return [SendFrames([Acks(items.mesh, 0, answers)]), *self._end_patience()]

    def _next_slice(self, push: _Push) -> list[Effect]:
        """An empty push has one slice too: who sent it waits for the answer."""
        at, push.read = push.read, push.read + push.slice_items
        size, push.size = push.size, 0
        self._push = push if push.read < len(push.items) else None
        sender = Sender(self.key, self.name)
        found = decode_slice(push.items, at, push.read, size, sender, self._new_id)
        self._accepting += 1
        return [Accept(found)]

    def accepted(self, accept: Accept, outcomes: Sequence[Outcome]) -> list[Effect]:
        """The outcomes of a slice, as the acceptor gives them."""
        self._accepting -= 1
        self.items -= len(accept.slice.numbers)
        self.bytes -= accept.slice.size
        if not isinstance(outcomes, Created) and any(map(_is_out, outcomes)):
            self._strangers.no_member(accept.slice.mesh, self.key)
        return [SendFrames([accept.slice.acks(outcomes)]), *self._goodbye()]

    # --- what is sent unasked ------------------------------------------------------------------

    def topics(self, mesh: str) -> Collection[str] | None:
        feed = self.feeds.by_mesh.get(mesh)
        return None if feed is None else feed.topics

    async def _pages(self) -> list[Effect]:
        room = limits.CONNECTION_UNREAD_BYTES
        return self._replied([*await self.queue_delivery.pages(), *await self.feeds.pages(room)])

    def tick(self, now_ms: int, last_seq: Callable[[str], int]) -> list[Effect]:
        """About once a second, while the line takes more. `now_ms` only counts; `last_seq` is the
        last seq of a mesh that this process has heard of.
        """
        if not self.key:
            return []
        self.queue_delivery.look()
        passed_over = self.feeds.passed_over()
        if self._looked_at is None:
            self._looked_at = self._caught_up_at = now_ms
        elif now_ms - self._looked_at >= limits.FEED_LOOK_MS:
            self._looked_at = self._caught_up_at = now_ms
            self.feeds.look()
        elif now_ms - self._caught_up_at >= limits.FEED_CATCH_UP_MS:
            self._caught_up_at = now_ms
            self.feeds.look(last_seq)
        return [SendFrames(passed_over)] if passed_over else []

    def want_snapshot(self, mesh: str) -> list[Effect]:
        """Asks the other side for a snapshot of a mesh."""
        return [SendFrames([SnapshotWanted(mesh)])]

    # --- the end -------------------------------------------------------------------------------

    def stop(self) -> list[Effect]:
        """The broker stops: what was pushed is answered first, then the other side hears of it."""
        self._stopping = True
        return self._goodbye()

    def replaced(self) -> list[Effect]:
        """The broker keeps a newer connection of this member."""
        return self._close(close_codes.ANOTHER_CONNECTION, "another_connection")

    def _goodbye(self) -> list[Effect]:
        busy = self._accepting or self._inbox or self.in_push or self._stepping
        if self._stopping and not busy:
            return self._close(close_codes.GOING_AWAY, "this broker stops")
        return []

    def _close(self, code: int, reason: str, wait_ms: int = 0) -> list[Effect]:
        if self._closed:
            return []
        self._closed = True
        return [HangUp(code, reason, wait_ms)]

    async def ended(self) -> None:
        """The connection is gone: nothing is answered any more."""
        self._closed = True
        self._inbox.clear()
        await self.feeds.ended()


def _packed(frame: FromNode) -> _Frame:
    return PackedPush.of(frame) if isinstance(frame, Push) else frame


def _is_out(outcome: Outcome) -> bool:
    """Whether the store says that the sender is no member."""
    return not isinstance(outcome, HoldfastError) and outcome.verdict in _OUT
