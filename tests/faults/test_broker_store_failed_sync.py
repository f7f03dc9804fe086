"""After a sync that failed, a broker's store does not build on what the system only seems to have.

The page cache shows what was written, and takes it for clean: it is never written again. Whoever
appends to such a log loses all of that with the next power cut.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.rules.broker_rows import AcceptVerdict
from holdfast.rules.errors import HoldfastError, Unknown
from holdfast.simulate.disk.faults import DiskCall, Kind
from holdfast.simulate.disk.powerloss import PowerReport, cut_power, record
from holdfast.simulate.disk.workload import Acknowledge
from holdfast.storage.broker.sqlite import SqliteBrokerStore, database
from support.broker_stores import NOW, TEAM, accept, arriving, with_team

pytestmark = pytest.mark.faults

ENVELOPES = 6


class FailedSync:
    """The n-th sync of the log fails, and all that the close after it does."""

    def __init__(self, number: int) -> None:
        self._left = number
        self._closing = False

    def __call__(self, call: DiskCall) -> Kind | None:
        if call.op == "sync" and call.file.endswith("-wal"):
            self._left -= 1
            if self._left == 0:
                self._closing = True
                return "ioerr"
        if self._closing and call.op == "open":
            self._closing = False  # the next life begins
        return "ioerr" if self._closing and call.file.startswith("broker.db") else None


def _store(directory: Path, vfs: str | None = None) -> SqliteBrokerStore:
    return SqliteBrokerStore(directory / "b", vfs=vfs, tell_copies=False)


def prepare(directory: Path) -> None:
    async def make() -> None:
        store = _store(directory)
        await store.open(NOW)
        await with_team(store)
        await store.close()

    asyncio.run(make())


def workload(directory: Path, vfs: str, acknowledge: Acknowledge) -> None:
    """After an unknown outcome the broker starts again, and is asked again."""

    async def work() -> None:
        store = _store(directory, vfs)
        await store.open(NOW)
        unknown = 0
        for number in range(1, ENVELOPES + 1):
            while True:
                try:
                    (answer,) = await accept(store, arriving(number))
                except HoldfastError as error:
                    unknown += isinstance(error, Unknown)
                    await store.close()
                    store = _store(directory, vfs)
                    await store.open(NOW)
                else:
                    acknowledge((arriving(number), answer.seq))
                    break
        assert unknown == 1, "the sync was to fail once"
        # Not closed: a process that is killed leaves its log behind.

    asyncio.run(work())


def check(directory: Path, acknowledged: object) -> None:
    async def look() -> None:
        store = _store(directory)
        await store.open(NOW)
        try:
            assert isinstance(acknowledged, list | tuple)
            for one, seq in acknowledged:
                (known,) = await store.known(TEAM, [(one.id, one.fingerprint)])
                assert known is not None, f"{seq} is lost"
                assert (known.verdict, known.seq) == (AcceptVerdict.DUPLICATE, seq)
            assert await store.orphans(10) == []
        finally:
            await store.close()

    asyncio.run(look())


def _cut() -> PowerReport:
    recording = record(workload, prepare=prepare, plan=FailedSync(4))
    points = range(recording.start, len(recording.entries) + 1, 2)
    return cut_power(recording, check, samples=2, points=points)


def test_R2_what_a_failed_sync_left_in_the_log_of_a_store_is_made_sure_of_first() -> None:
    report = _cut()
    assert report.states > 20
    assert not report.failures, "\n".join(map(str, report.failures[:5]))


def test_R2_a_store_that_trusts_that_log_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "rewrite_wal", lambda *args, **kwargs: None)
    assert _cut().failures
