"""The JSON of the bus on a node's own API: what programs send to the daemon, and what they get.

The content of a message is text in `body`, or else base64 in `body_base64`.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Literal

import msgspec

from holdfast.rules.errors import BadInput
from holdfast.rules.limits import BUS_JOIN_MS, BUS_REQUEST_MS, BUS_RESOLVE_MS


class BusContent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a message says: exactly one of the first two, or neither for nothing."""

    body: str | None = None
    body_base64: bytes | None = None
    content_type: str = ""

    @property
    def content(self) -> bytes:
        if self.body is not None and self.body_base64 is not None:
            raise BadInput(
                "a message has one content",
                hint="give it as body, or as body_base64, and not as both",
            )
        return self.body_base64 or b"" if self.body is None else self.body.encode()


class BusSend(BusContent, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to one peer."""

    to: str
    """The name of a trusted peer, or its key."""
    topic: str = ""
    priority: str = "next"
    """`now`, `next` or `low`."""
    ttl_ms: int | None = None
    """It is given up after this time; 7 days if it is not given."""
    wait_ms: int = BUS_RESOLVE_MS
    """How long to look for a peer that is not there, before the answer is `spooled`."""
    id: str | None = None
    """A UUID of version 7: the same message again under its id arrives once."""


class BusPublish(BusContent, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to all who listen to a topic."""

    topic: str
    priority: str = "next"
    id: str | None = None


class BusAsk(BusContent, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request."""

    service: str
    to: str | None = None
    """The peer to ask; null: any peer that serves it."""
    timeout_ms: int = BUS_REQUEST_MS
    id: str | None = None
    """A UUID of version 7: the same request again gets the same reply."""


class BusSent(msgspec.Struct, frozen=True):
    """What became of a message."""

    id: str
    state: Literal["delivered", "spooled"]
    """`delivered`: the peer has stored it. `spooled`: it waits here until the peer comes."""


class BusPublished(msgspec.Struct, frozen=True):
    """To whom a message of a topic went."""

    id: str
    peers: int
    """Connected peers that listen, to whom it was written."""
    kept: int
    """Durable subscribers for whom it is kept until they have stored it."""
    missed: int
    """Connected peers that listen but took nothing in time."""


class BusAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reply to a request."""

    id: str
    peer: str
    """Who has answered."""
    body: str | None = None
    body_base64: str | None = None
    content_type: str = ""


class BusPing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whom to ping."""

    peer: str


class BusJoin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An invite to a mesh without a broker."""

    invite: str
    wait_ms: int = BUS_JOIN_MS
    """How long its maker is looked for."""

    def __repr__(self) -> str:
        return "BusJoin()"  # the invite is a secret


class BusLeave(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which mesh without a broker to leave."""

    mesh: str


class BusLeft(msgspec.Struct, frozen=True):
    """The owner knows that this node has left."""

    mesh: str


class BusPong(msgspec.Struct, frozen=True):
    """How long it took to a peer and back."""

    peer: str
    ms: float


class StreamOpened(msgspec.Struct, frozen=True):
    """The first event of a stream: the name that acknowledgements and replies give."""

    stream: str


class BusMail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that came, as an event."""

    number: int
    """Counts the messages of this stream, from 1."""
    id: str
    sender: str
    key: str
    """The key of the sender, as base64url."""
    topic: str = ""
    body: str | None = None
    body_base64: str | None = None
    content_type: str = ""
    priority: str = "next"
    received_at: int = 0


class BusAcknowledge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Messages of a stream that need not come again."""

    numbers: list[int]


class BusCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that a program is to answer, as an event."""

    call: int
    """Names it in the reply."""
    id: str
    service: str
    sender: str
    key: str
    body: str | None = None
    body_base64: str | None = None
    content_type: str = ""
    timeout_ms: int | None = None
    """How long the asker still waits; null: for ever."""


class BusCallEnded(msgspec.Struct, frozen=True):
    """The asker no longer waits for this call."""

    call: int


class BusReplyGiven(BusContent, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a program answers to a call."""

    call: int
    code: str = ""
    """What went wrong, as a word for programs; empty if nothing did."""
    message: str = ""
    """With a code: what went wrong, for people."""


class BusTaken(msgspec.Struct, frozen=True):
    """An acknowledgement or a reply was taken."""

    taken: bool
    """False: too late, or it had come before."""


def content_fields(content: bytes) -> dict[str, Any]:
    """The content of a message in a document."""
    try:
        return {"body": content.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(content).decode()}
