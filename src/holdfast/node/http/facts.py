"""Facts over HTTP: fetch and confirm (appending is in `append`).

A fetch that finds nothing may wait for new entries. Meanwhile it costs a future, no thread and no
read of the database. If its filter leaves out all that comes, it goes on waiting, and remembers how
far it has looked. It answers without an entry when time is up, or when it has passed over so many
entries that the reader should confirm them: only then the log can forget them.
"""

from __future__ import annotations

import asyncio

import msgspec
from starlette.responses import Response

from holdfast.node.core.views import Consumer
from holdfast.node.http.context import NodeRequest, identify
from holdfast.node.log import serve
from holdfast.protocol.log_json import LogEntryJson, entry_json
from holdfast.protocol.log_wire import JSON, MSGPACK, Batch, Confirmation, Fetch, encode_batch
from holdfast.rules import limits
from holdfast.rules.errors import (
    EpochChanged,
    OverLimit,
    PastEnd,
    Truncated,
    UnknownConsumer,
)
from holdfast.rules.structs import copy_to
from holdfast.service.http.json_body import json_body
from holdfast.service.http.route import Param, Routes
from holdfast.service.http.streaming import compressed


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the log."""

    epoch: int
    first: int
    """The first offset that the log still holds."""
    head: int
    """The last one."""
    start: int = msgspec.field(name="from")
    upto: int
    """Entries of [from, upto] that are not here did not pass the filter: confirm up to this
    offset.
    """
    entries: list[LogEntryJson]


routes = Routes()


# --- fetch ---------------------------------------------------------------------------------------


@routes.post(
    "/v1/facts/fetch",
    request=Fetch,
    answers={200: Fetched},
    errors=(UnknownConsumer, Truncated, EpochChanged, PastEnd),
    example="""-d '{"consumer":"reader","limit":10,"wait_ms":5000}'""",
)
async def _fetch(call: NodeRequest) -> Response:
    """What a consumer has not confirmed yet, oldest first; waits for it if asked to."""
    return await _answer_fetch(call, await json_body(call, Fetch))


@routes.get(
    "/v1/facts/fetch",
    answers={200: Fetched},
    params=(
        Param("consumer", "Who reads.", required=True),
        Param("limit", f"Entries at most: 1 to {limits.FETCH_ROWS_MAX}.", int),
        Param("wait_ms", "How long to wait for something new.", int),
        Param("from", "Read from here, without moving the consumer.", int),
        Param("confirm", "Confirm up to here first.", int),
        Param("epoch", "The epoch that the offsets count in.", int),
    ),
    errors=(UnknownConsumer, Truncated, EpochChanged, PastEnd),
    example="-G -d consumer=reader -d wait_ms=5000",
)
async def _fetch_by_query(call: NodeRequest) -> Response:
    """The same, asked by the address."""
    consumer = call.required("consumer")
    limit, wait_ms = call.number("limit"), call.number("wait_ms")
    await call.body()
    fetch = Fetch(
        consumer=consumer,
        limit=limits.FETCH_ROWS_DEFAULT if limit is None else limit,
        wait_ms=wait_ms or 0,
        start=call.number("from"),
        confirm=call.number("confirm"),
        epoch=call.number("epoch"),
    )
    return await _answer_fetch(call, fetch)


async def _answer_fetch(call: NodeRequest, fetch: Fetch) -> Response:
    if not 0 <= fetch.wait_ms <= limits.LONG_POLL_MS_MAX:
        raise OverLimit(f"wait_ms {fetch.wait_ms} is not between 0 and {limits.LONG_POLL_MS_MAX}")
    batch = await _next_batch(call, fetch)
    if call.wants_msgpack:
        return await compressed(call, encode_batch(batch), MSGPACK)
    body = await call.api.run(_as_json, batch)
    return await compressed(call, body, JSON)


async def _next_batch(call: NodeRequest, fetch: Fetch) -> Batch:
    api = call.api
    clock = asyncio.get_running_loop().time
    deadline = clock() + fetch.wait_ms / limits.SECOND_MS
    caller = call.caller
    batch = await api.run(serve.serve_batch, api.engine, caller, fetch)
    start = batch.start
    passed_over = False
    while not batch.offsets and batch.upto - start + 1 < limits.SCAN_ROWS_MAX:
        if batch.upto >= start and not passed_over:
            # Nothing for this reader, but entries were passed over that it should confirm soon.
            passed_over = True
            deadline = min(deadline, clock() + limits.PASSED_OVER_MS_MAX / limits.SECOND_MS)
        left_ms = (deadline - clock()) * limits.SECOND_MS
        if left_ms <= 0:
            break
        if batch.upto >= batch.head and not await call.wait(batch.head, left_ms):
            break
        # The caller may have lost or got grants while it waited.
        caller = identify(api, call.scope)
        # Go on behind what was read; the confirmation is done.
        fetch = msgspec.structs.replace(
            fetch, start=batch.upto + 1, confirm=None, epoch=batch.epoch
        )
        batch = await api.run(serve.serve_batch, api.engine, caller, fetch)
    return msgspec.structs.replace(batch, start=start)


def _as_json(batch: Batch) -> bytes:
    entries = [
        entry_json(offset, raw) for offset, raw in zip(batch.offsets, batch.raws, strict=True)
    ]
    return msgspec.json.encode(copy_to(Fetched, batch, entries=entries))


# --- confirm -------------------------------------------------------------------------------------


@routes.post(
    "/v1/facts/confirm",
    request=Confirmation,
    answers={200: Consumer},
    errors=(UnknownConsumer, EpochChanged, PastEnd),
    example="""-d '{"consumer":"reader","offset":10}'""",
)
async def _confirm(call: NodeRequest) -> Response:
    """Confirm what a consumer has taken over: up to an offset, or ranges."""
    confirmation = await json_body(call, Confirmation)
    count = len(confirmation.ranges or ())
    if count > limits.FRONTIER_RANGES_MAX:
        # Each range is added to the frontier by itself, and the writer waits meanwhile.
        raise OverLimit(
            f"{count} ranges in one request; the most is {limits.FRONTIER_RANGES_MAX}",
            hint="join those that touch, and send the rest in another request",
        )
    api = call.api
    return call.answer(await api.run(serve.confirm, api.engine, call.caller, confirmation))
