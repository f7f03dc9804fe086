"""Where peers write over each other without knowing it.

Of two neighbouring versions of a key, the later one overrides the earlier if it is of another peer
and does not name it as its base: the rule of `rules.ledger`, for two versions that follow each
other. Each override counts once, on the day of the later one. The ledger of a node says what is
lost now: what a later version has seen after all is not in it any more, and what is lost with a
whole branch is. Vectors are left out, because all of them are kept, and tasks, because they have a
rule of their own.

Tasks send the versions of their share to where all versions of a key come together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from holdfast.pipeline.audits.arrays import (
    NONE,
    Numbers,
    coded,
    ints,
    millis,
    numbered,
    rows_at,
    starts,
)
from holdfast.pipeline.audits.scan import Share
from holdfast.pipeline.audits.shape import NOTICE, Audit, Found, FoundRow, Measure, found
from holdfast.pipeline.lake.schema import arrow_schema, described
from holdfast.rules.limits import DAY_MS, HOT_SPOT_OVERRIDES

FAMILIES: Final = ("state", "memory", "file")
COLUMNS: Final = (
    *("mesh", "family", "owner", "entity"),
    *("lamport", "origin", "id", "base_lamport", "base_peer", "created_at"),
)
_KEY: Final = ["mesh", "family", "owner", "entity"]

CONFLICTS_SCHEMA: Final = described(
    """
    mesh string: the mesh of the key
    family string: state, memory or file
    owner string: whose memory or file it is; empty for state
    entity string: the key or path
    day date: the UTC day of the overriding versions
    overrides bigint: how many versions replaced one that their writer had not seen
    peers bigint: how many peers wrote these versions
    last_at timestamp: when the last of them was written, by the clock of its writer
    """
)


def versions_of(share: Share) -> pa.Table:
    """The versions of keys in a share; ids as two words."""
    (families,), names = coded(share.rows["family"])
    kept = np.isin(families, [at for at, name in enumerate(names) if name in FAMILIES])
    rows = share.rows.select([name for name in COLUMNS if name != "id"])
    for name, word in zip(("id_high", "id_low"), share.words, strict=True):
        rows = rows.append_column(name, pa.array(word))
    return rows if kept.all() else rows.filter(pa.array(kept))


class Overrides:
    """The versions that replaced a version which their writer had not seen."""

    def __init__(self, versions: pa.Table) -> None:
        keys = numbered(*(versions[name] for name in _KEY))
        (origins, bases), _ = coded(versions["origin"], versions["base_peer"])
        shared = np.flatnonzero(_of_several(keys, origins))
        keys, origins, bases = keys[shared], origins[shared], bases[shared]
        stamps, seen = (ints(versions[name])[shared] for name in ("lamport", "base_lamport"))
        low, high = (versions[name].to_numpy()[shared] for name in ("id_low", "id_high"))
        order = np.lexsort((low, high, origins, stamps, keys))
        key, origin, stamp = keys[order], origins[order], stamps[order]
        lost, lost_stamp = origin[:-1], stamp[:-1]
        knew = (seen[order][1:] == lost_stamp) & (bases[order][1:] == lost)
        unseen = (key[1:] == key[:-1]) & (origin[1:] != lost) & ~knew
        at = order[np.flatnonzero(unseen) + 1]
        self._versions = versions
        self.rows = shared[at]
        """Their places in `versions`, sorted by key."""
        self.keys, self.origins = keys[at], origins[at]
        self.made = millis(versions["created_at"])[self.rows]

    def per_day(self) -> pa.Table:
        """The table `conflicts`."""
        days = self.made // DAY_MS
        order = np.lexsort((days, self.keys))
        grouped = _Grouped(order, (self.keys, days), self)
        names = self._versions.select(_KEY).take(pa.array(self.rows[grouped.first]))
        schema = arrow_schema(CONFLICTS_SCHEMA)
        figures = {
            "day": pa.array(days[grouped.first].astype(np.int32)).cast(pa.date32()),
            "overrides": pa.array(grouped.counts),
            "peers": pa.array(grouped.peers),
            "last_at": pa.array(grouped.newest * 1000).cast(schema.field("last_at").type),
        }
        for name, column in figures.items():
            names = names.append_column(name, column)
        return (
            names.select(schema.names)
            .cast(schema)
            .sort_by([(name, "ascending") for name in (*_KEY, "day")])
        )

    def hot_spots(self) -> list[Found]:
        order = np.argsort(self.keys, kind="stable")
        grouped = _Grouped(order, (self.keys,), self)
        hot = np.flatnonzero(grouped.counts >= HOT_SPOT_OVERRIDES)

        def rows_of(places: Sequence[int]) -> Iterable[FoundRow]:
            at = hot[places]
            keys = rows_at(self._versions.select(_KEY), self.rows[grouped.first[at]])
            for key, place in zip(keys, at.tolist(), strict=True):
                times, peers = grouped.counts[place], grouped.peers[place]
                yield FoundRow(
                    weight=int(times),
                    mesh=key["mesh"],
                    # The owner of the memory or file; state has none.
                    origin=key["owner"] or None,
                    entity=key["entity"],
                    at=int(grouped.newest[place]),
                    detail=f"{key['family']}: {times} writes of {peers} peers replaced one that "
                    "they had not seen",
                )

        return found(HOT_SPOTS.name, NOTICE, grouped.counts[hot], grouped.newest[hot], rows_of)


class _Grouped:
    """Overrides by group: how many, of how many peers, and when the last one was."""

    def __init__(self, order: Numbers, columns: Sequence[Numbers], found: Overrides) -> None:
        begins = starts(*(column[order] for column in columns))
        groups = np.cumsum(begins) - 1
        count = int(begins.sum())
        self.first = order[begins]
        self.counts = np.bincount(groups, minlength=count)
        self.newest = np.full(count, NONE)
        np.maximum.at(self.newest, groups, found.made[order])
        by_peer = np.lexsort((found.origins[order], groups))
        one_each = starts(groups[by_peer], found.origins[order][by_peer])
        self.peers = np.bincount(groups[by_peer][one_each], minlength=count)


def _of_several(keys: Numbers, origins: Numbers) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which rows have a key that several peers have written: only those can be overrides."""
    if not len(keys):
        return np.zeros(0, np.bool_)
    count = int(keys.max()) + 1
    least, most = np.full(count, np.iinfo(np.int64).max), np.full(count, NONE)
    np.minimum.at(least, keys, origins)
    np.maximum.at(most, keys, origins)
    several: np.ndarray[tuple[int], np.dtype[np.bool_]] = (least < most)[keys]
    return several


HOT_SPOTS: Final = Audit(
    "hot_spots",
    "keys that peers keep writing over without having seen each other",
    "how many writes replaced an unseen one",
)
CONFLICTS: Final = Measure("conflicts", "overrides per key and day", CONFLICTS_SCHEMA)
