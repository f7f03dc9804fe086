"""A node as its caller may use it: the daemon's own API, asked in the same process.

An agent that comes over HTTP brings a token, and the token may read one mesh and write nothing. The
API knows all that already. So the tools of such a caller work on a connection, as those of a
program far away would (`holdfast.connect`), with the one difference that the connection is a
function call: the request goes to the API with the caller's own token, and what that may not do is
refused there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qsl, unquote

from holdfast.node.http.context import NodeApi, identify
from holdfast.node.remote.line import Line
from holdfast.node.remote.node import RemoteNode
from holdfast.rules.errors import HoldfastError, StoreClosed
from holdfast.service.http.parts import PartAnswer, ask
from holdfast.transport.http_client import Content
from holdfast.transport.http_server import LISTENER
from holdfast.transport.remote_errors import HttpAnswer, error_of

if TYPE_CHECKING:
    from starlette.types import Scope

    from holdfast.node.library.node import Node
    from holdfast.service.http.app import HttpApp

T = TypeVar("T")

_NO_HEADERS: Mapping[str, str] = {}


class DaemonDoor:
    """The API of this daemon, for threads."""

    def __init__(self, api: NodeApi, app: HttpApp) -> None:
        self.api, self._app = api, app
        self._loop = asyncio.get_running_loop()
        self._asked: set[Future[PartAnswer]] = set()
        self._closed = False

    def ask(
        self, scope: Scope, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> HttpAnswer:
        """The answer to a call, made with the proof of whoever made the request of the scope."""
        if self._closed:
            raise StoreClosed("this node is stopping", hint="ask again when it is back")
        named, _, query = path.partition("?")
        asked = ask(
            self._app,
            method,
            unquote(named),
            listener=scope[LISTENER],
            query=parse_qsl(query, keep_blank_values=True),
            headers={**headers, **_proof(scope)},
            body=body,
        )
        future = asyncio.run_coroutine_threadsafe(asked, self._loop)
        self._asked.add(future)
        try:
            answer = future.result()
        except CancelledError:
            raise StoreClosed(
                "this node is stopping", hint="ask again when it is back, with the same id"
            ) from None
        finally:
            self._asked.discard(future)
        found = HttpAnswer(answer.status, dict(answer.headers), answer.body)
        if answer.status >= 400:
            raise error_of(answer.status, found.kind, answer.body, "this node")
        return found

    def close(self) -> None:
        """Calls that have no answer yet get none: no thread waits for a loop that has ended."""
        self._closed = True
        for future in list(self._asked):
            future.cancel()


class RequestReach:
    """The node, for whoever makes a request."""

    def __init__(self, door: DaemonDoor, scope: Scope) -> None:
        self._door, self._scope = door, scope

    def run(self, work: Callable[[Node], T]) -> T:
        return work(RemoteNode(_InProcessLine(self._door, self._scope)))

    def close(self) -> None:
        """There is nothing to close: the node is the daemon's."""

    def may_still(self, mesh: str) -> bool:
        """Whether the caller may read a mesh at this moment; in the loop."""
        try:
            caller = identify(self._door.api, self._scope)
        except HoldfastError:
            return False
        return caller.reads is None or mesh in caller.reads


class _InProcessLine(Line):
    """A connection that is a function call."""

    def __init__(self, door: DaemonDoor, scope: Scope) -> None:
        self.address = "this daemon"
        self._door, self._scope = door, scope
        self._peer = door.api.node.peer

    def call(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
        content: Content | None = None,
        read_ms: int | None = None,
    ) -> HttpAnswer:
        whole = body or b""
        if content is not None:
            whole = b"".join(content.pieces())
        return self._door.ask(self._scope, method, path, headers, whole)

    def stream(self, path: str) -> Generator[bytes, None, None]:
        yield self.call("GET", path).body

    def close(self) -> None:
        """The connection is no more than this object."""


def _proof(scope: Scope) -> dict[str, str]:
    return {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in scope["headers"]
        if name == b"authorization"
    }
