"""Entries of a damaged log, as they were written.

An entry is believed if its bytes fit its leaf hash; its columns are then made again from its bytes.
What does not fit is brought back where bytes and hash tell how (`rules.leaf`), and is lost
otherwise. Times that are out of line are put in line: a log is searched by them.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import EntryDamaged
from holdfast.rules.leaf import DERIVED, leaf_of, restored
from holdfast.rules.limits import LEAF_SEARCHES_MAX
from holdfast.storage.sqlite.recovery.sound_rows import is_sound

Fields = dict[str, Any]


class WholeEntries:
    """Makes entries whole, and looks for single changed bytes in the first few that are not."""

    def __init__(self) -> None:
        self._searches = 0

    def entry(self, fields: Fields) -> Fields | None:
        """An entry as it was written, or None if that cannot be told."""
        offset, raw, leaf = (fields.get(name) for name in ("offset", "raw", "leaf"))
        if not offset or not is_sound("log", {"offset": offset}):
            return None
        if leaf is None or not isinstance(raw, bytes) or leaf_of(raw) != leaf:
            self._searches += leaf is not None
            raw = restored(fields, search=self._searches <= LEAF_SEARCHES_MAX)
        if raw is None:
            return None
        try:
            envelope = decode_trusted(raw)
        except EntryDamaged:
            return None
        return {
            "offset": offset,
            **{name: getattr(envelope, name) for name in DERIVED},
            **{name: _count(fields.get(name)) for name in ("recorded_at", "via")},
            "raw": raw,
            "leaf": leaf_of(raw),
        }


def _count(value: Any) -> int:
    return value if isinstance(value, int) and is_sound("log", {"offset": value}) else 0


def in_line(times: list[int], now_ms: int) -> list[int]:
    """The times with as few changed as possible, so that none runs backwards or is yet to come."""
    ends: list[int] = []  # the smallest time at which a row of so many in line can end
    places = []
    for time in times:
        at = bisect_right(ends, time) if time <= now_ms else -1
        places.append(at)
        if at >= 0:
            ends[at : at + 1] = [time]
    settled = list(times)
    wanted, bound = len(ends) - 1, now_ms
    for index in range(len(times) - 1, -1, -1):
        if places[index] == wanted >= 0 and times[index] <= bound:
            bound, wanted = times[index], wanted - 1
        else:
            settled[index] = -1
    for index, time in enumerate(settled):
        if time < 0:
            settled[index] = settled[index - 1] if index else 1
    return settled
