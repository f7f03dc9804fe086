"""The links of this node: their state, pausing and resuming.

A link is changed in the store, by this API or by a command. After `POST /v1/refresh` the daemon
reads the links from the store again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
from starlette.responses import Response

from holdfast.node.http.context import NodeApi, NodeRequest
from holdfast.node.links.pull import PullStanding, PullTicket, begin_pull
from holdfast.node.links.registry import Links, LinkView
from holdfast.node.links.source import reach_by
from holdfast.node.links.status import LinkStatus
from holdfast.node.links.worker import LinkManager
from holdfast.rules.errors import NotAllowed, StoreBusy, StoreClosed, UnknownLink, Unreachable
from holdfast.rules.limits import LINK_PULL_WAIT_MS_MAX, SECOND_MS
from holdfast.service.http.json_body import json_body
from holdfast.service.http.route import Routes


class LinkList(msgspec.Struct, frozen=True):
    """Every link, by name."""

    links: list[LinkStatus]


class Resume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a link goes on."""

    skip_missing: bool = False
    """Go on behind entries that the source no longer holds; they never arrive here."""


class LinkPull(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which pull is meant."""

    ticket: PullTicket | None = None
    """The one that the last answer told; without it a new one begins."""


class LinksRefreshed(msgspec.Struct, frozen=True):
    """What the daemon found when it read its links again."""

    links: int


routes = Routes()


@routes.get("/v1/links", answers={200: LinkList})
async def _list(call: NodeRequest) -> Response:
    """The state of every link."""
    call.require_trusted()
    return call.answer(LinkList(_status(call.api)))


@routes.get("/v1/links/{name}", answers={200: LinkStatus}, errors=(UnknownLink,))
async def _get(call: NodeRequest) -> Response:
    """The state of a link."""
    call.require_trusted()
    for found in _status(call.api):
        if found.name == call.path["name"]:
            return call.answer(found)
    raise UnknownLink(f"there is no link {call.path['name']!r}")


@routes.post(
    "/v1/links/{name}/pause", answers={200: LinkView}, errors=(UnknownLink,), local_only=True
)
async def _pause(call: NodeRequest) -> Response:
    """Pause a link."""
    links = Links(call.api.engine, call.api.trust)
    view = await call.api.run(links.pause, call.path["name"])
    await call.api.run(_look_again, call.api)
    return call.answer(view)


@routes.post(
    "/v1/links/{name}/resume",
    request=Resume,
    answers={200: LinkView},
    errors=(UnknownLink, Unreachable),
    example="-d '{}'",
    local_only=True,
)
async def _resume(call: NodeRequest) -> Response:
    """Resume a link at once."""
    given = await json_body(call, Resume)
    links = Links(call.api.engine, call.api.trust)

    def work() -> LinkView:
        return links.resume(call.path["name"], skip_missing=given.skip_missing)

    view = await call.api.run(work)
    await call.api.run(_look_again, call.api)
    return call.answer(view)


@routes.post(
    "/v1/links/{name}/pull",
    request=LinkPull,
    answers={200: PullStanding},
    errors=(UnknownLink, Unreachable, NotAllowed),
    example="-d '{}'",
    local_only=True,
)
async def _pull(call: NodeRequest) -> Response:
    """Pull what the source has now. Ask again, with the ticket of the answer, until it is done."""
    given = await json_body(call, LinkPull)
    api, name, ticket = call.api, call.path["name"], given.ticket
    if api.link_manager is None:
        raise StoreClosed("this node pulls no links now", hint="ask again")
    if ticket is None:
        ticket = await api.run(_begin_pull, api, api.link_manager, name)
    return call.answer(await _pulled(api.link_manager, name, ticket))


def _begin_pull(api: NodeApi, manager: LinkManager, name: str) -> PullTicket:
    if not manager.wait_until_started(LINK_PULL_WAIT_MS_MAX / SECOND_MS):
        raise StoreBusy("another process pulls links of this home")
    manager.refresh()  # it may have been added just now
    # As it is stored: the unit of the link may have yet to notice.
    if Links(api.engine, api.trust).get(name).paused:
        raise NotAllowed(
            f"link {name!r} is paused, and the daemon leaves it alone",
            hint=f"let it go on: holdfast link resume {name}; or end the daemon, and pull once",
        )
    return begin_pull(api.engine, reach_by(api.trust), manager, name)


async def _pulled(manager: LinkManager, name: str, ticket: PullTicket) -> PullStanding:
    """How a pull stands when it is over, or after a while."""
    loop, stirred = asyncio.get_running_loop(), asyncio.Event()

    def stir() -> None:
        with suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(stirred.set)

    with manager.listening(stir), suppress(TimeoutError):
        async with asyncio.timeout(LINK_PULL_WAIT_MS_MAX / SECOND_MS):
            while not PullStanding.of(ticket, manager.of(name)).over:
                await stirred.wait()
                stirred.clear()
    return PullStanding.of(ticket, manager.of(name))


@routes.post("/v1/refresh", answers={200: LinksRefreshed}, local_only=True)
async def _refresh(call: NodeRequest) -> Response:
    """Read links and meshes from the store again, because another process has changed them."""
    await call.api.run(_look_again, call.api)
    if call.api.sync_manager is not None:
        await call.api.sync_manager.refresh(try_now=True)
    if call.api.bus is not None:
        await call.api.bus.refresh()
    return call.answer(LinksRefreshed(len(_status(call.api))))


def _look_again(api: NodeApi) -> None:
    if api.link_manager is not None:
        api.link_manager.refresh()


def _status(api: NodeApi) -> list[LinkStatus]:
    return [] if api.link_manager is None else api.link_manager.status()
