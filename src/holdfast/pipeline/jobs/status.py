"""How a lake stands: how far each log was read, what its node has by now, what every table holds.

Nothing here needs Spark: the positions and the sizes stand in the tables' own logs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import msgspec
import pyarrow.fs

from holdfast.pipeline.jobs.sources import LogSource, remembered
from holdfast.pipeline.lake import schema
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake, Position
from holdfast.pipeline.logs.log import LogBounds, open_log
from holdfast.rules.errors import HoldfastError


class LogStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One log, from both sides."""

    log: str
    location: str | None
    """None for one that was read once and is remembered no more."""
    epoch: int | None
    """That the lake has read in, or the node counts in if nothing was read yet."""
    offset: int | None
    """The last one that the lake has."""
    head: int | None
    """The last one that the node has; None if it was not reached."""
    lag: int | None
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
    """`ask`: whether the logs are asked how far they are."""
    return LakeStatus(
        lake=lake.root,
        id=lake.id,
        consumer=lake.consumer,
        logs=tuple(_logs(remembered(lake), lake.positions(), ask)),
        tables=tuple(_described(name, table) for name, table in tables(lake) if table.exists),
    )


def tables(lake: Lake) -> Iterator[tuple[str, Table]]:
    """Every table that a lake may have, by its name."""
    yield "bronze", lake.bronze
    yield "sightings", lake.sightings
    yield "quarantine", lake.quarantine
    for name in schema.SILVER:
        yield f"silver/{name}", lake.silver(name)
    for name in schema.SILVER:
        yield f"increments/{name}", lake.increments(name)
    for name in gold_names(lake):
        yield f"gold/{name}", lake.gold(name, None)


def table_rows(lake: Lake) -> dict[str, int]:
    """Rows by table. Of a table of the state that has increments, those of the base and of the
    increments together: a key that is in both counts twice until they are merged.
    """
    found = {name: table.rows for name, table in tables(lake) if table.exists}
    for name in schema.SILVER:
        waiting = found.pop(f"increments/{name}", 0)
        if f"silver/{name}" in found or waiting:
            found[f"silver/{name}"] = found.get(f"silver/{name}", 0) + waiting
    return found


def gold_names(lake: Lake) -> list[str]:
    """What the audits have made so far, whatever it is called."""
    if "://" in lake.root:
        system, base = pyarrow.fs.FileSystem.from_uri(lake.root)
    else:
        system, base = pyarrow.fs.LocalFileSystem(), lake.root
    chosen = pyarrow.fs.FileSelector(f"{base}/gold", allow_not_found=True)
    found = system.get_file_info(chosen)
    return sorted(f.base_name for f in found if f.type == pyarrow.fs.FileType.Directory)


def _logs(
    known: Sequence[LogSource], positions: Sequence[Position], ask: bool
) -> Iterator[LogStatus]:
    told: set[str] = set()
    for source in known:
        place, trouble = _asked(source) if ask else (None, None)
        name = place.log if place is not None else source.name or source.log or ""
        told.add(name)
        yield _standing(source, name, place, trouble, _last(positions, name, place))
    for position in positions:
        if position.log not in told and position == _last(positions, position.log, None):
            yield LogStatus(
                log=position.log,
                location=None,
                epoch=position.epoch,
                offset=position.offset,
                head=None,
                lag=None,
            )


def _asked(source: LogSource) -> tuple[LogBounds | None, str | None]:
    try:
        with closing(open_log(source.location, {**source.options(), "retries": "0"})) as log:
            return log.place(), None
    except HoldfastError as error:
        return None, error.message


def _last(positions: Sequence[Position], log: str, place: LogBounds | None) -> Position | None:
    """In the epoch that the node counts in, else in the last one that was read."""
    own = [position for position in positions if position.log == log]
    if place is not None:
        own = [position for position in own if position.epoch == place.epoch] or own
    return max(own, key=lambda position: position.epoch, default=None)


def _standing(
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


def _described(name: str, table: Table) -> TableStatus:
    changed = table.info.get("timestamp")
    return TableStatus(
        table=name,
        rows=table.rows,
        files=len(table.all_files),
        bytes=sum(file.size for file in table.all_files),
        version=table.version,
        changed_at=changed if isinstance(changed, int) else None,
    )
