"""How larger answers are sent: compressed, or piece by piece while they are made.

A streamed answer is made as fast as the client reads it: the next piece is made when the last one
is on its way, so a slow reader costs the memory of one piece. Once the answer has begun, its status
can no longer report an error. Then `HttpApp` cuts the connection, before the mark by which the
reader would know that the answer is whole.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.rules.limits import COMPRESS_BYTES_MIN
from holdfast.service.http.request import ClientGone, Request

_GZIP_WINDOW: Final = 31
_LEVEL: Final = 1
"""The fastest: on networks where compression helps, higher levels cost more time than they save."""


async def compressed(call: Request[Any], body: bytes, media_type: str) -> Response:
    """An answer, compressed if the caller accepts that and it is worth it."""
    headers = {"vary": "accept, accept-encoding"}
    if len(body) >= COMPRESS_BYTES_MIN and takes_gzip(call.headers.get("accept-encoding", "")):
        body = await call.api.run(_gzip, body)
        headers["content-encoding"] = "gzip"
    return Response(body, headers=headers, media_type=media_type)


def takes_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding header accepts gzip."""
    for term in accepted.lower().split(","):
        coding, _, weight = term.partition(";")
        if coding.strip() == "gzip":
            return weight.replace(" ", "").rstrip("0.") != "q="
    return False


def _gzip(body: bytes) -> bytes:
    compressor = zlib.compressobj(_LEVEL, wbits=_GZIP_WINDOW)
    return compressor.compress(body) + compressor.flush()


class Streamed(Response):
    """An answer that is made while it is sent."""

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
    ) -> None:
        self._parts = parts
        self.status_code = status
        self.media_type = media_type
        self.background = None
        self.init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                }
            )
            if scope["method"] != "HEAD":
                async for part in self._parts:
                    if gone.done():  # the server would go on to take what no client gets
                        raise ClientGone
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            await self._parts.aclose()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
