"""What an answer with an error means: told by its gRPC code and message, not by its HTTP status.

The status says too little. A 400 may be a wrong request, a revision that was compacted, or a call
without a token; a 429 may be a request that is too large or a store that is full; and a 500 with
code 2 is often a timeout, after which the write may still happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from holdfast.rules.errors import (
    BadAnswer,
    BodyTooLarge,
    DiskFull,
    EtcdDenied,
    EtcdRefused,
    HoldfastError,
    QuorumSetBack,
    TooMany,
    Truncated,
    Unreachable,
)


class Fault(StrEnum):
    """What one try came to."""

    NOT_SENT = "not_sent"
    """No connection could be made: nothing has happened. Ask another member."""
    UNSETTLED = "unsettled"
    """It may have happened, or may happen later. Ask the very same again, of any member."""
    TOKEN = "token"
    """The token is missing, unknown or too old: get a new one, once."""
    DENIED = "denied"
    COMPACTED = "compacted"
    FUTURE = "future"
    """A revision was asked for that the member does not have: it lags, or its etcd was set back."""
    TOO_LARGE = "too_large"
    NO_SPACE = "no_space"
    BUSY = "busy"
    CORRUPT = "corrupt"
    REFUSED = "refused"
    GARBAGE = "garbage"
    """No etcd answers like this."""


CANCELLED, UNKNOWN, INVALID, TIMED_OUT = 1, 2, 3, 4
DENIED, EXHAUSTED, OUT_OF_RANGE, INTERNAL = 7, 8, 11, 13
UNAVAILABLE, DATA_LOSS, UNAUTHENTICATED = 14, 15, 16

_UNSETTLED: Final = frozenset({CANCELLED, UNKNOWN, TIMED_OUT, INTERNAL, UNAVAILABLE})
_PLAIN: Final = {DENIED: Fault.DENIED, DATA_LOSS: Fault.CORRUPT, UNAUTHENTICATED: Fault.TOKEN}
_AWAY: Final = frozenset({500, 502, 503, 504})

# Words of etcd's own messages, by code: the first that occurs decides.
_BY_WORDS: Final[dict[int, Sequence[tuple[str, Fault]]]] = {
    INVALID: (
        ("user name is empty", Fault.TOKEN),
        ("revision of auth store is old", Fault.TOKEN),
        ("authentication failed", Fault.DENIED),
        ("too large", Fault.TOO_LARGE),
    ),
    EXHAUSTED: (
        ("space exceeded", Fault.NO_SPACE),
        ("too large", Fault.TOO_LARGE),
        ("larger than max", Fault.TOO_LARGE),
        ("", Fault.BUSY),
    ),
    OUT_OF_RANGE: (("compacted", Fault.COMPACTED), ("future revision", Fault.FUTURE)),
}


def fault_of(status: int, code: int | None, message: str) -> Fault:
    """`code` is the gRPC code of the answer; None if it had none and so is not the gateway's."""
    if code is None:
        # A client certificate with a name is refused by the gateway in plain text.
        if status == 400 and "CommonName" in message:
            return Fault.DENIED
        return Fault.UNSETTLED if status in _AWAY else Fault.GARBAGE
    if code in _UNSETTLED:
        return Fault.UNSETTLED
    if code in _PLAIN:
        return _PLAIN[code]
    words = message.lower()
    for part, fault in _BY_WORDS.get(code, ()):
        if part in words:
            return fault
    return Fault.REFUSED


def code_of_cancel(reason: str) -> int:
    """The code that a watch would have ended with, had etcd not put it into a text."""
    words = reason.lower()
    denied = "permission denied" in words or "auth" in words
    return UNAUTHENTICATED if denied else UNAVAILABLE


def error_of(fault: Fault, message: str, member: str) -> HoldfastError:
    """The error for a try that is not repeated. `message` is safe to show."""
    told = f"etcd at {member}: {message}"
    match fault:
        case Fault.DENIED | Fault.TOKEN:
            return EtcdDenied(told)
        case Fault.COMPACTED:
            return Truncated(told, first_available=1, hint="read the order anew from its floor")
        case Fault.FUTURE:
            return QuorumSetBack(told)
        case Fault.TOO_LARGE:
            return BodyTooLarge(told)
        case Fault.NO_SPACE:
            return DiskFull(
                told,
                hint="compact and defragment the etcd, then disarm its alarm; reads still work",
            )
        case Fault.BUSY:
            return TooMany(told)
        case Fault.CORRUPT:
            return QuorumSetBack(told, hint="its members disagree: see what etcd says of that")
        case Fault.REFUSED:
            return EtcdRefused(told)
        case Fault.GARBAGE:
            return BadAnswer(told, hint="check that the address leads to an etcd")
        case Fault.NOT_SENT | Fault.UNSETTLED:
            return Unreachable(told)
