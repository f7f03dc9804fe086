"""Which ranges of logs the tasks of a source read, and which the batches of a stream.

Nothing here sends a request to a log. An offset of a stream is `{log: [epoch, offset]}`: everything
up to the offset has been read, in that epoch. When the epoch of a log changes, or a log is new, a
batch without rows goes to the place before its first entry; the next batch reads on from there. So
the start and the end of a batch always say exactly what is in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, zip_longest
from typing import Any, TypeVar

from pyspark.sql.datasource import InputPartition

from holdfast.pipeline.logs.log import LogBounds
from holdfast.rules.errors import BadInput, LogForked, Truncated

T = TypeVar("T")
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
    """A range as tasks of equal size, each with at most so many rows."""
    return [
        LogRange(location, place.log, place.epoch, begin, end)
        for begin, end in even_parts(start, stop, rows)
    ]


def even_parts(start: int, stop: int, rows: int) -> Iterator[tuple[int, int]]:
    """[start, stop) in parts of equal size, each with at most so many rows."""
    count = max(0, stop - start)
    parts = -(-count // rows)
    return pairwise(start + count * part // parts for part in range(parts + 1 if parts else 0))


def interleaved(ranges: Iterable[Sequence[T]]) -> list[T]:
    """The first range of each log, then the second of each, and so on: tasks that take them in this
    order ask all nodes at once.
    """
    return [part for part in chain(*zip_longest(*ranges)) if part is not None]


def shares(waiting: Mapping[str, int], most: int) -> dict[str, int]:
    """How many of `most` entries each log may give. All get the same share, unless they have less;
    what cannot be divided evenly goes to the logs that have most left.
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
    """Raises Truncated or LogForked if the log cannot be read on from there, in the same epoch."""
    offset = at[1]
    if offset + 1 < place.first:
        raise Truncated(
            f"offsets {offset + 1} to {place.first - 1} in epoch {place.epoch} of log "
            f"{place.log!r} at {location} are gone: the first that is still there is {place.first}",
            first_available=place.first,
            hint="take what is missing from a backup; for a reader that is named by the option "
            "`consumer` a log keeps what is unread",
        )
    if offset > place.head:
        raise LogForked(
            f"log {place.log!r} at {location} ends at offset {place.head} of epoch {place.epoch}, "
            f"but {offset} was read: this is not the log that was read before",
            hint="two nodes must not have one name; give this one another with the option `name`",
        )


def check_lost(at: Sequence[int], place: LogBounds, location: str) -> None:
    """Raises Truncated if a broker has removed single entries after that place. The epoch does not
    matter: a broker counts on from one epoch to the next.
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
    """Where the next batch ends. `places`: the bounds of the logs now. No log is read beyond its
    head in `heads`, nor in another epoch than the one there.
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
    # Spark compares offsets by their text, so the order of the logs must not change.
    return dict(sorted(ends.items()))


# --- values of options ---------------------------------------------------------------------------


def bound(text: str | None, option: str, log: str) -> int | None:
    """The offset in an option: one for all logs, or one for each as `{"log": offset}`."""
    if text is None:
        return None
    value = _json(text, option)
    if isinstance(value, dict):
        value = value.get(log)
        if value is None:
            return None
    if type(value) is not int or value < 1:
        raise BadInput(
            f"{option} {text!r} is not an offset", hint='write 17, or {"ana": 17} for one log'
        )
    return value


def starting(text: str | None, places: Mapping[str, LogBounds]) -> Offsets:
    """The offsets before the first batch of a stream, by the option `startingOffsets`."""
    word = (text or "earliest").strip()
    if word in ("earliest", "latest"):
        named: Any = {}
    else:
        named = _json(word, "startingOffsets")
    if not isinstance(named, dict) or not all(map(_is_place, named.values())):
        raise BadInput(
            f"startingOffsets {text!r} are no offsets",
            hint='write earliest, latest, or {"ana": [epoch, offset]}: up to there it was read',
        )
    begin = {
        log: [place.epoch, place.head] if word == "latest" else before_first(place)
        for log, place in places.items()
    }
    return dict(sorted({**begin, **{log: named[log] for log in places if log in named}}.items()))


def _is_place(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(number) is int for number in value)
        and value[0] >= 1
        and value[1] >= 0
    )


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise BadInput(f"{option} {text!r} is not JSON") from None
