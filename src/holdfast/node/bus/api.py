"""What programs of a home can do with its bus, whoever holds it.

A process that holds the bus has a `Bus`. Every other one has a `RemoteBus`, which asks the daemon.
Both have these verbs and raise the same errors.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol, Self

from holdfast.bus.received import (
    BusReply,
    PublishReceipt,
    ReceivedMessage,
    ReceivedRequest,
    SendReceipt,
)
from holdfast.node.bus.members import JoinedOverBus
from holdfast.node.bus.standing import BusStanding
from holdfast.node.quorum.api import QuorumApi

Handler = Callable[[ReceivedRequest], Awaitable[bytes | str]]
"""Answers a request."""


class Messages(Protocol):
    """A subscription. A message is finished when the next one is taken, or by its `finish`."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> ReceivedMessage: ...


class Served(Protocol):
    """A service that is answered for as long as this is open."""

    async def close(self) -> None: ...


class BusApi(Protocol):
    """The bus of a home."""

    quorum: QuorumApi | None
    """The quorums of the home, which the holder of the bus holds too."""

    async def send(
        self,
        to: str,
        body: bytes | str,
        *,
        topic: str,
        content_type: str,
        priority: str,
        ttl_ms: int | None,
        id: str | None,
        wait_ms: int,
    ) -> SendReceipt: ...
    async def publish(
        self, topic: str, body: bytes | str, *, content_type: str, priority: str, id: str | None
    ) -> PublishReceipt: ...
    async def request(
        self,
        to: str | None,
        service: str,
        body: bytes | str,
        *,
        content_type: str,
        timeout_ms: int,
        id: str | None,
    ) -> BusReply: ...
    def subscribe(self, pattern: str, *, buffer: int, durable: bool, manual: bool) -> Messages: ...
    async def serve(self, service: str, handler: Handler, *, most: int) -> Served: ...
    async def ping(self, peer: str) -> float: ...
    async def join(self, invite: str, *, wait_ms: int) -> JoinedOverBus: ...
    async def leave(self, mesh: str) -> None: ...
    async def refresh(self) -> None: ...
    async def standing(self) -> BusStanding: ...
    async def close(self) -> None: ...
