"""Telemetry: what is true on this node only, and for a while.

Heartbeats, processes and paths of agents, live events of runs: their data classes are `local`
(`data_classes`). A value stands in a row and in no envelope. So it has no stamp and no place in the
log, and nothing that carries envelopes can carry it: that is how it never leaves.
"""

from __future__ import annotations

import msgspec

from holdfast.rules import limits, names
from holdfast.rules.errors import BadInput, OverLimit


class TelemetryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A value under a kind and a key, until its time is up."""

    mesh: str
    kind: str
    key: str
    value: bytes
    """JSON."""
    updated_at: int
    expires_at: int


def check_name(kind: str, key: str) -> None:
    names.check_key(kind, "kind of telemetry", limits.TELEMETRY_KIND_BYTES_MAX)
    names.check_key(key)


def telemetry_row(
    mesh: str, kind: str, key: str, value: bytes, *, now_ms: int, ttl_ms: int
) -> TelemetryRow:
    """The row for a value, which is JSON."""
    check_name(kind, key)
    if len(value) > limits.TELEMETRY_BYTES_MAX:
        raise OverLimit(
            f"the value has {len(value)} bytes as JSON; the most is {limits.TELEMETRY_BYTES_MAX}"
        )
    if not 1 <= ttl_ms <= limits.TELEMETRY_TTL_MS_MAX:
        raise BadInput(
            f"the time to live is {ttl_ms} ms",
            hint=f"telemetry is kept for 1 to {limits.TELEMETRY_TTL_MS_MAX} ms",
        )
    return TelemetryRow(
        mesh=mesh, kind=kind, key=key, value=value, updated_at=now_ms, expires_at=now_ms + ttl_ms
    )
