"""Every call to the disk fails in turn, and the power goes at every moment: the store of the bus
keeps what it acknowledged, gives no number twice, and has a row for every message that its mark
refuses.
"""

from __future__ import annotations

from functools import partial

import pytest

from holdfast.simulate.disk.every_call_fails import sweep
from holdfast.simulate.disk.powerloss import cut_power, record
from support.mesh_store_disk import check, prepare, workload
from support.seeds import seeds

pytestmark = pytest.mark.faults


def test_B4_whatever_call_of_the_disk_fails_nothing_is_lost_or_taken_twice() -> None:
    report = sweep(workload, check, prepare=prepare, modes=("once",))
    assert report.calls > 50
    assert not report.failures, "\n".join(map(str, report.failures[:5]))


@pytest.mark.parametrize("seed", seeds(1))
def test_B4_whenever_the_power_goes_nothing_is_lost_or_taken_twice(seed: int) -> None:
    recording = record(workload, prepare=prepare)
    report = cut_power(recording, lambda at, told: check(at, told, None), seed=seed, samples=1)
    assert report.states > 50
    assert not report.failures, "\n".join(map(str, report.failures[:5]))


def test_B4_with_less_syncing_the_same_look_finds_what_is_lost() -> None:
    recording = record(partial(workload, sync="normal"), prepare=prepare)
    assert cut_power(recording, lambda at, told: check(at, told, None), samples=0).failures
