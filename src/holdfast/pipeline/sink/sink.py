"""Writing tables back: `df.write.format("holdfast")` and `df.writeStream.format("holdfast")`.

    (df.select("key", "value").write.format("holdfast").mode("append")
        .option("writeId", "prices-2026-11-15").option("op", "state.set").option("mesh", "shop")
        .save("http://127.0.0.1:8080"))

Every row becomes one change, written by the executors, an Arrow batch at a time. The node may be
`http://127.0.0.1:PORT` (with `token` or `tokenFile`), `unix:/its/socket`, or a home on the disk:
only processes on its own machine may write to a node, so the executors must run there.

Written once. The id of a row follows from the write, the batch and the row's key (see `ids`), so a
repeat changes nothing: after a crash, a retry of Spark, a restart from a checkpoint. A batch write
is named by `writeId`; a stream by its query and batch, which the checkpoint keeps. The key is the
columns that the option `key` names, without it all columns. Rows of one batch with the same key are
one row if they are equal; if not, one of them is written and the others are refused as `id_reused`.
A column `id` is used as it is. Rows have no order: of two rows of one batch about the same entity,
either may win.

Columns: `op`, `mesh`, `entity` (or `key`, `subject`, `path`, `task`), `owner`, `value`, `object`,
`predicate`, `objects`, `tags`, `content`, `metadata`, `embedding`, `provider`, `model`, `version`,
`dim`, `quantization`, `data`, `title`, `description`, `meta`, `id`, `time`. As options, for all
rows: `op`, `mesh`, `owner`, `predicate`, `provider`, `model`, `version`, `dim`, `quantization`.
Vectors of int8 or bits come as integers or binary. A null is left out, except for `value` and
`object` where the op needs one. `message.send` is refused: a table must not send a message for
every row. Values become JSON by the type of their column (see `json_values`); text stays text
unless `valueFormat` is `json`.

Refused rows. The others are written; then the write fails and says how many rows were refused, by
reason. With `refused=FOLDER` it succeeds and the refused rows are in that folder (see `refused`),
on a disk or in an object store, which the options in the file `refusedOptionsFile` reach.
After an error that may pass (no answer, a full disk, a busy store) rows are sent again, until
`retrySeconds` (120) have passed without progress; then the task fails.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from holdfast.pipeline.lake.folder import Folder
from holdfast.pipeline.lake.storage_options import StorageOptions, read_options, storage_options
from holdfast.pipeline.sink.deliver import (
    PATIENCE_S,
    Delivery,
    check_location,
    is_address,
    open_target,
)
from holdfast.pipeline.sink.ids import Write, base_ms, write_of
from holdfast.pipeline.sink.refused import RefusedTally, remove_others, summary, tallying
from holdfast.pipeline.sink.rows import Layout, SinkRow
from holdfast.rules.errors import BadInput, IdReused, JobFailed
from holdfast.rules.limits import SINK_CHUNK_BYTES, SINK_CHUNK_ROWS

log = logging.getLogger("holdfast")

_FAIL = "fail"
_EXPLAINED = {
    IdReused.code: "; another row of this batch has the same key, or the write has changed"
}
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Properties that Spark gives every task of a micro-batch. Both stand in the checkpoint, so a batch
that runs again has the same ones. Spark's Python interface passes the batch id only to `commit`,
which is too late for the ids of the rows."""


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchSink:
    given = _lower(options)
    name = given.get("writeid", "")
    if not name:
        raise BadInput(
            "a batch write needs the option writeId: the name of this write, by which a repeat is "
            "told from a new one. Use another name for other rows, the same to write these again"
        )
    return BatchSink(_Settings.of(given, schema, overwrite), write_of(name, 0, given.get("time")))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamSink:
    given = _lower(options)
    if "writeid" in given:
        raise BadInput("a stream is named by its query, which the checkpoint keeps: drop writeId")
    return StreamSink(_Settings.of(given, schema, overwrite))


@dataclass(frozen=True)
class _Settings:
    """The checked options of a write, as an object that Spark sends to the executors."""

    location: str
    options: Mapping[str, str] = field(repr=False)  # a token may be among them
    layout: Layout
    patience_s: float
    refused: Folder | None
    """Where refused rows are kept, or None to fail."""

    @classmethod
    def of(cls, given: Mapping[str, str], schema: StructType, overwrite: bool) -> _Settings:
        if overwrite:
            raise BadInput("a log is added to and never overwritten: use the mode append")
        location = given.get("path", "").strip()
        check_location(location)
        base_ms("", given.get("time"))
        refused = given.get("refused", _FAIL)
        return cls(
            # A task need not run in the folder that its driver runs in.
            location=location if is_address(location) else str(Path(location).absolute()),
            options=dict(given),
            layout=Layout.of(schema, given),
            patience_s=_seconds(given.get("retryseconds")),
            refused=None if refused == _FAIL else Folder(refused, _refused_options(given)),
        )


