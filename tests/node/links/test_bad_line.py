"""A link over a line that breaks after every so many bytes: real daemons, TLS, a proxy between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast.transport.fault_proxy import FaultProxy
from node.links.test_live import MESH, Map, Zone

EACH = 100_000
"""What every connection carries before it breaks."""
KIB = 1024


@pytest.fixture
def zones(tmp_path: Path) -> Iterator[Map]:
    with ExitStack() as ending:
        yield Map(tmp_path, ending)


@contextmanager
def line_between(plant: Zone, office: Zone) -> Iterator[FaultProxy]:
    plant.trusts(office, MESH)
    office.trusts(plant)
    port = int(plant.up.tls.rpartition(":")[2])
    with FaultProxy(("127.0.0.1", port)) as line:
        office.links.add("plant", f"https://127.0.0.1:{line.address[1]}", "plant", meshes=[MESH])
        yield line
        office.down()


def test_Z7_a_line_that_breaks_after_every_100_kb_carries_everything(zones: Map) -> None:
    """Nine times as much, in one batch, and an object that is larger than the line. What came whole
    is kept, and less is asked for, so the line carries little of it twice.
    """
    plant, office = zones.zone("plant"), zones.zone("office")
    for number in range(150):
        plant.team.facts.append(f"s{number}", "is", "x" * 5 * KIB)
    plant.team.files.share("large.bin", bytes(150_000))
    with line_between(plant, office) as line:
        line.cut_each(EACH)
        office.refresh()
        zones.until(lambda: len(office.subjects()) == 151)
        zones.until(lambda: office.status("plant").lag == 0)
        assert office.team.files.read("large.bin", peer="plant") == bytes(150_000)
        traffic = line.traffic()
    assert traffic.cuts > 5, "it did break"
    assert traffic.down < 3 * 900_000, "what the line carried was kept"


def test_Z7_an_entry_that_is_larger_than_the_line_is_named_and_the_lag_is_true(zones: Map) -> None:
    plant, office = zones.zone("plant"), zones.zone("office")
    with line_between(plant, office) as line:
        office.refresh()
        plant.write("first")
        zones.until(lambda: office.subjects() == ["first"])
        zones.until(lambda: office.status("plant").lag == 0)
        line.cut_each(EACH)
        plant.team.facts.append("large", "is", "x" * 500_000)
        plant.write("behind")
        zones.until(lambda: "entry 2 of plant" in str(office.status("plant").last_error))
        zones.until(lambda: office.status("plant").lag == 2)
        line.heal()
        office.refresh()
        zones.until(lambda: office.subjects() == ["first", "large", "behind"])
        zones.until(lambda: office.status("plant").lag == 0)


def test_Z7_how_far_a_link_lags_is_unknown_while_its_source_says_nothing(zones: Map) -> None:
    """It was 0 when they last spoke; who watches must not take that for now."""
    plant, office = zones.zone("plant"), zones.zone("office")
    with line_between(plant, office) as line:
        office.refresh()
        plant.write("first")
        zones.until(lambda: office.status("plant").lag == 0)
        line.refuse()
        line.cut()
        zones.until(lambda: office.status("plant").attempts > 1)
        assert office.status("plant").lag is None
        assert office.status("plant").source_head == 1
        line.heal()
        office.refresh()
        zones.until(lambda: office.status("plant").lag == 0)
