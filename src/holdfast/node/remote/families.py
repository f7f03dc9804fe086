"""The families of a mesh over a connection. What is not written out follows from `node/calls`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.node.core.change import Receipt
from holdfast.node.core.telemetry import TelemetryEntry
from holdfast.node.library.families import AuditTrail, Facts, Memories, State, Tasks, Vectors
from holdfast.node.library.presence import PeerPresence, PeerPresences, presence_in
from holdfast.node.library.telemetry import Telemetry
from holdfast.node.log.audit_trail import AuditEntry, AuditVerdict
from holdfast.node.remote.faces import (
    AS_JSON,
    RemoteFace,
    asks,
    decoded,
    new_id,
    query,
    quoted,
)
from holdfast.node.sharing.sharing import Sharing
from holdfast.rules.audit_chain import AuditChainRow, check_stream
from holdfast.rules.bodies import encode_value
from holdfast.rules.cursor import Since
from holdfast.rules.errors import BadInput, UnknownKey
from holdfast.rules.ids import parse_id
from holdfast.rules.limits import AUDIT_PAGE_ROWS, TELEMETRY_PAGE_ROWS, TELEMETRY_TTL_MS
from holdfast.rules.listed import listed, listed_rows
from holdfast.rules.names import named_peer, scope_owner
from holdfast.rules.reconcile import Outcome

if TYPE_CHECKING:
    from holdfast.node.upkeep.reembed import Moving
    from holdfast.node.watching.changes import LogChange
    from holdfast.node.watching.source import WatchSource
    from holdfast.rules.vectors import Model

# The families have a verb `list`, which hides the type of that name inside their classes.
Rows = list


class WatchedFace(RemoteFace):
    """A family whose changes can be watched: its verb `watch` follows the log of the daemon."""

    def _follow(
        self, family: str, prefix: str, since: Since, scope: str = "all"
    ) -> WatchSource[LogChange]:
        # It brings asyncio with it, which most callers do not need.
        from holdfast.node.remote.watching import follow_log

        peer, mesh = scope_owner(scope, self._line.peer()), self._slug
        return follow_log(self._line, since, mesh=mesh, prefix=prefix, peer=peer, family=family)


@asks
class RemoteState(WatchedFace, State):
    """`State`, asked of a daemon."""


@asks
class RemoteMemories(WatchedFace, Memories):
    """`Memories`, asked of a daemon."""


@asks
class RemoteVectors(WatchedFace, Vectors):
    """`Vectors`, asked of a daemon."""

    def _moving(self, old: Model, new: Model) -> Moving:
        from holdfast.node.remote.reembed import RemoteMoving

        return RemoteMoving(self._line, self._slug, old, new)


@asks
class RemoteTasks(WatchedFace, Tasks):
    """`Tasks`, asked of a daemon: in a mesh with voters it asks them."""


@asks
class RemoteFacts(WatchedFace, Facts):
    """`Facts`, asked of a daemon."""


@asks
class RemotePresences(RemoteFace, PeerPresences):
    """`PeerPresences`, asked of a daemon."""

    def get(self, peer: str | None = None) -> PeerPresence:
        name = self._line.peer() if peer is None else named_peer(peer)
        return presence_in(self.list(), name)


@asks
class RemoteSharing(RemoteFace, Sharing):
    """`Sharing`, asked of a daemon, which asks the broker."""


# --- what has documents of its own ---------------------------------------------------------------


class _Appended(msgspec.Struct, frozen=True):
    id: str
    offset: int
    lamport: int
    origin: str
    duplicate: bool


class _AuditPage(msgspec.Struct, frozen=True):
    events: list[AuditEntry]
    next: str | None


class _AuditChains(msgspec.Struct, frozen=True):
    chains: list[AuditChainRow]


class _AuditVerdicts(msgspec.Struct, frozen=True):
    chains: list[AuditVerdict]


class _TelemetryPage(msgspec.Struct, frozen=True):
    entries: list[TelemetryEntry]
    more: bool


_APPENDED: Final = msgspec.json.Decoder(_Appended)
_PAGE: Final = msgspec.json.Decoder(_AuditPage)
_CHAINS: Final = msgspec.json.Decoder(_AuditChains)
_VERDICTS: Final = msgspec.json.Decoder(_AuditVerdicts)
_ENTRY: Final = msgspec.json.Decoder(TelemetryEntry)
_ENTRIES: Final = msgspec.json.Decoder(_TelemetryPage)


@asks
class RemoteAuditTrail(WatchedFace, AuditTrail):
    """`AuditTrail`, asked of a daemon."""

    def append(self, stream: str, payload: Any, *, id: str | None = None) -> Receipt:
        check_stream(stream)
        id = new_id(id)
        body = msgspec.json.encode({"payload": msgspec.Raw(encode_value(payload)), "id": id})
        path = f"{self._audit}/{quoted(stream)}"
        answer = self._line.write("POST", path, id=id, body=body, headers=AS_JSON)
        found = decoded(answer, _APPENDED)
        outcome = Outcome.NOOP_ALREADY_APPLIED if found.duplicate else Outcome.APPLIED
        raw = parse_id(found.id)
        return Receipt(raw, found.offset, found.lamport, found.origin, found.duplicate, outcome)

    @listed(AuditEntry)
    def list(
        self, stream: str, *, origin: str | None = None, after: str = ""
    ) -> Iterator[AuditEntry]:
        check_stream(stream)
        path = f"{self._audit}/{quoted(stream)}"
        place: str | None = after
        while place is not None:
            asked = {"origin": origin, "after": place or None, "limit": AUDIT_PAGE_ROWS}
            page = decoded(self._line.call("GET", path + query(asked)), _PAGE)
            yield from page.events
            place = page.next

    @listed_rows(AuditChainRow)
    def streams(self) -> Rows[AuditChainRow]:
        found: list[AuditChainRow] = decoded(self._line.call("GET", self._audit), _CHAINS).chains
        return found

    @listed_rows(AuditVerdict)
    def verify(self, stream: str | None = None) -> Rows[AuditVerdict]:
        path = f"{self._audit}-verdicts" + query({"stream": stream})
        found: list[AuditVerdict] = decoded(self._line.call("GET", path), _VERDICTS).chains
        return found

    @property
    def _audit(self) -> str:
        return f"/v1/meshes/{self._slug}/audit"


@asks
class RemoteTelemetry(RemoteFace, Telemetry):
    """`Telemetry`, asked of a daemon."""

    def set(
        self, kind: str, key: str, value: object, *, ttl_ms: int = TELEMETRY_TTL_MS
    ) -> TelemetryEntry:
        if type(ttl_ms) is not int:
            raise BadInput(f"ttl_ms is {type(ttl_ms).__name__}, not int")
        asked = {"value": msgspec.Raw(encode_value(value)), "ttl_ms": ttl_ms}
        body = msgspec.json.encode(asked)
        answer = self._line.call("PUT", self._of(kind, key), body=body, headers=AS_JSON)
        entry: TelemetryEntry = decoded(answer, _ENTRY)
        return entry

    def entry(self, kind: str, key: str) -> TelemetryEntry | None:
        try:
            entry: TelemetryEntry = decoded(self._line.call("GET", self._of(kind, key)), _ENTRY)
        except UnknownKey:
            return None
        return entry

    def delete(self, kind: str, key: str) -> None:
        self._line.call("DELETE", self._of(kind, key))

    @listed(TelemetryEntry)
    def list(
        self, kind: str | None = None, *, after: tuple[str, str] = ("", "")
    ) -> Iterator[TelemetryEntry]:
        while True:
            behind = dict(zip(("after_kind", "after_key"), after, strict=True))
            asked = {"kind": kind, "limit": TELEMETRY_PAGE_ROWS, **behind}
            path = f"/v1/meshes/{self._slug}/telemetry{query(asked)}"
            page = decoded(self._line.call("GET", path), _ENTRIES)
            yield from page.entries
            if not page.more:
                return
            after = (page.entries[-1].kind, page.entries[-1].key)

    def _of(self, kind: str, key: str) -> str:
        return f"/v1/meshes/{self._slug}/telemetry/{quoted(kind)}/{quoted(key)}"
