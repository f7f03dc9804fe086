"""`GET /v1/events`: what happens here, as it happens, as server-sent events.

    id: 812
    event: entry
    data: {"offset":812,"id":"01…","mesh":"team","op":"state.set","entity":"build","origin":"ana"}

A stream of entries keeps no buffer. Each client reads the log at its own pace, from the offset that
it names, so a client that was away goes on after the last id that it saw. `link` and `disk` events
report what is in no log; they have no id, and a client that was away asks `/v1/links` and
`/v1/status`.

A client that does not read is cut off: `HttpApp` gives each piece a time to be read.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec
from starlette.responses import Response

from holdfast.node.http.context import NodeApi, NodeRequest, check_still
from holdfast.rules import limits
from holdfast.rules.errors import HoldfastError, PastEnd, Truncated
from holdfast.rules.filters import Filter
from holdfast.rules.ids import id_text
from holdfast.rules.rows import Columns
from holdfast.service.http.errors import failure
from holdfast.service.http.request import parse_int
from holdfast.service.http.route import Param, Routes
from holdfast.service.http.streaming import Streamed

_STREAM: Final = "text/event-stream"
_HEARTBEAT: Final = b": still here\n\n"
_RETRY: Final = b"retry: 1000\n\n"


class EntryEvent(msgspec.Struct, frozen=True):
    """An entry of the log, without its body."""

    offset: int
    id: str
    mesh: str
    op: str
    entity: str
    origin: str


routes = Routes()


@routes.get(
    "/v1/events",
    answers={200: _STREAM},
    params=(
        Param("from", "Begin at this offset; else with what comes next.", int),
        Param("mesh", "Only entries of this mesh; may be given several times."),
        Param("op", "Only entries of this kind, as `state.set`; several times."),
        Param("Last-Event-ID", "Go on after this offset.", int, where="header"),
    ),
    errors=(Truncated, PastEnd),
    kind="stream",
)
async def _events(call: NodeRequest) -> Response:
    """What happens, as it happens: entries of the log, links, the disk."""
    filter = call.caller.narrow(Filter(meshes=call.all("mesh"))).check()
    ops = frozenset(call.all("op"))
    last = call.headers.get("last-event-id")
    start = call.number("from") if last is None else parse_int("Last-Event-ID", last) + 1
    first, head = await call.api.run(_bounds, call.api)
    if start is None:
        start = head + 1
    _check_place(start, first, head)
    return Streamed(
        _stream(call, filter, ops, start),
        media_type=_STREAM,
        headers={"cache-control": "no-cache"},
    )


def _bounds(api: NodeApi) -> tuple[int, int]:
    return api.engine.read("log.head", lambda tx: tx.log_bounds())


def _check_place(start: int, first: int, head: int) -> None:
    if start > head + 1:
        raise PastEnd(f"offset {start} is past the end of the log at {head}")
    if start < first:
        raise Truncated(f"offset {start} is gone: the log begins at {first}", first_available=first)


async def _stream(
    call: NodeRequest, filter: Filter, ops: frozenset[str], start: int
) -> AsyncGenerator[bytes, None]:
    api = call.api
    sent_upto = api.log_watch.last_notice
    patience_s = limits.HEARTBEAT_MS / limits.SECOND_MS
    yield _RETRY
    while api.phase != "stopping":
        try:
            check_still(call)
            page = await api.run(_page, api, start, filter)
        except HoldfastError as error:
            # The answer has begun, so its status cannot report the error any more.
            yield _event("error", failure(error))
            return
        start = page.upto + 1
        events = _entries(page, ops)
        if call.caller.is_local:
            notices = api.log_watch.news(sent_upto)
            sent_upto = notices[-1].number if notices else sent_upto
            events += b"".join(_event(notice.kind, notice.document) for notice in notices)
        if events:
            yield events
        elif page.upto >= api.log_watch.head:
            after = sent_upto if call.caller.is_local else None
            if not await call.until_ended(api.log_watch.wait(page.upto, patience_s, after=after)):
                if call.has_ended:
                    return  # most likely it has gone; whoever still reads has got all until now
                yield _HEARTBEAT


def _page(api: NodeApi, start: int, filter: Filter) -> Columns:
    def read(tx: Any) -> Columns:
        first, head = tx.log_bounds()
        _check_place(start, first, head)
        page: Columns = tx.log_columns(
            start, head + 1, limits.CHUNK_ROWS, limits.FETCH_BYTES_MAX, filter
        )
        return page

    return api.engine.read("events", read)


def _entries(page: Columns, ops: frozenset[str]) -> bytes:
    rows = zip(page.offset, page.id, page.mesh, page.op, page.entity, page.origin, strict=True)
    return b"".join(
        _event("entry", EntryEvent(offset, id_text(id), mesh, op, entity, origin), id=str(offset))
        for offset, id, mesh, op, entity, origin in rows
        if not ops or op in ops
    )


def _event(kind: str, document: Any, *, id: str = "") -> bytes:
    head = f"id: {id}\n" if id else ""
    # Encoded JSON has no line ends, which would end the event.
    return f"{head}event: {kind}\ndata: ".encode() + msgspec.json.encode(document) + b"\n\n"
