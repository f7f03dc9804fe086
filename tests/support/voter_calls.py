"""One call of a client on a group of voters.

A client that hears nothing in time asks another voter once more, a write under the same id; then it
gives up, and what became of its call is open.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from holdfast.node.quorum.embedded.group_driver import GroupDriver
from holdfast.node.quorum.embedded.open_proposals import AppliedProposal, ProposalAnswer
from holdfast.rules.quorum.raft.messages import Proposal
from holdfast.simulate.quorum.registers import RegisterCommand, encode_command
from support.linearizability import Call

if TYPE_CHECKING:
    from support.voter_world import HistoryWorld, Voter

PATIENCE_TICKS: Final = 12
PATIENCE_MS: Final = 1_400
READS: Final = 0.4
COMPARES: Final = 0.5


class OpenCall:
    """A read, a write or a comparison of one key."""

    def __init__(self, world: HistoryWorld, number: int, key: str) -> None:
        self._world, self._number, self._key = world, number, key
        self._began, self._tries, self._is_over = world.now, 0, False
        self._command: RegisterCommand | None = None
        self._asked: tuple[object, ...] = ("read",)
        if world.chance.random() < READS:
            return
        seen = world.last_seen(key) if world.chance.random() < COMPARES else None
        self._asked = ("write", number) if seen is None else ("cas", seen or None, number)
        self._command = RegisterCommand(number.to_bytes(16, "big"), key, number, seen)

    def begin(self) -> None:
        voter = self._world.any_up()
        self._tries += 1
        # A voter that dies or stands still answers nobody.
        self._world.at(PATIENCE_MS, partial(self._unheard, self._tries))
        if voter is not None:
            voter.soon(0, partial(self._reach, voter, self._tries))

    def _reach(self, voter: Voter, attempt: int) -> None:
        driver = voter.driver
        assert driver is not None
        if self._command is None:
            self._read(voter, driver, attempt)
            return
        proposal = Proposal(self._command.id, encode_command(self._command))
        driver.propose(proposal, PATIENCE_TICKS, partial(self._proposed, attempt))

    def _read(self, voter: Voter, driver: GroupDriver, attempt: int) -> None:
        life = voter.life

        def read(index: int | None) -> None:
            if index is None:
                self._unheard(attempt)
            elif voter.life == life:
                self._end(True, voter.registers.values.get(self._key, 0) or None, voter.applied)

        driver.read(PATIENCE_TICKS, read)

    def _proposed(self, attempt: int, end: ProposalAnswer) -> None:
        if isinstance(end, AppliedProposal):
            answer = None if self._asked[0] == "write" else bool(end.result)
            self._end(True, answer, end.index)
        else:
            self._unheard(attempt)

    def _unheard(self, attempt: int) -> None:
        if self._is_over or attempt != self._tries:
            return
        if self._tries < self._world.tries:
            self.begin()
        else:
            self._end(False, None, None)

    def _end(self, is_answer: bool, answer: object, index: int | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        ended = self._world.now if is_answer else None
        call = Call(self._number, self._key, self._began, ended, self._asked, answer, index)
        self._world.ended(call)
