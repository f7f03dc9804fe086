"""Entries of a damaged log, as they were written.

An entry is believed if its bytes fit its leaf hash; its columns are then made again from its bytes.
What does not fit is brought back where bytes and hash tell how (`rules.leaf`), and is lost
otherwise.
"""

from __future__ import annotations

from typing import Any

from holdfast.rules.errors import EntryDamaged
from holdfast.rules.leaf import columns_of, leaf_of, restored
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
            columns = columns_of(raw, fields.get("id"))
        except EntryDamaged:
            return None
        return {
            "offset": offset,
            **columns,
            **{name: _count(fields.get(name)) for name in ("recorded_at", "via")},
            "raw": raw,
            "leaf": leaf_of(raw),
        }


def _count(value: Any) -> int:
    return value if isinstance(value, int) and is_sound("log", {"offset": value}) else 0