@dataclass
class PartWritten(WriterCommitMessage):
    """What one task reports of the rows that it has written."""

    part: int
    new: int = 0
    repeated: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    query: str = ""
    """The id of the streaming query, which Spark does not pass to `commit`."""


class BatchSink(DataSourceArrowWriter):
    """One batch write, named by `writeId`."""

    def __init__(self, settings: _Settings, write: Write) -> None:
        self._settings, self._write = settings, write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartWritten:
        return write_part(self._settings, self._write, _part(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        conclude(self._settings, self._write, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _log_abort(self._write, messages)


class StreamSink(DataSourceStreamArrowWriter):
    """The micro-batches of one query."""

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PartWritten:
        context = TaskContext.get()
        query = batch = None
        if context is not None:
            query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if not query or batch is None:
            raise JobFailed("Spark does not tell which query and batch this is: no id can be given")
        message = write_part(self._settings, self._named(query, int(batch)), _part(), iterator)
        message.query = query
        return message

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        conclude(self._settings, self._named(_query_of(messages), batchId), messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _log_abort(self._named(_query_of(messages), batchId), messages)

    def _named(self, query: str, batch: int) -> Write:
        return write_of(query, batch, self._settings.options.get("time"))


# --- on an executor ----------------------------------------------------------------------------


def write_part(
    settings: _Settings, write: Write, part: int, batches: Iterator[pa.RecordBatch]
) -> PartWritten:
    """Writes one part of a batch. On return every row is on the node's disk or refused."""
    delivery = Delivery(open_target(settings.location, settings.options), settings.patience_s)
    report = PartWritten(part)
    with closing(delivery), tallying(settings.refused, write, part) as tally:
        for rows in _chunks(settings.layout, write, delivery, batches):
            _send(delivery, rows, report, tally)
        report.refused, report.first = dict(tally.counts), tally.first
    return report


def _chunks(
    layout: Layout, write: Write, delivery: Delivery, batches: Iterator[pa.RecordBatch]
) -> Iterator[list[SinkRow]]:
    """The rows in chunks for one request each."""
    peer: str | None = None
    rows: list[SinkRow] = []
    size = 0
    for batch in batches:
        if batch.num_rows and peer is None:
            peer = delivery.peer()  # not asked for a part without rows
        for row in layout.rows(batch, write, peer or ""):
            if rows and (len(rows) >= SINK_CHUNK_ROWS or size + len(row.line) > SINK_CHUNK_BYTES):
                yield rows
                rows, size = [], 0
            rows.append(row)
            size += len(row.line) + 1
    if rows:
        yield rows


def _send(
    delivery: Delivery, rows: Sequence[SinkRow], report: PartWritten, tally: RefusedTally
) -> None:
    good = [row for row in rows if row.error is None]
    for row, outcome in zip(good, delivery.send([row.line for row in good]), strict=True):
        if not outcome.is_in:
            tally.add(row, outcome.code, outcome.message + _EXPLAINED.get(outcome.code, ""))
        elif outcome.duplicate:
            report.repeated += 1
        else:
            report.new += 1
    for row in rows:
        if row.error is not None:
            tally.add(row, row.error.code, row.error.message)


def _part() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


# --- on the driver -----------------------------------------------------------------------------


def conclude(
    settings: _Settings, write: Write, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Logs the counts of a batch. JobFailed if rows were refused and no folder keeps them."""
    parts = [message for message in messages if isinstance(message, PartWritten)]
    new, repeated = sum(part.new for part in parts), sum(part.repeated for part in parts)
    refused = sum(sum(part.refused.values()) for part in parts)
    if settings.refused is not None:
        remove_others(settings.refused, write, [part.part for part in parts if part.refused])
    counts = f"{new} rows are new, {repeated} were there, {refused} were refused"
    log.info("write %s, batch %d: %s", write.name, write.batch, counts)
    if not refused:
        return
    reasons = summary([(part.refused, part.first) for part in parts])
    if settings.refused is None:
        raise JobFailed(
            f"{counts}: {reasons}. Put those right and write again under the same name, or give "
            "the option refused a folder for them"
        )
    log.warning("write %s, batch %d: refused: %s", write.name, write.batch, reasons)


def _log_abort(write: Write, messages: Sequence[WriterCommitMessage | None]) -> None:
    done = sum(message is not None for message in messages)
    log.warning(
        "write %s, batch %d was broken off after %d of %d parts; what is in stays, once",
        *(write.name, write.batch, done, len(messages)),
    )


def _query_of(messages: Sequence[WriterCommitMessage | None]) -> str:
    return next((one.query for one in messages if isinstance(one, PartWritten)), "")


def _lower(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): str(value) for name, value in options.items()}


def _refused_options(given: Mapping[str, str]) -> StorageOptions:
    """How the place of refused rows is reached. From a file: Spark shows options in its plans."""
    path = given.get("refusedoptionsfile")
    return storage_options(None) if path is None else read_options(Path(path))


def _seconds(text: str | None) -> float:
    try:
        found = PATIENCE_S if text is None else float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise BadInput(f"the option retrySeconds is {text!r}: give a number of seconds")
    return found
