"""`node.bus` for callers that wait. The verbs are those for coroutines (`aio_bus`), run by an event
loop in a thread of its own, which starts with the first of them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial, wraps
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, overload

from holdfast.node.home.left_open import close_with_the_main_thread
from holdfast.node.library.aio_bus import AsyncNodeBus, Serving, is_asked_for, next_of
from holdfast.node.library.loop_thread import LoopThread
from holdfast.node.library.quorum_reach import Reach, quorum_api
from holdfast.rules.arguments import checks_arguments
from holdfast.rules.limits import BUS_BUFFER, BUS_SERVE_MAX
from holdfast.rules.shown import ShownFace

if TYPE_CHECKING:
    from holdfast.bus.received import ReceivedMessage, ReceivedRequest
    from holdfast.node.bus.api import Messages
    from holdfast.node.bus.capabilities import BusCapabilities
    from holdfast.node.bus.sharing import BusSharing
    from holdfast.node.home.opening import Opened

P = ParamSpec("P")
T = TypeVar("T")
H = TypeVar("H", bound=Callable[..., Any])


def _waits(
    verb: Callable[Concatenate[AsyncNodeBus, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[NodeBus, P], T]:
    """A verb for callers that wait, made of the one for coroutines."""

    @wraps(verb)
    def call(self: NodeBus, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(verb(self._bus(), *args, **kwargs))

    return call


@checks_arguments()
class NodeBus(ShownFace):
    """The bus of one home, for callers that wait; safe to use from threads."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._thread = LoopThread("holdfast-bus")
        self._made: AsyncNodeBus | None = None

    def _shown(self) -> str:
        return f"of {self._opened.engine.ctx.peer}"

    @property
    def loop_thread(self) -> LoopThread:
        """The loop that the verbs run on."""
        return self._thread

    def quorums(self) -> Reach:
        """The way to the quorums of the home, for what runs on that loop."""
        return partial(quorum_api, self._bus())

    send = _waits(AsyncNodeBus.send)
    publish = _waits(AsyncNodeBus.publish)
    request = _waits(AsyncNodeBus.request)
    ping = _waits(AsyncNodeBus.ping)
    status = _waits(AsyncNodeBus.status)
    peers = _waits(AsyncNodeBus.peers)
    join = _waits(AsyncNodeBus.join)
    leave = _waits(AsyncNodeBus.leave)
    refresh = _waits(AsyncNodeBus.refresh)

    @property
    def sharing(self) -> BusSharing:
        """Meshes that this node shares over the bus: share, invite, members, grants.

        >>> node.create_mesh("crew")
        >>> node.bus.sharing.share("crew")
        """
        from holdfast.node.bus.sharing import BusSharing
        from holdfast.node.trust.own_key import OwnKey

        opened = self._opened
        return BusSharing(opened.engine, OwnKey(opened.engine, opened.paths), self._tell)

    def _tell(self) -> None:
        """Whoever holds the bus hears of what has changed here."""
        is_open = self._made is not None and self._made.is_open
        if is_open or is_asked_for(self._opened):
            self.refresh()

    @property
    def capabilities(self) -> BusCapabilities:
        """Rights over the bus that this node gives, passes on, uses and takes back. These work in
        this home alone and return at once; `refresh` tells whoever holds the bus.

        >>> given = node.bus.capabilities.give(card_of_bo, ["topic:builds.*"], days=7)
        >>> node.bus.capabilities.drop(given.id)
        """
        from holdfast.node.bus.capabilities import BusCapabilities
        from holdfast.node.trust.own_key import OwnKey

        opened = self._opened
        return BusCapabilities(opened.engine, OwnKey(opened.engine, opened.paths))

    def bind(self, *, listen: str | None = None, discovery: str | None = None) -> NodeBus:
        """Opens the bus now, and says where peers reach this process (`listen`, HOST:PORT with
        commas between) and whether it finds peers of the LAN (`discovery`: mdns, off or auto).
        Without this the settings in $HOLDFAST_CONFIG count. Raises AlreadyExists if the bus is open
        already, or if a daemon holds it.

        >>> with holdfast.open("third", peer="cleo", create=True) as cleo:
        ...     cleo.bus.bind(listen="127.0.0.1:0", discovery="off").status().listening
        ['127.0.0.1:...']
        """
        self._thread.run(self._bus().bind(listen=listen, discovery=discovery))
        return self

    def subscribe(
        self, pattern: str = ">", *, buffer: int = BUS_BUFFER, durable: bool = False
    ) -> MessageFeed:
        """Messages of a pattern of topics, as they come: `builds.*` is one word, `builds.>` all
        that begin so, `>` everything. Enter it with `with`. A message is done with when the next
        one is taken, or when the block is left without an error; until then it comes again to the
        next subscription.

        >>> bo.bus.send("ana", "green", topic="builds.linux")
        >>> with node.bus.subscribe("builds.*") as messages:
        ...     messages.take(timeout_ms=5_000).text
        'green'
        """
        opened = self._bus().subscribe(pattern, buffer=buffer, durable=durable)
        return MessageFeed(self._thread, opened)

    @overload
    def serve(self, service: str, handler: None = None, *, most: int = ...) -> Callable[[H], H]: ...
    @overload
    def serve(
        self, service: str, handler: Callable[[ReceivedRequest], Any], *, most: int = ...
    ) -> ServedService: ...
    def serve(
        self,
        service: str,
        handler: Callable[[ReceivedRequest], Any] | None = None,
        *,
        most: int = BUS_SERVE_MAX,
    ) -> Any:
        """Answers requests by a function, `most` at once, in threads; a coroutine function runs in
        the loop of the bus, and is cancelled when the asker cancels. Without a handler it is a
        decorator.

        >>> with node.bus.serve("greet", lambda request: f"hello {request.text}"):
        ...     bo.bus.request("ana", "greet", "bo").text
        'hello bo'
        """
        if handler is None:

            def decorate(function: H) -> H:
                self.serve(service, function, most=most)
                return function

            return decorate
        answers = handler if inspect.iscoroutinefunction(handler) else _in_thread(handler)
        serving = self._bus().serve(service, answers, most=most)
        return ServedService(self._thread, self._thread.run(_opened(serving)))

    def close(self) -> None:
        """Lets go of the bus; what waits for absent peers stays in the outbox.

        >>> with holdfast.open("fourth", peer="dora", create=True) as dora:
        ...     dora.bus.close()
        """
        made, self._made = self._made, None
        self._thread.close(None if made is None else made.close())

    def _bus(self) -> AsyncNodeBus:
        if self._made is None:
            self._made = self._thread.run(_make(self._opened))
            close_with_the_main_thread(self.close)
        return self._made


