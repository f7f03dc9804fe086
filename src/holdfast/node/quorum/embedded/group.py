"""One group of this node, and what its mesh says about who may vote in it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from holdfast.node.quorum.embedded.group_driver import GroupDriver
from holdfast.node.quorum.embedded.log_disk import LogDisk
from holdfast.node.quorum.embedded.order import EmbeddedOrder
from holdfast.rules.quorum.log_rows import GroupRow
from holdfast.rules.quorum.raft.config import GroupMember
from holdfast.rules.quorum.raft.messages import Message


class MeshTrust(Protocol):
    """What a mesh says about who may vote in it."""

    def our_key(self) -> bytes: ...
    def is_ours(self, key: bytes) -> bool:
        """Whether this is the key of this node, or was."""

    def keys(self, key: bytes) -> tuple[bytes, ...]:
        """A linked peer's key, and those that it had before."""

    def may_vote(self, mesh: str, keys: Sequence[bytes]) -> bool:
        """Whether the owner of the mesh gave somebody with one of these keys the right to vote."""


class Group:
    """One group of this node, while it takes part."""

    def __init__(
        self, row: GroupRow, order: EmbeddedOrder, disk: LogDisk, trust: MeshTrust
    ) -> None:
        self.row, self.order, self.disk, self._trust = row, order, disk, trust
        self.waiting: set[asyncio.Future[None]] = set()
        """Who waits for other members, another leader or another standing."""
        self.standing: object = None
        """What they were told of last."""

    @property
    def driver(self) -> GroupDriver:
        return self.order.driver

    @property
    def leads(self) -> bool:
        return self.driver.state.role == "leader"

    @property
    def is_idle(self) -> bool:
        """Whether it needs no ticks."""
        driver = self.driver
        return driver.state.asleep and not len(driver.proposals) and not len(driver.reads)

    # --- GroupSide -----------------------------------------------------------------------------

    def key_of(self, id: int) -> bytes | None:
        return self.driver.key_of(id)

    def may_speak(self, keys: Sequence[bytes]) -> bool:
        return self._trust.may_vote(self.row.scope, keys)

    def receive(self, message: Message, contact: GroupMember) -> None:
        self.driver.receive(message, contact)
