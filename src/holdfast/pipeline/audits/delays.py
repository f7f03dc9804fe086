"""How long changes take from their origin into each log.

Both times are those of real clocks: one of the origin, one of the node whose log it is. A negative
delay shows that the two clocks differ, and is kept as it is.

A task sends the figures of its share by log, origin and hour. Of many delays it sends those at
evenly spaced ranks, each with the number of delays that it stands for; so shares are just put
together, and a percentile is off by a thousandth of the entries at most.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from holdfast.pipeline.audits.arrays import NONE, Numbers, coded, millis, starts, texted, whole
from holdfast.pipeline.audits.scan import Share
from holdfast.pipeline.audits.shape import Measure
from holdfast.pipeline.lake.schema import arrow_schema, described, joined
from holdfast.rules.limits import DELAY_RANKS, HOUR_MS

_LOG: Final = described("log string: the log that the entries came into")
_FIGURES: Final = described(
    """
    hour timestamp: the hour in which they came
    entries bigint: how many came in that hour
    p50_s double: the median of their delays, in seconds
    p95_s double: 95 of 100 had at most this delay, in seconds
    max_s double: the longest delay, in seconds
    last_at timestamp: when the last one of the hour came
    """
)
LAG_SCHEMA: Final = joined(_LOG, _FIGURES)
STALENESS_SCHEMA: Final = joined(
    _LOG, described("origin string: the peer that wrote them"), _FIGURES
)
COLUMNS: Final = ("log", "epoch", "offset", "recorded_at", "id", "origin", "created_at")


def delays_of(share: Share) -> pa.Table:
    """The delays of a share, sorted: log, origin, hour, a delay, how many it stands for, and when
    the last entry of the hour came.
    """
    seen = share.seen
    (logs, origins), names = coded(seen["log"], seen["origin"])
    came, made = millis(seen["recorded_at"]), millis(seen["created_at"])
    order = np.lexsort((came - made, came // HOUR_MS, origins, logs))
    delay, hour = (came - made)[order], (came // HOUR_MS)[order]
    begins = starts(logs[order], origins[order], hour)
    kept, weights = _spaced(begins)
    group = np.cumsum(begins) - 1
    last = np.full(int(begins.sum()), NONE)
    np.maximum.at(last, group, came[order])
    at = order[kept]
    return pa.table(
        {
            "log": texted(logs[at], names),
            "origin": texted(origins[at], names),
            "hour": pa.array(hour[kept]),
            "delay": pa.array(delay[kept]),
            "rows": pa.array(weights),
            "last_at": pa.array(last[group[kept]]),
        }
    )


def _spaced(begins: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> tuple[Numbers, Numbers]:
    """Of sorted rows in groups: at most `DELAY_RANKS` of each group at evenly spaced ranks, the
    last one among them, and how many rows each stands for.
    """
    first = np.flatnonzero(begins)
    sizes = np.diff(np.append(first, len(begins)))
    within = np.arange(len(begins)) - np.repeat(first, sizes)
    size = np.repeat(sizes, sizes)
    most = np.minimum(size, DELAY_RANKS)
    # The row is kept if it is the last one of its part.
    is_last = (within + 1) * most // size != within * most // size
    kept = np.flatnonzero(is_last)
    place = within[kept]
    before = np.where(starts(np.cumsum(begins)[kept]), -1, np.append(-1, place[:-1]))
    return kept, place - before


def lag_of(delays: pa.Table) -> pa.Table:
    """The table `lag`, of all delays of some logs."""
    return _figures(delays, ["log"], arrow_schema(LAG_SCHEMA))


def staleness_of(delays: pa.Table) -> pa.Table:
    """The table `staleness`, of all delays of some logs."""
    (logs, origins), _ = coded(delays["log"], delays["origin"])
    others = delays.filter(pa.array(logs != origins))
    return _figures(others, ["log", "origin"], arrow_schema(STALENESS_SCHEMA))


def _figures(delays: pa.Table, of: list[str], schema: pa.Schema) -> pa.Table:
    """The figures of each hour in which entries came into the log."""
    codes = [coded(delays[name])[0][0] for name in of]
    hour, delay, rows = (delays[name].to_numpy() for name in ("hour", "delay", "rows"))
    order = np.lexsort((delay, hour, *reversed(codes)))
    begins = starts(*(code[order] for code in codes), hour[order])
    first = np.flatnonzero(begins)
    group = np.cumsum(begins) - 1
    total = np.zeros(len(first), np.int64)
    np.add.at(total, group, rows[order])
    upto = np.cumsum(rows[order])
    before = upto[first] - rows[order][first]
    last = np.full(len(first), NONE)
    np.maximum.at(last, group, delays["last_at"].to_numpy()[order])
    ends = np.append(first[1:], len(order)) - 1 if len(first) else first

    def share(percent: int) -> Numbers:
        wanted = before - (-total * percent // 100)
        found: Numbers = np.searchsorted(upto, wanted)
        return found

    def seconds(at: Numbers) -> pa.Array:
        return pa.array(delay[order][at] / 1000.0, pa.float64())

    def time(ms: Numbers) -> pa.Array:
        return pa.array(ms * 1000).cast(schema.field("hour").type)

    figures = {
        **{name: whole(delays[name]).take(pa.array(order[first])) for name in of},
        "hour": time(hour[order][first] * HOUR_MS),
        "entries": pa.array(total),
        "p50_s": seconds(share(50)),
        "p95_s": seconds(share(95)),
        "max_s": seconds(ends),
        "last_at": time(last),
    }
    return pa.table(figures).cast(schema)


LAG: Final = Measure("lag", "delay of all entries of a log, per hour of arrival", LAG_SCHEMA)
STALENESS: Final = Measure(
    "staleness", "delay of each origin's entries in the logs of others", STALENESS_SCHEMA
)
