"""What this node has to send: looked at, tried again, sent as new, or given up."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from starlette.responses import Response

from holdfast.node.http.context import NodeRequest
from holdfast.node.http.inbox import flag
from holdfast.node.messages.outbox import FAILED, LaneInfo, Outbox, OutboxItem
from holdfast.node.messages.send import Sent
from holdfast.rules.errors import BadInput, Conflict, DiskFull, IdReused, UnknownMessage
from holdfast.rules.limits import OUTBOX_PAGE_ROWS
from holdfast.service.http.route import Param, Route
from holdfast.service.http.strict_json import json_body


class OutboxPage(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be sent, in the order in which it was written; and how its lanes stand."""

    items: Sequence[OutboxItem]
    next: int | None
    """Ask for what comes `after` this; None when there is no more."""
    lanes: Sequence[LaneInfo]


class Requeue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Under which id it goes."""

    new_id: str | None = None
    """One is minted if none is given. Give one to be able to ask again."""


def routes() -> list[Route]:
    one = "/v1/outbox/{id}"
    return [
        Route(
            "GET",
            "/v1/outbox",
            _list,
            "What is to be sent, how far each has got, and what waits for what.",
            answers={200: OutboxPage},
            params=(
                Param("failed", "Only what the broker will not take: `true`."),
                Param("state", "Only of this state; may be given several times."),
                Param("lane", "Only of this lane, or of this mesh."),
                Param("after", "Only those after this number.", int),
                Param("limit", f"At most so many; {OUTBOX_PAGE_ROWS} unless told.", int),
            ),
            local_only=True,
        ),
        Route(
            "GET",
            one,
            _get,
            "One of them.",
            answers={200: OutboxItem},
            errors=(UnknownMessage,),
            local_only=True,
        ),
        Route(
            "POST",
            f"{one}/retry",
            _retry,
            "Try it again at once.",
            answers={200: OutboxItem},
            errors=(UnknownMessage, Conflict),
            local_only=True,
        ),
        Route(
            "POST",
            f"{one}/requeue",
            _requeue,
            "Send a message that failed again as a new one, to the same destination.",
            request=Requeue,
            answers={201: Sent, 200: Sent},
            errors=(UnknownMessage, Conflict, IdReused, DiskFull),
            example="-d '{}'",
            local_only=True,
        ),
        Route(
            "POST",
            f"{one}/drop",
            _drop,
            "Give it up.",
            answers={200: OutboxItem},
            errors=(UnknownMessage, Conflict),
            local_only=True,
        ),
    ]


async def _list(call: NodeRequest) -> Response:
    limit = call.number("limit", OUTBOX_PAGE_ROWS) or 0
    if not 1 <= limit <= OUTBOX_PAGE_ROWS:
        raise BadInput(f"limit is {limit}", hint=f"ask for 1 to {OUTBOX_PAGE_ROWS} at a time")
    states = call.all("state")
    if flag(call, "failed"):
        if states:
            raise BadInput("failed is a state of its own", hint="give failed or state")
        states = FAILED
    outbox = _outbox(call)
    page = await call.api.run(
        partial(
            outbox.page,
            states=states,
            lane=call.one("lane"),
            after=call.number("after", 0) or 0,
            limit=limit,
        )
    )
    lanes = await call.api.run(outbox.lanes)
    more = page[-1].number if len(page) == limit else None
    return call.answer(OutboxPage(items=page, next=more, lanes=lanes))


async def _get(call: NodeRequest) -> Response:
    return call.answer(await call.api.run(_outbox(call).get, call.path["id"]))


async def _retry(call: NodeRequest) -> Response:
    return _changed(call, await call.api.run(_outbox(call).retry, call.path["id"]))


async def _drop(call: NodeRequest) -> Response:
    return _changed(call, await call.api.run(_outbox(call).drop, call.path["id"]))


async def _requeue(call: NodeRequest) -> Response:
    given = await json_body(call, Requeue)
    work = partial(_outbox(call).requeue, call.path["id"], new_id=given.new_id)
    sent = await call.api.run(work)
    return call.answer(sent, 200 if sent.duplicate else 201)


def _changed(call: NodeRequest, item: OutboxItem) -> Response:
    call.api.log_watch.post("outbox", {"lane": item.lane, "id": item.id, "state": item.state})
    return call.answer(item)


def _outbox(call: NodeRequest) -> Outbox:
    return Outbox(call.api.engine, call.api.settings.outbox.policies)
