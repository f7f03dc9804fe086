"""`node.bus` for coroutines: messages between peers without a broker.

The bus is opened with the first verb. If a daemon of this home holds it, the daemon is asked; else
this process holds it until the node is closed. The verbs and their errors are the same.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from holdfast.rules.arguments import checks_arguments
from holdfast.rules.errors import AlreadyExists, BusClosed
from holdfast.rules.limits import (
    BUS_BUFFER,
    BUS_JOIN_MS,
    BUS_REQUEST_MS,
    BUS_RESOLVE_MS,
    BUS_SERVE_MAX,
)
from holdfast.storage.files.durable import disk_errors

if TYPE_CHECKING:
    from holdfast.bus.received import (
        BusReply,
        PublishReceipt,
        ReceivedMessage,
        ReceivedRequest,
        SendReceipt,
    )
    from holdfast.node.bus.api import BusApi, Messages, Served
    from holdfast.node.bus.capabilities import BusCapabilities
    from holdfast.node.bus.members import JoinedOverBus
    from holdfast.node.bus.sharing import BusSharing
    from holdfast.node.bus.standing import BusStanding, PeerStanding
    from holdfast.node.home.opening import Opened


log = logging.getLogger("holdfast.bus")


@checks_arguments()
class AsyncNodeBus:
    """The bus of one home. Belongs to one event loop."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._api: BusApi | None = None
        self._opening = asyncio.Lock()
        self._closed = False
        self._settings: dict[str, Any] = {}
        self._telling: dict[asyncio.Task[None], None] = {}
        self._key_file: tuple[int, int] | None = None
        """The file of this node's key as it was when this process bound the bus."""

    async def bind(
        self, *, listen: str | None = None, discovery: str | None = None
    ) -> AsyncNodeBus:
        """Opens the bus now, and says where peers reach this process (`listen`, HOST:PORT with
        commas between) and whether it finds peers of the LAN (`discovery`: mdns, off or auto).
        Without this the settings in $HOLDFAST_CONFIG count. Raises AlreadyExists if the bus is open
        already, or if a daemon holds it.
        """
        given = {"bus_listen": listen, "bus_discovery": discovery}
        if self._api is not None:
            raise AlreadyExists("the bus of this node is open already", hint="bind it first")
        self._settings = {name: value for name, value in given.items() if value is not None}
        api = await self._ready()
        from holdfast.node.bus.remote import RemoteBus

        if self._settings and isinstance(api, RemoteBus):
            raise AlreadyExists(
                "a daemon holds the bus of this home",
                hint="say it to the daemon: holdfast up --bus-listen HOST:PORT",
            )
        return self

    # --- sending -----------------------------------------------------------------------------

    async def send(
        self,
        to: str,
        body: bytes | str,
        *,
        topic: str = "",
        content_type: str = "",
        priority: str = "next",
        ttl_ms: int | None = None,
        id: str | None = None,
        wait_ms: int = BUS_RESOLVE_MS,
    ) -> SendReceipt:
        """Sends a message to one peer. `delivered`: it is on the peer's disk. `spooled`: the peer
        was not there within `wait_ms`; the message waits here and goes when the peer appears.

        >>> node.bus.send("bo", "the build is green", topic="builds.linux").state
        'delivered'
        """
        api = await self._ready()
        return await api.send(
            to,
            body,
            topic=topic,
            content_type=content_type,
            priority=priority,
            ttl_ms=ttl_ms,
            id=id,
            wait_ms=wait_ms,
        )

    async def publish(
        self,
        topic: str,
        body: bytes | str,
        *,
        content_type: str = "",
        priority: str = "next",
        id: str | None = None,
    ) -> PublishReceipt:
        """Sends a message to all peers that listen to a topic now. For peers that are away it is
        kept only where they have a durable subscription.

        >>> node.bus.publish("builds.linux", b"green")
        """
        api = await self._ready()
        return await api.publish(topic, body, content_type=content_type, priority=priority, id=id)

    async def request(
        self,
        to: str | None,
        service: str,
        body: bytes | str = b"",
        *,
        content_type: str = "",
        timeout_ms: int = BUS_REQUEST_MS,
        id: str | None = None,
    ) -> BusReply:
        """Asks a peer and waits for its reply; `to=None` asks any peer that serves it. Raises
        NoResponder (nothing has happened), RequestTimedOut (it may have happened) or RequestRefused
        (with the code of the other side). A cancelled caller cancels the work over there.

        >>> node.bus.request("bo", "echo", "are you there?").text
        'are you there?'
        """
        api = await self._ready()
        return await api.request(
            to, service, body, content_type=content_type, timeout_ms=timeout_ms, id=id
        )

    # --- receiving ---------------------------------------------------------------------------

    @asynccontextmanager
    async def subscribe(
        self, pattern: str = ">", *, buffer: int = BUS_BUFFER, durable: bool = False
    ) -> AsyncIterator[Messages]:
        """Messages of a pattern of topics, as they come: `builds.*` is one word, `builds.>` all
        that begin so, `>` everything. A message is done with when the next one is taken, or when
        the block is left without an error; until then it comes again to the next subscription.
        """
        api = await self._ready()
        async with api.subscribe(pattern, buffer=buffer, durable=durable, manual=False) as messages:
            yield messages

    def serve(
        self,
        service: str,
        handler: Callable[[ReceivedRequest], Awaitable[bytes | str]],
        *,
        most: int = BUS_SERVE_MAX,
    ) -> Serving:
        """Answers requests by a coroutine, `most` at once. Await it, or enter it with `async with`:
        then it ends with the block.
        """
        return Serving(self, service, handler, most)

    # --- how it stands -----------------------------------------------------------------------

    async def ping(self, peer: str) -> float:
        """Milliseconds to a peer and back.

        >>> node.bus.ping("bo") > 0
        True
        """
        return await (await self._ready()).ping(peer)

    async def status(self) -> BusStanding:
        """Where the bus listens, its links, what waits and what was refused.

        >>> node.bus.status().listening
        ['...']
        """
        return await (await self._ready()).standing()

    async def peers(self) -> list[PeerStanding]:
        """The peers that this node trusts or has blocked, and their links.

        >>> [peer.peer for peer in node.bus.peers() if peer.link == "up"]
        ['bo']
        """
        return (await self.status()).peers

    # --- meshes without a broker ---------------------------------------------------------------

    @property
    def sharing(self) -> BusSharing:
        """Meshes that this node shares over the bus: share, invite, members, grants. These work in
        this home alone and return at once; others hear of them from whoever holds the bus.
        """
        from holdfast.node.bus.sharing import BusSharing
        from holdfast.node.trust.own_key import OwnKey

        opened = self._opened
        return BusSharing(opened.engine, OwnKey(opened.engine, opened.paths), self._tell_soon)

    @property
    def is_open(self) -> bool:
        """Whether this process uses the bus."""
        return self._api is not None

    def _tell_soon(self) -> None:
        if self.is_open or is_asked_for(self._opened):
            told = asyncio.get_running_loop().create_task(self.refresh())
            self._telling[told] = None
            told.add_done_callback(self._told)

    def _told(self, done: asyncio.Task[None]) -> None:
        self._telling.pop(done, None)
        error = None if done.cancelled() else done.exception()
        if error is not None:
            log.warning("the bus was not told what has changed in its home: %s", error)

    @property
    def capabilities(self) -> BusCapabilities:
        """Rights over the bus that this node gives, passes on, uses and takes back. These work in
        this home alone and return at once; `refresh` tells whoever holds the bus.
        """
        from holdfast.node.bus.capabilities import BusCapabilities
        from holdfast.node.trust.own_key import OwnKey

        opened = self._opened
        return BusCapabilities(opened.engine, OwnKey(opened.engine, opened.paths))

    async def join(self, invite: str, *, wait_ms: int = BUS_JOIN_MS) -> JoinedOverBus:
        """Becomes a member of a mesh that has no broker: its owner is looked for, by the addresses
        in the invite and on the LAN, and asked.

        >>> invite = node.bus.sharing.invite("club").text
        >>> bo.bus.join(invite).mesh
        'club'
        """
        return await (await self._ready()).join(invite, wait_ms=wait_ms)

    async def leave(self, mesh: str, *, remove: bool = False, forget: bool = False) -> None:
        """Makes a mesh that is shared over the bus one of this node alone again; all that is in it
        stays. Its owner is told, unless `forget`. An owner must say `remove`.

        >>> node.create_mesh("guild")
        >>> node.bus.sharing.share("guild")
        >>> node.bus.leave("guild", remove=True)
        """
        if not (remove or forget):
            await (await self._ready()).leave(mesh)
        self.sharing.forget(mesh, remove=remove)

    async def refresh(self) -> None:
        """Looks again whom this node trusts and what it has given: links of those who may no longer
        speak with it end, and new peers are called.

        >>> node.bus.refresh()
        """
        await (await self._ready()).refresh()

    async def close(self) -> None:
        """Lets go of the bus; what waits for absent peers stays in the outbox."""
        self._closed = True
        await asyncio.gather(*self._telling, return_exceptions=True)
        async with self._opening:
            api, self._api = self._api, None
            if api is not None:
                await api.close()

    async def _ready(self) -> BusApi:
        async with self._opening:
            if self._closed:
                raise BusClosed("the bus of this node was closed")
            if self._api is None:
                self._api = await self._open()
            elif self._key_file is not None and self._key_file != self._key_file_now():
                # The key of this node was changed, perhaps by another process.
                self._key_file = self._key_file_now()
                await self._api.refresh()
            return self._api

    def _key_file_now(self) -> tuple[int, int]:
        with disk_errors(f"read {self._opened.paths.identity}"):
            found = self._opened.paths.identity.stat()
        return found.st_ino, found.st_mtime_ns

    async def _open(self) -> BusApi:
        from holdfast.node.bus.holder import wait_for_bus
        from holdfast.node.bus.host import BusHost
        from holdfast.node.bus.remote import RemoteBus
        from holdfast.node.settings import load

        paths = self._opened.paths
        address = await asyncio.to_thread(wait_for_bus, paths)
        if address is not None:
            return RemoteBus(address)
        settings = load(os.environ, self._settings)
        self._key_file = self._key_file_now()
        host = await BusHost.bind(self._opened.engine, self._opened.store, paths, settings)
        return host.api


def is_asked_for(opened: Opened) -> bool:
    """Whether a daemon holds the bus of this home, and can be told of changes."""
    from holdfast.node.bus.holder import bus_socket

    try:
        return bus_socket(opened.paths) is not None
    except AlreadyExists:
        return False  # another program, which cannot be asked


class Serving:
    """What `serve` returns: await it, or enter it with `async with`."""

    def __init__(self, bus: AsyncNodeBus, service: str, handler: Any, most: int) -> None:
        self._bus, self._service, self._handler, self._most = bus, service, handler, most
        self._served: Served | None = None

    async def _open(self) -> Self:
        api = await self._bus._ready()
        self._served = await api.serve(self._service, self._handler, most=self._most)
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    async def __aenter__(self) -> Self:
        return self if self._served is not None else await self._open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stops answering; requests that are being answered are finished."""
        served, self._served = self._served, None
        if served is not None:
            await served.close()


async def next_of(messages: Messages, timeout_ms: int | None) -> ReceivedMessage | None:
    """The next message; None if none comes in time, or if there will be none."""
    try:
        async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
            return await anext(messages)
    except (TimeoutError, StopAsyncIteration):
        return None
