"""The ranged read: any piece of the log, as often as wanted, without moving a consumer.

A range is read batch by batch, each in a read of its own, so that a long one holds back neither the
writer nor the checkpoint. Meanwhile a sweep may truncate the log. Then the connection is cut: an
Arrow stream without its end mark, or a chunked body without its last chunk, is never taken for a
whole one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.responses import Response

from holdfast.node.core.engine import NodeEngine
from holdfast.node.http.context import NodeRequest, check_still
from holdfast.node.log import consumers
from holdfast.protocol.log_wire import ARROW, NDJSON
from holdfast.rules.errors import BadInput, EpochChanged, NotGranted, PastEnd, Truncated
from holdfast.rules.filters import CLASSES, Filter
from holdfast.rules.limits import RANGE_BATCH_BYTES, RANGE_BATCH_ROWS
from holdfast.rules.rows import Columns
from holdfast.service.http.ranges import Form, Lines, RangeBounds, arrow_form
from holdfast.service.http.route import Param, Routes
from holdfast.service.http.streaming import Streamed
from holdfast.storage.ports import Reader

routes = Routes()


class Ranged:
    """A range that is being read, one batch at a time; used by one thread at a time."""

    def __init__(self, engine: NodeEngine, filter: Filter) -> None:
        self._engine = engine
        self._filter = filter
        self._next = 0
        self._stop = 0

    def begin(self, start: int | None, stop: int | None, epoch: int | None) -> RangeBounds:
        """The bounds of the range; raises for every error that a status can still report."""

        def read(tx: Reader) -> RangeBounds:
            consumers.check_epoch(tx, epoch)
            first, head = tx.log_bounds()
            begin = first if start is None else start
            end = head + 1 if stop is None else min(stop, head + 1)
            if begin < 1 or (stop is not None and stop < begin):
                raise BadInput(f"[{begin}, {stop}) is not a range of offsets")
            if begin > head + 1:
                raise PastEnd(f"offset {begin} is past the end of the log at {head}")
            end = max(begin, end)
            consumers.check_there(begin, end, first)
            return RangeBounds(tx.epoch(), first, head, begin, end)

        bounds = self._engine.read("log.range", read)
        self._next, self._stop = bounds.start, bounds.stop
        return bounds

    def more(self) -> Columns | None:
        """The next batch, which is empty if no entry of it passes the filter; None at the end."""
        if self._next >= self._stop:
            return None

        def read(tx: Reader) -> Columns:
            # Checked again in the read that returns the entries: what a sweep has truncated since
            # would otherwise just be missing.
            consumers.check_there(self._next, self._stop, tx.log_bounds()[0])
            # An entry whose names are harmed is given all the same: its bytes say them again, and
            # a reader that got nothing would never get past it.
            return tx.log_columns(
                self._next, self._stop, RANGE_BATCH_ROWS, RANGE_BATCH_BYTES, self._filter, odd=True
            )

        columns = self._engine.read("log.range", read)
        self._next = columns.upto + 1
        return columns


@routes.get(
    "/v1/facts/range",
    answers={200: NDJSON},
    params=(
        Param("from", "The first offset; the log's first if left out.", int),
        Param("to", "The offset after the last; up to the end if left out or beyond.", int),
        Param("epoch", "The epoch that the offsets count in.", int),
        Param("mesh", "Only of this mesh; may be repeated."),
        Param("subject", "Only what is about something that begins so; may be repeated."),
        Param("class", f"Only {', '.join(CLASSES)}; may be repeated."),
        Param("origin", "Only what this peer wrote; may be repeated."),
        Param("accept", f"{ARROW} for an Arrow stream.", where="header"),
    ),
    errors=(Truncated, EpochChanged, PastEnd, NotGranted),
    example=f"-G -d from=1 -H 'Accept: {ARROW}'",
)
async def _range(call: NodeRequest) -> Response:
    """The entries with from <= offset < to, as NDJSON or as an Arrow stream."""
    filter = Filter(
        meshes=call.all("mesh"),
        subjects=call.all("subject"),
        classes=call.all("class"),
        origins=call.all("origin"),
    ).check()
    api = call.api
    ranged = Ranged(api.engine, call.caller.narrow(filter))
    start, stop = call.number("from"), call.number("to")
    bounds = await api.run(ranged.begin, start, stop, call.number("epoch"))
    wants_arrow = ARROW in call.headers.get("accept", "")
    form = await api.run(arrow_form, bounds.epoch, api.node.peer) if wants_arrow else Lines()
    parts = _parts(call, ranged, form)
    return Streamed(parts, headers=bounds.headers(), media_type=ARROW if wants_arrow else NDJSON)


async def _parts(call: NodeRequest, ranged: Ranged, form: Form) -> AsyncGenerator[bytes, None]:
    def step() -> bytes | None:
        columns = ranged.more()
        if columns is None:
            return None
        return form.batch(columns) if columns.offset else b""

    if begun := form.begin():
        yield begun
    while (part := await call.api.run(step)) is not None:
        if part:
            check_still(call)
            yield part
    if ended := form.end():
        yield ended
