"""What a mesh with voters has agreed on, and strong writes that waited, over a connection.

The daemon holds the quorum of its home, so it is asked to write and to confirm, and what it says of
the freshness of a read is passed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from holdfast.node.library.aio_entities import (
    LINEARIZABLE,
    AsyncEntities,
    Entity,
    EntityHistoryRead,
    EntityListRead,
    EntityRead,
)
from holdfast.node.library.aio_waiting_writes import operation_asked
from holdfast.node.library.waiting_writes import WaitingWrites
from holdfast.node.quorum import documents
from holdfast.node.quorum.api import ReadDemand, ReplaySummary
from holdfast.node.remote.faces import (
    AS_JSON,
    RemoteFace,
    decoded,
    query,
    quoted,
)
from holdfast.node.remote.line import Line
from holdfast.node.remote.quorum import LineQuorum
from holdfast.rules.arguments import checks_arguments
from holdfast.rules.errors import UnknownEntity
from holdfast.rules.limits import (
    CHUNK_ROWS,
    LINK_READ_MS_MAX,
    QUORUM_CHANGE_MS,
    QUORUM_COMMIT_MS,
    QUORUM_PAGE_ROWS,
)
from holdfast.rules.quorum.entities import check_type
from holdfast.rules.quorum.fence import parse_token
from holdfast.rules.quorum.intents import EntityOperation

_FOUND: Final = msgspec.json.Decoder(documents.EntityReadDocument)
_PAGE: Final = msgspec.json.Decoder(documents.EntityPage)
_HISTORY: Final = msgspec.json.Decoder(documents.EntityHistoryPage)
_WRITES: Final = msgspec.json.Decoder(documents.WritePage)
_WRITE: Final = msgspec.json.Decoder(documents.WriteDocument)
_CONFLICTS: Final = msgspec.json.Decoder(documents.QuorumConflictPage)
_SETTLED: Final = msgspec.json.Decoder(documents.SettledConflict)
_REPLAY: Final = msgspec.json.Decoder(ReplaySummary)


class _Asked(RemoteFace):
    """What asks the quorum of a daemon."""

    def ask(
        self,
        method: str,
        path: str,
        decoder: msgspec.json.Decoder[Any],
        asked: msgspec.Struct | None = None,
        *,
        wait_ms: int = QUORUM_COMMIT_MS,
    ) -> Any:
        body = None if asked is None else msgspec.json.encode(asked)
        headers = {} if body is None else AS_JSON
        where = f"/v1/meshes/{self._slug}/quorum/{path}"
        wait_ms += LINK_READ_MS_MAX
        answer = self._line.call(method, where, body=body, headers=headers, read_ms=wait_ms)
        return decoded(answer, decoder)


@checks_arguments()
class AsyncRemoteEntities(AsyncEntities):
    """`AsyncEntities`, asked of a daemon. A change is brought into the order as on an open home;
    the daemon reads.
    """

    def __init__(self, line: Line, mesh: str) -> None:
        async def reach() -> LineQuorum:
            return LineQuorum(line)

        engine: Any = None  # what it would be asked for, the daemon is asked for here
        super().__init__(engine, mesh, reach)
        self._daemon = _Asked(line, mesh)

    async def get(self, type: str, id: str, *, demand: ReadDemand = LINEARIZABLE) -> EntityRead:
        check_type(type)
        path = f"entities/{quoted(type)}/{quoted(id)}{query(_told(demand))}"
        try:
            found = await asyncio.to_thread(self._daemon.ask, "GET", path, _FOUND)
        except UnknownEntity:
            return EntityRead(None, await self._confirm(demand))
        return EntityRead(_entity(found.entity), found.read)

    async def list(
        self,
        type: str,
        *,
        after: str = "",
        limit: int = CHUNK_ROWS,
        demand: ReadDemand = LINEARIZABLE,
    ) -> EntityListRead:
        check_type(type)
        most = min(max(1, limit), CHUNK_ROWS, QUORUM_PAGE_ROWS)
        asked = {"after": after or None, "limit": most, **_told(demand)}
        path = f"entities/{quoted(type)}{query(asked)}"
        found = await asyncio.to_thread(self._daemon.ask, "GET", path, _PAGE)
        return EntityListRead(tuple(map(_entity, found.entities)), found.read)

    async def history(
        self, type: str, id: str, *, after: int = 0, demand: ReadDemand = LINEARIZABLE
    ) -> EntityHistoryRead:
        check_type(type)
        path = f"history/{quoted(type)}/{quoted(id)}{query({'after': after, **_told(demand)})}"
        found = await asyncio.to_thread(self._daemon.ask, "GET", path, _HISTORY)
        return EntityHistoryRead(tuple(one.past for one in found.revisions), found.read)


def _told(demand: ReadDemand) -> dict[str, Any]:
    if demand.linearizable:
        return {"read": "linearizable"}
    # A bound says by itself that the read is a local one.
    bound = demand.staleness_ms_max
    return {"read": "local"} if bound is None else {"staleness_ms_max": bound}


def _entity(document: documents.EntityDocument) -> Entity:
    return Entity(
        type=document.type,
        id=document.id,
        revision=document.revision,
        fields=document.fields,
        origin=document.origin,
        fence=str(parse_token(document.fence).order),
        committed_at=document.committed_at,
    )


@checks_arguments()
class RemoteWaitingWrites(_Asked, WaitingWrites):
    """`WaitingWrites`, asked of a daemon."""

    def list(
        self, *statuses: str, after: int = 0, limit: int = QUORUM_PAGE_ROWS
    ) -> Sequence[documents.WriteDocument]:
        asked = {"status": [*statuses] or None, "after": after, "limit": limit}
        found: documents.WritePage = self.ask("GET", f"writes{query(asked)}", _WRITES)
        return found.writes

    def get(self, id: str) -> documents.WriteDocument:
        found: documents.WriteDocument = self.ask("GET", f"writes/{quoted(id)}", _WRITE)
        return found

    def conflicts(
        self, *, after: int = 0, limit: int = QUORUM_PAGE_ROWS, settled: bool = False
    ) -> Sequence[documents.QuorumConflictDocument]:
        asked = {"all": settled, "after": after, "limit": limit}
        found: documents.QuorumConflictPage = self.ask(
            "GET", f"conflicts{query(asked)}", _CONFLICTS
        )
        return found.conflicts

    def resolve(
        self,
        which: str | int,
        take: documents.Settlement,
        *,
        operations: Iterable[EntityOperation] = (),
        by: str = "",
        note: str = "",
    ) -> documents.SettledConflict:
        asked = documents.SettleAsked(
            take=take, operations=tuple(map(operation_asked, operations)), by=by, note=note
        ).check()
        noun = "conflicts" if isinstance(which, int) else "writes"
        path = f"{noun}/{quoted(str(which))}/resolve"
        settled: documents.SettledConflict = self.ask("POST", path, _SETTLED, asked)
        return settled

    def replay(self, *, node: str | None = None) -> ReplaySummary:
        asked = documents.ReplayAsked(node=node)
        done: ReplaySummary = self.ask("POST", "replay", _REPLAY, asked, wait_ms=QUORUM_CHANGE_MS)
        return done
