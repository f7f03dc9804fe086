"""How fresh a read is, in the words of the source document, and when it is refused instead.

A read is `fresh` only if it was linearizable: a majority confirmed, after the read began, that the
coordinator still is one. Anything else is `degraded`, with the snapshot that it came from. Nothing
is served without saying which.

How old an answer may be is judged by monotonic time since this node last had a confirmation,
because wall clocks jump. `staleness_ms`, which people see, is that time or what the wall clock says
of the snapshot, whichever is more, and never negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Literal

import msgspec

from holdfast.rules.errors import BadChecksum, BadValue, NotFresh, TooStale
from holdfast.rules.quorum.moments import moment_text
from holdfast.rules.quorum.write_queue import WriteCounts

Freshness = Literal["fresh", "degraded"]


class DegradedRead(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How fresh a read was. Its JSON has the field names of the source document."""

    mode: Freshness
    as_of: str
    """When what was read was true: RFC 3339, in UTC."""
    source_node_id: str | None
    snapshot_version: str | None
    staleness_ms: int
    queue_depth: int
    pending_write_count: int
    failed_write_count: int


class SharedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a node recorded of the committed state at some time."""

    mesh: str
    source: str
    captured_at: int
    """Wall time in milliseconds: for people."""
    version: str
    payload: bytes


def snapshot_payload(state: Mapping[str, Any]) -> bytes:
    """The canonical bytes (RFC 8785) of what a snapshot holds."""
    from rfc8785 import CanonicalizationError, dumps  # slow to import, and few calls need it

    try:
        return dumps(dict(state))
    except CanonicalizationError as error:
        raise BadValue(f"a snapshot cannot hold this: {error}") from None


def snapshot_version(payload: bytes) -> str:
    """The name of a payload: its SHA-256 as 64 hex digits."""
    return sha256(payload).hexdigest()


def make_snapshot(
    mesh: str, source: str, captured_at: int, state: Mapping[str, Any]
) -> SharedSnapshot:
    payload = snapshot_payload(state)
    return SharedSnapshot(
        mesh=mesh,
        source=source,
        captured_at=captured_at,
        version=snapshot_version(payload),
        payload=payload,
    )


def check_snapshot(snapshot: SharedSnapshot) -> SharedSnapshot:
    """Raises BadChecksum unless the payload is the one that its version names."""
    if snapshot_version(snapshot.payload) != snapshot.version:
        raise BadChecksum(f"the snapshot {snapshot.version[:16]!r}… has another payload")
    return snapshot


def fresh(node: str, now_ms: int, counts: WriteCounts) -> DegradedRead:
    """The record of a linearizable read."""
    return _record("fresh", now_ms, node, None, 0, counts)


def degraded(
    snapshot: SharedSnapshot | None,
    now_ms: int,
    since_confirmed_ms: int | None,
    counts: WriteCounts,
) -> DegradedRead:
    """The record of any other read. `since_confirmed_ms` is the monotonic time since the last
    confirmation, None if there was none since this node started. Where no snapshot was recorded,
    what was read is as old as that confirmation.
    """
    waited = since_confirmed_ms or 0
    as_of = now_ms - waited if snapshot is None else snapshot.captured_at
    staleness = max(0, now_ms - as_of, waited)
    source = None if snapshot is None else snapshot.source
    version = None if snapshot is None else snapshot.version
    return _record("degraded", as_of, source, version, staleness, counts)


def check_demand(
    *,
    linearizable: bool,
    confirmed: bool,
    staleness_ms_max: int | None,
    since_confirmed_ms: int | None,
) -> None:
    """Raises unless what can be read now is as fresh as the caller demands. `confirmed`: a majority
    has confirmed the coordinator since the read began.
    """
    if confirmed:
        return
    if linearizable:
        raise NotFresh("no majority has confirmed the coordinator since this read began")
    if staleness_ms_max is None:
        return
    if staleness_ms_max < 0:
        raise BadValue(f"a greatest staleness of {staleness_ms_max} ms is not possible")
    if since_confirmed_ms is None:
        raise TooStale("this node has had no confirmation since it started")
    if since_confirmed_ms > staleness_ms_max:
        raise TooStale(
            f"the last confirmation is {since_confirmed_ms} ms old; {staleness_ms_max} ms are "
            "allowed"
        )


def _record(
    mode: Freshness,
    as_of_ms: int,
    source: str | None,
    version: str | None,
    staleness_ms: int,
    counts: WriteCounts,
) -> DegradedRead:
    assert staleness_ms >= 0, "nothing is fresher than now"
    return DegradedRead(
        mode=mode,
        as_of=moment_text(as_of_ms),
        source_node_id=source,
        snapshot_version=version,
        staleness_ms=staleness_ms,
        queue_depth=counts.queue_depth,
        pending_write_count=counts.pending,
        failed_write_count=counts.failed,
    )
