"""Voters as real processes, killed and stopped while clients write: one order, and nothing lost.

The worlds of `simulate/quorum` and `support.voter_histories` try far more; here are the parts that
they leave out: processes, signals, sockets, files, and HTTP.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import time

import apsw
import pytest

import holdfast
from support.cli import Cli
from support.etcd_orders import new_scope
from support.moved_nodes import etcd_address
from support.quorum_processes import (
    NEVER,
    Told,
    VoterGroup,
    VoterProcess,
    tell,
    three_voters,
)
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


def test_Q3_Q4_a_lock_on_the_raft_logs_of_all_voters_for_seconds_stops_nobody_for_good(
    group: VoterGroup,
) -> None:
    """Nothing can be promised or saved meanwhile; then all goes on, also a voter that led."""

    def hold() -> None:
        with ExitStack() as stack:
            for voter in group.voters.values():
                held = stack.enter_context(closing(apsw.Connection(str(voter.home / "quorum.db"))))
                held.set_busy_timeout(5000)
                held.execute("BEGIN IMMEDIATE")
            NEVER.wait(3)

    told = tell(group, calls=60, seed=2, prefix="logs-", faults=[("held", 20, hold)])
    assert len([call for call in told.history if call.ended is not None]) >= 30
    assert max(at for _, at in told.acknowledged) > told.marks["held"] + 3, "it went on"
    for voter in group.voters.values():
        order = voter.order()
        assert order["part"] in ("voter", "coordinator"), order


def test_Q4_many_ordinary_writes_beside_a_voter_cause_no_election(group: VoterGroup) -> None:
    """By another process in the home of the one that leads, as fast as it can."""
    leader = group.leader()
    before = leader.order()

    def ordinary() -> None:
        with holdfast.open(leader.home, sync="normal") as node:
            for number in range(3000):
                node.mesh("team").state.set(f"k{number}", number)

    writing = threading.Thread(target=ordinary)
    writing.start()
    told = tell(group, calls=40, seed=4, prefix="beside-", faults=[])
    writing.join(60)
    assert not writing.is_alive()
    assert len([call for call in told.history if call.ended is not None]) == 40
    for voter in group.voters.values():
        after = voter.order()
        assert (after["lease_epoch"], after["coordinator"]) == (
            before["lease_epoch"],
            before["coordinator"],
        )


def test_Q4_Q9_voters_whose_clocks_are_hours_apart_decide_and_read_as_ever(
    group: VoterGroup,
) -> None:
    """One is an hour ahead and one an hour behind: no lease, read or outcome goes by that."""
    ana, bo, cy = group.voters.values()

    def sets(voter: VoterProcess, ahead_s: int) -> None:
        voter.kill()
        voter.restart(ahead_s=ahead_s)

    told = tell(
        group,
        calls=90,
        seed=3,
        prefix="hours-",
        faults=[
            ("ahead", 20, lambda: sets(bo, 3600)),
            ("behind", 50, lambda: sets(cy, -3600)),
        ],
    )
    assert len([call for call in told.history if call.ended is not None]) >= 45
    for voter, ahead_s in ((ana, 0), (bo, 3600), (cy, -3600)):
        entity = {
            "operations": [{"type": "mission", "id": "when", "fields": {"title": voter.name}}]
        }
        made = voter.ask("POST", "/entities", {**entity, "timeout_ms": 20_000})
        assert made.json["outcome"] == "applied", made
        read = voter.ask("GET", "/entities/mission/when").json
        assert (read["read"]["mode"], read["read"]["stalenessMs"]) == ("fresh", 0)
        assert read["entity"]["fence"].partition("@")[0] == made.json["fence"]
        says = datetime.fromisoformat(read["read"]["asOf"]).timestamp()
        assert abs(says - time() - ahead_s) < 600, "its clock is as it was set"


def test_Q3_Q13_a_mesh_moves_by_a_command_and_comes_back_by_a_call_while_clients_write(
    group: VoterGroup,
) -> None:
    ana, bo, _ = group.voters.values()
    # The clocks of some may be set by another test; ids and etcd go by none.
    address = etcd_address(new_scope())

    def to_etcd() -> None:
        moved = Cli(ana.home)("quorum", "move", "team", "--engine", address, "--json")
        assert moved.json["engine"] == "etcd"

    def back() -> None:
        answer = ana.ask("POST", "/move", {"engine": "embedded", "voters": ["bo", "cy"]})
        assert answer.status == 200, answer
        assert answer.json["engine"] == "embedded"

    told = tell(
        group,
        calls=120,
        seed=6,
        prefix="moved-",
        faults=[("etcd", 30, to_etcd), ("back", 80, back)],
    )
    assert len([call for call in told.history if call.ended is not None]) >= 60
    assert bo.order()["incarnation"] == 3
    assert sorted(one["peer"] for one in bo.order()["members"]) == ["ana", "bo", "cy"]
