"""Snapshots that this node sends, as the leader, to members that lack what its log has dropped.

A transfer begins with what the snapshot is; the receiver says from which byte on it needs it, then
gets one part after the other, each when the one before it is on its disk. What is not answered is
sent again, and after a long silence the transfer is given up. However it ends, the machine is told,
and finds out by a probe what the member has now: it may order another one.

All transfers of a time share one snapshot. The log is not shortened while there are any, so that
what follows the snapshot is still there when it has arrived.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from holdfast.node.quorum.embedded.ports import GivenSnapshot, GroupSnapshots
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import QUORUM_SNAPSHOT_RESEND_TICKS, QUORUM_SNAPSHOT_STALL_TICKS
from holdfast.rules.quorum.raft.config import GroupConfig
from holdfast.rules.quorum.raft.effects import SendSnapshot
from holdfast.rules.quorum.raft.messages import (
    GroupSnapshotBegin,
    GroupSnapshotPart,
    Message,
    SnapshotReceived,
)
from holdfast.rules.quorum.raft.state import GroupState

log = logging.getLogger("holdfast")


class SendingDriver(Protocol):
    """What of its driver a sender uses."""

    @property
    def state(self) -> GroupState: ...
    def send(self, message: Message) -> None: ...
    def has_room(self, to: int) -> bool: ...


class _Shared(msgspec.Struct, frozen=True):
    """The snapshot that is sent, and what the log says of its last entry."""

    source: GivenSnapshot
    term: int
    config_index: int
    config: GroupConfig


class _Transfer(msgspec.Struct):
    to: int
    number: int
    at_least: int
    offset: int = -1
    """The part that is under way; below 0 until the receiver has said where it begins."""
    waited: int = 0
    silent: int = 0
    refused: bool = False


class SentSnapshots:
    """Belongs to the driver's thread."""

    def __init__(
        self, states: GroupSnapshots, driver: SendingDriver, finished: Callable[[int], None]
    ) -> None:
        """`finished` tells the machine that a transfer has ended."""
        self._states, self._driver, self._finished = states, driver, finished
        self._transfers: dict[int, _Transfer] = {}
        self._shared: _Shared | None = None
        self._asking = False
        self._numbers = 0
        self._term = 0

    @property
    def under_way(self) -> bool:
        return bool(self._transfers) or self._asking

    def begin(self, order: SendSnapshot) -> None:
        """The machine wants that member to get a snapshot."""
        if order.term != self._term:
            self.stop()
            self._term = order.term
        self._numbers += 1
        transfer = self._transfers[order.to] = _Transfer(order.to, self._numbers, order.at_least)
        if self._shared is not None:
            self._send(transfer)
        elif not self._asking:
            self._asking = True
            self._states.give(self._given)

    def stop(self) -> None:
        """This node does not lead any more, or leads another term."""
        self._transfers.clear()
        self._close()

    def received(self, message: SnapshotReceived) -> None:
        if self._is_over():
            return
        transfer = self._transfers.get(message.sender)
        if transfer is None or transfer.number != message.transfer or transfer.refused:
            return
        transfer.silent = 0
        if message.end == "taken":
            self._end(transfer)
        elif message.end == "refused":
            # It would refuse the same again: the machine hears of it after a while.
            log.error("member %d refuses the snapshot of this node", transfer.to)
            transfer.refused = True
        elif message.received != transfer.offset:
            transfer.offset = message.received
            self._send(transfer)

    def tick(self) -> None:
        if self._is_over():
            return
        state = self._driver.state
        for transfer in list(self._transfers.values()):
            transfer.silent += 1
            transfer.waited += 1
            if state.peer(transfer.to) is None or transfer.silent >= QUORUM_SNAPSHOT_STALL_TICKS:
                self._end(transfer)
            elif transfer.waited >= QUORUM_SNAPSHOT_RESEND_TICKS and not transfer.refused:
                self._send(transfer)

    def _is_over(self) -> bool:
        """Whether the term is over for which the machine has ordered them: it will order others."""
        state = self._driver.state
        if (state.role, state.term) == ("leader", self._term):
            return False
        self.stop()
        return True

    def _given(self, answer: GivenSnapshot | HoldfastError) -> None:
        self._asking = False
        if isinstance(answer, HoldfastError):
            # The members that wait for it hear nothing, and are given up after a while.
            log.error("this node cannot give a snapshot: %s", answer.message)
            return
        state = self._driver.state
        term = state.log.term_at(answer.index)
        if self._is_over() or not self._transfers or term < 0 or answer.index <= 0:
            answer.close()
            return
        self._shared = _Shared(answer, term, *state.log.config_at(answer.index))
        for transfer in list(self._transfers.values()):
            self._send(transfer)

    def _send(self, transfer: _Transfer) -> None:
        transfer.waited = 0
        shared, state = self._shared, self._driver.state
        if shared is None:
            if not self._asking:
                self._asking = True
                self._states.give(self._given)
            return
        source = shared.source
        head = (state.group, state.me, transfer.to, self._term)
        if not 0 <= transfer.offset < source.size:
            self._driver.send(
                GroupSnapshotBegin(
                    *head,
                    transfer.number,
                    source.index,
                    shared.term,
                    shared.config_index,
                    shared.config,
                    source.size,
                    source.digest,
                    state.round,
                )
            )
            return
        if not self._driver.has_room(transfer.to):
            return  # It is asked for again, or sent again after a while.
        try:
            part = source.part(transfer.offset)
        except HoldfastError as error:
            log.error("the snapshot for member %d cannot be read: %s", transfer.to, error.message)
            self._end(transfer)
            return
        self._driver.send(GroupSnapshotPart(*head, transfer.number, transfer.offset, part))

    def _end(self, transfer: _Transfer) -> None:
        del self._transfers[transfer.to]
        if not self._transfers:
            self._close()
        self._finished(transfer.to)

    def _close(self) -> None:
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.source.close()
