"""Meshes that are shared through a broker, as calls: publish, join, members, topics and queues.

The node asks the broker and answers when that has. So these calls need the broker to be there, and
take as long as it does.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.node.broker_client.client import NewInvite
from holdfast.node.broker_client.queues import TakenMessage
from holdfast.node.calls.declare import Call, Calls, Shape
from holdfast.node.calls.wires import ArgumentWire, number, text, texts, yes
from holdfast.node.sharing.join import JoinedMesh
from holdfast.node.sharing.leave import Left
from holdfast.node.sharing.publish import Published
from holdfast.node.sharing.sharing import Sharing
from holdfast.protocol.broker_http import Destination, InviteInfo, Member
from holdfast.protocol.broker_log_http import DeadMessage, QueueInfo
from holdfast.rules.errors import (
    BadAnswer,
    BadToken,
    Conflict,
    InviteEnded,
    LeaseEnded,
    NotAMember,
    NotShared,
    UnknownDestination,
    UnknownKey,
    UnknownMesh,
    UnknownMessage,
    Unreachable,
    ZoneNotTrusted,
)
from holdfast.rules.rows import KnownMember, MeshRow
from holdfast.rules.structs import copy_to


class Done(msgspec.Struct, frozen=True):
    """Whether there was something to do."""

    done: bool


class SubscribedFrom(msgspec.Struct, frozen=True):
    """Where a subscription begins."""

    since: int
    """This node gets what the broker numbers above this."""


class TopicsSubscribed(msgspec.Struct, frozen=True):
    """The topics that this node gets."""

    topics: dict[str, int]
    """By name: above which number of the broker."""


class KnownMemberDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A member as the broker listed it last, and when it was last seen."""

    mesh: str
    key: str
    """64 hex digits."""
    name: str
    grants: tuple[str, ...]
    seen_at: int | None


_ASKED: Final = (
    *(UnknownMesh, UnknownKey, UnknownDestination, UnknownMessage, NotShared, Conflict),
    *(NotAMember, InviteEnded, BadToken, BadAnswer, Unreachable),
    *(ZoneNotTrusted, LeaseEnded),
)
"""What a broker may answer; the list of what it can say is its own (see its /openapi.json)."""
_GRANTS: Final = ArgumentWire(
    "What they may do: `read`, `write`, `send`, `invite`, `manage`.", list[str], texts
)
_MEMBER: Final = text("A member: its name or its key.")
_KIND: Final = text("`topic` or `queue`.")
_REF: Final = text("The name of the topic or queue.")
_KNOWN: Final = Shape(
    KnownMemberDocument,
    lambda row: copy_to(KnownMemberDocument, row, key=row.key.hex()),
    lambda document: copy_to(KnownMember, document, key=bytes.fromhex(document.key)),
)
_DONE: Final = Shape(Done, Done, lambda document: document.done)
_SINCE: Final = Shape(SubscribedFrom, SubscribedFrom, lambda document: document.since)
_TOPICS: Final = Shape(TopicsSubscribed, TopicsSubscribed, lambda document: document.topics)

_sharing = Calls(Sharing, "/v1", _ASKED)
_M: Final = "/meshes/{mesh}"


def _many(path: str, verb: Any, row: Any, **more: Any) -> None:
    """A list that a broker gives: only this node's own user may have it asked."""
    _sharing.get(path, verb, Shape(row), "list", writes=True, **more)


