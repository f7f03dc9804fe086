"""Every call to the disk fails in turn, and the power goes at every moment: the Raft logs keep what
they acknowledged, nothing is half there, and no voter is taken for one that has forgotten.
"""

from __future__ import annotations

from functools import partial

import pytest

from holdfast.simulate.disk.every_call_fails import sweep
from holdfast.simulate.disk.powerloss import cut_power, record
from holdfast.storage.sqlite.quorum.engine import QuorumEngine
from support.quorum_log_disk import check, prepare, workload
from support.seeds import seeds

pytestmark = pytest.mark.faults


def test_Q3_whatever_call_of_the_disk_fails_nothing_acknowledged_is_lost() -> None:
    report = sweep(workload, check, prepare=prepare, modes=("once",))
    assert report.calls > 50
    assert not report.failures, "\n".join(map(str, report.failures[:5]))


@pytest.mark.parametrize("seed", seeds(1))
def test_Q3_whenever_the_power_goes_nothing_acknowledged_is_lost(seed: int) -> None:
    recording = record(workload, prepare=prepare)
    report = cut_power(recording, lambda at, told: check(at, told, None), seed=seed, samples=1)
    assert report.states > 50
    assert not report.failures, "\n".join(map(str, report.failures[:5]))


def test_Q3_with_less_syncing_the_same_look_finds_what_is_lost() -> None:
    recording = record(partial(workload, sync="normal"), prepare=prepare)
    assert cut_power(recording, lambda at, told: check(at, told, None), samples=0).failures


def test_Q4_a_mark_that_is_written_before_its_commit_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mark would claim a vote that a power cut then takes: a voter would be taken for one that
    has forgotten.
    """
    real = QuorumEngine.commit

    def commit(self: QuorumEngine) -> None:
        self._mark()
        real(self)

    monkeypatch.setattr(QuorumEngine, "commit", commit)
    recording = record(workload, prepare=prepare)
    report = cut_power(recording, lambda at, told: check(at, told, None), samples=0)
    assert any("older than what this node had" in loss.problem for loss in report.failures)
