"""What a store keeps of telemetry: rows of this node that no log knows."""

from __future__ import annotations

from typing import Protocol

from holdfast.rules.telemetry import TelemetryRow


class TelemetryReader(Protocol):
    def telemetry_get(self, mesh: str, kind: str, key: str) -> TelemetryRow | None: ...
    def telemetry_scan(
        self, mesh: str, kind: str | None, after: tuple[str, str], limit: int
    ) -> list[TelemetryRow]:
        """Rows behind a kind and a key, of all kinds or of one."""

    def telemetry_count(self, mesh: str) -> int:
        """How many rows a mesh has, without counting them."""


class TelemetryWriter(TelemetryReader, Protocol):
    def telemetry_put(self, row: TelemetryRow) -> None: ...
    def telemetry_drop(self, mesh: str, kind: str, key: str) -> bool:
        """Removes a row; False if there is none."""

    def telemetry_expire(self, now_ms: int, most: int) -> int:
        """Removes rows whose time is up, the oldest first; returns how many."""