_sharing.post(
    f"{_M}/publish",
    Sharing.publish,
    Shape(Published),
    without=("progress", "wait"),
    wires={
        "broker": text("The address of the broker; not needed to go on with what was cut off."),
        "card": text("The card of the broker; not needed for a broker on this machine."),
        "token": text("For brokers that ask for one."),
        "invite_hours": number("How long the first invite holds."),
        "as_name": text("Publish a copy of the mesh under this name, as its own is taken there."),
    },
    looks_again=True,
    example="""-d '{"broker":"ADDRESS","card":"CARD"}'""",
)
_sharing.post(
    "/join",
    Sharing.join,
    Shape(JoinedMesh),
    without=("progress",),
    wires={"invite": text("The text of the invite.")},
    looks_again=True,
    example="""-d '{"invite":"INVITE"}'""",
)
_sharing.post(
    f"{_M}/leave",
    Sharing.leave,
    Shape(Left),
    wires={
        "remove": yes("The mesh is removed from the broker; for its owner."),
        "forget": yes("Leave the broker out of it, because it is gone."),
    },
    looks_again=True,
)
_sharing.post(
    f"{_M}/move",
    Sharing.move,
    Shape(MeshRow),
    wires={"url": text("The new address of the broker.")},
    looks_again=True,
    example="""-d '{"url":"ADDRESS"}'""",
)
_sharing.post(
    f"{_M}/invites",
    Sharing.invite,
    Shape(NewInvite),
    wires={
        "uses": number("How many may join by it."),
        "hours": number("How long it holds."),
        "grants": _GRANTS,
        "at": text("Where they reach the broker, if that is another address."),
    },
)
_many(f"{_M}/invites", Sharing.invites, InviteInfo)
_sharing.delete(f"{_M}/invites/{{id}}", Sharing.drop_invite, _DONE)
_many(f"{_M}/members", Sharing.members, Member)
_sharing.get(f"{_M}/known-members", Sharing.known_members, _KNOWN, "list", writes=True)
_sharing.put(
    f"{_M}/members/{{member}}",
    Sharing.grant,
    Shape(Member),
    wires={"member": _MEMBER, "grants": _GRANTS},
    example="""-d '{"grants":["read"]}'""",
)
_sharing.delete(f"{_M}/members/{{member}}", Sharing.remove_member, _DONE, wires={"member": _MEMBER})
_sharing.put(
    f"{_M}/destinations/{{kind}}/{{ref}}",
    Sharing.declare,
    Shape(Destination),
    wires={
        "kind": _KIND,
        "ref": _REF,
        "visibility_ms": number("How long a taken message is hidden from others."),
        "deliveries_max": number("After so many deliveries it becomes a dead letter."),
    },
)
_many(f"{_M}/destinations", Sharing.destinations, Destination)
_sharing.delete(
    f"{_M}/destinations/{{kind}}/{{ref}}",
    Sharing.drop_destination,
    _DONE,
    wires={"kind": _KIND, "ref": _REF},
)
_sharing.put(
    f"{_M}/subscriptions/{{topic}}", Sharing.subscribe, _SINCE, wires={"topic": text("The topic.")}
)
_sharing.delete(
    f"{_M}/subscriptions/{{topic}}", Sharing.unsubscribe, _DONE, wires={"topic": text("The topic.")}
)
_sharing.get(f"{_M}/subscriptions", Sharing.subscriptions, _TOPICS, writes=True)
_QUEUE: Final = {"queue": text("The name of the queue.")}
_many(f"{_M}/queues", Sharing.queues, QueueInfo)
_sharing.post(
    f"{_M}/queues/{{queue}}/take",
    Sharing.take,
    Shape(TakenMessage),
    "list",
    wires={**_QUEUE, "most": number("At most this many.")},
)
_sharing.post(
    f"{_M}/queues/{{queue}}/settle",
    Sharing.settle,
    _DONE,
    wires={
        **_QUEUE,
        "handle": text("The handle with which the message was taken."),
        "how": text("`done`, `again`, `dead` or `extend`."),
        "reason": text("Why, for those who look at dead letters."),
    },
    example="""-d '{"handle":"HANDLE"}'""",
)
_many(f"{_M}/queues/{{queue}}/dead", Sharing.dead_letters, DeadMessage, wires=_QUEUE)
_sharing.post(
    f"{_M}/queues/{{queue}}/dead/{{seq}}/revive",
    Sharing.revive,
    _DONE,
    wires={**_QUEUE, "seq": number("The number of the dead letter.")},
)

SHARED: Final[tuple[Call, ...]] = tuple(_sharing())
