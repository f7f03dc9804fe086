"""`GET /v1/inbox-events`: messages as they arrive, as server-sent events.

Each event is a message without its content, as `/v1/inbox` lists it; its id is the number of the
message. They do not follow the log: a message that came as history first has an old place there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from starlette.responses import Response

from holdfast.node.http.context import NodeRequest, check_still
from holdfast.node.http.library.server_events import (
    FOLLOW,
    begun,
    ended,
    event,
    failed,
    still_here,
)
from holdfast.node.messages.inbox import Arrivals, Inbox
from holdfast.protocol.event_stream import MEDIA_TYPE, MESSAGE
from holdfast.rules import limits
from holdfast.rules.errors import BadInput, HoldfastError, PastEnd
from holdfast.rules.inbox_match import InboxMatch
from holdfast.service.http.route import Param, Routes
from holdfast.service.http.streaming import Streamed

routes = Routes()


@routes.get(
    "/v1/inbox-events",
    answers={200: MEDIA_TYPE},
    params=(
        Param("since", "Go on after the message with this number, or from the `start`."),
        Param("mesh", "Only of this mesh."),
        Param("sender", "Only those of this peer."),
        Param("topic", "Only those to this topic."),
        FOLLOW,
        Param("Last-Event-ID", "Go on after this number, as `since`.", where="header"),
    ),
    errors=(BadInput, PastEnd),
    kind="stream",
    local_only=True,
)
async def _events(call: NodeRequest) -> Response:
    """Messages as they arrive, without their content."""
    inbox = Inbox(call.api.engine, call.one("mesh"))
    match = InboxMatch(sender=call.one("sender"), topic=call.one("topic")).check()
    since = call.headers.get("last-event-id") or call.one("since")
    follow = call.flag("follow", default=True)
    arrivals = await call.api.run(Arrivals, inbox, since, match)
    return Streamed(
        _stream(call, arrivals, follow=follow),
        media_type=MEDIA_TYPE,
        headers={"cache-control": "no-cache"},
    )


async def _stream(
    call: NodeRequest, arrivals: Arrivals, *, follow: bool
) -> AsyncGenerator[bytes, None]:
    api, now = call.api, asyncio.get_running_loop().time
    patience_s = limits.HEARTBEAT_MS / limits.SECOND_MS
    yield begun(arrivals.cursor)
    said_at = now()
    while api.phase != "stopping":
        looks = api.log_watch.looks  # before reading: a commit from now on is another look
        try:
            check_still(call)
            found = await api.run(arrivals.read)
        except HoldfastError as error:
            yield failed(error)
            return
        if found:
            yield _ready(arrivals)
            said_at = now()
        elif not follow:
            yield ended(arrivals.cursor)
            return
        elif (left := said_at + patience_s - now()) <= 0:
            yield still_here(arrivals.cursor)
            said_at = now()
        elif not await call.until_ended(api.log_watch.rung(looks, left)) and call.has_ended:
            return


def _ready(arrivals: Arrivals) -> bytes:
    events = []
    while arrivals.has_more:
        message = arrivals.pop()
        events.append(event(MESSAGE, message, id=message.number))
    return b"".join(events)
