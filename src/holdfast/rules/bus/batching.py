"""How many of the messages that wait go into the next parcel, and who checks one that came."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.rules.bus.signed_envelope import (
    HEAD_BYTES,
    SIGNATURE_BYTES,
    SignedParcel,
    SigningMode,
)
from holdfast.rules.limits import (
    BUS_PARCEL_BYTES,
    BUS_PARCEL_MESSAGES_MAX,
    BUS_SIGNED_EACH_MAX,
    KIB,
)

FRONT_BYTES: Final = 256
"""More than whatever stands before the heads of a parcel takes, one signature included."""
_EACH_BYTES: Final = HEAD_BYTES + 4
_VERIFY_US: Final = 55
_HASH_US_PER_KIB: Final = 2
_HOP_US: Final = 75
"""What a signature, a hash and a hop to a thread cost; only their proportions matter."""
CHECKED_AT_ONCE: Final = (2 * _HOP_US - _VERIFY_US) // _HASH_US_PER_KIB * KIB
"""A parcel of one message that has no more bytes is never worth a thread."""


def parcel_bytes(payload: int, mode: SigningMode) -> int:
    """What a payload of this size adds to a parcel."""
    return payload + _EACH_BYTES + (SIGNATURE_BYTES if mode is SigningMode.EACH else 0)


def fits(sizes: Iterable[int], room: int, mode: SigningMode) -> int:
    """How many of the waiting payloads go into one parcel, of which `room` bytes may go at once.
    The first always fits: whether it may go is the link's to say.
    """
    most = BUS_SIGNED_EACH_MAX if mode is SigningMode.EACH else BUS_PARCEL_MESSAGES_MAX
    room = min(room, BUS_PARCEL_BYTES) - FRONT_BYTES
    count = 0
    for size in sizes:
        room -= parcel_bytes(size, mode)
        if count and (room < 0 or count >= most):
            break
        count += 1
    return count


def is_worth_a_thread(parcels: Iterable[SignedParcel]) -> bool:
    """Whether checking these takes so long that the loop should do something else meanwhile: twice
    as long as the way to a thread and back.
    """
    cost = 0
    for parcel in parcels:
        cost += _VERIFY_US * (parcel.count if parcel.mode is SigningMode.EACH else 1)
        cost += _HASH_US_PER_KIB * (sum(map(len, parcel.payloads)) >> 10)
        if cost > 2 * _HOP_US:
            return True
    return False
