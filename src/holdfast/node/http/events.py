"""`GET /v1/events`: what happens here, as it happens, as server-sent events.

    id: 1:812
    event: entry
    data: {"offset":812,"id":"01…","mesh":"team","op":"state.set","entity":"build","origin":"ana"}

A stream of entries keeps no buffer. Each client reads the log at its own pace, from the place that
it names, so a client that was away goes on after the last id that it saw: the epoch of the log and
the offset, as `watch` of the library has them. With `full` each event has what the change says;
with `raw` it is the entry as it is stored, of which `holdfast.connect` makes the same change again.
`link` and `disk` events report what is in no log; they have no id, and a client that was away asks
`/v1/links` and `/v1/status`.

A client that does not read is cut off: `HttpApp` gives each piece a time to be read.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final, Literal, NamedTuple

import msgspec
from starlette.responses import Response

from holdfast.node.calls.shapes import ENTRY as ENTRY_SHAPE
from holdfast.node.http.context import NodeApi, NodeRequest, check_still
from holdfast.node.http.library.server_events import (
    FOLLOW,
    begun,
    ended,
    event,
    failed,
    reached,
    still_here,
)
from holdfast.node.watching.changes import LogChange, WatchedPage, log_page, watch_filter
from holdfast.protocol.event_stream import ENTRY, MEDIA_TYPE
from holdfast.rules import limits
from holdfast.rules.cursor import LogCursor, Since, check_place, resolve_since
from holdfast.rules.errors import BadInput, EpochChanged, HoldfastError, PastEnd, Truncated
from holdfast.rules.filters import Filter
from holdfast.service.http.route import Param, Routes
from holdfast.service.http.streaming import Streamed
from holdfast.storage.ports import Reader

_NONE: Final = "none"
_Form = Literal["named", "full", "raw"]


class EntryEvent(msgspec.Struct, frozen=True):
    """An entry of the log, without its body."""

    offset: int
    id: str
    mesh: str
    op: str
    entity: str
    origin: str


class FullEvent(EntryEvent, frozen=True):
    """An entry of the log with what it says; the body is null for an op that is not known here."""

    owner: str
    lamport: int
    recorded_at: int
    created_at: int
    meta: Any
    body: dict[str, Any] | None


routes = Routes()


@routes.get(
    "/v1/events",
    answers={200: MEDIA_TYPE},
    params=(
        Param("from", "Begin at this offset; else with what comes next.", int),
        Param("since", "Go on after this id of an event, or this offset, or from the `start`."),
        Param("mesh", "Only entries of this mesh; may be given several times."),
        Param("family", "Only of this family, as `state` or `task`; several times."),
        Param(
            "op", "Only entries of this kind, as `state.set`; several times. `none`: no entries."
        ),
        Param(
            "prefix", "Only of keys, paths, subjects or tasks that begin with it; several times."
        ),
        Param("peer", "Only what this peer wrote; several times."),
        Param("full", "With owner, stamp, times, meta and body of each.", bool),
        Param("raw", "As it is stored, with the bytes of its envelope as base64.", bool),
        FOLLOW,
        Param("Last-Event-ID", "Go on after this id, as `since`.", where="header"),
    ),
    errors=(BadInput, Truncated, PastEnd, EpochChanged),
    kind="stream",
)
async def _events(call: NodeRequest) -> Response:
    """What happens, as it happens: entries of the log, links, the disk."""
    named = (*call.all("op"), *call.all("family"))
    terms, ops = watch_filter(ops=() if named == (_NONE,) else named)
    if named == (_NONE,):
        ops = frozenset(named)  # no entry is of that kind
    narrowed = msgspec.structs.replace(
        terms, meshes=call.all("mesh"), subjects=call.all("prefix"), origins=call.all("peer")
    )
    filter = call.caller.narrow(narrowed).check()
    full, raw, follow = call.flag("full"), call.flag("raw"), call.flag("follow", default=True)
    if full and raw:
        raise BadInput("full and raw are two forms of an event", hint="ask for one of them")
    wanted = _Wanted(filter, ops, "raw" if raw else "full" if full else "named", follow)
    cursor = await call.api.run(_place, call)
    return Streamed(
        _stream(call, wanted, cursor), media_type=MEDIA_TYPE, headers={"cache-control": "no-cache"}
    )


class _Wanted(NamedTuple):
    """What a client asked for."""

    filter: Filter
    ops: frozenset[str]
    """None means all."""
    form: _Form
    follow: bool
    """Whether it waits for more."""


def _place(call: NodeRequest) -> LogCursor:
    """Where the stream begins. A browser that comes back sends its header along with the address
    that it knows: so the header wins.
    """
    since: Since = call.headers.get("last-event-id") or call.one("since")
    begin = call.number("from")

    def read(tx: Reader) -> LogCursor:
        epoch, (first, head) = tx.epoch(), tx.log_bounds()
        if since is None and begin is not None:
            cursor = LogCursor(epoch, begin - 1)
            check_place(cursor, epoch=epoch, first=first, head=head)
            return cursor
        return resolve_since(since, epoch=epoch, first=first, head=head)

    return call.api.engine.read("log.head", read)


class _Page(NamedTuple):
    """A small page of the log, as events."""

    upto: int
    """How far it was looked through."""
    head: int
    events: bytes


async def _stream(
    call: NodeRequest, wanted: _Wanted, cursor: LogCursor
) -> AsyncGenerator[bytes, None]:
    api = call.api
    sent_upto = api.log_watch.last_notice
    patience_s = limits.HEARTBEAT_MS / limits.SECOND_MS
    ends_at: int | None = None
    yield begun(cursor)
    while api.phase != "stopping":
        try:
            check_still(call)
            page = await api.run(_page, api, cursor, wanted)
        except HoldfastError as error:
            yield failed(error)
            return
        cursor, events = cursor._replace(offset=page.upto), page.events
        ends_at = page.head if ends_at is None else ends_at
        if not wanted.follow:
            if page.upto >= ends_at:
                yield events + ended(cursor)
                return
            yield events or reached(cursor)
            continue
        if call.caller.is_local:
            notices = api.log_watch.news(sent_upto)
            sent_upto = notices[-1].number if notices else sent_upto
            events += b"".join(event(notice.kind, notice.document) for notice in notices)
        if events:
            yield events
        elif page.upto < api.log_watch.head:
            yield reached(cursor)
        else:
            after = sent_upto if call.caller.is_local else None
            if not await call.until_ended(api.log_watch.wait(page.upto, patience_s, after=after)):
                if call.has_ended:
                    return  # most likely it has gone; whoever still reads has got all until now
                yield still_here(cursor)


def _page(api: NodeApi, cursor: LogCursor, wanted: _Wanted) -> _Page:
    """A small page, made in a thread: many streams, each with large values, would hold up the
    loop.
    """

    def read(tx: Reader) -> WatchedPage:
        return log_page(tx, cursor, wanted.filter, limits.EVENT_PAGE_BYTES)

    page = api.engine.read("events", read)
    return _Page(page.upto, page.head, _entries(page, wanted))


def _entries(page: WatchedPage, wanted: _Wanted) -> bytes:
    changes = (LogChange(entry, page.epoch) for entry in page.entries)
    return b"".join(
        event(ENTRY, _told(change, wanted.form), id=change.cursor)
        for change in changes
        if not wanted.ops or change.op in wanted.ops
    )


def _told(change: LogChange, form: _Form) -> Any:
    if form == "raw":
        return ENTRY_SHAPE.of(change.entry)
    named = (change.offset, change.id, change.mesh, change.op, change.key, change.peer)
    if form == "named":
        return EntryEvent(*named)
    times = (change.stamp.lamport, change.recorded_at, change.created_at)
    return FullEvent(*named, change.owner, *times, change.meta, change.body)
