"""The frame that every call passes: find it, admit it, answer it, and account for it.

Starlette's router finds the path. Around it stands what must hold for all calls alike: errors in
one shape, limits, tokens, a connection that is closed where a body was left unread, and clients
that do not read cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from time import perf_counter

from starlette.routing import Route as Place
from starlette.routing import Router
from starlette.types import Message, Receive, Scope, Send

from holdfast.rules import limits
from holdfast.rules.errors import HoldfastError, NoRoute, StoreClosed, WrongMethod
from holdfast.service.http.errors import internal, refusal
from holdfast.service.http.request import ClientGone, is_own, refuse_secrets
from holdfast.service.http.route import Route, ServedApp
from holdfast.transport.http_server import ABORT
from holdfast.transport.remote_errors import clean

log = logging.getLogger("holdfast")


class HttpApp:
    """The whole API as one ASGI application."""

    def __init__(
        self,
        api: ServedApp,
        routes: Iterable[Route],
        *,
        told: Callable[[HoldfastError, Scope], HoldfastError] = lambda error, scope: error,
    ) -> None:
        """`told`: what is said of an error to whoever made the call."""
        self._api = api
        self._told = told
        api.routes = list(routes)
        self._router = Router(
            [
                Place(path, _Calls(api, found), include_in_schema=False)
                for path, found in _by_path(api.routes).items()
            ],
            redirect_slashes=False,
            default=_no_route,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "the listeners speak nothing else"
        begun = perf_counter()
        exchange = _Exchange(scope, receive, send)
        try:
            await self._answer(scope, exchange)
        except ClientGone:
            exchange.abort()
        finally:
            route: Route | None = scope.get("holdfast.route")
            self._api.counts.add(
                scope["method"] if route else "any",
                route.path if route else "none",
                exchange.status,
                perf_counter() - begun,
            )

    async def _answer(self, scope: Scope, exchange: _Exchange) -> None:
        try:
            await self._router(scope, exchange.receive, exchange.send)
            return
        except HoldfastError as error:
            response = refusal(self._told(error, scope))
            if isinstance(error, WrongMethod):
                response.headers["allow"] = ", ".join(scope["holdfast.allow"])
            if error.http_status >= 500:
                log.warning("%s %s: %s", scope["method"], clean(scope["path"]), error.message)
        except (ClientGone, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("a fault of ours in %s %s", scope["method"], clean(scope["path"]))
            response = internal()
        if exchange.status:
            # The answer has begun: all that is left to say is that it will not be whole.
            exchange.abort()
        else:
            await response(scope, exchange.receive, exchange.send)


class _Calls:
    """The calls at one path."""

    def __init__(self, api: ServedApp, routes: Iterable[Route]) -> None:
        self._api = api
        self._by_method = {route.method: route for route in routes}
        if "GET" in self._by_method:
            self._by_method.setdefault("HEAD", self._by_method["GET"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._by_method.get(scope["method"])
        if route is None:
            scope["holdfast.allow"] = sorted(self._by_method)
            raise WrongMethod(f"{scope['path']} does not answer {scope['method']}")
        scope["holdfast.route"] = route
        api = self._api
        refuse_secrets(scope)
        if api.phase == "stopping" and route.kind != "probe":
            raise StoreClosed("this node is stopping", hint="ask again when it is back")
        kind = "public" if route.public and route.kind == "call" else route.kind
        with api.gate.inside(kind, own=is_own(scope)):
            call = api.admit(route, scope, receive)
            if route.local_only:
                call.require_local()
            response = await route.handler(call)
            await response(scope, receive, send)


class _Exchange:
    """What passes between the server and a handler, watched.

    A connection is used again only if the body of the request was read to its end. Otherwise the
    answer says that it will be closed, and what still comes is taken off the wire for a moment: to
    close upon unread bytes makes the kernel reset the connection, and the answer may be lost.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.abort = scope[ABORT]
        self.status = 0
        self._whole = not any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in scope["headers"]
        )

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._whole = True
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if not self._whole:
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            # Patiently too: what was said before on this connection may not have been taken yet.
            await self._patiently(message)
            return
        if not self._whole and not message.get("more_body", False):
            await self._patiently({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body", "body": b""}
        await self._patiently(message)

    async def _patiently(self, message: Message) -> None:
        """Whoever asks and does not read is cut off: the answer would be held for ever."""
        try:
            async with asyncio.timeout(limits.REQUEST_MS_MAX / limits.SECOND_MS):
                await self._send(message)
        except TimeoutError:
            self.abort()
            raise ClientGone from None

    async def _linger(self) -> None:
        size = 0
        try:
            async with asyncio.timeout(limits.LINGER_MS_MAX / limits.SECOND_MS):
                while not self._whole and size < limits.LINGER_BYTES_MAX:
                    size += len((await self.receive()).get("body", b""))
        except TimeoutError:
            return


def _by_path(routes: Iterable[Route]) -> dict[str, list[Route]]:
    found: dict[str, list[Route]] = {}
    for route in routes:
        found.setdefault(route.path, []).append(route)
    return found


async def _no_route(scope: Scope, receive: Receive, send: Send) -> None:
    refuse_secrets(scope)
    raise NoRoute(f"this node has nothing at {scope['path']}")
