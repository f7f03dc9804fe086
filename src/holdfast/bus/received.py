"""What the bus hands to programs: messages, requests, replies and receipts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from holdfast.rules.bus.mesh_store import PeerKey
from holdfast.rules.bus.message import BusMessage
from holdfast.rules.envelope import Priority
from holdfast.rules.errors import BadValue


def text_of_body(body: bytes) -> str:
    """The body as text. Raises BadValue if it is none."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise BadValue("the body of this message is not text", hint="use its bytes") from None


class _Arrived:
    """What messages and requests have in common."""

    __slots__ = ("_message", "key", "received_at", "sender")

    def __init__(self, message: BusMessage, sender: str, key: PeerKey, received_at: int) -> None:
        self._message = message
        self.sender = sender
        """The name of the peer that sent it, as it is known here."""
        self.key = key
        self.received_at = received_at
        """When it came, by the clock of this machine."""

    @property
    def id(self) -> bytes:
        return self._message.id

    @property
    def topic(self) -> str:
        return self._message.topic

    @property
    def body(self) -> bytes:
        return self._message.body

    @property
    def text(self) -> str:
        return text_of_body(self._message.body)

    @property
    def content_type(self) -> str:
        return self._message.content_type

    @property
    def priority(self) -> Priority:
        return self._message.priority

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic!r} from {self.sender!r}>"


class ReceivedMessage(_Arrived):
    """A message that was sent to this peer, or published to a topic that it listens to."""

    __slots__ = ("_finish", "number")

    def __init__(
        self,
        message: BusMessage,
        sender: str,
        key: PeerKey,
        received_at: int,
        number: int = 0,
        finish: Callable[[int], None] | None = None,
    ) -> None:
        """`finish` is told the number once, when the reader has done what was to be done."""
        self._message, self.sender = message, sender
        self.key, self.received_at = key, received_at
        self.number = number
        """Its number in the inbox; 0 if it is not kept there."""
        self._finish = finish

    @property
    def is_kept(self) -> bool:
        """It is kept until it is finished: a bus that is bound again hands it out again."""
        return self.number > 0

    def finish(self) -> None:
        """This reader has done what was to be done."""
        finish, self._finish = self._finish, None
        if finish is not None:
            finish(self.number)


class ReceivedRequest(_Arrived):
    """A request that a handler is to answer."""

    __slots__ = ("remaining_ms",)

    def __init__(self, message: BusMessage, sender: str, key: PeerKey, received_at: int) -> None:
        self._message, self.sender = message, sender
        self.key, self.received_at = key, received_at
        self.remaining_ms = message.ttl_ms
        """How long the asker still waits, as of when it came; None: for ever."""

    @property
    def service(self) -> str:
        return self._message.topic


class BusReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request."""

    id: bytes
    """The id of the request."""
    peer: str
    """Who has answered."""
    body: bytes
    content_type: str = ""

    @property
    def text(self) -> str:
        return text_of_body(self.body)


class SendReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a message."""

    id: bytes
    state: Literal["delivered", "spooled"]
    """`delivered`: the peer has stored it. `spooled`: it waits here until the peer comes."""


class PublishReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """To whom a message of a topic went."""

    id: bytes
    peers: int
    """Connected peers that listen, to whom it was written."""
    kept: int = 0
    """Durable subscribers for whom it stands in the outbox until they have stored it."""
    missed: int = 0
    """Connected peers that listen but took nothing in time."""


class OutstandingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of an earlier life of the bus that has no reply yet."""

    id: bytes
    peer: str
    service: str
    body: bytes
    content_type: str
    remaining_ms: int
