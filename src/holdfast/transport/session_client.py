"""Calls that bear a session: what a node asks another node or a broker over HTTP.

Before the first call both sides say hello (`transport/handshake.py`). A session may end at any
time, with a restart of the other side for one. Then hello is said once more, and the call is made
again: the other side did nothing yet.

Trouble that the other side has with its own store becomes `Unreachable`: our store has none of it,
and the other side is tried again later like one that does not answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Final

from holdfast.protocol.log_wire import JSON
from holdfast.rules.errors import (
    BadAnswer,
    Broken,
    DiskFull,
    NotFound,
    NotTrusted,
    StoreBusy,
    StoreClosed,
    Unknown,
    Unreachable,
)
from holdfast.transport.handshake import SMALL_BYTES_MAX, ClientSession
from holdfast.transport.http_client import Client
from holdfast.transport.remote_errors import HttpAnswer

THEIRS: Final = (Broken, Unknown, DiskFull, StoreBusy, StoreClosed)
"""Errors that tell of the other side's own store."""
_DIGITS_MAX: Final = 19
"""Of any size that an object can have."""


class SessionClient:
    """Calls to one node or broker. Thread-safe."""

    def __init__(
        self,
        client: Client,
        greet: Callable[[], ClientSession],
        *,
        fixed: ClientSession | None = None,
    ) -> None:
        """`greet` says hello. A `fixed` session is never renewed."""
        self._client, self._greet, self._fixed = client, greet, fixed
        self._greeting = threading.Lock()
        self._session: ClientSession | None = None

    def hello(self) -> None:
        """Gets a new session. Every call does this by itself when it is needed."""
        if self._fixed is None:
            self._renew(self._session)

    def ping(self) -> tuple[float, float]:
        """Milliseconds until the connection stood and both keys were proved, and there and back on
        it by a call that asks for nothing.
        """
        begun = perf_counter()
        self.hello()
        greeted = perf_counter()
        self.call("GET", "/v1/version")
        return (greeted - begun) * 1000, (perf_counter() - greeted) * 1000

    def session(self) -> ClientSession:
        return self._fixed or self._session or self._renew(None)

    def call(
        self,
        method: str,
        path: str,
        *,
        over: Client | None = None,
        headers: Mapping[str, str] | None = None,
        bytes_max: int = SMALL_BYTES_MAX,
        **more: Any,
    ) -> HttpAnswer:
        """One call, over another connection than the usual one if it is given. `more` is what
        `Client.call` takes besides.
        """
        given = {"Accept": JSON, **(headers or {})}

        def once(session: ClientSession) -> HttpAnswer:
            return (over or self._client).call(
                method,
                path,
                headers={**given, "Authorization": session.authorization},
                bytes_max=bytes_max,
                pin=session.certificate,
                **more,
            )

        session = self.session()
        with self._theirs():
            try:
                return once(session)
            except NotTrusted:
                if self._fixed is not None:
                    raise
            return once(self._renew(session))

    def object_size(self, path: str) -> int | None:
        """How large the object at a path is; None if the other side does not have it."""
        try:
            answer = self.call("HEAD", path)
        except NotFound:
            return None
        size = answer.headers.get("content-length", "")
        if not size.isascii() or not size.isdecimal() or len(size) > _DIGITS_MAX:
            raise BadAnswer(f"{self._client.address} does not say how large {path} is")
        return int(size)

    def _renew(self, old: ClientSession | None) -> ClientSession:
        """A new session, unless another thread has got one since."""
        with self._greeting:
            if self._session is None or self._session is old:
                self._session = None
                with self._theirs():
                    self._session = self._greet()
            return self._session

    @contextmanager
    def _theirs(self) -> Iterator[None]:
        try:
            yield
        except THEIRS as error:
            raise Unreachable(
                f"{self._client.address} has trouble of its own: {error.message}"
            ) from None
