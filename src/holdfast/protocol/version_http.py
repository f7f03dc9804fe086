"""`GET /v1/version`: what a node or a broker writes and reads, so that a client knows beforehand
whether the two can work with each other.
"""

from __future__ import annotations

import msgspec


class FormatVersions(msgspec.Struct, frozen=True):
    """One format: what is written today, and what is still read."""

    writes: str
    reads: list[str]
    """Single versions, or all of a major version as `1.x`."""


class VersionInfo(msgspec.Struct, frozen=True):
    """The version of a service, and what it is compatible with."""

    service: str
    """`node` or `broker`."""
    version: str
    """Of Holdfast. Two services need not have the same."""
    formats: dict[str, FormatVersions]
    features: dict[str, int]
    """By name, with versions: those that a node needs of its broker, or that a broker offers."""
