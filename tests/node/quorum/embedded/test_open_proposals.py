"""What callers hear of their proposals and reads, and when."""

from __future__ import annotations

from holdfast.node.quorum.embedded.open_proposals import (
    AppliedProposal,
    OpenProposals,
    ProposalAnswer,
    ProposalEnd,
)
from holdfast.node.quorum.embedded.open_reads import OpenReads
from holdfast.rules.limits import QUORUM_PROPOSALS_MAX
from holdfast.rules.quorum.raft.messages import Proposal


def proposal(number: int) -> Proposal:
    return Proposal(number.to_bytes(16, "big"), b"payload")


def test_Q3_a_caller_hears_of_its_proposal_when_it_is_applied_and_once() -> None:
    heard: list[ProposalAnswer] = []
    waiting = OpenProposals()
    waiting.add(proposal(1), 3, heard.append)
    waiting.add(proposal(1), 3, heard.append)
    assert waiting.due() == [proposal(1)], "two callers with one id have one proposal"
    assert waiting.due() == []
    waiting.applied(proposal(1).id, 7, "applied")
    waiting.applied(proposal(1).id, 9, "again")
    assert heard == [AppliedProposal(7, "applied")] * 2
    assert len(waiting) == 0


def test_Q3_only_what_no_leader_can_have_is_denied_when_time_is_over() -> None:
    heard: list[ProposalAnswer] = []
    waiting = OpenProposals()
    for number in (1, 2):
        waiting.add(proposal(number), 2, heard.append)
    waiting.due()
    waiting.exposed([proposal(2).id])
    waiting.tick()
    assert heard == []
    waiting.tick()
    assert heard == [ProposalEnd.NOT_PROPOSED, ProposalEnd.UNKNOWN]


def test_Q6_what_a_leader_may_have_lost_is_proposed_again_in_order() -> None:
    waiting = OpenProposals()
    for number in range(QUORUM_PROPOSALS_MAX + 2):
        waiting.add(proposal(number), 10, lambda answer: None)
    assert len(waiting.due()) == QUORUM_PROPOSALS_MAX
    assert [one.id for one in waiting.due()] == [
        proposal(QUORUM_PROPOSALS_MAX).id,
        proposal(QUORUM_PROPOSALS_MAX + 1).id,
    ]
    waiting.again([proposal(5).id, proposal(3).id, b"nobody's"])
    assert [one.id for one in waiting.due()] == [proposal(3).id, proposal(5).id]


def test_Q8_a_node_that_stops_says_what_it_knows() -> None:
    heard: list[ProposalAnswer] = []
    waiting = OpenProposals()
    waiting.add(proposal(1), 10, heard.append)
    waiting.end_all(ProposalEnd.REFUSED)
    waiting.add(proposal(2), 10, heard.append)
    waiting.exposed([proposal(2).id])
    waiting.end_all(ProposalEnd.REFUSED)
    assert heard == [ProposalEnd.REFUSED, ProposalEnd.UNKNOWN]


def test_Q9_a_read_waits_for_its_confirmation_and_for_our_own_fold() -> None:
    heard: list[int | None] = []
    reads = OpenReads()
    reads.add(5, heard.append)
    reads.add(5, heard.append)
    number = reads.ask()
    assert number is not None
    assert reads.ask() is None, "both share it"
    reads.add(5, heard.append)  # comes after the question: it needs another answer
    reads.confirmed(number, 8, applied=6)
    assert heard == []
    reads.applied(8)
    assert heard == [8, 8]
    later = reads.ask()
    assert later is not None
    reads.failed(later)
    assert reads.ask() == later + 1, "it is asked for again"


def test_Q9_a_read_that_nobody_confirms_ends_in_time() -> None:
    heard: list[int | None] = []
    reads = OpenReads()
    for _ in range(3):
        reads.add(2, heard.append)
    reads.ask()
    reads.add(1, heard.append)
    reads.tick()
    assert heard == [None]
    reads.again()
    reads.tick()
    assert heard == [None] * 4
    assert len(reads) == 0
