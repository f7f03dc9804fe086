"""`mesh.telemetry`: what is true on this node only, for callers that wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.telemetry import (
    TelemetryDelete,
    TelemetryEntry,
    TelemetrySet,
    telemetry_entry,
)
from holdfast.node.library.verbs import writes
from holdfast.rules.arguments import checked, checks_arguments
from holdfast.rules.limits import CHUNK_ROWS, TELEMETRY_TTL_MS
from holdfast.rules.listed import listed
from holdfast.rules.shown import ShownFace
from holdfast.rules.telemetry import TelemetryRow
from holdfast.storage.ports import Reader, Work


@checks_arguments(but=("get",))
class Telemetry(ShownFace):
    """Values by kind and key that never leave this node: heartbeats, processes, live events of
    runs. Each is kept for a while.
    """

    def __init__(self, engine: NodeEngine, mesh: str) -> None:
        self._engine = engine
        self._mesh = mesh

    @writes("telemetry.set")
    def set(
        self, kind: str, key: str, value: object, *, ttl_ms: int = TELEMETRY_TTL_MS
    ) -> Work[TelemetryEntry]:
        """Gives a key its value, for `ttl_ms` from now.

        >>> team.telemetry.set("heartbeat", "worker-1", {"at": "step 3"}, ttl_ms=60_000)
        """
        return TelemetrySet(self._engine.ctx, self._mesh, kind, key, value, ttl_ms)

    def get(self, kind: str, key: str, default: Any = None) -> Any:
        """The value of a key, or `default`.

        >>> team.telemetry.get("gauge", "load")
        0.5
        """
        entry = self.entry(kind, key)
        return default if entry is None else entry.value

    def entry(self, kind: str, key: str) -> TelemetryEntry | None:
        """The value with its times.

        >>> team.telemetry.entry("gauge", "load").value
        0.5
        """
        now = self._engine.ctx.now_ms()
        return self._engine.read(
            "telemetry.get", lambda tx: telemetry_entry(tx, self._mesh, kind, key, now)
        )

    @writes("telemetry.delete")
    def delete(self, kind: str, key: str) -> Work[None]:
        """Removes a key; UnknownKey if it is not there.

        >>> team.telemetry.set("gauge", "scratch", 1)
        >>> team.telemetry.delete("gauge", "scratch")
        """
        return TelemetryDelete(self._mesh, kind, key)

    @listed(TelemetryEntry)
    @checked
    def list(
        self, kind: str | None = None, *, after: tuple[str, str] = ("", "")
    ) -> Iterator[TelemetryEntry]:
        """All values, or those of one kind, by kind and key; `after` is a kind and a key: only what
        follows them.

        >>> [entry.key for entry in team.telemetry.list("gauge")]
        ['load']
        """
        now, behind = self._engine.ctx.now_ms(), after

        def page(tx: Reader) -> Sequence[TelemetryRow]:
            nonlocal behind
            rows = tx.telemetry_scan(self._mesh, kind, behind, CHUNK_ROWS)
            behind = (rows[-1].kind, rows[-1].key) if rows else behind
            return rows

        for row in self._engine.pages(page):
            if row.expires_at > now:
                yield TelemetryEntry.of(row)

    def _shown_rows(self) -> Iterable[Any]:
        return self.list()
