"""What callers of this node have proposed and wait for.

A proposal stays open until this node has applied an entry with its envelope's id, or its caller's
time is over. Until then the driver proposes it again whenever a leader may have lost it: the same
id is applied once, however often it stands in the log.

Whether a proposal may stand in some log decides what its caller hears at the end of its time: a
proposal that was only ever held here is certainly not committed, any other may still be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

import msgspec

from holdfast.rules.errors import TooMany
from holdfast.rules.limits import (
    QUORUM_OPEN_BYTES,
    QUORUM_OPEN_MAX,
    QUORUM_PROPOSALS_MAX,
    QUORUM_PROPOSED_BYTES,
)
from holdfast.rules.quorum.coordinated import coordinated
from holdfast.rules.quorum.raft.messages import Proposal


class ProposalEnd(StrEnum):
    """How it ends without having been applied."""

    NOT_PROPOSED = "not_proposed"
    """No leader has seen it: it is not committed and will not be."""
    UNKNOWN = "unknown"
    """It may be committed, now or later: ask again under the same id."""
    REFUSED = "refused"
    """This node takes part in no group any more, or its disk has failed."""
    CLOSED = "closed"
    """The order has ended before it: it is not committed, and will not be here."""


class AppliedProposal(msgspec.Struct, frozen=True):
    """It was applied at this index; `result` is what the fold said."""

    index: int
    result: object


ProposalAnswer = AppliedProposal | ProposalEnd
Answered = Callable[[ProposalAnswer], None]


class _Open(msgspec.Struct):
    proposal: Proposal
    ticks_left: int
    answers: list[Answered]
    exposed: bool = False
    """A leader may have it."""


class OpenProposals:
    """By id, in the order in which they came."""

    def __init__(self) -> None:
        self._open: dict[bytes, _Open] = {}
        self._due: dict[bytes, Proposal] = {}
        """Those that are to be proposed as soon as that is possible."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, proposal: Proposal, ticks: int, answered: Answered) -> None:
        """Two callers with one id share the proposal: it is the same intent. TooMany if as many are
        open as there is room for: then nobody has seen it.
        """
        known = self._open.get(proposal.id)
        if known is None:
            if len(self._open) >= QUORUM_OPEN_MAX or self._bytes >= QUORUM_OPEN_BYTES:
                raise TooMany(
                    f"{len(self._open)} strong writes of {self._bytes} bytes are under way here"
                )
            self._open[proposal.id] = _Open(proposal, ticks, [answered])
            self._due[proposal.id] = proposal
            self._bytes += len(proposal.payload)
        else:
            known.answers.append(answered)
            known.ticks_left = max(known.ticks_left, ticks)

    def due(self) -> Sequence[Proposal]:
        """The next that are to be proposed, as many as one step takes."""
        due: list[Proposal] = []
        size = 0
        for proposal in self._due.values():
            size += len(proposal.payload)
            if due and (size > QUORUM_PROPOSED_BYTES or len(due) == QUORUM_PROPOSALS_MAX):
                break
            due.append(proposal)
        if len(due) == len(self._due):
            self._due.clear()
        else:
            for proposal in due:
                del self._due[proposal.id]
        return due

    def exposed(self, ids: Iterable[bytes]) -> None:
        """A leader may have these from now on."""
        for id in ids:
            one = self._open.get(id)
            if one is not None:
                one.exposed = True

    def again(self, ids: Iterable[bytes] | None = None) -> None:
        """These, or all, are to be proposed once more."""
        asked = self._open if ids is None else [id for id in ids if id in self._open]
        if asked:
            wanted = {*self._due, *asked}
            self._due = {id: one.proposal for id, one in self._open.items() if id in wanted}

    def applied(self, id: bytes, index: int, result: object) -> None:
        one = self._open.pop(id, None)
        if one is not None:
            self._due.pop(id, None)
            self._bytes -= len(one.proposal.payload)
            for answered in one.answers:
                answered(AppliedProposal(index, result))

    def tick(self) -> None:
        """Ends those whose time is over."""
        for one in self._open.values():
            one.ticks_left -= 1
        for id in [id for id, one in self._open.items() if one.ticks_left <= 0]:
            self._end(id, None)

    def end_all(self, end: ProposalEnd | None = None) -> None:
        """Nobody will propose them any more."""
        for id in list(self._open):
            self._end(id, end)

    def _end(self, id: bytes, end: ProposalEnd | None) -> None:
        one = self._open.pop(id)
        self._due.pop(id, None)
        self._bytes -= len(one.proposal.payload)
        if one.exposed and end is not ProposalEnd.CLOSED:
            end = ProposalEnd.UNKNOWN
        for answered in one.answers:
            answered(end or ProposalEnd.NOT_PROPOSED)


def stamped(proposals: Sequence[Proposal], coordinator: str, now_ms: int) -> tuple[Proposal, ...]:
    """Proposals as the leader takes them into its log, with its name and clock."""
    now = max(0, now_ms)  # a clock before 1970 would make it unreadable
    return tuple(
        [Proposal(one.id, coordinated(coordinator, now, one.payload)) for one in proposals]
    )
