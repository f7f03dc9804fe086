"""Is the log at the other end of a link still the one that its cursor counts in?

A new epoch shows that a source knows its log has gone back in time. Sometimes it cannot know: a
machine was set back to a snapshot with everything on it, one backup was restored on two machines
one after the other, or a home was lost and made anew under the old name. Then the offsets up to our
cursor are given out a second time, in the same epoch, and reading on would skip the new entries
without a word.

So before a link reads on, it looks back: the last entry up to the cursor that it was given must not
be news. Where that cannot be decided, because nothing there passes the filter, because the entry is
refused anyway, or because this node may have forgotten it since, the log is taken to be the same.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.intake import is_news
from holdfast.node.links.source import LinkSource
from holdfast.protocol.log_wire import Batch, Fetch
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import PastEnd, Truncated
from holdfast.rules.limits import CHUNK_ROWS, DAY_MS
from holdfast.rules.rows import LinkRow
from holdfast.storage.ports import Reader

LOOK: Final = 32
"""How many entries before the cursor are looked at."""
_CLOCKS_MS: Final = DAY_MS
"""How far the clock of a writer may be ahead of ours."""


def is_same_log(
    engine: NodeEngine, source: LinkSource, row: LinkRow, consumer: str, rows: int = LOOK
) -> bool:
    """False if the source's log is surely not the one that the link has read up to its cursor.

    `rows` is how many entries are asked for at a time: over a line that breaks often, few, from the
    cursor back.
    """
    step = min(LOOK, rows)
    for back in range(step, LOOK + step, step):
        begin = max(1, row.cursor - back + 1)
        ask = Fetch(consumer=consumer, limit=step, start=begin, epoch=row.epoch)
        try:
            batch = _fetch(source, ask, row) if row.cursor else None
        except PastEnd:
            return False
        if batch is None:
            return True
        if batch.head < row.cursor:
            return False
        was_read = engine.read("link.look_back", partial(_was_read, engine, row, batch))
        if was_read is not None or begin == 1:
            return was_read is not False
    return True


def begins_as_read(engine: NodeEngine, row: LinkRow, batch: Batch) -> bool:
    """Whether a log of another epoch, which no longer holds its beginning, surely agrees with the
    one that the link has read at least up to its first entries: then what came before them was read
    too. `batch` is what it begins with.

    An entry that the source itself wrote in an epoch that we know stood at the same place then. If
    we have it and our cursor is past it, we have read everything before it. What others wrote
    proves nothing: it may have come to the source, and to us, at any time.
    """
    return engine.read("link.look_back", partial(_has_proof, engine, row, batch))


def _has_proof(engine: NodeEngine, row: LinkRow, batch: Batch, tx: Reader) -> bool:
    for offset, raw in zip(batch.offsets, batch.raws, strict=True):
        if offset <= row.cursor and is_news(engine.ctx, raw, tx) is False:
            envelope = decode_trusted(raw)
            if envelope.origin == row.zone and envelope.epoch <= row.epoch:
                return True
    return False


def _fetch(source: LinkSource, ask: Fetch, row: LinkRow) -> Batch | None:
    """None if nothing is left of what lies before the cursor."""
    try:
        return source.fetch(ask)
    except Truncated as cut:
        if cut.first_available > row.cursor:
            return None
        ask = msgspec.structs.replace(ask, start=cut.first_available)
    try:
        return source.fetch(ask)
    except Truncated:
        return None  # it is being truncated: the next fetch of the link finds out what is missing


def _was_read(engine: NodeEngine, row: LinkRow, batch: Batch, tx: Reader) -> bool | None:
    """Whether the link has met the last entry up to the cursor that proves anything; None if none
    of them does.
    """
    for offset, raw in reversed(list(zip(batch.offsets, batch.raws, strict=True))):
        if offset > row.cursor:
            continue
        news = is_news(engine.ctx, raw, tx)
        if news is None:
            continue  # it was refused then, too, and perhaps given up since: so it proves nothing
        return not news or _may_be_forgotten(tx, raw) or _is_set_aside(tx, row, offset)
    return None


def _may_be_forgotten(tx: Reader, raw: bytes) -> bool:
    """Whether an entry is older than what our log still holds: even its id may be gone."""
    first, last = tx.log_bounds()
    oldest = tx.log_get(first) if 1 < first <= last else None
    return oldest is not None and decode_trusted(raw).created_at < oldest.recorded_at + _CLOCKS_MS


def _is_set_aside(tx: Reader, row: LinkRow, offset: int) -> bool:
    after = 0
    while rows := tx.quarantine_list(row.name, after, CHUNK_ROWS):
        if any((kept.epoch, kept.offset) == (row.epoch, offset) for kept in rows):
            return True
        after = rows[-1].number
    return False
