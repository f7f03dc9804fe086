"""The way from the library to the quorums of a home: whoever holds its bus holds them too.

Faces for coroutines get a `Reach`, which opens the bus with the first question. A face for callers
that wait is made of the one for coroutines, verb by verb, and runs it on the loop of `node.bus`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from holdfast.rules.errors import NoQuorum
from holdfast.rules.shown import ShownFace

if TYPE_CHECKING:
    from holdfast.node.library.aio_bus import AsyncNodeBus
    from holdfast.node.library.loop_thread import LoopThread
    from holdfast.node.quorum.api import QuorumApi

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")

Reach = Callable[[], "Awaitable[QuorumApi]"]
"""Finds the quorums of the home."""


async def quorum_api(bus: AsyncNodeBus) -> QuorumApi:
    """The quorums of whoever holds the bus: this process, or the daemon."""
    found = (await bus._ready()).quorum
    if found is None:
        raise NoQuorum("whoever holds the bus of this home takes part in no quorum")
    return found


class WaitingFace(ShownFace, Generic[A]):
    """Verbs for callers that wait, each made of one of `A`; safe to use from threads."""

    def __init__(self, thread: LoopThread, face: A) -> None:
        self._thread, self._face = thread, face

    def _shown(self) -> str:
        # A face of a daemon knows its mesh itself.
        of = getattr(self, "_face", self)
        return f"of mesh {getattr(of, '_mesh', None) or getattr(of, '_slug', '')}"


def waits(
    verb: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[WaitingFace[A], P], T]:
    """A verb for callers that wait, made of the one for coroutines."""

    @wraps(verb)
    def call(self: WaitingFace[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        # Looked up on the object: a class that overrides the verb is heeded.
        work: Coroutine[Any, Any, T] = getattr(self._face, verb.__name__)(*args, **kwargs)
        return self._thread.run(work)

    return call
