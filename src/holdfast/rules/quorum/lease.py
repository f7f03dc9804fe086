"""Users' leases: who holds a name, by the order of commits, and when each side stops believing it.

In the committed state a lease has one holder or none, and those who wait, in the order in which
their requests were committed. A release or an expiry passes it on in the same entry. The fence of
a grant is the fence of the entry that gave it: of the request itself, or of the release or expiry
that made room. So fences of one lease only grow, and no two grants have the same.

Time decides nothing here. The coordinator counts the time to live on its own monotonic clock, from
when it folded the last renewal, and proposes an expiry that names that renewal; if another one was
committed before the proposal, the expiry does nothing. A new coordinator counts anew. The holder
counts from before it sent a renewal, and stops at two thirds: on clocks that run about alike it has
stopped before anybody else is named. A process that is paused may not notice that. Only a resource
that refuses older fences is safe from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from msgspec.structs import replace

from holdfast.rules.envelope import Envelope
from holdfast.rules.errors import LeaseHeld, LeaseNotHeld, NotOurs, NotTheCoordinator
from holdfast.rules.limits import LEASE_WAITERS_MAX
from holdfast.rules.quorum.fence import FenceOrder, FenceToken
from holdfast.rules.quorum.intents import (
    Guard,
    LeaseAcquire,
    LeaseExpire,
    LeaseRelease,
    LeaseRenew,
)
from holdfast.rules.quorum.view import LeaseRow, LeaseWaiter, PutLease, Ruling, View
from holdfast.rules.reconcile import Outcome

LeaseBody = LeaseAcquire | LeaseRenew | LeaseRelease | LeaseExpire


def rule_lease(
    view: View, envelope: Envelope, body: LeaseBody, fence: FenceToken, committed_at: int
) -> Ruling:
    """What an entry does to the lease that it names."""
    row = view.lease(envelope.entity) or LeaseRow(name=envelope.entity)
    if isinstance(body, LeaseAcquire):
        return _acquire(row, envelope, body, fence, committed_at)
    if isinstance(body, LeaseRenew):
        return _renew(row, envelope, body, fence)
    if isinstance(body, LeaseRelease):
        return _release(row, envelope, body, fence, committed_at)
    if envelope.origin != fence.coordinator:
        raise NotTheCoordinator(
            f"lease {row.name!r}: {envelope.origin!r} lets it expire, and {fence.coordinator!r} "
            "coordinates"
        )
    if row.renewed is None or row.renewed.order != body.order:
        return _SUPERSEDED  # it was renewed, released or passed on since
    return _applied(_passed_on(row, fence, committed_at))


def _acquire(
    row: LeaseRow, envelope: Envelope, body: LeaseAcquire, fence: FenceToken, committed_at: int
) -> Ruling:
    asks = LeaseWaiter(envelope.origin, envelope.id, body.ttl_ms)
    if not row.holder:
        assert not row.waiting, "nobody waits for a lease that nobody holds"
        return _applied(_granted(row, asks, fence, committed_at))
    if not body.wait:
        raise LeaseHeld(f"lease {row.name!r} is held by {row.holder!r}")
    if len(row.waiting) >= LEASE_WAITERS_MAX:
        raise LeaseHeld(f"lease {row.name!r}: {len(row.waiting)} wait for it, and no more may")
    return _applied(replace(row, waiting=(*row.waiting, asks)))


def _renew(row: LeaseRow, envelope: Envelope, body: LeaseRenew, fence: FenceToken) -> Ruling:
    if row.session != body.session:
        return Ruling(
            outcome=Outcome.REJECTED_FENCED,
            reason=LeaseNotHeld.code,
            detail=f"lease {row.name!r} is not held by this session, or no longer",
        )
    _check_holder(row.name, row.holder, envelope)
    return _applied(replace(row, renewed=fence, ttl_ms=body.ttl_ms))


def _release(
    row: LeaseRow, envelope: Envelope, body: LeaseRelease, fence: FenceToken, committed_at: int
) -> Ruling:
    if row.session == body.session:
        _check_holder(row.name, row.holder, envelope)
        return _applied(_passed_on(row, fence, committed_at))
    for place, waiter in enumerate(row.waiting):
        if waiter.session == body.session:
            _check_holder(row.name, waiter.holder, envelope)
            left = (*row.waiting[:place], *row.waiting[place + 1 :])
            return _applied(replace(row, waiting=left))
    return _SUPERSEDED


def _check_holder(name: str, holder: str, envelope: Envelope) -> None:
    if envelope.origin != holder:
        raise NotOurs(f"lease {name!r}: the session is that of {holder!r}")


def _passed_on(row: LeaseRow, fence: FenceToken, committed_at: int) -> LeaseRow:
    """The lease after its holder is gone."""
    if not row.waiting:
        return LeaseRow(name=row.name)
    left = replace(row, waiting=row.waiting[1:])
    return _granted(left, row.waiting[0], fence, committed_at)


def _granted(row: LeaseRow, to: LeaseWaiter, fence: FenceToken, committed_at: int) -> LeaseRow:
    return replace(
        row,
        holder=to.holder,
        session=to.session,
        ttl_ms=to.ttl_ms,
        grant=fence,
        renewed=fence,
        since=committed_at,
    )


def _applied(row: LeaseRow) -> Ruling:
    return Ruling(outcome=Outcome.APPLIED, writes=(PutLease(row),))


_SUPERSEDED = Ruling(outcome=Outcome.SUPERSEDED)


def guard_holds(row: LeaseRow | None, guard: Guard) -> bool:
    """Whether a lease is still held under the fence that a write shows."""
    return row is not None and row.grant is not None and row.grant.order == guard.order


# --- time, on each side's own monotonic clock ----------------------------------------------------


def holder_stops_at_ms(sent_at_ms: int, ttl_ms: int) -> int:
    """When a holder must stop, if the renewal that it sent then was the last one to be answered."""
    return sent_at_ms + ttl_ms * 2 // 3


def holder_ends_at_ms(sent_at_ms: int, ttl_ms: int) -> int:
    """When what was done under the lease must have ended, a little before it is given away."""
    return sent_at_ms + ttl_ms * 5 // 6


def holder_renews_at_ms(sent_at_ms: int, ttl_ms: int) -> int:
    """When it sends the next renewal: half of its time is left for a second try."""
    return sent_at_ms + ttl_ms // 3


class LeaseTimers:
    """When the leases of a mesh run out by the coordinator's clock. Made anew by each coordinator,
    from all rows; then told of every row that changes.
    """

    def __init__(self, rows: Iterable[LeaseRow], now_ms: int) -> None:
        self._due: list[tuple[int, FenceOrder, str]] = []
        self._stands: dict[str, FenceOrder] = {}
        for row in rows:
            self.note(row, now_ms)

    def note(self, row: LeaseRow, now_ms: int) -> None:
        """A row was committed: its time counts from now, unless it was not renewed by it."""
        if row.renewed is None:
            self._stands.pop(row.name, None)
        elif self._stands.get(row.name) != row.renewed.order:
            self._stands[row.name] = row.renewed.order
            heappush(self._due, (now_ms + row.ttl_ms, row.renewed.order, row.name))

    def next_ms(self) -> int | None:
        """When to look again; None if no lease is held."""
        while self._due:
            at, order, name = self._due[0]
            if self._stands.get(name) == order:
                return at
            heappop(self._due)
        return None

    def take_due(self, now_ms: int) -> list[tuple[str, LeaseExpire]]:
        """The expiries to propose now, each once. If a proposal is lost the coordinator changes,
        and the next one counts anew.
        """
        found: list[tuple[str, LeaseExpire]] = []
        while (at := self.next_ms()) is not None and at <= now_ms:
            _, order, name = heappop(self._due)
            del self._stands[name]
            found.append((name, LeaseExpire(*order)))
        return found
