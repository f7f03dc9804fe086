"""The snapshot that comes in: its parts go to the disk, are checked together, and then the machine
hears of it.

One comes in at a time. Its parts are durable, so a transfer that broke off goes on where it was,
after a restart too. Nothing that anybody reads changes before all parts are there and every row of
them was looked at; what is refused then is dropped, and its sender hears so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Literal

import msgspec

from holdfast.node.quorum.embedded.ports import GroupSnapshots, IntakeDisk
from holdfast.node.quorum.embedded.sent_snapshots import SendingDriver
from holdfast.rules.errors import HoldfastError
from holdfast.rules.quorum.log_rows import QuorumSnapshot
from holdfast.rules.quorum.raft.config import encode_config
from holdfast.rules.quorum.raft.messages import (
    GroupSnapshotBegin,
    GroupSnapshotPart,
    SnapshotOffer,
    SnapshotReceived,
)

log = logging.getLogger("holdfast")


class _Incoming(msgspec.Struct):
    begin: GroupSnapshotBegin
    snapshot: QuorumSnapshot
    received: int = 0


class IncomingSnapshot:
    """Belongs to the driver's thread."""

    def __init__(
        self,
        disk: IntakeDisk,
        states: GroupSnapshots,
        driver: SendingDriver,
        offer: Callable[[SnapshotOffer], None],
    ) -> None:
        """`offer` hands a whole and checked snapshot to the machine."""
        self._disk, self._states, self._driver, self._offer = disk, states, driver, offer
        self._now: _Incoming | None = None
        self._busy = False
        """The disk or the check is at work; what comes meanwhile is sent again."""
        self.error: HoldfastError | None = None
        """Why the last snapshot was refused."""

    def begin(self, message: GroupSnapshotBegin) -> None:
        """A leader is about to send a snapshot."""
        if self._busy:
            if self._now is not None and self._is_of_now(message):
                self._answer(self._now)  # It is being checked: its sender hears that we live.
            return
        if message.index <= self._driver.state.commit:
            self._reply(message, message.size, "taken")
            return
        if self._now is not None and self._is_of_now(message):
            self._answer(self._now)
            return
        snapshot = QuorumSnapshot(
            index=message.index,
            term=message.index_term,
            config=encode_config(message.config),
            size=message.size,
            digest=message.digest,
        )
        self._now = _Incoming(message, snapshot)
        self._busy = True
        self._disk.intake_begin(snapshot, partial(self._begun, self._now))

    def part(self, message: GroupSnapshotPart) -> None:
        now = self._now
        if self._busy or now is None or not self._is_of_now(message):
            return
        if message.offset != now.received:
            self._answer(now)
            return
        self._busy = True
        self._disk.intake_add(message.offset, message.content, partial(self._added, now))

    def _is_of_now(self, message: GroupSnapshotBegin | GroupSnapshotPart) -> bool:
        begin = None if self._now is None else self._now.begin
        return begin is not None and (begin.sender, begin.term, begin.transfer) == (
            message.sender,
            message.term,
            message.transfer,
        )

    def _begun(self, now: _Incoming, answer: int | HoldfastError) -> None:
        self._busy = False
        if isinstance(answer, HoldfastError):
            # For example: our disk does not know of the leader's term yet. It will begin again.
            log.info("a snapshot cannot begin: %s", answer.message)
            self._now = None
            return
        self._came(now, answer)

    def _added(self, now: _Incoming, answer: int | HoldfastError) -> None:
        self._busy = False
        if isinstance(answer, HoldfastError):
            log.warning("a part of a snapshot cannot be kept: %s", answer.message)
            return
        self._came(now, answer)

    def _came(self, now: _Incoming, received: int) -> None:
        now.received = received
        self._answer(now)
        if received == now.snapshot.size:
            self._busy = True
            self._states.check(now.snapshot, self._disk.intake_part, partial(self._checked, now))

    def _checked(self, now: _Incoming, error: HoldfastError | None) -> None:
        self._busy = False
        self._now, self.error = None, error
        begin = now.begin
        if error is not None:
            log.error("a snapshot of the quorum is refused: %s", error.message)
            self._reply(begin, 0, "refused")
            self._drop()
            return
        self._offer(
            SnapshotOffer(
                begin.group,
                begin.sender,
                begin.to,
                begin.term,
                begin.index,
                begin.index_term,
                begin.config_index,
                begin.config,
                begin.round,
            )
        )
        state = self._driver.state
        if state.commit >= begin.index:
            self._reply(begin, begin.size, "taken")
            if state.log.boundary < begin.index:
                self._drop()  # Our log has the entries themselves.

    def _drop(self) -> None:
        self._busy = True

        def dropped(error: HoldfastError | None) -> None:
            self._busy = False
            if error is not None:
                log.warning("parts of a snapshot stay on the disk: %s", error.message)

        self._disk.intake_drop(dropped)

    def _answer(self, now: _Incoming) -> None:
        self._reply(now.begin, now.received, "")

    def _reply(
        self, begin: GroupSnapshotBegin, received: int, end: Literal["", "taken", "refused"]
    ) -> None:
        state = self._driver.state
        head = (state.group, state.me, begin.sender, state.term)
        self._driver.send(SnapshotReceived(*head, begin.transfer, received, end))
