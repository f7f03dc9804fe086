"""What a broker offers, and what a node needs of it.

A broker sends its features with their parameters before anything else. A node that cannot work with
them says which, and closes the connection with a code for each kind of problem (`close_codes`); so
does a broker that lacks what a node needs. Each side ignores features that it does not know: a
newer side may offer more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.rules import limits
from holdfast.rules.broker_rows import Mode
from holdfast.rules.connection_policy import ConnectionPolicy
from holdfast.rules.errors import (
    BadValue,
    FeatureParamBelowFloor,
    FeatureParamInvalid,
    FeatureUnavailable,
)

DEDUPE: Final = "client_message_id_dedupe"
DEDUPE_VERSION: Final = 2
"""Version 2 compares fingerprints."""
FINGERPRINT_VERSION: Final = 2
"""The newest version of the formula that a broker reads; one that does not say so reads version 1
(see `fingerprint`)."""
PAYLOAD: Final = "max_payload"
CONNECTIONS: Final = "concurrent_connection_policy"
SYNC: Final = "mesh_sync"
"""Epochs with a base, ranges of seqs, snapshots: the frames of `protocol.frames`."""

NEEDS: Final[dict[str, int]] = {DEDUPE: DEDUPE_VERSION, PAYLOAD: 1, SYNC: 1}
"""The features, with versions, that a node of this version needs."""
PAYLOAD_BYTES_MIN: Final = 1024


Supported = Mapping[str, Mapping[str, Any]]


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What this broker offers, as far as a node has to keep to it."""

    mode: Mode
    retention_days: int | None
    """For how many days the broker remembers ids; None: for ever."""
    inline_bytes: int
    blob_bytes: int


def check_retention(mode: Mode, days: int) -> int:
    """The days that a broker is set to remember ids; raises if nodes would not work with so few."""
    if mode == "retention_scoped" and not (
        limits.DEDUPE_RETENTION_DAYS_MIN <= days <= limits.DEDUPE_RETENTION_DAYS_MAX
    ):
        if days < limits.DEDUPE_RETENTION_DAYS_MIN:
            raise FeatureParamBelowFloor(
                f"ids would be remembered for {days} days; "
                f"at least {limits.DEDUPE_RETENTION_DAYS_MIN} are needed",
                hint="give 3 days or more, or: permanent",
            )
        raise BadValue(f"{days} days are more than a broker counts", hint="use: permanent")
    return days


def offered(
    mode: Mode,
    days: int,
    *,
    inline_bytes: int = limits.ENVELOPE_BYTES_MAX,
    blob_bytes: int = limits.FILE_BYTES_MAX,
    connections: ConnectionPolicy = ConnectionPolicy.ALLOW_CONCURRENT,
) -> dict[str, dict[str, Any]]:
    """The features that a broker with these settings offers."""
    dedupe: dict[str, Any] = {
        "version": DEDUPE_VERSION,
        "mode": mode,
        "request_fingerprint": True,
        "fingerprint_version": FINGERPRINT_VERSION,
    }
    if mode == "retention_scoped":
        dedupe["dedupe_retention_days"] = check_retention(mode, days)
    return {
        DEDUPE: dedupe,
        PAYLOAD: {"version": 1, "inline_bytes": inline_bytes, "blob_bytes": blob_bytes},
        CONNECTIONS: {"version": 1, "default_policy": str(connections)},
        SYNC: {"version": 1},
    }


def check(supported: Supported) -> Terms:
    """The node's side: what this broker offers; raises if the node cannot work with it."""
    dedupe = _feature(supported, DEDUPE, DEDUPE_VERSION)
    payload = _feature(supported, PAYLOAD, 1)
    _feature(supported, SYNC, 1)
    mode = dedupe.get("mode")
    if mode not in ("permanent", "retention_scoped"):
        raise FeatureParamInvalid(f"{DEDUPE} has the mode {mode!r}")
    if dedupe.get("request_fingerprint") is not True:
        raise FeatureParamInvalid(f"{DEDUPE} does not compare fingerprints")
    reads = _number(dedupe, DEDUPE, "fingerprint_version") if "fingerprint_version" in dedupe else 1
    if reads < FINGERPRINT_VERSION:
        # It would refuse every message of ours for good.
        raise FeatureUnavailable(
            f"the broker reads fingerprints up to version {reads}, not {FINGERPRINT_VERSION}",
            hint="upgrade the broker before its members",
        )
    days: int | None = None
    if mode == "retention_scoped":
        days = _number(dedupe, DEDUPE, "dedupe_retention_days")
        if days < limits.DEDUPE_RETENTION_DAYS_MIN:
            raise FeatureParamBelowFloor(
                f"the broker remembers ids for {days} days; "
                f"at least {limits.DEDUPE_RETENTION_DAYS_MIN} are needed"
            )
    sizes = [_number(payload, PAYLOAD, name) for name in ("inline_bytes", "blob_bytes")]
    if min(sizes) < PAYLOAD_BYTES_MIN:
        raise FeatureParamBelowFloor(
            f"the broker takes {min(sizes)} bytes; at least {PAYLOAD_BYTES_MIN} are needed",
            hint="use a broker that takes more",
        )
    return Terms(mode=mode, retention_days=days, inline_bytes=sizes[0], blob_bytes=sizes[1])


def check_needs(needs: Mapping[str, int], supported: Supported) -> None:
    """The broker's side: raises if the broker lacks a feature that the node needs."""
    for name, version in needs.items():
        has = supported.get(name)
        if has is None or has["version"] < version:
            raise FeatureUnavailable(
                f"this broker has no {name} of version {version}", hint="upgrade the broker"
            )
        if version < has["version"]:
            raise FeatureParamInvalid(
                f"this broker has {name} of version {has['version']}, not {version}",
                hint="upgrade the node",
            )


def _feature(supported: Supported, name: str, version: int) -> Mapping[str, Any]:
    has = supported.get(name)
    if has is None:
        raise FeatureUnavailable(f"the broker does not have {name}")
    found = _number(has, name, "version")
    if found < version:
        # An older version is another feature: ids that are not compared are not safe to retry.
        raise FeatureUnavailable(f"the broker has {name} of version {found}, not {version}")
    if found > version:
        raise FeatureParamInvalid(f"{name} has version {found}, which this node does not know")
    return has


def _number(params: Mapping[str, Any], name: str, param: str) -> int:
    value = params.get(param)
    if type(value) is not int or not 0 <= value <= limits.LAMPORT_MAX:
        raise FeatureParamInvalid(f"{name} has {param} = {value!r}, which is no whole number")
    return value
