"""How it stands with a peer that we want a link to, and when it is dialled again.

dialling ─► linked              a link is up, whoever dialled it
   ▲           │
   └─ waiting ◄┘                nobody answers: tried again
refused                         one of the two will not: a person has to put it right; rarely
nowhere                         no address is known: waits for one
stopped                         the bus ends, or the peer is not wanted any more
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from ipaddress import ip_address
from typing import Final

from holdfast.rules.backoff import RetryPlan, backoff_ms, longest_ms
from holdfast.rules.errors import (
    AnotherConnection,
    BadAnswer,
    BadInput,
    BusClosed,
    NotAllowed,
    NotTrusted,
    PeerCopied,
    TooMany,
)
from holdfast.rules.limits import (
    BACKOFF_MS_MIN,
    BUS_ADDRESSES_MAX,
    BUS_BACK_MS,
    REFUSALS_BRIEF_MAX,
)


class DialState(StrEnum):
    DIALLING = "dialling"
    LINKED = "linked"
    WAITING = "waiting"
    REFUSED = "refused"
    NOWHERE = "nowhere"
    STOPPED = "stopped"


DialPlan = RetryPlan[DialState]
_REFUSALS: Final = (NotTrusted, NotAllowed, BadAnswer, BadInput)


def after_dial_error(
    error: Exception, attempts: int, jitter: float, *, is_back_soon: bool = False
) -> DialPlan:
    """What to do after a dial failed or a link ended. `attempts` counts the failures in a row
    before this one. `is_back_soon`: the peer said goodbye a moment ago, as one does that is
    restarted, and nobody has to wait until it is missed.
    """
    if isinstance(error, BusClosed):
        return DialPlan(DialState.STOPPED, None)
    wait = backoff_ms(attempts + 1, jitter)
    if isinstance(error, TooMany):
        return DialPlan(DialState.WAITING, longest_ms(jitter))
    if isinstance(error, PeerCopied):  # not even in the beginning: the other one has the link
        return DialPlan(DialState.REFUSED, longest_ms(jitter))
    if isinstance(error, _REFUSALS) and not isinstance(error, AnotherConnection):
        brief = attempts < REFUSALS_BRIEF_MAX
        return DialPlan(DialState.REFUSED, wait if brief else longest_ms(jitter))
    if is_back_soon:
        wait = BACKOFF_MS_MIN + int(jitter * (BUS_BACK_MS - BACKOFF_MS_MIN))
    return DialPlan(DialState.WAITING, wait)


def places_told(told: Iterable[str], via: str) -> tuple[str, ...]:
    """The addresses that a peer tells, of itself or of another one, and that are worth a dial.
    `via` is the host at the other end of its link: one that listens everywhere is there, and only
    a peer of this very machine can mean this machine.
    """
    found: dict[str, None] = {}
    for text in told:
        host, _, port = text.rpartition(":")
        if not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 1 << 16):
            continue
        try:
            here, ip = ip_address(via.strip("[]")), ip_address(host.strip("[]"))
        except ValueError:
            continue
        ip = here if ip.is_unspecified else ip
        if ip.is_multicast or ip.is_unspecified or ip.is_loopback is not here.is_loopback:
            continue
        found[f"[{ip}]:{int(port)}" if ip.version == 6 else f"{ip}:{int(port)}"] = None
    return tuple(found)[:BUS_ADDRESSES_MAX]
