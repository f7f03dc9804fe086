"""One connection's conversation, without the connection.

Frames go in by `on_frame`; what is to be sent comes out of it and of `pages`. Nothing here reads a
socket, a clock or a source of randomness: the shell that has them (`connection`) and a simulator
drive it alike.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

import msgspec

from holdfast.broker.accept import AcceptPort, Outcome
from holdfast.broker.access import mesh_positions
from holdfast.broker.decode_push import NewId, decode_push
from holdfast.broker.feed import Feeds
from holdfast.broker.queue_delivery import QueueDelivery
from holdfast.broker.verdicts import answer_of, problem_of
from holdfast.protocol.frames import (
    Acks,
    Challenge,
    Confirmed,
    Follow,
    FromBroker,
    FromNode,
    Hello,
    Item,
    Push,
    PushAnswer,
    Refusal,
    Settle,
    Take,
    Unfollow,
    Welcome,
)
from holdfast.rules import features, keys, limits
from holdfast.rules.broker_rows import PushedEnvelope
from holdfast.rules.errors import BadInput, HoldfastError, Refused, ZoneNotTrusted
from holdfast.rules.features import Supported
from holdfast.rules.names import check_peer
from holdfast.storage.broker.port import BrokerStore

log = logging.getLogger("holdfast")


class BrokerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker is known by, and what it offers."""

    name: str
    seed: bytes
    supported: Supported

    @property
    def key(self) -> bytes:
        return keys.public_key(self.seed)

    def __repr__(self) -> str:
        return f"Me(name={self.name!r})"


class Pushed:
    """What was pushed together: the good, which are handed in, and the bad, by their place."""

    __slots__ = ("bad", "good", "items", "mesh")

    def __init__(
        self,
        mesh: str,
        items: Sequence[Item],
        good: list[PushedEnvelope],
        bad: dict[int, HoldfastError],
    ) -> None:
        self.mesh, self.items, self.good, self.bad = mesh, items, good, bad

    def answered(self, outcomes: Sequence[Outcome]) -> Acks:
        """`outcomes` are those of the good."""
        if self.bad:
            rest = iter(outcomes)
            outcomes = [self.bad.get(at) or next(rest) for at in range(len(self.items))]
        epoch = 0
        answers: list[PushAnswer] = []
        for item, outcome in zip(self.items, outcomes, strict=True):
            if not isinstance(outcome, HoldfastError):
                epoch = outcome.epoch
            answers.append(answer_of(item.number, outcome))
        return Acks(self.mesh, epoch, answers)


