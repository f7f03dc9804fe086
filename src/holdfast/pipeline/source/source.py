"""`spark.read.format("holdfast")` and `spark.readStream.format("holdfast")`: logs as tables.

    register(spark)
    spark.read.format("holdfast").load("/home/ana/.local/share/holdfast").show()

A partition is a range of offsets of one log. Its task opens the log itself and reads Arrow batches;
no row becomes a Python object. Options:

    path, logs         where the logs are: one, or several with commas or line breaks between
    columns            `log` (default) or `envelope`, which adds the columns that the bytes hold
    from, to           offsets [from, to) of a batch read; `17` or `{"ana": 17}`
    rowsPerPartition   rows that one task reads
    startingOffsets    where a stream begins: earliest, latest or {"ana": [epoch, offset read]}
    maxRowsPerBatch    rows of all logs together in one batch of a stream
    consumer           the name under which a stream confirms what Spark has committed
    pushFilters        `true`: let nodes filter; needs spark.sql.python.filterPushdown.enabled
    token_file, token, key_file, card, ca, pin, retries, name     see `open_log`

Writing with the same format is in `sink`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from holdfast.pipeline.lake import schema as schemas
from holdfast.pipeline.logs.log import LogBounds, ReadableLog, open_log, reworded
from holdfast.pipeline.source.filters import ANYTHING, SourceFilter
from holdfast.pipeline.source.plan import LogRange, bound, check_place, interleaved, split
from holdfast.rules.errors import BadInput, HoldfastError
from holdfast.rules.filters import EVERYTHING
from holdfast.rules.filters import Filter as LogFilter
from holdfast.rules.limits import SOURCE_PARTITION_ROWS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_VIEW: Final = (
    "Spark does not give the options of a table to sources in Python; make a view: "
    "create temporary view NAME using holdfast options (path 'LOG')"
)
COLUMNS: Final = {"log": schemas.LOG, "envelope": schemas.ENVELOPE}


def register(spark: SparkSession) -> None:
    """Makes the format `holdfast` known to a session."""
    spark.dataSource.register(HoldfastSource)


class HoldfastSource(DataSource):
    """The format `holdfast`: reads logs, and writes to nodes."""

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def schema(self) -> StructType:
        options = Options(self.options)
        with hints_in_messages():
            options.refuse_table()
        return options.schema

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options(self.options)
        options.check_schema(schema)
        # Spark refuses a reader that can filter unless its own setting for that is on.
        return FilteringReader(options) if options.flag("pushfilters") else BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from holdfast.pipeline.source.stream import LogStreamReader

        options = Options(self.options)
        options.check_schema(schema)
        return LogStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from holdfast.pipeline.sink import sink

        return sink.writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from holdfast.pipeline.sink import sink

        return sink.stream_writer(self.options, schema, overwrite)


class Options:
    """The options of a user, by names in lower case. It holds tokens, so its `repr` shows only the
    names.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = {name.lower(): text for name, text in given.items()}

    def __repr__(self) -> str:
        return f"Options({', '.join(sorted(self.given))})"

    @property
    def locations(self) -> list[str]:
        several = self.given.get("paths")
        found = json.loads(several) if several else []
        for name in ("path", "logs"):
            found += re.split(r"[,\n]", self.given.get(name, ""))
        named = list(dict.fromkeys(filter(None, (part.strip() for part in found))))
        if not named:
            if not self.given:
                # As when a table was made with columns of its own: then nobody asks us for ours.
                raise BadInput("Spark has handed over no options, so no log is named", hint=_VIEW)
            raise BadInput("no log is named", hint="name it: .load(LOG), or .option('logs', …)")
        if len(named) > 1 and self.given.get("name"):
            raise BadInput("one name is given to several logs", hint="read them one by one")
        return named

    def refuse_table(self) -> None:
        """BadInput for a CREATE TABLE, which has the provider among its properties: Spark would not
        give us the options of the table when it is read.
        """
        if "provider" in self.given:
            raise BadInput("a log cannot be a table of a catalog", hint=_VIEW)

    @property
    def columns(self) -> str:
        columns = self.given.get("columns", "log")
        if columns not in COLUMNS:
            raise BadInput(f"columns {columns!r} are neither log nor envelope")
        return columns

    @property
    def schema(self) -> StructType:
        return COLUMNS[self.columns]

    @property
    def rows_per_partition(self) -> int:
        return self.number("rowsperpartition") or SOURCE_PARTITION_ROWS

    def number(self, name: str) -> int | None:
        text = self.given.get(name)
        if text is None:
            return None
        if not text.isdecimal() or not int(text):
            raise BadInput(f"{name} {text!r} is not a number of rows")
        return int(text)

    def flag(self, name: str) -> bool:
        text = self.given.get(name, "false").lower()
        if text not in ("true", "false"):
            raise BadInput(f"{name} {text!r} is neither true nor false")
        return text == "true"

    def check_schema(self, requested: StructType) -> None:
        ours = [(field.name, field.dataType) for field in self.schema.fields]
        if [(field.name, field.dataType) for field in requested.fields] != ours:
            raise BadInput(
                "the columns of a log cannot be changed by a schema",
                hint="leave the schema out; select and cast afterwards",
            )

    def open(self, location: str) -> ReadableLog:
        return open_log(location, self.given)


