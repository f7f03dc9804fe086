"""What callers hear of their proposals and reads, and when."""

from __future__ import annotations

import pytest

from holdfast.node.quorum.embedded.open_proposals import (
    AppliedProposal,
    OpenProposals,
    ProposalAnswer,
    ProposalEnd,
)
from holdfast.node.quorum.embedded.open_reads import OpenReads
from holdfast.rules.errors import TooMany
from holdfast.rules.limits import (
    QUORUM_OPEN_BYTES,
    QUORUM_OPEN_MAX,
    QUORUM_OPEN_READS_MAX,
    QUORUM_PROPOSALS_MAX,
    QUORUM_READS_ASKED,
)
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


def test_Q3_a_node_holds_only_so_many_proposals_and_bytes_of_them() -> None:
    waiting, heard = OpenProposals(), list[ProposalAnswer]()
    for number in range(QUORUM_OPEN_MAX):
        waiting.add(proposal(number), 10, heard.append)
    with pytest.raises(TooMany):
        waiting.add(proposal(QUORUM_OPEN_MAX), 10, heard.append)
    waiting.add(proposal(0), 10, heard.append)  # the same one again costs nothing
    waiting.applied(proposal(1).id, 1, "applied")
    waiting.add(proposal(QUORUM_OPEN_MAX), 10, heard.append)

    large = OpenProposals()
    payload = bytes(QUORUM_OPEN_BYTES // 8)
    for number in range(8):
        large.add(Proposal(number.to_bytes(16, "big"), payload), 1, heard.append)
    with pytest.raises(TooMany):
        large.add(proposal(9), 10, heard.append)
    large.tick()
    large.add(proposal(9), 10, heard.append)


def test_Q9_a_node_asks_for_few_reads_at_a_time_and_holds_only_so_many() -> None:
    reads, heard = OpenReads(), list[int | None]()
    for number in range(1, QUORUM_READS_ASKED + 1):
        reads.add(10, heard.append)
        assert reads.ask() == number
    for _ in range(QUORUM_OPEN_READS_MAX - QUORUM_READS_ASKED):
        reads.add(10, heard.append)
    assert (reads.ask(), reads.is_due) == (None, False), "they wait for an answer to an earlier one"
    with pytest.raises(TooMany):
        reads.add(10, heard.append)
    reads.confirmed(1, 7, 7)
    assert (heard, reads.is_due) == ([7], True)
    assert reads.ask() == QUORUM_READS_ASKED + 1, "all of them share the next number"
    reads.confirmed(QUORUM_READS_ASKED + 1, 8, 8)
    assert len(heard) == 1 + QUORUM_OPEN_READS_MAX - QUORUM_READS_ASKED
