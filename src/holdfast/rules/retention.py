"""What may be forgotten, and how long a message may wait to be sent.

Forgetting is safe only when two things hold at once: the row is old enough, and every registered
consumer has confirmed it. Age alone is no reason (a consumer that was away would lose entries, or
a deleted value would come back to life through it), and neither is confirmation alone (a reader
may ask again).

Age is measured by this node's wall clock, which may be set. How old an entry of the log is then, is
said in `recorded`; other rows are as old as the entry that they belong to. A clock that is ahead
right now ages everything at once, yet it cannot pass a frontier: it may cost history, never an
entry that a consumer has not confirmed.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Literal

from holdfast.rules.errors import BadValue, FeatureParamBelowFloor, OutboxAgeAboveWindow
from holdfast.rules.limits import (
    DEDUPE_RETENTION_DAYS_MIN,
    OUTBOX_AGE_HOURS_MIN,
    OUTBOX_AGE_HOURS_PERMANENT,
    OUTBOX_AGE_HOURS_PERMANENT_MAX,
    OUTBOX_MARGIN_HOURS_MIN,
    OUTBOX_MARGIN_PERCENT,
)

DedupeMode = Literal["permanent", "retention_scoped"]


def oldest_kept_ms(*, now_ms: int, ttl_ms: int) -> int:
    """Rows written at this time or later are too young to forget: the bound for SQL."""
    assert ttl_ms >= 0, "a negative time to live would make rows from the future old"
    return now_ms - ttl_ms + 1


def may_forget(
    *, written_at_ms: int, now_ms: int, ttl_ms: int, offset: int, frontiers: Iterable[int]
) -> bool:
    """Whether the row that the log entry at `offset` left behind may be removed.

    `frontiers` are the prefixes of all registered consumers.
    """
    if written_at_ms >= oldest_kept_ms(now_ms=now_ms, ttl_ms=ttl_ms):
        return False
    return all(offset <= frontier for frontier in frontiers)


def is_absent(
    *, seen_at_ms: int, now_ms: int, retire_ms: int, confirmed: int, old_upto: int
) -> bool:
    """Whether a reader has confirmed nothing for longer than it declared.

    Its own time may be that of a wrong clock. So what it confirmed last must be as old, by its
    place in the log (`old_upto`); and a time that has not come yet says nothing.
    """
    silent = seen_at_ms > now_ms or seen_at_ms < oldest_kept_ms(now_ms=now_ms, ttl_ms=retire_ms)
    return silent and confirmed <= old_upto


def truncate_below(
    *, head: int, first: int, frontiers: Iterable[int], oldest_kept_offset_by_age: int
) -> int:
    """The first offset to keep of a log that holds [first, head].

    `oldest_kept_offset_by_age` is the lowest offset that is too young to go, head + 1 if there is
    none. It is the lowest, not the first by time: received entries and clock jumps leave the
    times unordered.
    """
    # The last entry stays, so that the log never loses count of its offsets.
    keep = min(head, oldest_kept_offset_by_age, *(frontier + 1 for frontier in frontiers))
    # A consumer may stand below what is gone already (it was registered at an old offset), and an
    # empty log has no last entry: neither brings anything back.
    return max(first, keep)


def buried_name(family: str, owner: str, key: str, model: str) -> bytes:
    """The name under which a key is remembered when its tombstone is removed."""
    return sha256("\0".join((family, owner, key, model)).encode()).digest()[:16]


def is_too_old(
    *, lamport: int, deletes: bool, replaces_live: bool, floor: int, buried: int
) -> bool:
    """Whether a write from outside, which would win here, could bring back what was deleted: its
    key had a newer tombstone that was removed, or may have had one.

    A deletion brings nothing back. A live row that the write replaces proves that the key had no
    newer tombstone: that one would have taken the row's place, and nothing older gets in after it.
    A dead row proves nothing, because deletions do get in. Up to `floor` nobody knows which keys
    had tombstones; above it `buried` is the stamp of the newest one of this key.
    """
    return not deletes and not replaces_live and lamport <= max(floor, buried)


def is_forgotten_task(task: str, *, buried: bool, floor: str) -> bool:
    """Whether an unknown task may be one that ended and was forgotten: a turn on it, of whatever
    stamp, could bring it back. What has ended stays so, hence no stamp is new enough.

    `buried` says that its name is remembered. Names begin with the time of the creation, so the
    oldest are forgotten first: up to `floor` nobody knows. A name that was computed tells no time;
    none of those is ever forgotten.
    """
    return buried or (task[14:15] == "7" and task <= floor)


def outbox_max_age_hours(
    mode: DedupeMode, dedupe_retention_days: int | None, override_hours: int | None = None
) -> int:
    """How long a message may wait in the outbox and still be known as a repetition when sent.

    The broker forgets ids after its retention, so an older message must not be sent again: nobody
    could tell whether it had arrived before. With permanent memory the bound is only good
    housekeeping.
    """
    if override_hours is not None and override_hours < 1:
        raise BadValue(f"an outbox age of {override_hours} hours would send nothing")
    if mode == "permanent":
        wanted = OUTBOX_AGE_HOURS_PERMANENT if override_hours is None else override_hours
        return min(wanted, OUTBOX_AGE_HOURS_PERMANENT_MAX)
    if mode != "retention_scoped":
        raise BadValue(f"unknown dedupe mode {mode!r}", hint="use permanent or retention_scoped")
    if dedupe_retention_days is None:
        raise BadValue("the broker names no dedupe_retention_days, which retention_scoped needs")
    if dedupe_retention_days < DEDUPE_RETENTION_DAYS_MIN:
        raise FeatureParamBelowFloor(
            f"the broker remembers ids for {dedupe_retention_days} days; "
            f"at least {DEDUPE_RETENTION_DAYS_MIN} are needed"
        )
    window_hours = dedupe_retention_days * 24
    if override_hours is None:
        return max(OUTBOX_AGE_HOURS_MIN, window_hours - _margin_hours(window_hours))
    if override_hours > window_hours - 1:
        raise OutboxAgeAboveWindow(
            f"the outbox would keep messages for {override_hours} hours, "
            f"but the broker remembers ids for {window_hours}",
            hint=f"set the outbox age to {window_hours - 1} hours at most, or leave it out",
        )
    return override_hours


def _margin_hours(window_hours: int) -> int:
    # Rounded up in integers: whether a float product lands just above a whole number, and so costs
    # an hour more, would depend on the percentage.
    share = -(-window_hours * OUTBOX_MARGIN_PERCENT // 100)
    return max(OUTBOX_MARGIN_HOURS_MIN, share)
