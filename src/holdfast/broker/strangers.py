"""What those may cost who are no members of a mesh: one look at the store for each frame or call,
and few of them.

Anybody with a key may say hello, so a proved key is worth nothing by itself. Before anything that a
key hands in is decoded or queued, the broker looks whether the key is a member. Who was found is
remembered, as a hint: the transaction that accepts looks again, every time, and its refusal ends
the hint. Who was not found is looked up each time, because it may have joined meanwhile.

Every refusal of a stranger takes a token from the bucket of its key and from the one that all keys
share. When one is empty the connection is closed, or the call refused: whoever works for a mesh
does not wait for those who do not belong to any. A key that was not refused lately gets its look
even then, so that strangers cannot keep members out.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.broker.access import require_member
from holdfast.broker.counters import BrokerCounts
from holdfast.broker.rate_limit import Rates
from holdfast.rules import limits
from holdfast.rules.broker_rows import MemberRow
from holdfast.rules.errors import NotAMember, TooMany
from holdfast.storage.broker.port import BrokerStore

_ALL = b""
"""The bucket of all strangers together."""


class Strangers:
    """Who was a member lately, and how much those were refused who were none."""

    def __init__(
        self, store: BrokerStore, ticks: Callable[[], float], counts: BrokerCounts | None = None
    ) -> None:
        """`ticks` are seconds that never go back."""
        self._store, self._ticks = store, ticks
        self._counts = counts or BrokerCounts()
        self._members: dict[tuple[str, bytes], None] = {}
        """The last ones that were found, the oldest first."""
        self._each = Rates(limits.STRANGER_REFUSALS_PER_S, limits.STRANGER_REFUSALS_BURST)
        self._sum = Rates(limits.STRANGERS_REFUSALS_PER_S, limits.STRANGERS_REFUSALS_BURST)

    def was_member(self, mesh: str, key: bytes) -> bool:
        """Whether the key was a member at the last look. The store has the last word."""
        return (mesh, key) in self._members

    def no_member(self, mesh: str, key: bytes) -> None:
        """The store says that it is none."""
        self._members.pop((mesh, key), None)

    async def require_member(self, mesh: str, key: bytes, *grants: str) -> MemberRow:
        """The member with this key, by one look at the store. NotAMember if there is none, TooMany
        without a look if the key, or all strangers together, were refused too much.
        """
        if not self.was_member(mesh, key):
            self.require_patience(key)
        try:
            member = await require_member(self._store, mesh, key, *grants)
        except NotAMember:
            self.no_member(mesh, key)
            self.refused(key)
            raise
        self.found(mesh, key)
        return member

    def found(self, mesh: str, key: bytes) -> None:
        """The store says that it is a member."""
        if len(self._members) >= limits.MEMBERS_KNOWN_MAX:
            del self._members[next(iter(self._members))]
        self._members[mesh, key] = None

    def require_patience(self, key: bytes) -> None:
        if self.are_too_many(key):
            raise TooMany("this broker has refused this key, or strangers, too much lately")

    def are_too_many(self, key: bytes) -> bool:
        """Whether this key, or all strangers together, were refused more than they may be."""
        now = self._ticks()
        own = self._each.left(key, now)
        return own < 1 or (self._sum.left(_ALL, now) < 1 and own < self._each.brim)

    def refused(self, key: bytes) -> None:
        """Counts a refusal."""
        self._counts.refused[NotAMember.code] += 1
        now = self._ticks()
        self._each.take(key, 1, now)
        self._sum.take(_ALL, 1, now)
