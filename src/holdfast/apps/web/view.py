"""What the `load` of a page may use: the request, and the calls of the API with its caller's
rights.

Every call passes the whole application in this process, as if the caller had sent it: the same
checks, the same limits, the same errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from starlette.types import ASGIApp, Receive

from holdfast.protocol.log_wire import JSON
from holdfast.rules.errors import BadToken, NotAllowed, NotFound, UnknownKey
from holdfast.service.caller import Caller
from holdfast.service.http.parts import ask
from holdfast.transport.remote_errors import error_of

if TYPE_CHECKING:
    from holdfast.apps.web.counted import Counted
    from holdfast.apps.web.live.lags import LagRecord
    from holdfast.apps.web.page import ConsolePage

_OWN: Final = "unix"


class Proof(NamedTuple):
    """How a caller has shown who it is, for calls in its name."""

    listener: str
    token: str = ""

    @classmethod
    def own(cls) -> Proof:
        """This node's own user, who could open the Unix socket."""
        return cls(_OWN)

    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"} if self.token else {}

    def __repr__(self) -> str:
        return f"Proof({self.listener})"


class PageView:
    """One look at a page."""

    def __init__(
        self,
        app: ASGIApp,
        page: ConsolePage,
        proof: Proof,
        caller: Caller,
        *,
        name: str,
        params: Mapping[str, str],
        query: Mapping[str, str],
        now_ms: Callable[[], int],
        counted: Counted,
        live: bool = False,
        lags: LagRecord | None = None,
        lake: str | None = None,
    ) -> None:
        self._app, self._proof = app, proof
        self.page, self.caller = page, caller
        self.name = name
        """Of the node or broker."""
        self.params = params
        """What stands in the path."""
        self.query = query
        self.now_ms = now_ms
        self.live = live
        """Only live parts are made: what only stands elsewhere on the page need not be asked."""
        self._counted = counted
        self.lags = lags
        """How far readers lagged lately; None of a broker."""
        self.lake = lake
        """Where the lake is, if the daemon was told."""

    @property
    def may_write(self) -> bool:
        return self.caller.is_local

    async def get(self, path: str, **query: Any) -> Any:
        """What a call answers. `path` has names as they are, not percent-encoded."""
        return await self.call("GET", path, query=query)

    async def maybe(self, path: str, **query: Any) -> Any:
        """The same; None where this caller may not ask, or nothing is there."""
        try:
            return await self.get(path, **query)
        except BadToken:
            raise
        except (NotAllowed, NotFound):
            return None

    async def counts(self, mesh: str) -> Any:
        """Live rows of a mesh by family, as they were counted last; empty while they are counted
        for the first time. A page that shows them wakes for `counts`.
        """
        count = partial(self.maybe, f"/v1/meshes/{mesh}/counts")
        found = await self._counted.latest((self._proof, mesh), count)
        return (found or {}).get("counts", {})

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = msgspec.UNSET,
        headers: Mapping[str, str] | None = None,
        content: Receive | None = None,
    ) -> Any:
        """The document that a call answers, or its bytes if it is no document; None if it has
        nothing. `content` brings the body as it comes, in place of `body`.
        """
        told = {**self._proof.headers(), **(headers or {})}
        raw = b""
        if body is not msgspec.UNSET:
            raw, told["content-type"] = msgspec.json.encode(body), JSON
        asked = [
            (name, _text(one))
            for name, value in (query or {}).items()
            if value is not None
            for one in (value if isinstance(value, list | tuple) else [value])
        ]
        answer = await ask(
            self._app,
            method,
            path,
            listener=self._proof.listener,
            query=asked,
            headers=told,
            body=raw,
            receive=content,
        )
        kind = answer.headers.get("content-type", "")
        if answer.status >= 400:
            raise error_of(answer.status, kind, answer.body, self.name)
        if not answer.body:
            return None
        return msgspec.json.decode(answer.body) if kind == JSON else answer.body

    def param(self, name: str) -> str:
        """What stands in the path."""
        return self.params[name]

    def one(self, name: str, default: str = "") -> str:
        """What stands in the query."""
        return self.query.get(name, default)


def no_such(what: str) -> UnknownKey:
    return UnknownKey(what, hint="go back, and look what is there")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