def read_range(
    options: Options, span: InputPartition, filter: LogFilter = EVERYTHING
) -> Iterator[pa.RecordBatch]:
    """The rows of one partition; this runs in a task."""
    if not isinstance(span, LogRange):
        return  # Spark makes one partition of its own where there is none
    opening = partial(options.open, span.location)
    unpack = options.columns == "envelope"
    yield from read_log(opening, span.epoch, span.start, span.stop, filter, unpack=unpack)


def read_log(
    opening: Callable[[], ReadableLog],
    epoch: int,
    start: int,
    stop: int,
    filter: LogFilter = EVERYTHING,
    *,
    unpack: bool,
) -> Iterator[pa.RecordBatch]:
    """Opens a log and reads a range; with `unpack` with the columns that the bytes hold. An error
    has log, offsets and hint in its message, since Spark passes on nothing else.
    """
    with hints_in_messages(), closing(opening()) as log:
        for batch in log.batches(epoch, start, stop, filter):
            if unpack:
                from holdfast.pipeline.logs.unpack import decode_header

                yield decode_header(batch)
            else:
                yield batch


@contextmanager
def hints_in_messages() -> Iterator[None]:
    """Errors that are raised inside the block get their hint into their message."""
    try:
        yield
    except HoldfastError as error:
        if not error.hint:
            raise
        raise reworded(error, f"{error.message} ({error.hint})") from error


class BatchReader(DataSourceReader):
    """A batch read of logs, up to the heads that they have when it is planned."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._wanted = ANYTHING

    def partitions(self) -> list[InputPartition]:
        options = self._options
        planned: list[list[LogRange]] = []
        seen: dict[str, str] = {}
        with hints_in_messages():
            for location in options.locations:
                with closing(options.open(location)) as log:
                    place = log.place()
                check_names(seen, place.log, location)
                start, stop = self._range(place, location)
                planned.append(split(location, place, start, stop, options.rows_per_partition))
        return list(interleaved(planned))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition, self._wanted.filter)

    def _range(self, place: LogBounds, location: str) -> tuple[int, int]:
        given = self._options.given
        start = bound(given.get("from"), "from", place.log)
        stop = bound(given.get("to"), "to", place.log)
        if start is not None and start <= place.head:
            check_place([place.epoch, start - 1], place, location)
        begin = place.first if start is None else start
        end = place.head + 1 if stop is None else min(stop, place.head + 1)
        return self._wanted.within(place, begin, end)


class FilteringReader(BatchReader):
    """Passes filters of Spark on to the logs, so that less is read. Spark still filters every row,
    so a filter that a log cannot apply does no harm.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._wanted = SourceFilter.of(filters)
        return filters


def check_names(seen: dict[str, str], name: str, location: str) -> None:
    """Notes the name of the log at a location. BadInput if two locations have one name: their rows
    could not be told apart.
    """
    other = seen.setdefault(name, location)
    if other != location:
        raise BadInput(
            f"{other} and {location} both hold the log {name!r}",
            hint="read them one by one, or give one another name with the option `name`",
        )
