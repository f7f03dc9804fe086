"""What apps mount beside the calls of an API: ASGI applications, each under a path of its own.

A part gets the requests that no declared call takes. It comes from above (`apps`), so a daemon or a
broker is handed a function that makes its parts; it never knows what they are. A part has no rules
about data: what it shows or changes it asks for by `ask`, as a call that anybody could have made,
with the caller's own proof.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote, urlencode

from starlette.types import ASGIApp, Message, Receive, Scope

from holdfast.rules.errors import OverLimit
from holdfast.rules.limits import PART_ANSWER_BYTES_MAX
from holdfast.service.http.request import ClientGone
from holdfast.transport.http_protocol import ABORT, ENDED
from holdfast.transport.http_server import LISTENER

if TYPE_CHECKING:
    from holdfast.service.http.app import HttpApp

INSIDE: Final = "holdfast.inside"
"""In the scope of a call that a part makes: no part answers it."""
_PATH: Final = "/:@!$&'()*+,;=-._~"
"""What stands in a path as it is."""


def _public(scope: Scope) -> str:
    return "public"


@asynccontextmanager
async def _alone() -> AsyncIterator[None]:
    yield


@dataclass(frozen=True)
class Part:
    """One application under a path."""

    prefix: str
    """`/mcp` takes that and what is below it; `/` takes whatever nothing else takes."""
    app: ASGIApp
    kind: Callable[[Scope], str] = _public
    """As what a request counts among those that are answered at once: `call`, `stream` or
    `public`; until a caller is known, that is `public`."""
    life: Callable[[], AbstractAsyncContextManager[None]] = _alone
    """Entered before requests come, and left before the service waits for the last of them: it has
    to end what stays open."""

    def takes(self, path: str) -> bool:
        return self.prefix == "/" or path == self.prefix or path.startswith(f"{self.prefix}/")


MakeParts: TypeAlias = "Callable[[Any, HttpApp], Sequence[Part]]"
"""Makes the parts of a service, from what its handlers may use and its whole application."""


def no_parts(api: Any, app: HttpApp) -> Sequence[Part]:
    return ()


class PartAnswer(NamedTuple):
    """What a call answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def ask(
    app: ASGIApp,
    method: str,
    path: str,
    *,
    listener: str,
    query: Iterable[tuple[str, str]] = (),
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    receive: Receive | None = None,
) -> PartAnswer:
    """Makes a call of the API in this process. `listener` and `headers` say who calls, as those of
    a request would: the kind of the listener and the token. `path` is not percent-encoded. With
    `receive` the body is what comes there, as it comes; its length stands in the headers.
    """
    told = dict(headers or {})
    if receive is None:
        told["content-length"] = str(len(body))
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": path,
        "raw_path": quote(path, safe=_PATH).encode(),
        "query_string": urlencode(list(query)).encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), text.encode("latin-1")) for name, text in told.items()],
        LISTENER: listener,
        INSIDE: True,
        ENDED: lambda: False,
    }
    collected = _Collected(body)
    scope[ABORT] = collected.abort
    await app(scope, receive or collected.receive, collected.send)
    if collected.cut:
        raise OverLimit(
            f"the answer to {method} {path} is cut off, or has more than {PART_ANSWER_BYTES_MAX} "
            "bytes",
            hint="ask for less at a time",
        )
    return PartAnswer(collected.status, collected.headers, b"".join(collected.parts))


class _Collected:
    """Both ends of a call in this process: the body is there at once, the answer is kept whole."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._brought = False
        self.status = 0
        self.headers: dict[str, str] = {}
        self.parts: list[bytes] = []
        self._size = 0
        self.cut = False
        """The answer is not whole."""

    def abort(self) -> None:
        self.cut = True

    async def receive(self) -> Message:
        if self._brought:
            # Who asks for more waits for the client to go, and it does not.
            await asyncio.get_running_loop().create_future()
        self._brought = True
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {
                name.decode("latin-1").lower(): text.decode("latin-1")
                for name, text in message.get("headers", ())
            }
            return
        part = message.get("body", b"")
        self._size += len(part)
        if self._size > PART_ANSWER_BYTES_MAX:
            self.cut = True
            self.parts.clear()
            raise ClientGone
        self.parts.append(part)
