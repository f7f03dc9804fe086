"""Checks of the doctor about the groups in which this node votes. They change nothing."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.node.recovery.checks import Check, ok, warn
from holdfast.rules.errors import BadQuorumMessage
from holdfast.rules.quorum.raft.config import decode_config
from holdfast.storage.files.home import HomePaths
from holdfast.storage.sqlite.quorum.look import SeenGroup, read_groups


def check_quorum(paths: HomePaths) -> Iterator[Check]:
    if not paths.quorum.exists():
        return  # most homes have no part in a quorum
    groups = read_groups(paths)
    for group, _ in groups:
        if group.standing == "must_rejoin":
            yield warn(
                "quorum",
                f"voter {group.voter} of {group.scope} takes no part: {group.reason}",
                "remove this voter from the group, then add the node again",
            )
    voting = sum(map(_votes, groups))
    yield ok("quorum", f"this node has a part in {len(groups)} groups, and votes in {voting}")


def _votes(seen: SeenGroup) -> bool:
    """Who came as a learner is noted as one for good; that it votes by now says the config."""
    if seen.group.standing != "learner" or not seen.config:
        return seen.group.standing == "voter"
    try:
        return decode_config(seen.config).is_voter(seen.group.voter)
    except BadQuorumMessage:
        return False
