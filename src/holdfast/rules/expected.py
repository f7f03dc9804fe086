"""Compare-and-set: the stamp that a caller expects to find where it writes.

A caller that has read a value and writes what follows from it names the stamp that it has read
(`expect=entry.stamp`), or `ABSENT` where it found nothing. The write is refused if something else
stands there by then, in the transaction that would have written.

This is a check of what this node holds. Another node may have written at the same time without
either hearing of the other; then the later stamp wins, as always. What a majority must agree on is
an entity of a mesh with voters.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from holdfast.rules.errors import BadInput, StampMoved
from holdfast.rules.limits import LAMPORT_MAX
from holdfast.rules.names import check_peer
from holdfast.rules.order import Stamp

ABSENT: Final = "absent"
"""Expects that there is no value: it was never written, or is deleted."""

Expect: TypeAlias = Stamp | str
"""A stamp, its text (`12@ana`), or `ABSENT`."""

_HINT: Final = "give a stamp as it was read, like 12@ana, or absent"


def read_expect(given: object) -> Stamp | None:
    """The stamp that is expected; None for `ABSENT`."""
    if given == ABSENT:
        return None
    if isinstance(given, str):
        digits, at, peer = given.partition("@")
        if not at or not (digits.isascii() and digits.isdecimal()):
            raise BadInput(f"expect is {given!r}, which is no stamp", hint=_HINT)
        # Not more digits than a stamp can have: Python refuses to read very many.
        lamport: object = int(digits) if len(digits) <= len(str(LAMPORT_MAX)) else 0
    elif isinstance(given, tuple) and len(given) == len(Stamp._fields):
        lamport, peer = given
    else:
        raise BadInput(f"expect is {type(given).__name__}, not a stamp", hint=_HINT)
    if type(lamport) is not int or not 0 < lamport <= LAMPORT_MAX:
        raise BadInput(f"expect is {given!r}, which is no stamp", hint=_HINT)
    return Stamp(lamport, check_peer(peer))


def check_expected(expected: Stamp | None, present: Stamp | None, what: str) -> None:
    """Raises `StampMoved` unless what stands there (None for nothing) is what is expected."""
    if present != expected:
        raise StampMoved(
            f"{what} {_told(present)}, not {_told(expected).removeprefix('is ')} as expected",
            present=present,
        )


def _told(stamp: Stamp | None) -> str:
    return "is absent" if stamp is None else f"is at {stamp}"
