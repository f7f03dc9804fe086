"""Checks of the doctor about this node and others: disk, ballast, links, quarantine, keys, tokens.

They change nothing. What only a running daemon knows, they ask it over its Unix socket; without a
daemon they use what the store says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing

import msgspec

from holdfast.node.core.views import Consumer
from holdfast.node.links.status import LinkStatus
from holdfast.node.recovery.checks import Check, fail, joined_names, ok, warn
from holdfast.node.upkeep.disk import measure
from holdfast.rules import limits
from holdfast.rules.disk_pressure import pressure
from holdfast.rules.errors import HoldfastError
from holdfast.rules.links import LinkState
from holdfast.rules.rows import ConsumerRow, LinkRow, ZoneRow
from holdfast.storage.files import home as homes
from holdfast.storage.files.ballast import Ballast
from holdfast.storage.files.home import HomePaths
from holdfast.storage.ports import Reader
from holdfast.transport.http_client import Client

Checks = Iterator[Check]

_STANDS = frozenset((LinkState.CONNECTING, LinkState.CATCHING_UP, LinkState.LIVE, LinkState.PAUSED))
_NEEDS_SOMEBODY = frozenset(
    (LinkState.REFUSED, LinkState.TRUNCATED, LinkState.QUARANTINE_FULL, LinkState.STOPPED)
)


class _LinkList(msgspec.Struct):
    links: list[LinkStatus]


def check_fill(paths: HomePaths) -> Checks:
    """How full the home is, by the rule by which the daemon refuses writes."""
    found = pressure(*measure(paths))
    used, room = found.used // limits.MIB, found.room // limits.MIB
    what = f"the home uses {used} MiB, {found.fill:.0%} of what it could"
    if found.level == "full":
        yield fail("fill", f"{what}: new data is refused", "free some space; holdfast sweep")
    elif found.level == "high":
        yield warn("fill", f"{what}; {room} MiB are left", "free some space before it is needed")
    else:
        yield ok("fill", what)


def check_ballast(paths: HomePaths) -> Checks:
    ballast = Ballast(paths.root)
    if ballast.present():
        yield ok("ballast", f"{ballast.size // limits.MIB} MiB are kept for a full disk")
    elif _served(paths):
        what = "the room for a full disk was given up, or there was too little for it"
        yield warn("ballast", what, "free some space: the daemon takes it again when there is some")


def check_links(reader: Reader, paths: HomePaths, now_ms: int) -> Checks:
    rows = reader.link_list()
    if not rows:
        return
    live = _live(paths)
    zones = {row.name: row for row in reader.zone_list()}
    for row in rows:
        yield from _link_row(row, zones.get(row.zone), now_ms)
        if row.name in live:
            yield from _link_state(live[row.name])
        yield from _quarantine(reader, row)
    resting = [row.name for row in rows if row.paused]
    more = f", of which {joined_names(resting)} rests" if resting else ""
    seen = f"{len(live)} of them are at work" if live else "no daemon runs to pull them"
    yield ok("links", f"{len(rows)} links{more}; {seen}")


def check_readers(rows: Iterable[ConsumerRow], head: int) -> Checks:
    """Readers that a sweep will soon retire, because of the lag that they declared."""
    for row in rows:
        waiting = Consumer.of(row, head).lag
        if row.retire_lag is None or waiting * 10 <= row.retire_lag * 8:
            continue
        what = f"{row.name} is retired at {row.retire_lag} waiting entries and has {waiting}"
        fix = "start it before the next sweep, if it is still needed"
        yield warn("consumers", what, fix)


def check_trust(reader: Reader, now_ms: int) -> Checks:
    """Keys of zones, and tokens, that have expired or will soon."""
    zones, tokens = reader.zone_list(), reader.token_list()
    if not zones and not tokens:
        return
    for zone in zones:
        if zone.blocked_at is not None:
            continue
        dates = [key.expires_at for key in zone.keys]
        if _last_end(zone) is not None:
            fix = f"holdfast peer trust CARD, with a card of {zone.name}"
            yield from _ending(
                "trust", f"the key of zone {zone.name}", _last_end(zone), now_ms, fix
            )
        elif any(at is not None and at <= now_ms for at in dates):
            what = f"zone {zone.name} has a key that has expired beside one that holds"
            yield warn("trust", what, f"holdfast peer revoke {zone.name} --key KEY")
    for token in tokens:
        fix = "make another: holdfast token add NAME; then: holdfast token revoke " + token.name
        yield from _ending("tokens", f"the token {token.name}", token.expires_at, now_ms, fix)
    yield ok("trust", f"{len(zones)} zones are known, and {len(tokens)} tokens")


def _ending(name: str, what: str, ends_at: int | None, now_ms: int, fix: str) -> Checks:
    if ends_at is None or ends_at - now_ms > limits.KEY_EXPIRY_WARN_MS:
        return
    if ends_at <= now_ms:
        yield warn(name, f"{what} has expired", fix)
    else:
        days = (ends_at - now_ms) // limits.DAY_MS
        yield warn(name, f"{what} expires in {days} days", fix)


def _last_end(zone: ZoneRow) -> int | None:
    """When the last of a zone's keys expires; None if one never does, or there is none."""
    dates = [key.expires_at for key in zone.keys]
    return None if not dates or None in dates else max(at for at in dates if at is not None)


