"""What a broker does when a member that is connected connects once more.

Two connections of one key are a node that lost its line and came back before the broker noticed, or
two copies of one home, which is nobody's intent. Both are safe: what is pushed twice is known by
its id. A broker that should tell them apart keeps one connection for each member.
"""

from __future__ import annotations

from enum import StrEnum


class ConnectionPolicy(StrEnum):
    """The words stand in the broker's features, so that a node can show them."""

    PREFER_NEWEST = "prefer_newest"
    """The new connection stays, the others are closed."""
    PREFER_OLDEST = "prefer_oldest"
    """The connection that is there stays, the new one is refused."""
    ALLOW_CONCURRENT = "allow_concurrent"
    """All of them stay."""


class Admission(StrEnum):
    """What follows for a connection whose member has just proved its key."""

    WELCOME = "welcome"
    REFUSE = "refuse"
    REPLACE = "replace"
    """It is welcome, and the others of this member are closed."""


def admission(policy: ConnectionPolicy, others: int) -> Admission:
    """`others` is how many connections of the member this broker process has already."""
    if not others or policy is ConnectionPolicy.ALLOW_CONCURRENT:
        return Admission.WELCOME
    return Admission.REPLACE if policy is ConnectionPolicy.PREFER_NEWEST else Admission.REFUSE
