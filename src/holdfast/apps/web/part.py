"""Mounting the console in a daemon or a broker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from holdfast.apps.web.live.changes import Changes, follow_broker, follow_node
from holdfast.apps.web.live.lags import LagRecord, look_at_lags
from holdfast.apps.web.site import STREAM, ConsoleOf, Site
from holdfast.apps.web.view import PageView
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import CONSOLE_STREAMS_MAX
from holdfast.service.http.app import HttpApp
from holdfast.service.http.parts import Part
from holdfast.storage.files.home import HomePaths

if TYPE_CHECKING:
    from holdfast.broker.http.context import BrokerApi
    from holdfast.node.http.context import NodeApi


def node_console(api: NodeApi, app: HttpApp) -> Sequence[Part]:
    """The console of a node."""
    from holdfast.apps.web.pages.all import NODE_PAGES

    changes, lags = Changes(), LagRecord()
    site = Site(
        ConsoleOf(
            kind="node",
            name=api.node.peer,
            app=app,
            api=api,
            pages=NODE_PAGES,
            kept=HomePaths(api.node.home).console,
            now_ms=api.engine.ctx.now_ms,
            takes_tokens=True,
            changes=changes,
            lags=lags,
            lake=os.environ.get("HOLDFAST_LAKE") or None,
            meshes=_meshes,
        )
    )
    return [
        _part(site, lambda: follow_node(api, changes), lambda: look_at_lags(api, lags, changes))
    ]


def broker_console(api: BrokerApi, app: HttpApp) -> Sequence[Part]:
    """The console of a broker, for its operator."""
    from holdfast.apps.web.pages.broker import BROKER_PAGES

    changes = Changes()
    site = Site(
        ConsoleOf(
            kind="broker",
            name=api.broker.identity.name,
            app=app,
            api=api,
            pages=BROKER_PAGES,
            kept=HomePaths(api.broker.settings.store).console,
            now_ms=api.now_ms,
            takes_tokens=False,
            changes=changes,
            meshes=_broker_meshes,
        )
    )
    return [_part(site, lambda: follow_broker(api, changes))]


def _part(site: Site, *follow: Callable[[], Coroutine[Any, Any, None]]) -> Part:
    @asynccontextmanager
    async def life() -> AsyncIterator[None]:
        api = site.served.api
        api.gate.most[STREAM] = CONSOLE_STREAMS_MAX
        if site.sessions.any_open():
            # A page that is open in a browser finds its daemon again where it was.
            await site.open_door()
        tasks = [asyncio.create_task(one()) for one in follow]
        try:
            yield
        finally:
            await site.channels.close()
            await site.counted.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    return Part("/", site, kind=site.kind, life=life)


async def _meshes(view: PageView) -> Sequence[str]:
    try:
        found = await view.get("/v1/meshes")
    except HoldfastError:
        return ()
    return [row["slug"] for row in found["items"]]


async def _broker_meshes(view: PageView) -> Sequence[str]:
    return [row["mesh"] for row in (await view.get("/v1/status"))["meshes"]]
