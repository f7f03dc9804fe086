"""The links of this node: how they stand, and the few things that can be done to them at once.

A link is changed in the store, by this API or by a command. `POST /v1/refresh` tells the daemon to
look at it again.
"""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from holdfast.node.http.context import NodeApi, NodeRequest
from holdfast.node.links.registry import Links, LinkView
from holdfast.node.links.status import LinkStatus
from holdfast.rules.errors import UnknownLink, Unreachable
from holdfast.service.http.route import Route
from holdfast.service.http.strict_json import json_body


class LinkList(msgspec.Struct, frozen=True):
    """Every link, by name."""

    links: list[LinkStatus]


class Resume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a link goes on."""

    skip_missing: bool = False
    """Go on behind what the source no longer holds. Those entries never arrive here."""


class Refreshed(msgspec.Struct, frozen=True):
    """What the daemon found when it looked again."""

    links: int


def routes() -> list[Route]:
    name = "/v1/links/{name}"
    return [
        Route("GET", "/v1/links", _list, "How every link stands.", answers={200: LinkList}),
        Route(
            "GET",
            name,
            _get,
            "How a link stands.",
            answers={200: LinkStatus},
            errors=(UnknownLink,),
        ),
        Route(
            "POST",
            f"{name}/pause",
            _pause,
            "Let a link rest.",
            answers={200: LinkView},
            errors=(UnknownLink,),
            local_only=True,
        ),
        Route(
            "POST",
            f"{name}/resume",
            _resume,
            "Let a link go on, at once.",
            request=Resume,
            answers={200: LinkView},
            errors=(UnknownLink, Unreachable),
            example="-d '{}'",
            local_only=True,
        ),
        Route(
            "POST",
            "/v1/refresh",
            _refresh,
            "Look at the stored links and meshes again: somebody has changed them.",
            answers={200: Refreshed},
            local_only=True,
        ),
    ]


async def _list(call: NodeRequest) -> Response:
    call.require_trusted()
    return call.answer(LinkList(_status(call.api)))


async def _get(call: NodeRequest) -> Response:
    call.require_trusted()
    for found in _status(call.api):
        if found.name == call.path["name"]:
            return call.answer(found)
    raise UnknownLink(f"there is no link {call.path['name']!r}")


async def _pause(call: NodeRequest) -> Response:
    links = Links(call.api.engine, call.api.trust)
    view = await call.api.run(links.pause, call.path["name"])
    await call.api.run(_look_again, call.api)
    return call.answer(view)


async def _resume(call: NodeRequest) -> Response:
    given = await json_body(call, Resume)
    links = Links(call.api.engine, call.api.trust)

    def work() -> LinkView:
        return links.resume(call.path["name"], skip_missing=given.skip_missing)

    view = await call.api.run(work)
    await call.api.run(_look_again, call.api)
    return call.answer(view)


async def _refresh(call: NodeRequest) -> Response:
    await call.api.run(_look_again, call.api)
    if call.api.sync_manager is not None:
        await call.api.sync_manager.refresh(try_now=True)
    return call.answer(Refreshed(len(_status(call.api))))


def _look_again(api: NodeApi) -> None:
    if api.link_manager is not None:
        api.link_manager.refresh()


def _status(api: NodeApi) -> list[LinkStatus]:
    return [] if api.link_manager is None else api.link_manager.status()
