"""Writes of telemetry: into this node's table, and into no log, stream or outbox.

They take the way of every write (room on the disk, one transaction with others, counted), but they
make no envelope.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.node.core.context import NodeContext
from holdfast.rules import limits
from holdfast.rules.bodies import decode_value, encode_value
from holdfast.rules.errors import OverLimit, UnknownKey, UnknownMesh
from holdfast.rules.shown import Shown
from holdfast.rules.telemetry import TelemetryRow, check_name, telemetry_row
from holdfast.storage.ports import Reader, Transaction


class TelemetryEntry(Shown, msgspec.Struct, frozen=True):
    """A value that is true on this node only, and until when it is kept."""

    kind: str
    key: str
    value: Any
    updated_at: int
    expires_at: int

    @classmethod
    def of(cls, row: TelemetryRow) -> TelemetryEntry:
        return cls(row.kind, row.key, decode_value(row.value), row.updated_at, row.expires_at)


class TelemetrySet:
    """Gives a key its value, in place of an older one. Rows whose time is up make room."""

    def __init__(
        self, ctx: NodeContext, mesh: str, kind: str, key: str, value: object, ttl_ms: int
    ) -> None:
        self._row = telemetry_row(
            mesh, kind, key, encode_value(value), now_ms=ctx.now_ms(), ttl_ms=ttl_ms
        )

    def __call__(self, tx: Transaction) -> TelemetryEntry:
        row = self._row
        if tx.mesh_get(row.mesh) is None:
            raise UnknownMesh(f"there is no mesh {row.mesh!r}")
        if tx.telemetry_get(row.mesh, row.kind, row.key) is None:
            self._make_room(tx)
        tx.telemetry_put(row)
        return TelemetryEntry.of(row)

    def _make_room(self, tx: Transaction) -> None:
        mesh, most = self._row.mesh, limits.TELEMETRY_ROWS_MAX
        if tx.telemetry_count(mesh) < most:
            return
        tx.telemetry_expire(self._row.updated_at, limits.CHUNK_ROWS)
        if tx.telemetry_count(mesh) >= most:
            raise OverLimit(
                f"{mesh!r} has {most} values of telemetry here, which is the most",
                hint="delete some, or give them a shorter time to live",
            )


class TelemetryDelete:
    """Removes a value; UnknownKey if there is none."""

    def __init__(self, mesh: str, kind: str, key: str) -> None:
        check_name(kind, key)
        self._name = (mesh, kind, key)

    def __call__(self, tx: Transaction) -> None:
        if not tx.telemetry_drop(*self._name):
            raise unknown_telemetry(*self._name)


def unknown_telemetry(mesh: str, kind: str, key: str) -> UnknownKey:
    return UnknownKey(
        f"telemetry of {mesh!r} has no {kind} {key!r} here",
        hint=f"see: holdfast telemetry list --mesh {mesh}",
    )


def telemetry_entry(
    tx: Reader, mesh: str, kind: str, key: str, now_ms: int
) -> TelemetryEntry | None:
    """A value whose time is not up."""
    check_name(kind, key)
    row = tx.telemetry_get(mesh, kind, key)
    return None if row is None or row.expires_at <= now_ms else TelemetryEntry.of(row)
