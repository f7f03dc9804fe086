"""Who reads what: a source's logs, cut into ranges for tasks and into batches for a stream.

Nothing here asks a log. An offset of a stream is `{log: [epoch, offset]}`: everything up to the
offset has been read, in that epoch. Where the epoch of a log changes, or a log is new, a step
without rows goes to the place before its first entry; the next step reads on from there. So the
begin and the end of a batch always say exactly what is in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, zip_longest
from typing import Any

from pyspark.sql.datasource import InputPartition

from holdfast.pipeline.logs.log import LogBounds
from holdfast.rules.errors import BadInput, LogForked, Truncated

Offsets = dict[str, list[int]]


@dataclass(frozen=True)
class LogRange(InputPartition):
    """A range of one log for one task: [start, stop)."""

    location: str
    log: str
    epoch: int
    start: int
    stop: int


def split(location: str, place: LogBounds, start: int, stop: int, rows: int) -> list[LogRange]:
    """A range in even parts of so many rows at most."""
    count = max(0, stop - start)
    parts = -(-count // rows)
    cuts = [start + count * part // parts for part in range(parts + 1)] if parts else []
    return [LogRange(location, place.log, place.epoch, begin, end) for begin, end in pairwise(cuts)]


def interleaved(spans: Iterable[Sequence[LogRange]]) -> list[LogRange]:
    """One of each log in turn: whoever works off the list asks all nodes at once."""
    return [span for span in chain(*zip_longest(*spans)) if span is not None]


def shares(waiting: Mapping[str, int], most: int) -> dict[str, int]:
    """How many of `most` entries each log may give. All get the same, unless they have less; what
    cannot be shared evenly goes to those that have most left.
    """
    given = dict.fromkeys(waiting, 0)
    while most > 0 and (wanting := [log for log in waiting if given[log] < waiting[log]]):
        each = most // len(wanting)
        if not each:
            wanting.sort(key=lambda log: waiting[log] - given[log], reverse=True)
            wanting, each = wanting[:most], 1
        for log in wanting:
            step = min(each, waiting[log] - given[log])
            given[log] += step
            most -= step
    return given


def before_first(place: LogBounds) -> list[int]:
    return [place.epoch, place.first - 1]


def check_place(at: Sequence[int], place: LogBounds, location: str) -> None:
    """Can it be read on from there, in the same epoch?"""
    offset = at[1]
    if offset + 1 < place.first:
        raise Truncated(
            f"offsets {offset + 1} to {place.first - 1} in epoch {place.epoch} of log "
            f"{place.log!r} at {location} are gone: the first that is still there is {place.first}",
            first_available=place.first,
            hint="take what is missing from a backup; a reader that is named by the option "
            "`consumer` is waited for",
        )
    if offset > place.head:
        raise LogForked(
            f"log {place.log!r} at {location} ends at offset {place.head} of epoch {place.epoch}, "
            f"but {offset} was read: this is not the log that was read before",
            hint="two nodes must not go by one name; give this one another with the option `name`",
        )


def check_lost(at: Sequence[int], place: LogBounds, location: str) -> None:
    """Is everything behind it there, also what is forgotten entry by entry? In whichever epoch: a
    broker counts on from one to the next.
    """
    lost = place.lost
    if lost is not None and lost.last > at[1]:
        raise Truncated(
            f"{lost.rows} of the offsets {lost.first} to {lost.last} in epoch {place.epoch} of log "
            f"{place.log!r} at {location} are gone: they were not confirmed in their time",
            first_available=lost.last + 1,
            hint="take what is missing from members of the mesh; a new checkpoint goes on without",
        )


def next_offsets(
    start: Mapping[str, Sequence[int]],
    places: Mapping[str, LogBounds],
    heads: Mapping[str, LogBounds],
    most: int | None,
) -> Offsets:
    """Where the next batch ends. `places` is how the logs stand; none is read beyond its place in
    `heads`, nor in another epoch than the one there.
    """
    ends: Offsets = {log: list(at) for log, at in start.items()}
    waiting: dict[str, int] = {}
    for log, place in places.items():
        if log not in heads or heads[log].epoch != place.epoch:
            continue
        if log not in start or start[log][0] != place.epoch:
            ends[log] = before_first(place)
        else:
            waiting[log] = max(0, min(place.head, heads[log].head) - start[log][1])
    for log, count in waiting.items() if most is None else shares(waiting, most).items():
        ends[log][1] += count
    # Spark tells offsets apart by their text.
    return dict(sorted(ends.items()))


# --- what people write into options --------------------------------------------------------------


def bound(said: str | None, what: str, log: str) -> int | None:
    """An offset for all logs, or one for each as `{"log": offset}`."""
    if said is None:
        return None
    found = _json(said, what)
    if isinstance(found, dict):
        found = found.get(log)
        if found is None:
            return None
    if type(found) is not int or found < 1:
        raise BadInput(
            f"{what} {said!r} is not an offset", hint='write 17, or {"ana": 17} for one log'
        )
    return found


def starting(said: str | None, places: Mapping[str, LogBounds]) -> Offsets:
    """Where a stream begins: what is read already, per log; else before the first entry."""
    word = (said or "earliest").strip()
    if word in ("earliest", "latest"):
        named: Any = {}
    else:
        named = _json(word, "startingOffsets")
    if not isinstance(named, dict) or not all(map(_is_place, named.values())):
        raise BadInput(
            f"startingOffsets {said!r} are no offsets",
            hint='write earliest, latest, or {"ana": [epoch, offset]}: up to there it was read',
        )
    begin = {
        log: [place.epoch, place.head] if word == "latest" else before_first(place)
        for log, place in places.items()
    }
    return dict(sorted({**begin, **{log: named[log] for log in places if log in named}}.items()))


def _is_place(found: Any) -> bool:
    return (
        isinstance(found, list)
        and len(found) == 2
        and all(type(number) is int for number in found)
        and found[0] >= 1
        and found[1] >= 0
    )


def _json(said: str, what: str) -> Any:
    try:
        return json.loads(said)
    except ValueError:
        raise BadInput(f"{what} {said!r} is not JSON") from None
