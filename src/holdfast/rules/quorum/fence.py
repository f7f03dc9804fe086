"""Fences: the authority under which something was committed, in an order that only grows.

A fence token is (incarnation, lease epoch, coordinator, sequence). The incarnation grows when a
group of voters is recovered or changes its engine; the lease epoch whenever somebody else becomes
the coordinator (Raft: the term; etcd: the version of the key that a coordinator raises); the
sequence with every entry (Raft: its index; etcd: its revision). Tokens are ordered by these three
numbers. The coordinator takes no part in the order: one epoch has one coordinator, and a token that
says otherwise is forged.

Outside, a fence is text of fixed width that sorts as the fence does: a shell script compares it
with `<`, SQL with `WHERE fence < ?`. It has digits and points only, because some locales sort
letters in an order of their own. With the coordinator behind it, it is the whole token.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from holdfast.rules.envelope import Fence, LeaseEpoch
from holdfast.rules.errors import BadFence, BadInput, FenceForged, FenceTooOld
from holdfast.rules.limits import INCARNATION_MAX, LAMPORT_MAX
from holdfast.rules.names import check_peer

Incarnation = Annotated[int, Meta(ge=1, le=INCARNATION_MAX)]


class FenceOrder(NamedTuple):
    """What of a token decides which of two is newer. It compares as a tuple."""

    incarnation: int
    lease_epoch: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.incarnation:010d}.{self.lease_epoch:019d}.{self.sequence:019d}"


class FenceToken(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The authority of one entry that a quorum committed."""

    incarnation: Incarnation
    lease_epoch: LeaseEpoch
    coordinator: str
    sequence: LeaseEpoch

    @property
    def text(self) -> str:
        """The text of its order."""
        return f"{self.incarnation:010d}.{self.lease_epoch:019d}.{self.sequence:019d}"

    @property
    def order(self) -> FenceOrder:
        return FenceOrder(self.incarnation, self.lease_epoch, self.sequence)

    def further(self, entries: int) -> FenceToken:
        """The token of the same coordinator so many entries later."""
        return FenceToken(
            self.incarnation, self.lease_epoch, self.coordinator, self.sequence + entries
        )

    def __str__(self) -> str:
        """As `parse_token` reads it."""
        return f"{self.order}@{self.coordinator}"


FENCE_CHARS: Final = len(str(FenceOrder(0, 0, 0)))
_FENCE: Final = re.compile(r"([0-9]{10})\.([0-9]{19})\.([0-9]{19})")


def parse_order(text: str) -> FenceOrder:
    """The fence that a text of fixed width says. BadFence if it says none."""
    found = _FENCE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        shown = text[: FENCE_CHARS + 1] if isinstance(text, str) else text
        raise BadFence(f"{shown!r} is not a fence of {FENCE_CHARS} digits and points")
    return check_order(FenceOrder(int(found[1]), int(found[2]), int(found[3])))


def parse_token(text: str) -> FenceToken:
    """The token that `str` of it gave."""
    order, mark, coordinator = text.partition("@") if isinstance(text, str) else ("", "", "")
    if not mark:
        raise BadFence(f"{text!r} names no coordinator behind an @")
    place = parse_order(order)
    try:
        check_peer(coordinator)
    except BadInput as error:
        raise BadFence(f"the coordinator of a fence: {error.message}") from None
    return FenceToken(place.incarnation, place.lease_epoch, coordinator, place.sequence)


def check_order(order: FenceOrder) -> FenceOrder:
    """Raises unless these numbers can be those of a fence."""
    if not 1 <= order.incarnation <= INCARNATION_MAX:
        raise BadFence(f"{order.incarnation} is no incarnation: it is 1 to {INCARNATION_MAX}")
    if not (0 <= order.lease_epoch < LAMPORT_MAX and 0 <= order.sequence < LAMPORT_MAX):
        raise BadFence("a fence has a lease epoch or a sequence of more than 63 bits")
    return order


def check_newer(seen: FenceToken | None, offered: FenceToken, what: str) -> None:
    """Raises FenceTooOld unless `offered` is newer than what was seen, and FenceForged if both are
    of one lease epoch and name different coordinators.
    """
    if seen is None:
        return
    if (
        seen.incarnation == offered.incarnation
        and seen.lease_epoch == offered.lease_epoch
        and seen.coordinator != offered.coordinator
    ):
        raise FenceForged(
            f"{what}: lease epoch {offered.lease_epoch} was that of {seen.coordinator!r}, not of "
            f"{offered.coordinator!r}"
        )
    if (offered.incarnation, offered.lease_epoch, offered.sequence) <= (
        seen.incarnation,
        seen.lease_epoch,
        seen.sequence,
    ):
        raise FenceTooOld(f"{what}: the fence {offered} is not newer than {seen}")


def envelope_fence(token: FenceToken) -> Fence:
    """The fence as envelopes of version 1.0 have a field for it: the incarnation has no place
    there, and stands in the commit record only.
    """
    return Fence(token.lease_epoch, token.coordinator, token.sequence)
