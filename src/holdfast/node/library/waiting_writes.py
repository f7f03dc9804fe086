"""`mesh.writes` for callers that wait: the verbs for coroutines, on the loop of `node.bus`."""

from __future__ import annotations

from holdfast.node.library.aio_waiting_writes import AsyncWaitingWrites
from holdfast.node.library.quorum_reach import WaitingFace, waits


class WaitingWrites(WaitingFace[AsyncWaitingWrites]):
    """The strong writes of this node that waited, for callers that wait."""

    list = waits(AsyncWaitingWrites.list)
    get = waits(AsyncWaitingWrites.get)
    conflicts = waits(AsyncWaitingWrites.conflicts)
    resolve = waits(AsyncWaitingWrites.resolve)
    replay = waits(AsyncWaitingWrites.replay)
