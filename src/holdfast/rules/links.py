"""What a link does next: after an error, after a batch, after its source has changed its epoch.

A link is always in one of these states, which its status shows:

    connecting ─► catching_up ─► live          it works
         ▲             │           │
         └── waiting ◄─┴───────────┘           the network, the source, or our disk: tried again
    refused                                     a person has to put it right; tried again, rarely
    truncated  quarantine_full  paused          waits for a person
    stopped                                     this node ends, or cannot go on

This module decides. `node/links/worker.py` and the supervisor carry it out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final
from urllib.parse import SplitResult, urlsplit

from holdfast.rules.backoff import RetryPlan, backoff_ms, longest_ms
from holdfast.rules.errors import (
    BadAnswer,
    BadInput,
    Broken,
    DiskFull,
    EpochChanged,
    NotAllowed,
    NotTrusted,
    OverLimit,
    PastEnd,
    StoreClosed,
    Truncated,
    UnknownLink,
    UnknownMesh,
    UnknownZone,
)
from holdfast.rules.filters import Filter
from holdfast.rules.limits import (
    COMPRESS_BYTES_PER_S,
    COMPRESS_JUDGED_BYTES,
    CONSUMER_NAME_BYTES_MAX,
    LINK_BATCH_ROWS,
    LINK_NAME_CHARS_MAX,
    LINK_URL_BYTES_MAX,
    QUARANTINE_ROWS_MAX,
    REFUSALS_BRIEF_MAX,
    SECOND_MS,
)
from holdfast.rules.shown_address import shown_address

OWN: Final = "own"
ANY: Final = "any"

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]*")


class LinkState(StrEnum):
    """Where a link stands."""

    CONNECTING = "connecting"
    CATCHING_UP = "catching_up"
    LIVE = "live"
    WAITING = "waiting"
    REFUSED = "refused"
    TRUNCATED = "truncated"
    QUARANTINE_FULL = "quarantine_full"
    DISK_FULL = "disk_full"
    PAUSED = "paused"
    STOPPED = "stopped"


LinkPlan = RetryPlan[LinkState]
"""What follows from an error of a link."""


_REFUSALS: Final = (
    NotTrusted,
    NotAllowed,
    BadAnswer,
    BadInput,
    PastEnd,
    UnknownMesh,
    UnknownZone,
)
"""Asking again gets the same answer until a person changes something, here or there. PastEnd: our
cursor is ahead of a log that counts in the same epoch. That log has gone back in time unseen; the
next connection finds that out and reads it from its beginning."""


_ACCIDENTS: Final = (NotTrusted, BadAnswer)
"""The refusals that a restart in the middle of a hello or a garbled line looks like, too."""


def after_error(error: Exception, attempts: int, jitter: float) -> LinkPlan:
    """What to do after an error. `attempts` counts the failures in a row before this one. A fault
    of Holdfast may pass like any other failure: it must not end the link.
    """
    wait = backoff_ms(attempts + 1, jitter)
    if isinstance(error, EpochChanged):
        # At once, but only once in a row: a source that changes its mind for ever must not be
        # asked for ever.
        return LinkPlan(LinkState.CONNECTING, 0 if attempts == 0 else wait)
    if isinstance(error, Truncated):
        # A snapshot of the source is asked for. Where none can be had, `without_snapshot` follows.
        return LinkPlan(LinkState.CONNECTING, 0 if attempts == 0 else wait)
    if isinstance(error, _REFUSALS):
        brief = isinstance(error, _ACCIDENTS) and attempts < REFUSALS_BRIEF_MAX
        return LinkPlan(LinkState.REFUSED, wait if brief else longest_ms(jitter))
    if isinstance(error, DiskFull):
        return LinkPlan(LinkState.DISK_FULL, wait)
    if isinstance(error, StoreClosed | Broken | UnknownLink):
        return LinkPlan(LinkState.STOPPED, None)
    return LinkPlan(LinkState.WAITING, wait)


def without_snapshot() -> LinkPlan:
    """What follows when the source has truncated what comes next, and no snapshot makes up for it:
    what is gone is gone, and a person has to say that the link may go on without it.
    """
    return LinkPlan(LinkState.TRUNCATED, None)


def after_quarantine(rows: int) -> LinkPlan | None:
    """What follows when a link has set this many envelopes aside. One that fills its quarantine has
    met more than a few bad writers, and a person has to look before it goes on.
    """
    return LinkPlan(LinkState.QUARANTINE_FULL, None) if rows >= QUARANTINE_ROWS_MAX else None


_ASKS: Final = frozenset(
    {
        LinkState.REFUSED,
        LinkState.TRUNCATED,
        LinkState.QUARANTINE_FULL,
        LinkState.DISK_FULL,
        LinkState.PAUSED,
        LinkState.STOPPED,
    }
)


def asks_for_somebody(state: LinkState) -> bool:
    """Whether somebody has to do something before a link in this state gets on. One that only waits
    for the network or its source is tried again soon.
    """
    return state in _ASKS


def phase(upto: int, head: int, rows: int, limit: int) -> LinkState:
    """The state of a link after a batch: live after a small one that reaches the end of the log."""
    if upto >= head and rows < limit:
        return LinkState.LIVE
    return LinkState.CATCHING_UP


def rows_after_break(asked: int) -> int:
    """How many entries to ask for after a line broke while this many were asked for: fewer, down to
    one, until it carries what it is asked for.
    """
    return max(1, asked // 2)


def rows_after_batch(asked: int) -> int:
    """How many to ask for after this many were asked for and came whole."""
    return min(LINK_BATCH_ROWS, asked * 2)


def compression_pays(size: int, took_ms: float) -> bool:
    """Whether an answer of this size came so slowly that less of it would have come sooner. Small
    ones prove nothing: most of their time is the waiting for news.
    """
    return size >= COMPRESS_JUDGED_BYTES and size * SECOND_MS < COMPRESS_BYTES_PER_S * took_ms


def start_of(known_epoch: int, cursor: int, epoch: int, first: int) -> int | None:
    """The offset to begin at in a log that counts in another epoch than our cursor; None if
    something is missing that was never read.

    A log that was restored is the old one up to some entry, under a higher epoch. So what it no
    longer holds was read if our old cursor is past it. A lower epoch is another history: nothing of
    it was read. So is the same epoch, when another log was found under it. A link that has never
    read begins where the log does, as every new reader.
    """
    if first == 1 or known_epoch == 0:
        return first
    if epoch > known_epoch and cursor >= first - 1:
        return first
    return None


# --- what people say of a link ------------------------------------------------------------------


def check_link_name(name: str) -> str:
    """Safe in paths, addresses and the names of consumers."""
    if not _NAME.fullmatch(name) or len(name) > LINK_NAME_CHARS_MAX:
        raise BadInput(
            f"link name {name!r} is not usable",
            hint="use lower-case letters, digits and . _ - beginning with a letter or digit, "
            f"{LINK_NAME_CHARS_MAX} at most; choose one with --name",
        )
    return name


def consumer_name(zone: str, link: str) -> str:
    """How a link of a zone is called at its source."""
    name = f"zone:{zone}/{link}"
    if len(name.encode()) > CONSUMER_NAME_BYTES_MAX:
        raise OverLimit(
            f"the reader {name!r} has over {CONSUMER_NAME_BYTES_MAX} bytes",
            hint="give the link a shorter name with --name",
        )
    return name


def check_url(url: str) -> str:
    """Where a source listens: https://host:port. Both ends prove themselves over TLS, so there is
    no other way.
    """
    hint = "write it as https://host:port, as the other node says when it starts"
    if len(url.encode("utf-8", "surrogatepass")) > LINK_URL_BYTES_MAX:
        raise OverLimit(f"the address has over {LINK_URL_BYTES_MAX} bytes")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        # Nor what was wrong in it: that is a part of it.
        raise BadInput(f"{shown_address(url)} is not an address", hint=hint) from None
    if not host or not port or _more_than_a_place(parts) or not url.isprintable():
        raise BadInput(f"{shown_address(url)} is not the address of a node", hint=hint)
    if parts.scheme != "https":
        raise BadInput(
            f"a link to {shown_address(url)} would be open to everybody on the way", hint=hint
        )
    return f"https://{f'[{host}]' if ':' in host else host}:{port}"


def _more_than_a_place(parts: SplitResult) -> bool:
    around = parts.query or parts.fragment or parts.username or parts.password
    return bool(around) or parts.path not in ("", "/") or " " in parts.netloc


def origins_of(zone: str, carries: Sequence[str]) -> tuple[str, ...]:
    """The origins that a source may bring: itself (`own`), everybody (`any`), or those named."""
    if ANY in carries:
        if len(carries) > 1:
            raise BadInput(
                f"--carries {ANY} takes everything, so no other origin can be named beside it"
            )
        return ()
    named = [zone if name == OWN else name for name in (carries or (OWN,))]
    return tuple(sorted(set(named)))


def carries_of(zone: str, filter: Filter) -> tuple[str, ...]:
    """The same the other way round, for people."""
    if not filter.origins:
        return (ANY,)
    return tuple(OWN if origin == zone else origin for origin in filter.origins)


def said_of_origins(zone: str, filter: Filter) -> str:
    """One sentence about whose entries a link takes."""
    others = [origin for origin in filter.origins if origin != zone]
    if not filter.origins:
        return f"everything that {zone} has, whoever wrote it"
    if not others:
        return f"only what {zone} itself wrote; --carries any takes what it has from others too"
    if zone in filter.origins:
        return f"what {zone} itself and {', '.join(others)} wrote"
    return f"only what {', '.join(others)} wrote"