# --- one link ------------------------------------------------------------------------------------


def _link_row(row: LinkRow, zone: ZoneRow | None, now_ms: int) -> Checks:
    what = f"link {row.name} pulls from {row.zone}"
    trust = f"holdfast peer trust CARD, with the card of {row.zone}"
    if zone is None or not zone.keys:
        yield fail("links", f"{what}, which is not trusted", trust)
    elif zone.blocked_at is not None:
        yield warn("links", f"{what}, which is blocked", f"{trust}, or: holdfast link remove")
    elif (last := _last_end(zone)) is not None and last <= now_ms:
        yield fail("links", f"{what}, whose keys have all expired", trust)
    elif (
        not row.paused
        and row.moved_at is None
        and now_ms - row.added_at > limits.LINK_SILENT_WARN_MS
    ):
        days = (now_ms - row.added_at) // limits.DAY_MS
        yield warn("links", f"{what} and has brought nothing in {days} days", "holdfast link list")


def _link_state(status: LinkStatus) -> Checks:
    if status.state in _STANDS and not status.attempts:
        return
    problem = status.last_error
    why = f": {problem.message}" if problem is not None else ""
    tries = f" after {status.attempts} failures" if status.attempts else ""
    what = f"link {status.name} is {str(status.state).replace('_', ' ')}{tries}{why}"
    fix = problem.hint if problem is not None and problem.hint else "holdfast link list"
    report = fail if status.state in _NEEDS_SOMEBODY else warn
    yield report("links", what, fix)


def _quarantine(reader: Reader, row: LinkRow) -> Checks:
    count = reader.quarantine_count(row.name)
    look = f"holdfast link quarantine {row.name}"
    if count >= limits.QUARANTINE_ROWS_MAX:
        what = f"link {row.name} has {count} refused entries in quarantine, and has stopped"
        yield fail("quarantine", what, look)
    elif count:
        yield warn("quarantine", f"link {row.name} has {count} refused entries in quarantine", look)


# --- the daemon ----------------------------------------------------------------------------------


def _served(paths: HomePaths) -> bool:
    """Whether a daemon answers for this home."""
    return _ask(paths, "/healthz") is not None


def _live(paths: HomePaths) -> dict[str, LinkStatus]:
    body = _ask(paths, "/v1/links")
    if body is None:
        return {}
    try:
        found = msgspec.json.decode(body, type=_LinkList)
    except msgspec.DecodeError:
        return {}  # a daemon of another version: only what the store says can be used
    return {status.name: status for status in found.links}


def _ask(paths: HomePaths, path: str) -> bytes | None:
    """The daemon's answer; None if there is no daemon, or it does not answer this call."""
    socket = homes.socket_path(paths)
    if not socket.exists():
        return None
    try:
        with closing(Client(f"unix:{socket}", connect_ms=limits.SECOND_MS)) as client:
            return client.call("GET", path, read_ms=5 * limits.SECOND_MS).body
    except HoldfastError:
        return None
