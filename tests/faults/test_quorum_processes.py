"""Voters as real processes, killed and stopped while clients write: one order, and nothing lost.

The worlds of `simulate/quorum` and `support.voter_histories` try far more; here are the parts that
they leave out: processes, signals, sockets, files, and HTTP.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw
import pytest

from support.quorum_processes import NEVER, Told, VoterGroup, tell, three_voters
from support.seeds import seeds

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

CALLS = 120


@pytest.fixture(scope="module")
def group() -> Iterator[VoterGroup]:
    with (
        TemporaryDirectory(prefix="holdfast-", ignore_cleanup_errors=True) as folder,
        three_voters(Path(folder)) as voters,
    ):
        yield voters


@pytest.mark.parametrize("seed", seeds(1))
def test_Q4_Q5_a_killed_leader_loses_nothing_that_was_acknowledged(
    group: VoterGroup, seed: int
) -> None:
    leader = group.leader()
    told = tell(
        group,
        calls=CALLS,
        seed=seed,
        prefix=f"killed-{seed}-",
        faults=[("kill", CALLS // 3, leader.kill), ("back", CALLS // 2, leader.restart)],
    )
    print(f"writes went on {told.pause_after('kill'):.2f} s after the leader was killed")
    _check_worth(told)


@pytest.mark.parametrize("seed", seeds(1))
def test_Q4_Q6_a_leader_that_wakes_up_writes_nothing_and_shows_nothing_old(
    group: VoterGroup, seed: int
) -> None:
    """Its clients' questions wait in its socket meanwhile: they are the first that it handles."""
    leader = group.leader()
    before = leader.order()["lease_epoch"]

    def until_another_leads() -> None:
        group.leader(but=leader, above=before)

    told = tell(
        group,
        calls=CALLS,
        seed=seed,
        prefix=f"woken-{seed}-",
        faults=[
            ("stop", CALLS // 3, lambda: leader.signal(signal.SIGSTOP)),
            ("elected", 0, until_another_leads),
            ("wake", CALLS // 2, lambda: leader.signal(signal.SIGCONT)),
        ],
    )
    print(f"writes went on {told.pause_after('stop'):.2f} s after the leader was stopped")
    _check_worth(told)
    after = leader.order()
    assert after["lease_epoch"] > before


def _check_worth(told: Told) -> None:
    """Whether the history says something: enough was answered, before and after."""
    answered = [call for call in told.history if call.ended is not None]
    assert len(answered) >= CALLS // 2, "too few answers to judge by"
    struck, *_, healed = told.marks.values()
    writes = [at for _, at in told.acknowledged]
    assert min(writes) < struck, "nothing was acknowledged before the fault"
    assert max(writes) > healed, "nothing was acknowledged after it"


def test_Q4_a_lock_on_the_data_of_all_voters_for_seconds_causes_no_election(
    group: VoterGroup,
) -> None:
    """Votes and terms have a file of their own: another process that holds the write lock of a
    home, longer than an election takes, delays writes and deposes nobody.
    """
    before = group.leader().order()
    with ExitStack() as stack:
        for voter in group.voters.values():
            held = stack.enter_context(closing(apsw.Connection(str(voter.home / "data.db"))))
            held.execute("BEGIN IMMEDIATE")
        # So long is the claim: more than one election timeout, which is 1 to 2 s.
        NEVER.wait(3)
    told = tell(group, calls=30, seed=1, prefix="locked-", faults=[])
    assert len([call for call in told.history if call.ended is not None]) == 30
    for voter in group.voters.values():
        after = voter.order()
        assert (after["lease_epoch"], after["coordinator"]) == (
            before["lease_epoch"],
            before["coordinator"],
        )
