"""The broker's own server with nothing behind it: `python -m bench._empty_server` prints its port.

`/empty` is answered by an application that does nothing, `/quick` by the short way that the broker
takes for what is handed in.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from holdfast.service.lifecycle import Service, run
from holdfast.transport.http_protocol import Done
from holdfast.transport.http_server import Server
from holdfast.transport.known_heads import RequestHead
from holdfast.transport.listeners import tcp_listener


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    head = [(b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": b""})


class _Quick:
    def takes(self, url: bytes) -> bool:
        return url == b"/quick"

    def answer(self, head: RequestHead, body: bytes, done: Done) -> None:
        done(200, b"", ())


class _Empty(Service):
    async def _start(self, ending: AsyncExitStack) -> None:
        self._listener = tcp_listener("127.0.0.1", 0)
        ending.callback(self._listener.socket.close)
        server = Server(_nothing, [self._listener], quick=_Quick())
        await server.start()
        ending.push_async_callback(server.stop)

    async def reload(self) -> None: ...

    def _tell_ready(self) -> None:
        print(self._listener.address.rpartition(":")[2], flush=True)


if __name__ == "__main__":
    run(_Empty)
