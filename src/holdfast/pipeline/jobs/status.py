"""The status of a lake: how far each log was read, what its node has by now, what each table holds.

Nothing here starts Spark: the positions and the sizes stand in the commits of the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import msgspec

from holdfast.pipeline.jobs.sources import LogSource, remembered
from holdfast.pipeline.lake import schema
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.folder import FOLDER
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.reads import Position
from holdfast.pipeline.logs.log import LogBounds, open_log
from holdfast.rules.errors import HoldfastError


class LogStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One log: what the lake has of it, and what the node has."""

    log: str
    location: str | None
    """None for a log that was read and then forgotten."""
    epoch: int | None
    """The epoch that the lake has read; the node's own if nothing was read yet."""
    offset: int | None
    """The last offset that the lake has."""
    head: int | None = None
    """The last offset that the node has; None if the node was not asked or did not answer."""
    lag: int | None = None
    trouble: str | None = None


class TableStatus(msgspec.Struct, frozen=True, kw_only=True):
    table: str
    rows: int
    files: int
    bytes: int
    version: int
    changed_at: int | None


class LakeStatus(msgspec.Struct, frozen=True, kw_only=True):
    lake: str
    id: str
    consumer: str
    logs: tuple[LogStatus, ...]
    tables: tuple[TableStatus, ...]


def status(lake: Lake, *, ask: bool = True) -> LakeStatus:
    """The status now. With `ask` every log is asked for its head."""
    return LakeStatus(
        lake=lake.root,
        id=lake.id,
        consumer=lake.consumer,
        logs=tuple(_logs(remembered(lake), lake.positions(), ask)),
        tables=tuple(_table_status(name, table) for name, table in tables(lake) if table.exists),
    )


def tables(lake: Lake) -> Iterator[tuple[str, Table]]:
    """Every table that a lake may have, by its name."""
    yield "bronze", lake.bronze
    yield "sightings", lake.sightings
    yield "quarantine", lake.quarantine
    yield "reads", lake.reads
    for name in schema.SILVER:
        yield f"silver/{name}", lake.silver(name)
    for name in schema.SILVER:
        yield f"increments/{name}", lake.increments(name)
    for name in gold_names(lake):
        yield f"gold/{name}", lake.gold(name, None)


def row_counts(lake: Lake) -> dict[str, int]:
    """Rows by table. The rows of a silver table and of its increments are added up: a key that is
    in both counts twice until they are merged.
    """
    found = {name: table.rows for name, table in tables(lake) if table.exists}
    for name in schema.SILVER:
        waiting = found.pop(f"increments/{name}", 0)
        if f"silver/{name}" in found or waiting:
            found[f"silver/{name}"] = found.get(f"silver/{name}", 0) + waiting
    return found


def gold_names(lake: Lake) -> list[str]:
    """The gold tables that audits have written so far."""
    entries = lake.folder.entries("gold")
    return sorted(entry.base_name for entry in entries if entry.type == FOLDER)


def _logs(
    known: Sequence[LogSource], positions: Sequence[Position], ask: bool
) -> Iterator[LogStatus]:
    shown: set[str] = set()
    for source in known:
        place, trouble = _bounds(source) if ask else (None, None)
        name = place.log if place is not None else source.name or source.log or ""
        shown.add(name)
        yield _log_status(source, name, place, trouble, _last(positions, name, place))
    for position in positions:
        if position.log not in shown and position == _last(positions, position.log, None):
            epoch, offset = position.epoch, position.offset
            yield LogStatus(log=position.log, location=None, epoch=epoch, offset=offset)


def _bounds(source: LogSource) -> tuple[LogBounds | None, str | None]:
    """Where the log stands, or why that is not known."""
    try:
        with closing(open_log(source.location, {**source.options(), "retries": "0"})) as log:
            return log.place(), None
    except HoldfastError as error:
        return None, error.message


def _last(positions: Sequence[Position], log: str, place: LogBounds | None) -> Position | None:
    """The position in the epoch that the node counts in, else in the last epoch that was read."""
    own = [position for position in positions if position.log == log]
    if place is not None:
        own = [position for position in own if position.epoch == place.epoch] or own
    return max(own, key=lambda position: position.epoch, default=None)


def _log_status(
    source: LogSource, name: str, place: LogBounds | None, trouble: str | None, at: Position | None
) -> LogStatus:
    lag: int | None = None
    if place is not None:
        read = at.offset if at is not None and at.epoch == place.epoch else place.first - 1
        lag = max(0, place.head - read)
    return LogStatus(
        log=name or source.location,
        location=source.location,
        epoch=at.epoch if at is not None else None if place is None else place.epoch,
        offset=None if at is None else at.offset,
        head=None if place is None else place.head,
        lag=lag,
        trouble=trouble,
    )


def _table_status(name: str, table: Table) -> TableStatus:
    return TableStatus(
        table=name,
        rows=table.rows,
        files=len(table.all_files),
        bytes=sum(file.size for file in table.all_files),
        version=table.version,
        changed_at=table.changed_at,
    )
