"""The links of this node: their state, pausing and resuming.

A link is changed in the store, by this API or by a command. After `POST /v1/refresh` the daemon
reads the links from the store again.
"""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from holdfast.node.http.context import NodeApi, NodeRequest
from holdfast.node.links.registry import Links, LinkView
from holdfast.node.links.status import LinkStatus
from holdfast.rules.errors import UnknownLink, Unreachable
from holdfast.service.http.json_body import json_body
from holdfast.service.http.route import Routes


class LinkList(msgspec.Struct, frozen=True):
    """Every link, by name."""

    links: list[LinkStatus]


class Resume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a link goes on."""

    skip_missing: bool = False
    """Go on behind entries that the source no longer holds; they never arrive here."""


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
