"""The formats that nodes and brokers share, for `GET /v1/version`."""

from __future__ import annotations

from holdfast.protocol import mesh_snapshot
from holdfast.protocol.version_http import FormatVersions
from holdfast.rules import envelope, fingerprint


def common_formats() -> dict[str, FormatVersions]:
    return {
        "envelope": FormatVersions(envelope.CREATED_VERSION, [f"{envelope.MAJOR}.x"]),
        "fingerprint": numbered(fingerprint.FORMULAS[-1], since=fingerprint.FORMULAS[0]),
        "http": numbered(1),
        "mesh_snapshot": numbered(mesh_snapshot.VERSION),
    }


def numbered(latest: int, *, since: int | None = None) -> FormatVersions:
    """A format that is counted in whole numbers, and read from `since` on, or only the latest."""
    first = latest if since is None else since
    return FormatVersions(str(latest), [str(number) for number in range(first, latest + 1)])
