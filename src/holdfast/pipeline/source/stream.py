"""The stream reader: asks logs for their heads, plans batches, and confirms what Spark committed.

With the option `consumer` the stream registers with every log where it begins, and from then on the
log keeps what the stream has not confirmed. A batch is confirmed when Spark has committed it, never
before: after a crash Spark asks for the last batch again, and the logs must still have it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from holdfast.pipeline.logs.log import BROKER, LogBounds, ReadableLog
from holdfast.pipeline.source.plan import (
    LogRange,
    Offsets,
    check_lost,
    check_place,
    interleaved,
    next_offsets,
    split,
    starting,
)
from holdfast.pipeline.source.source import Options, check_names, hints_in_messages, read_range
from holdfast.rules.errors import BadInput, EpochChanged, HoldfastError, UnknownConsumer

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("holdfast")


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads logs as they grow."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._logs: dict[str, ReadableLog] = {}
        self._target: dict[str, LogBounds] | None = None
        self._registered: set[tuple[str, int]] = set()
        self._confirmed: Offsets = {}

    def __getstate__(self) -> dict[str, Any]:
        # The copy in a task only reads; it neither plans nor confirms.
        return {"_options": self._options}

    # --- on the driver -------------------------------------------------------------------------

    def initialOffset(self) -> Offsets:
        with hints_in_messages():
            places = self._places()
            begin = starting(self._options.given.get("startingoffsets"), places)
            self._register(begin, places)
        return begin

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.number("maxrowsperbatch")
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        with hints_in_messages():
            self._target = self._places()

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:
        with hints_in_messages():
            places = self._places()
            for name, at in start.items():
                if name in places:
                    check_lost(at, places[name], self._logs[name].location)
                if name in places and at[0] == places[name].epoch:
                    check_place(at, places[name], self._logs[name].location)
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            heads = places if self._target is None else self._target
            end = next_offsets(start, places, heads, most)
            self._register({**end, **start}, places)
            return end

    def reportLatestOffset(self) -> Offsets:
        with hints_in_messages():
            places = self._places()
        return {name: [place.epoch, place.head] for name, place in sorted(places.items())}

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        planned: list[list[LogRange]] = []
        rows = self._options.rows_per_partition
        with hints_in_messages():
            places = self._places()
            for name, (epoch, offset) in end.items():
                begin = start.get(name)
                if begin is None or begin[0] != epoch or begin[1] >= offset:
                    continue
                place = self._require(places, name)
                location = self._logs[name].location
                if place.epoch != epoch:
                    # Planned before the log was restored. What the log still has of it comes with
                    # the next batch, which reads the new epoch; the rest is lost on the node too.
                    log.warning(
                        "offsets %d to %d in epoch %d of log %r at %s are not read: it counts in "
                        "epoch %d now and is read from its first offset",
                        *(begin[1] + 1, offset, epoch, name, location, place.epoch),
                    )
                    continue
                check_place(begin, place, location)
                check_place([epoch, offset], place, location)
                planned.append(split(location, place, begin[1] + 1, offset + 1, rows))
        return list(interleaved(planned))

    def commit(self, end: Offsets) -> None:
        consumer = self._options.given.get("consumer")
        if not consumer:
            return
        with hints_in_messages():
            if not self._logs:
                self._places()
            for name, (epoch, offset) in end.items():
                if name not in self._logs or offset < 1 or self._confirmed.get(name) == end[name]:
                    continue
                self._confirm(consumer, name, epoch, offset)
                self._confirmed[name] = end[name]

    def stop(self) -> None:
        for opened in self._logs.values():
            opened.close()
        self._logs = {}

    # --- in a task -----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition)

    # --- the logs ------------------------------------------------------------------------------

    def _places(self) -> dict[str, LogBounds]:
        """By name: the bounds of all logs now. The first call opens them."""
        if self._logs:
            places = {name: opened.place() for name, opened in self._logs.items()}
            if any(place.log != name for name, place in places.items()):
                raise BadInput(
                    "another node answers in the place of one that this stream reads",
                    hint=", ".join(sorted(opened.location for opened in self._logs.values())),
                )
            return places
        places = {}
        seen: dict[str, str] = {}
        logs: dict[str, ReadableLog] = {}
        for location in self._options.locations:
            if location.startswith(BROKER) and not self._options.given.get("consumer"):
                raise BadInput(
                    f"a stream that reads {location} needs a name, or it would not know what it "
                    "missed",
                    hint="choose one with the option `consumer`",
                )
            opened = self._options.open(location)
            place = opened.place()
            check_names(seen, place.log, location)
            places[place.log], logs[place.log] = place, opened
        self._logs = logs
        return places

    def _require(self, places: dict[str, LogBounds], name: str) -> LogBounds:
        if name not in places:
            raise BadInput(
                f"the checkpoint names log {name!r}, which is not among the logs",
                hint="name it again until its last batch is done, or use a new checkpoint",
            )
        return places[name]

    def _register(self, begin: Offsets, places: dict[str, LogBounds]) -> None:
        consumer = self._options.given.get("consumer")
        if not consumer:
            return
        for name, place in places.items():
            key = (name, place.epoch)
            if key in self._registered or name not in begin:
                continue
            epoch, offset = begin[name]
            start = offset + 1 if epoch == place.epoch else place.first
            self._logs[name].register(consumer, start)
            self._registered.add(key)

    def _confirm(self, consumer: str, name: str, epoch: int, offset: int) -> None:
        opened = self._logs[name]
        try:
            opened.confirm(consumer, epoch, offset)
        except EpochChanged as error:
            self._warn_unconfirmed(name, offset, error)
        except UnknownConsumer as error:
            if opened.place().epoch != epoch:
                self._warn_unconfirmed(name, offset, error)
                return
            # The node has removed this reader meanwhile. It registers again where it is.
            opened.register(consumer, offset + 1)

    def _warn_unconfirmed(self, name: str, offset: int, error: HoldfastError) -> None:
        """The log was restored meanwhile. It keeps all of its new epoch, of which nothing was
        confirmed.
        """
        log.warning("offset %d was not confirmed to log %r: %s", offset, name, error.message)
