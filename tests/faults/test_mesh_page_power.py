"""The power goes at every moment while pages of a mesh arrive: entries and what they cover are
there together, or not at all.
"""

from __future__ import annotations

import pytest

from holdfast.simulate.disk.powerloss import cut_power, record
from support.mesh_page_disk import check, prepare, workload
from support.seeds import seeds

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("seed", seeds(1))
def test_B4_whenever_the_power_goes_a_page_and_what_it_covers_are_one(seed: int) -> None:
    report = cut_power(record(workload, prepare=prepare), check, seed=seed, samples=0)
    assert report.states > 20
    assert not report.failures, "\n".join(map(str, report.failures[:5]))
