"""`mesh.entities` for callers that wait: the verbs for coroutines, on the loop of `node.bus`."""

from __future__ import annotations

from holdfast.node.library.aio_entities import AsyncEntities
from holdfast.node.library.quorum_reach import WaitingFace, waits


class Entities(WaitingFace[AsyncEntities]):
    """The entities of one mesh, for callers that wait."""

    put = waits(AsyncEntities.put)
    patch = waits(AsyncEntities.patch)
    delete = waits(AsyncEntities.delete)
    change = waits(AsyncEntities.change)
    get = waits(AsyncEntities.get)
    list = waits(AsyncEntities.list)
    history = waits(AsyncEntities.history)