class MessageFeed:
    """Messages, one after the other. Enter it with `with`."""

    def __init__(self, thread: LoopThread, opened: AbstractAsyncContextManager[Messages]) -> None:
        self._thread, self._opened = thread, opened
        self._messages: Messages | None = None

    def __enter__(self) -> Self:
        self._messages = self._thread.run(_enter(self._opened))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._messages = None
        self._thread.run(_leave(self._opened, kind, error, trace))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        while (message := self.take()) is not None:
            yield message

    def take(self, timeout_ms: int | None = None) -> ReceivedMessage | None:
        """The next message; None if none comes in time.

        >>> with node.bus.subscribe("nothing.*") as messages:
        ...     messages.take(timeout_ms=1)
        """
        assert self._messages is not None, "enter the subscription with `with` first"
        return self._thread.run(next_of(self._messages, timeout_ms))


class ServedService:
    """A service that is answered until this is closed, or the node is."""

    def __init__(self, thread: LoopThread, serving: Serving) -> None:
        self._thread, self._serving = thread, serving
        self._ended = Event()

    def wait(self) -> None:
        """Until it is closed, from another thread or by an interrupt.

        >>> serving = node.bus.serve("brief", lambda request: b"")
        >>> Timer(0.01, serving.close).start()
        >>> serving.wait()
        """
        self._ended.wait()

    def close(self) -> None:
        """Stops answering; requests that are being answered are finished.

        >>> serving = node.bus.serve("brief", lambda request: b"")
        >>> serving.close()
        """
        self._ended.set()
        self._thread.run(self._serving.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


async def _make(opened: Opened) -> AsyncNodeBus:
    return AsyncNodeBus(opened)


async def _opened(serving: Serving) -> Serving:
    return await serving


async def _enter(opened: AbstractAsyncContextManager[T]) -> T:
    return await opened.__aenter__()


async def _leave(
    opened: AbstractAsyncContextManager[Any],
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    try:
        await opened.__aexit__(kind, error, trace)
    except BaseException as raised:
        if raised is not error:  # else the caller's block raises it by itself
            raise


def _in_thread(handler: Callable[[ReceivedRequest], Any]) -> Callable[[ReceivedRequest], Any]:
    async def answer(request: ReceivedRequest) -> Any:
        return await asyncio.to_thread(handler, request)

    return answer
