"""A read says how fresh it is, and is refused rather than older than its caller allows."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

import pytest

from holdfast.node.quorum.api import ReadDemand
from holdfast.rules.errors import BadValue, NotFresh, NoVoters, TooStale
from holdfast.rules.quorum.degraded_read import check_snapshot
from holdfast.rules.quorum.moments import moment_text
from support.envelopes import MESH
from support.nodes import KINDS
from support.quorum_homes import QuorumHome, quorum_homes, run
from support.source import START_MS

LOCAL = ReadDemand(linearizable=False)
MINUTE_MS = 60_000


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def within(ms: int) -> ReadDemand:
    return ReadDemand(linearizable=False, staleness_ms_max=ms)


def confirmed_ago(home: QuorumHome, ms: int) -> None:
    home.order.confirmed_at = monotonic() - ms / 1000


def test_Q9_a_linearizable_read_sees_what_was_committed_before_it(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path, "ana", "bob") as (ana, bob):
            bob.order.cut = True
            await ana.put("m")
            bob.order.cut = False
            assert bob.missions() == {}
            read = await bob.api.confirm(MESH, ReadDemand())
            assert bob.missions() == {"m": '{"title":"t"}'}
            assert (read.mode, read.source_node_id, read.staleness_ms) == ("fresh", "bob", 0)
            assert read.as_of == moment_text(START_MS)

    run(story)


def test_Q9_a_linearizable_read_without_a_quorum_is_refused(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            await ana.put("m")
            ana.shared.lose_quorum()
            with pytest.raises(NotFresh):
                await ana.api.confirm(MESH, ReadDemand())
            with pytest.raises(NoVoters):
                await ana.api.confirm("other", ReadDemand())

    run(story)


def test_Q9_a_bounded_read_is_judged_by_the_last_confirmation(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            ana.shared.lose_quorum()
            with pytest.raises(TooStale):
                await ana.api.confirm(MESH, within(MINUTE_MS))
            confirmed_ago(ana, MINUTE_MS)
            with pytest.raises(TooStale):
                await ana.api.confirm(MESH, within(MINUTE_MS // 2))
            read = await ana.api.confirm(MESH, within(10 * MINUTE_MS))
            assert (read.mode, read.source_node_id) == ("degraded", None)
            assert read.staleness_ms >= MINUTE_MS
            ana.shared.has_quorum = True
            assert (await ana.api.confirm(MESH, within(1))).mode == "fresh", "it asked anew"
            with pytest.raises(BadValue):
                await ana.api.confirm(MESH, within(-1))

    run(story)


def test_Q9_a_degraded_read_names_the_last_recorded_snapshot(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            assert await ana.api.record_snapshots() == 0, "nothing was confirmed yet"
            await ana.put("m")
            assert await ana.api.record_snapshots() == 1
            snapshot = ana.read(lambda tx: tx.snapshot_latest(MESH))
            assert snapshot is not None
            check_snapshot(snapshot)
            ana.clock.advance(7_000)
            ana.shared.lose_quorum()
            await ana.put("n", timeout_ms=1)
            read = await ana.api.confirm(MESH, LOCAL)
            assert (read.mode, read.as_of) == ("degraded", moment_text(START_MS))
            assert (read.source_node_id, read.snapshot_version) == ("ana", snapshot.version)
            assert read.staleness_ms == 7_000
            assert (read.queue_depth, read.pending_write_count) == (1, 1)
            ana.clock.advance(-20_000)
            assert (await ana.api.confirm(MESH, LOCAL)).staleness_ms >= 0

    run(story)


def test_Q9_a_mesh_that_is_no_longer_confirmed_records_nothing(kind: str, tmp_path: Path) -> None:
    """What it says was last known would else get younger by itself."""

    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            await ana.put("m")
            ana.shared.lose_quorum()
            confirmed_ago(ana, 10 * MINUTE_MS)
            assert await ana.api.record_snapshots() == 0
            assert ana.read(lambda tx: tx.snapshot_latest(MESH)) is None

    run(story)


def test_Q9_a_mesh_in_which_something_was_committed_is_confirmed_for_its_snapshot(
    kind: str, tmp_path: Path
) -> None:
    async def story() -> None:
        async with quorum_homes(kind, tmp_path) as (ana,):
            await ana.put("m")
            confirmed_ago(ana, 10 * MINUTE_MS)
            assert await ana.api.record_snapshots() == 1
            confirmed_ago(ana, 10 * MINUTE_MS)
            assert await ana.api.record_snapshots() == 0, "it rests, and is not woken"

    run(story)
