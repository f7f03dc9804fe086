"""A network that fails on demand: a TCP proxy between two programs, with faults to switch on.

    with FaultProxy(("127.0.0.1", 7420)) as proxy:
        connect_to(proxy.address)
        proxy.stall()        # connections stay open, and nothing passes
        proxy.heal()
        proxy.cut_after(1000)  # the next thousand bytes from the server pass, then it breaks

It forwards bytes and looks at none of them, so that it stands before TLS and plain traffic alike.
Faults hold for connections that are open and for new ones, until `heal`. Every method may be called
from any thread and has taken effect when it returns.

`up` is from whoever connected to the target, `down` is the way back.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from copy import copy
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, TypeVar

import msgspec

from holdfast.rules.errors import BadInput, Unreachable

Direction = Literal["up", "down"]
T = TypeVar("T")

_CHUNK_BYTES: Final = 65536
_CHUNKS_UNDERWAY: Final = 64
_THROTTLED_PARTS: Final = 20
"""A throttled second passes in so many parts, so that a slow line is not a jerky one."""
_RESET: Final = struct.pack("ii", 1, 0)
_GARBAGE: Final = bytes(byte ^ 0x5A for byte in range(256))


class ProxyTraffic(msgspec.Struct):
    """What has passed so far."""

    connections: int = 0
    refused: int = 0
    cuts: int = 0
    """Connections that were broken on purpose."""
    up: int = 0
    down: int = 0


class _Broken(Exception):
    """This connection ends here, because it was told to."""


class FaultProxy:
    """One listening port, one target, any number of connections, in a thread of its own."""

    def __init__(self, target: tuple[str, int], *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Port 0 takes any that is free; `address` says which."""
        self._target = target
        self._listener = socket.create_server((host, port))
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="holdfast-proxy", daemon=True)
        self._changed = threading.Condition()
        self._traffic = ProxyTraffic()
        self._open: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self._garbling: set[Direction] = set()
        self._delay_s = 0.0
        self._rate: int | None = None
        self._line_free_at: dict[Direction, float] = {"up": 0.0, "down": 0.0}
        self._left: dict[Direction, int | None] = {"up": None, "down": None}
        self._each: dict[Direction, int | None] = {"up": None, "down": None}

    # --- life ----------------------------------------------------------------------------------

    def start(self) -> FaultProxy:
        self._thread.start()
        return self

    def close(self) -> None:
        """Ends every connection and frees the port. Twice is once."""
        if self._loop.is_closed():
            return
        if self._thread.is_alive():
            self._ask(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._listener.close()
        self._loop.close()

    def __enter__(self) -> FaultProxy:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- faults --------------------------------------------------------------------------------

    def retarget(self, target: tuple[str, int]) -> None:
        """New connections lead there: a server that came back on another port."""

        def change() -> None:
            self._target = target

        self._do(change)

    def cut(self) -> int:
        """Breaks every open connection, as a router does that forgets them. How many there were."""
        return self._ask(self._cut())

    def refuse(self, on: bool = True) -> None:
        """New connections are reset at once. Open ones go on."""

        def change() -> None:
            self._refusing = on

        self._do(change)

    def stall(self, on: bool = True) -> None:
        """Connections are accepted and stay open, and not a byte passes either way."""
        self._do(self._flowing.clear if on else self._flowing.set)

    def delay(self, ms: int) -> None:
        """Every byte arrives so much later; as many pass as before."""
        if ms < 0:
            raise BadInput(f"{ms} ms is not a delay")

        def change() -> None:
            self._delay_s = ms / 1000

        self._do(change)

    def throttle(self, bytes_per_s: int | None) -> None:
        """All connections together pass so much each way; None is as much as there is."""
        if bytes_per_s is not None and bytes_per_s < 1:
            raise BadInput(f"{bytes_per_s} bytes per second is not a rate", hint="use stall()")

        def change() -> None:
            self._rate = bytes_per_s

        self._do(change)

    def cut_after(self, count: int, direction: Direction = "down") -> None:
        """Passes so many more bytes that way, then breaks the connection that they went through:
        half an answer arrives. Once.
        """
        if count < 0:
            raise BadInput(f"{count} is not a number of bytes")

        def change() -> None:
            self._left[direction] = count

        self._do(change)

    def cut_each(self, count: int | None, direction: Direction = "down") -> None:
        """From now on every connection breaks after it has passed so many bytes that way; None: no
        more.
        """

        def change() -> None:
            self._each[direction] = count

        self._do(change)

    def garble(self, on: bool = True, direction: Direction = "down") -> None:
        """Every byte that way arrives as another one."""
        self._do(lambda: (self._garbling.add if on else self._garbling.discard)(direction))

    def heal(self) -> None:
        """No more faults. What was held back passes; what was broken stays broken."""

        def change() -> None:
            self._refusing, self._delay_s, self._rate = False, 0.0, None
            self._garbling.clear()
            self._left = {"up": None, "down": None}
            self._each = {"up": None, "down": None}
            self._flowing.set()

        self._do(change)

    # --- watching ------------------------------------------------------------------------------

    def traffic(self) -> ProxyTraffic:
        with self._changed:
            return copy(self._traffic)

    def wait_for(self, seen: Callable[[ProxyTraffic], bool], timeout_s: float) -> bool:
        """Waits until the traffic is so; False if time ran out first."""
        with self._changed:
            return self._changed.wait_for(lambda: seen(self._traffic), timeout_s)

    # --- inside: everything below runs in our loop ----------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.add_reader(self._listener, self._accept)
        self._loop.run_forever()

    def _do(self, change: Callable[[], object]) -> None:
        async def run() -> None:
            change()

        self._ask(run())

    def _ask(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._thread.is_alive():
            work.close()
            raise Unreachable("the proxy is not running", hint="start it, or use it in a with")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _count(self, **more: int) -> None:
        with self._changed:
            for name, number in more.items():
                setattr(self._traffic, name, getattr(self._traffic, name) + number)
            self._changed.notify_all()

    async def _end(self) -> None:
        self._loop.remove_reader(self._listener)
        await self._cut()

    async def _cut(self) -> int:
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._count(cuts=len(tasks))
        return len(tasks)

    def _accept(self) -> None:
        """Somebody calls. No task accepts: one that is cancelled may have a connection already."""
        try:
            client, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # it has gone again
        client.setblocking(False)
        if self._refusing:
            _reset(client)
            self._count(refused=1)
            return
        task = self._loop.create_task(self._carry(client))
        self._open.add(task)
        task.add_done_callback(partial(self._carried, client))

    def _carried(self, client: socket.socket, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        _reset(client)  # also of a task that was cancelled before it began

    async def _carry(self, client: socket.socket) -> None:
        """One connection, to its end."""
        server = socket.socket(socket.AF_INET6 if ":" in self._target[0] else socket.AF_INET)
        server.setblocking(False)
        try:
            await self._loop.sock_connect(server, self._target)
            self._count(connections=1)
            await _both(self._pass_on(client, server, "up"), self._pass_on(server, client, "down"))
            # Both have said all they had to say, and it is on its way: not reset, or it is lost.
            client.close()
            server.close()
        except _Broken:
            client.close()  # likewise: half of it is to arrive
            self._count(cuts=1)
        except OSError:
            pass  # one of the two went; the other one hears of it by the reset below
        finally:
            _reset(client)
            _reset(server)

    async def _pass_on(
        self, source: socket.socket, sink: socket.socket, direction: Direction
    ) -> None:
        underway: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS_UNDERWAY)
        await _both(
            self._take(source, underway),
            self._give(sink, underway, direction),
        )

    async def _take(
        self, source: socket.socket, underway: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        while True:
            await self._flowing.wait()
            data = await self._loop.sock_recv(source, _CHUNK_BYTES)
            await underway.put((self._loop.time() + self._delay_s, data))
            if not data:
                return

    async def _give(
        self,
        sink: socket.socket,
        underway: asyncio.Queue[tuple[float, bytes]],
        direction: Direction,
    ) -> None:
        passed = 0
        while True:
            due, data = await underway.get()
            await asyncio.sleep(max(0.0, due - self._loop.time()))
            if not data:
                await self._flowing.wait()
                sink.shutdown(socket.SHUT_WR)
                return
            while data:
                part = await self._turn_of(data, direction)
                each = self._each[direction]
                if each is not None:
                    part = part[: max(0, each - passed)]
                passed += len(part)
                await self._loop.sock_sendall(sink, part)
                data = data[len(part) :]
                self._count(**{direction: len(part)})
                if each is not None and passed >= each:
                    raise _Broken
                if self._left[direction] == 0:
                    self._left[direction] = None
                    raise _Broken

    async def _turn_of(self, data: bytes, direction: Direction) -> bytes:
        """As much of it as may pass now, once it may."""
        await self._flowing.wait()
        if self._rate is not None:
            data = data[: max(1, self._rate // _THROTTLED_PARTS)]
            begins = max(self._loop.time(), self._line_free_at[direction])
            self._line_free_at[direction] = begins + len(data) / self._rate
            await asyncio.sleep(self._line_free_at[direction] - self._loop.time())
            await self._flowing.wait()
        left = self._left[direction]
        if left is not None:
            data = data[:left]
            self._left[direction] = left - len(data)
        return data.translate(_GARBAGE) if direction in self._garbling else data


async def _both(one: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None]) -> None:
    """Both to their end, or neither: the first error ends the other and is raised as it is."""
    tasks = [asyncio.ensure_future(one), asyncio.ensure_future(other)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reset(connection: socket.socket) -> None:
    """Ends a connection the hard way: what is underway is lost. Harmless for a closed one."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()