class Session:
    """The broker's side of one conversation."""

    def __init__(
        self,
        store: BrokerStore,
        accepting: AcceptPort,
        me: BrokerInfo,
        certificate: bytes,
        clock: Callable[[], int],
        random: Callable[[int], bytes],
        *,
        new_id: NewId,
        open_session: Callable[[str, bytes], tuple[str, int]] | None = None,
        by_word: Callable[[str], bool] | None = None,
    ) -> None:
        """`certificate` is what a hello is bound to. `open_session` gives a bearer token and how
        long it lasts. `by_word` says whether a new epoch may be begun for a mesh because a member
        has seen more than there is.
        """
        self._store, self._accepting, self._me = store, accepting, me
        self._certificate, self._clock, self._random = certificate, clock, random
        self._new_id = new_id
        self._open_session = open_session or (lambda name, key: ("", 0))
        self._by_word = by_word or (lambda mesh: True)
        self._nonce = random(keys.NONCE_BYTES)
        self.name = ""
        self.key = b""
        """The member's, once it has proved it."""
        self.feeds = Feeds(store, "", b"", clock, self._by_word)
        self.queue_delivery = QueueDelivery(store, b"", clock, random)
        self.closing: tuple[int, str] | None = None
        """How the connection is to be closed, if it is."""

    # --- hello ---------------------------------------------------------------------------------

    def opening(self) -> Challenge:
        """What is said first."""
        me = self._me
        supported = {name: dict(params) for name, params in me.supported.items()}
        return Challenge(self._nonce, me.name, me.key, supported)

    async def on_frame(self, frame: FromNode) -> list[FromBroker]:
        """Takes what the other side said; what is answered at once."""
        if self.closing is not None:
            return []
        if isinstance(frame, Hello):
            return await self._on_hello(frame)
        if not self.key:
            self.closing = (features.NOT_TRUSTED, "say hello first")
            return []
        if isinstance(frame, Push):
            return await self._on_push(frame)
        try:
            return await self._on_other(frame)
        except HoldfastError as error:
            if error.http_status >= 500:
                log.warning("%s of %r: %s", type(frame).__name__, self.name, error.message)
            return [Refusal(frame.mesh, problem_of(error))]

    async def _on_other(self, frame: FromNode) -> list[FromBroker]:
        match frame:
            case Follow():
                return await self.feeds.follow(frame)
            case Unfollow():
                await self.feeds.unfollow(frame.mesh)
            case Confirmed():
                await self.feeds.got(frame)
            case Take():
                await self.queue_delivery.take(frame)
            case Settle():
                await self.queue_delivery.settle(frame)
            case _:
                raise AssertionError(f"{type(frame).__name__} is looked at before")
        return []

    async def _on_hello(self, frame: Hello) -> list[FromBroker]:
        if self.key:
            self.closing = (features.BAD_FRAME, "hello was said before")
            return []
        try:
            proof = self._check_hello(frame)
            features.check_needs(frame.needs, self._me.supported)
        except Refused as error:
            code = features.close_code(error)
            if code != features.NOT_TRUSTED:
                # All that was offered and asked for: without it nobody can tell why.
                log.warning(
                    "no agreement with %r (%d %s): it needs %r, this broker has %r",
                    *(frame.name, code, error.message, frame.needs, self._me.supported),
                )
            self.closing = (code, error.message)
            return []
        try:
            places = await mesh_positions(self._store, frame.key)
        except HoldfastError as error:
            log.warning("no welcome for %r: %s", frame.name, error.message)
            self.closing = (features.INTERNAL, "the broker's store does not answer")
            return []
        session, expires_in_ms = self._open_session(frame.name, frame.key)
        self.name, self.key = frame.name, frame.key
        self.feeds = Feeds(self._store, self.name, self.key, self._clock, self._by_word)
        self.queue_delivery = QueueDelivery(self._store, self.key, self._clock, self._random)
        return [Welcome(proof, session, expires_in_ms, places)]

    def _check_hello(self, frame: Hello) -> bytes:
        """Our own proof, if theirs is good."""
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

    # --- handing in ----------------------------------------------------------------------------

    async def _on_push(self, frame: Push) -> list[FromBroker]:
        if len(frame.items) > limits.PUSH_ITEMS_MAX:
            self.closing = (features.TOO_LARGE, f"a push has {limits.PUSH_ITEMS_MAX} items at most")
            return []
        pushed = self.read_push(frame.mesh, frame.epoch, frame.items)
        return [pushed.answered(await self._accepting.hand_in(pushed.good))]

    def read_push(self, mesh: str, epoch: int, items: Sequence[Item]) -> Pushed:
        """Reads what is to be handed in."""
        key, new_id = self.key, self._new_id
        good: list[PushedEnvelope] = []
        bad: dict[int, HoldfastError] = {}
        for at, item in enumerate(items):
            try:
                good.append(decode_push(item.raw, mesh, key, epoch, new_id))
            except HoldfastError as error:
                bad[at] = error
        return Pushed(mesh, items, good, bad)

    # --- what is sent unasked ------------------------------------------------------------------

    def topics(self, mesh: str) -> Collection[str] | None:
        feed = self.feeds.by_mesh.get(mesh)
        return None if feed is None else feed.topics

    @property
    def eager(self) -> bool:
        """Is there something that `pages` should look at?"""
        return self.closing is None and (self.feeds.eager or self.queue_delivery.eager)

    async def pages(self, room: int) -> list[FromBroker]:
        """What is to be sent now, of about so many bytes at most."""
        if self.closing is not None:
            return []
        return [*await self.queue_delivery.pages(), *await self.feeds.pages(room)]

    async def ended(self) -> None:
        """The connection is gone."""
        await self.feeds.ended()
