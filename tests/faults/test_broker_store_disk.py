"""Every call to the disk fails in turn; a broker's store keeps what it acknowledged, once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from holdfast.rules.broker_rows import AcceptVerdict
from holdfast.rules.errors import HoldfastError, OutcomeUnknown, StoreFailed
from holdfast.simulate.disk.disk import FaultyDisk
from holdfast.simulate.disk.every_call_fails import sweep
from holdfast.simulate.disk.faults import FailAt
from holdfast.simulate.disk.powerloss import cut_power, record
from holdfast.simulate.disk.workload import Acknowledge
from holdfast.storage.broker.sqlite import SqliteBrokerStore
from support.broker_stores import NOW, TEAM, accept, arriving, queued, topic, with_team

pytestmark = pytest.mark.faults

GROUPS = ([arriving(1), topic(2), queued(3)], [arriving(3, fingerprint=bytes(32)), arriving(4)])


def prepare(directory: Path) -> None:
    async def make() -> None:
        store = SqliteBrokerStore(directory / "b", tell_copies=False)
        await store.open(NOW)
        await with_team(store)
        await store.close()

    asyncio.run(make())


def workload(directory: Path, vfs: str, acknowledge: Acknowledge, sync: str = "full") -> None:
    async def work() -> None:
        store = SqliteBrokerStore(
            directory / "b", sync=sync, vfs=vfs, mark_rows=2, tell_copies=False
        )
        await store.open(NOW)
        try:
            for group in GROUPS:
                for one, answer in zip(group, await accept(store, *group), strict=True):
                    if answer.verdict is AcceptVerdict.CREATED:
                        acknowledge((one, answer.seq))
        finally:
            await store.close()

    asyncio.run(work())


def check(directory: Path, acknowledged: Sequence[object], error: BaseException | None) -> None:
    assert error is None or isinstance(error, HoldfastError), repr(error)

    async def look() -> None:
        store = SqliteBrokerStore(directory / "b", tell_copies=False)
        await store.open(NOW)
        try:
            mesh = await store.mesh_get(TEAM)
            assert mesh is not None
            assert mesh.epoch == 1
            for told in acknowledged:
                assert isinstance(told, tuple)
                one, seq = told
                (known,) = await store.known(TEAM, [(one.id, one.fingerprint)])
                assert known is not None
                assert (known.verdict, known.seq) == (AcceptVerdict.DUPLICATE, seq)
            assert await store.orphans(10) == []
            assert (await store.counts())["messages"] == mesh.seq
            # Whoever got no answer asks again, and it is there once.
            for group in GROUPS:
                await accept(store, *group)
            after = await store.mesh_get(TEAM)
            assert after is not None
            assert after.seq == 4
        finally:
            await store.close()

    asyncio.run(look())


def test_R2_a_store_whose_disk_fails_at_any_call_keeps_what_it_acknowledged() -> None:
    report = sweep(workload, check, modes=("once",), prepare=prepare)
    assert report.calls > 50
    assert not report.failures, "\n".join(map(str, report.failures[:5]))


def test_R2_power_that_goes_at_any_moment_takes_nothing_that_was_acknowledged() -> None:
    recording = record(workload, prepare=prepare)
    report = cut_power(recording, lambda place, told: check(place, told, None), samples=2)
    assert report.states > 50
    assert not report.failures, "\n".join(map(str, report.failures[:5]))


def test_R2_with_less_syncing_the_same_look_finds_what_is_lost() -> None:
    recording = record(partial(workload, sync="normal"), prepare=prepare)
    assert cut_power(recording, lambda place, told: check(place, told, None), samples=0).failures


def test_R2_after_a_commit_that_nobody_knows_the_end_of_the_store_does_nothing_more(
    tmp_path: Path,
) -> None:
    prepare(tmp_path)
    healthy = FaultyDisk(trace=True)
    with healthy:
        workload(tmp_path, healthy.name, lambda _: None)
    unknown = 0
    for number in range(1, healthy.calls + 1):
        folder = tmp_path / f"{number}"
        prepare(folder)
        with FaultyDisk(FailAt(number, "ioerr", "once")) as disk:
            unknown += asyncio.run(_refuses_after_unknown(folder, disk.name))
            if disk.handles:
                disk.kill()
        if unknown:
            return
    pytest.fail("no fault hit a commit")


async def _refuses_after_unknown(folder: Path, vfs: str) -> bool:
    store = SqliteBrokerStore(folder / "b", vfs=vfs, tell_copies=False)
    try:
        await store.open(NOW)
        await accept(store, arriving(1))
    except OutcomeUnknown:
        if store._con is None:
            return False  # while it was opened
        with pytest.raises(StoreFailed):
            await accept(store, arriving(1))
        with pytest.raises(StoreFailed):
            await store.mesh_get(TEAM)
        return True
    except HoldfastError:
        return False
    finally:
        await store.close()
    return False
