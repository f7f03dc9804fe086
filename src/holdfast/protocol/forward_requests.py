"""What a member without a vote asks voters: requests of the bus.

    holdfast.quorum.propose   a member that may write   ProposeAsked ─► ProposeGiven
    holdfast.quorum.confirm   a member that may read    ConfirmAsked ─► ConfirmGiven

Any voter answers, whoever coordinates. Both answers name a number: when the asker has folded the
order up to there, it has what the answer is about. Bodies are msgpack arrays.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from holdfast.rules.envelope import IntentId, Moment
from holdfast.rules.errors import BadAnswer
from holdfast.rules.limits import (
    INTENT_OPERATIONS_MAX,
    MESH_SLUG_CHARS_MAX,
    PROPOSED_ENVELOPE_BYTES_MAX,
    QUORUM_MEMBERS_MAX,
    REASON_CHARS_MAX,
    REQUEST_MS_MAX,
)
from holdfast.rules.quorum.view import Clash, EntityRevision
from holdfast.rules.reconcile import Outcome

PROPOSE: Final = "holdfast.quorum.propose"
CONFIRM: Final = "holdfast.quorum.confirm"

Slug = Annotated[str, Meta(max_length=MESH_SLUG_CHARS_MAX)]
Patience = Annotated[int, Meta(ge=1, le=REQUEST_MS_MAX)]


class ProposeAsked(msgspec.Struct, array_like=True, frozen=True):
    mesh: Slug
    id: IntentId
    raw: Annotated[bytes, Meta(max_length=PROPOSED_ENVELOPE_BYTES_MAX)]
    timeout_ms: Patience


class ProposeGiven(msgspec.Struct, array_like=True, frozen=True):
    """What became of an envelope, as the voter has folded it."""

    upto: Moment
    """The commit up to which the asker has to fold to see it."""
    number: Moment | None
    """The number of its commit; None if it is no part of the order, or was so before."""
    outcome: Outcome | None
    reason: str
    detail: Annotated[str, Meta(max_length=REASON_CHARS_MAX)]
    revisions: Annotated[tuple[EntityRevision, ...], Meta(max_length=INTENT_OPERATIONS_MAX)]
    clashes: Annotated[tuple[Clash, ...], Meta(max_length=INTENT_OPERATIONS_MAX)]


class ConfirmAsked(msgspec.Struct, array_like=True, frozen=True):
    mesh: Slug
    timeout_ms: Patience


class MemberTold(msgspec.Struct, array_like=True, frozen=True):
    """A member of the group that decides, as the voter knows it."""

    id: Moment
    peer: str
    votes: bool
    leads: bool


class ConfirmGiven(msgspec.Struct, array_like=True, frozen=True):
    """Everything that was committed before the question has a number up to this one."""

    number: Moment
    lease_epoch: Moment
    coordinator: str
    members: Annotated[tuple[MemberTold, ...], Meta(max_length=QUORUM_MEMBERS_MAX)]


T = TypeVar("T", ProposeAsked, ProposeGiven, ConfirmAsked, ConfirmGiven)
encode: Final = msgspec.msgpack.Encoder().encode


def decode(body: bytes, kind: type[T]) -> T:
    """Raises BadAnswer."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadAnswer(f"a {kind.__name__} of a peer cannot be read: {error}") from None
