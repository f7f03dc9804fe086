"""The ASGI application around all calls: it finds the route, admits the caller, answers and counts.

Starlette's router finds the path. Around it is what holds for all calls: errors in one shape,
limits, tokens, closing a connection whose body was not read to its end, and cutting off clients
that do not read their answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

from starlette.convertors import PathConvertor, register_url_convertor
from starlette.routing import Route as StarletteRoute
from starlette.routing import Router
from starlette.types import Message, Receive, Scope, Send

from holdfast.rules import limits
from holdfast.rules.errors import HoldfastError, NoRoute, StoreClosed, WrongMethod
from holdfast.service.http.errors import internal, refusal
from holdfast.service.http.parts import INSIDE, Part
from holdfast.service.http.request import ClientGone, check_path, is_own, refuse_secrets
from holdfast.service.http.route import Route, ServedApp
from holdfast.transport.http_protocol import ABORT
from holdfast.transport.remote_errors import clean

log = logging.getLogger("holdfast")


class _AnyText(PathConvertor):
    """`{name:path}` in a route. Starlette's own does not match a line end, so what has one in its
    name could be made, by a body, and never be found again.
    """

    regex = r"[\s\S]*"


register_url_convertor("path", _AnyText())


class HttpApp:
    """The whole API as one ASGI application."""

    def __init__(
        self,
        api: ServedApp,
        routes: Iterable[Route],
        *,
        translate: Callable[[HoldfastError, Scope], HoldfastError] = lambda error, scope: error,
    ) -> None:
        """`translate` makes the error that the caller gets from the one that was raised."""
        self._api = api
        self.parts: Sequence[Part] = ()
        """What apps have mounted: they get what no route takes."""
        self._translate = translate
        api.routes = list(routes)
        self._router = Router(
            [
                StarletteRoute(path, _Calls(api, routes_there), include_in_schema=False)
                for path, routes_there in _by_path(api.routes).items()
            ],
            redirect_slashes=False,
            default=self._rest,
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
            check_path(scope)
            await self._router(scope, exchange.receive, exchange.send)
            return
        except HoldfastError as error:
            response = refusal(self._translate(error, scope))
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
            # The answer has begun: a cut connection is the only way to say that it is not whole.
            exchange.abort()
        else:
            await response(scope, exchange.receive, exchange.send)

    async def _rest(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Requests at a path where no call is: of the part with the longest prefix, if any. A part
        that asks for such a path means a call that is not there: it gets no page of the console.
        """
        path = scope["path"]
        is_inside = scope.get(INSIDE, False)
        found = [part for part in self.parts if part.takes(path) and not is_inside]
        refuse_secrets(scope)
        if not found:
            raise NoRoute(f"this node has nothing at {path}")
        if self._api.phase == "stopping":
            raise StoreClosed("this node is stopping", hint="ask again when it is back")
        part = max(found, key=lambda part: len(part.prefix))
        with self._api.gate.inside(part.kind(scope), own=is_own(scope)):
            await part.app(scope, receive, send)


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
    """The messages between the server and a handler, watched on their way.

    A connection is used again only if the body of the request was read to its end. Otherwise the
    answer says that it will be closed, and what still comes is read and dropped for a moment:
    closing with unread bytes makes the kernel reset the connection, and the answer may be lost.
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
            # In time too: the client may not have read the last answer on this connection yet.
            await self._send_in_time(message)
            return
        if not self._whole and not message.get("more_body", False):
            await self._send_in_time({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body", "body": b""}
        await self._send_in_time(message)

    async def _send_in_time(self, message: Message) -> None:
        """Sends a message; cuts off a client that does not read it, or memory would hold it for
        ever.
        """
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
    by_path: dict[str, list[Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, []).append(route)
    return by_path
