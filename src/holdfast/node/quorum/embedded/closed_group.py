"""A group that has ended because its mesh moved to another engine.

A voter that was away when that happened comes back and asks the others for their votes. They answer
that it no longer belongs to the group: once most of them have said so it stops, becomes a plain
member of the mesh, and gets the end of the order, and what came after it, as members do.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.node.quorum.embedded.group import MeshTrust
from holdfast.node.quorum.embedded.ports import VoterNet
from holdfast.rules.quorum.log_rows import GroupRow
from holdfast.rules.quorum.raft.config import GroupConfig, GroupMember
from holdfast.rules.quorum.raft.messages import AskVote, Message, RemovedVoter


class ClosedGroup:
    """A `GroupSide` that answers questions for votes, and nothing else."""

    def __init__(self, row: GroupRow, config: GroupConfig, net: VoterNet, trust: MeshTrust) -> None:
        self._row, self._config, self._net, self._trust = row, config, net, trust

    def key_of(self, id: int) -> bytes | None:
        member = self._config.member(id)
        return None if member is None else member.key

    def may_speak(self, keys: Sequence[bytes]) -> bool:
        return self._trust.may_vote(self._row.scope, keys)

    def receive(self, message: Message, contact: GroupMember) -> None:
        if isinstance(message, AskVote):
            me = self._row.voter
            answer = RemovedVoter(message.group, me, message.sender, message.term)
            self._net.send(contact, answer)
