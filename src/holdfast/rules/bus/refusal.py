"""What follows when a peer refuses a message.

Most refusals are for good: the message is what it is. It is given up with its reason, where people
can see it. Some pass by themselves. What was signed for an earlier life of the peer's store, or
with a number that it has seen, is signed anew; what a peer may not do today it may do tomorrow.
Such a message is tried again, later each time, and given up after `OUTBOX_ATTEMPTS_MAX` tries.
Whoever waits for the reply to a request is told at once what it may not ask for.
"""

from __future__ import annotations

from typing import Final

from holdfast.rules import errors
from holdfast.rules.backoff import backoff_ms
from holdfast.rules.limits import OUTBOX_ATTEMPTS_MAX

RESIGN: Final = frozenset({errors.WrongRecipient.code, errors.BadSequence.code})
"""The message is fine, but not as it was signed."""
_PASSING: Final = RESIGN | {
    errors.NotAllowed.code,
    errors.CapabilityRefused.code,
    errors.BusInboxFull.code,
    errors.BusStoreFailed.code,
}
NOT_NOW: Final = frozenset({errors.NotAllowed.code, errors.CapabilityRefused.code})
"""The sender may not do this; a person may grant it."""


def next_try(
    code: str, attempts: int, now_ms: int, jitter: float, *, is_request: bool = False
) -> int | None:
    """When a message may be tried again that was refused with this code after so many attempts
    before; None if it is given up.
    """
    if is_request and code in NOT_NOW:
        return None
    if code not in _PASSING or attempts + 1 >= OUTBOX_ATTEMPTS_MAX:
        return None
    return now_ms + backoff_ms(attempts + 1, jitter)
