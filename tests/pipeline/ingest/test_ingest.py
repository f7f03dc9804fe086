"""Logs into the lake: every envelope once, whatever happens on the way."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from holdfast.node.core.views import Consumer
from holdfast.node.library.node import open_node
from holdfast.node.recovery.backup import backup, restore
from holdfast.node.recovery.refetch import refetch_entries
from holdfast.node.recovery.repair import repair_home
from holdfast.pipeline.ingest import ingest as ingesting
from holdfast.pipeline.ingest import take
from holdfast.pipeline.ingest.ingest import IngestReport, ingest_logs, ingest_planned
from holdfast.pipeline.ingest.plan import make_plan
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.find_entries import find_entries
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.logs.disk import HomeLog
from holdfast.pipeline.logs.log import ReadableLog, open_log
from holdfast.pipeline.logs.unpack import decode_header
from holdfast.pipeline.spark.workers import DriverWorkers
from holdfast.rules.errors import EntryDamaged, LakeMoved, LogForked, Truncated
from holdfast.rules.ids import id_text
from holdfast.rules.leaf import leaf_of
from holdfast.rules.rows import Entry
from support import envelopes
from support.histories import Histories, grow

Place = tuple[str, int, int]
Row = dict[str, Any]


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Histories:
    """Three nodes that each know a part of it."""
    return grow(3, tmp_path_factory.mktemp("grown"), meshes=6, ops=330, settled=False)


@pytest.fixture
def histories(grown: Histories, tmp_path: Path) -> Histories:
    """The same, to be changed."""
    homes = {}
    for number, (peer, home) in enumerate(grown.homes.items()):
        homes[peer] = tmp_path / f"home-{number}"
        shutil.copytree(home, homes[peer])
    return Histories(grown.seed, homes, grown.meshes, grown.heads, grown.refused, grown.clocks)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.open(tmp_path / "lake", create=True)


def never() -> SparkSession:
    raise AssertionError("Spark was started for a few rows")


def opened(histories: Histories) -> list[ReadableLog]:
    return [open_log(str(home)) for home in histories.homes.values()]


def rows_of(table: Table) -> list[Row]:
    """As an outsider reads it."""
    if not table.fresh().exists:
        return []
    found: list[Row] = DeltaTable(table.root).to_pyarrow_table().to_pylist()
    return found


def place_of(row: Row) -> Place:
    return row["log"], row["epoch"], row["offset"]


def entries_of(logs: Iterable[ReadableLog]) -> dict[Place, Row]:
    """Everything that the logs hold, with its problem."""
    found: dict[Place, Row] = {}
    for log in logs:
        place = log.place()
        for batch in log.batches(place.epoch, place.first, place.head + 1):
            found.update({place_of(row): row for row in decode_header(batch).to_pylist()})
    return found


def check_whole(lake: Lake, entries: Mapping[Place, Row]) -> None:
    """Every id once in bronze, every place once somewhere, positions at the ends."""
    bronze, sightings = rows_of(lake.bronze), rows_of(lake.sightings)
    quarantine = rows_of(lake.quarantine)
    ids = [row["id"] for row in bronze]
    assert len(ids) == len(set(ids))
    assert set(ids) == {row["id"] for row in entries.values() if row["problem"] is None}
    aside = [row for row in quarantine if row["reason"] != "unknown_op"]
    places = Counter(map(place_of, [*bronze, *sightings, *aside]))
    assert set(places) == set(entries)
    assert set(places.values()) == {1}
    noted = Counter(map(place_of, quarantine))
    assert not noted or set(noted.values()) == {1}
    for row in bronze:
        entry = entries[place_of(row)]
        assert {name: row[name] for name in entry if name != "problem"} == {
            name: value for name, value in entry.items() if name != "problem"
        }
    kept = {row["id"]: row["raw"] for row in bronze}
    for row in sightings:
        assert entries[place_of(row)]["raw"] == kept[row["id"]]
    heads: dict[tuple[str, int], int] = {}
    for log, epoch, offset in entries:
        heads[log, epoch] = max(offset, heads.get((log, epoch), 0))
    after = {(at.log, at.epoch): at for at in lake.fresh().positions()}
    assert {key: at.offset for key, at in after.items()} == heads
    assert all(entries[at.log, at.epoch, at.offset]["id"] == at.id for at in after.values())


def change(home: Path, offset: int, **columns: object) -> None:
    """Makes an entry of a log one that was let in like this, as earlier code or another did it: its
    hash is that of its bytes.
    """
    raw = columns.get("raw")
    if isinstance(raw, bytes):
        columns["leaf"] = leaf_of(raw)
    connection = apsw.Connection(str(home / "data.db"))
    try:
        for name, value in columns.items():
            connection.execute(f"UPDATE log SET {name} = ? WHERE offset = ?", (value, offset))
    finally:
        connection.close()


def _as(entry: Entry, **fields: object) -> bytes:
    return envelopes.changed(entry.raw, **fields)


def test_P2_bronze_has_every_id_once_and_nothing_is_dropped(
    histories: Histories, lake: Lake
) -> None:
    ana, *others = histories.homes
    by_ana = {entry.offset: entry for entry in histories.entries(ana)}
    elsewhere = {entry.id for peer in others for entry in histories.entries(peer)}
    only = [offset for offset, entry in by_ana.items() if entry.id not in elsewhere]
    shared = [offset for offset, entry in by_ana.items() if entry.id in elsewhere]
    strange, far = only[:2]
    forged, short, newer, lying = shared[:4]
    home = histories.homes[ana]
    change(home, strange, op="later.x", raw=_as(by_ana[strange], op="later.x"))
    far_id = b"\xff\xff\xff" + by_ana[far].id[3:]
    change(home, far, id=far_id, raw=_as(by_ana[far], id=far_id))
    change(home, forged, raw=_as(by_ana[forged], created_at=7))
    change(home, short, raw=by_ana[short].raw[:-3])
    change(home, newer, raw=_as(by_ana[newer], version="9.0"))
    change(home, lying, lamport=by_ana[lying].lamport + 1)
    logs = opened(histories)
    entries = entries_of(logs)
    told: list[tuple[str, int, int]] = []

    report = ingest_logs(never, lake, logs, progress=lambda *said: told.append(said))

    assert report.failures == []
    entries[ana, 1, far]["problem"] = "bad_id: of the id"
    check_whole(lake, entries)
    # Who was first: by the time of recording, then by place.
    good = [row for row in entries.values() if row["problem"] is None]
    first: dict[str, Place] = {}
    for row in sorted(good, key=lambda row: (row["recorded_at"], *place_of(row))):
        first.setdefault(row["id"], place_of(row))
    bronze = rows_of(lake.bronze)
    assert {row["id"]: place_of(row) for row in bronze} == first
    assert {row["batch"] for row in bronze} == {lake.fresh().bronze.version} == {0}
    assert all(row["family"] == row["op"].partition(".")[0] for row in bronze)
    # What is wrong says why.
    reasons = {place_of(row): row["reason"] for row in rows_of(lake.quarantine)}
    (conflict,) = (place for place, reason in reasons.items() if reason == "id_conflict")
    assert entries[conflict]["id"] == id_text(by_ana[forged].id)
    assert {place: reason for place, reason in reasons.items() if place != conflict} == {
        (ana, 1, strange): "unknown_op",
        (ana, 1, far): "bad_id",
        (ana, 1, short): "bad_envelope",
        (ana, 1, newer): "unsupported_protocol",
        (ana, 1, lying): "bad_envelope",
    }
    assert (ana, 1, strange) in {place_of(row) for row in bronze}
    for row in rows_of(lake.quarantine):
        assert row["raw"] == entries[place_of(row)]["raw"]
        assert row["detail"]
    # The report says the same.
    assert report.quarantined == dict(Counter(reasons.values()))
    assert (report.read, report.new) == (len(entries), len(bronze))
    assert report.again == len(rows_of(lake.sightings))
    assert told == [("ingest", 0, len(entries)), ("ingest", len(entries), len(entries))]
    # Nothing new: nothing is done, and no job of Spark is needed for that.
    again = ingest_logs(never, lake, logs)
    assert (again.read, again.batches, lake.fresh().bronze.version) == (0, 0, 0)


@pytest.mark.parametrize("held", ["elsewhere", "nowhere"])
def test_P2_a_damaged_entry_stops_its_log_until_a_repair_and_its_bytes_never_get_in(
    tmp_path: Path, lake: Lake, held: str
) -> None:
    """Bytes that changed on the disk are not what anybody wrote: they are not quarantined either.
    The lake itself gives the entry back if it has it from another log; otherwise the repaired log
    goes on without it.
    """
    homes = [tmp_path / "ana", tmp_path / "bob"]
    with open_node(homes[0], peer="ana", create=True, sync="normal") as node:
        mesh = node.create_mesh("team")
        for number in range(6):
            mesh.state.set("k", number)
        written = [entry.raw for entry in node.log.range()]
    with open_node(homes[1], peer="bob", create=True, sync="normal") as node:
        node.create_mesh("team").state.set("other", 1)
        known = [raw for raw in written if held == "elsewhere" or raw != written[3]]
        assert all(applied.error is None for applied in node.apply(known))
    with apsw.Connection(str(homes[0] / "data.db")) as connection:
        connection.execute("UPDATE log SET raw = zeroblob(50) WHERE offset = 4")
    logs = [open_log(str(home)) for home in homes]

    for _ in range(2):
        report = ingest_logs(never, lake, logs)
        (failed,) = report.failures
        assert (failed.log, failed.location) == ("ana", str(homes[0]))
        assert isinstance(failed.error, EntryDamaged)
        assert "offset 4" in failed.error.message
        assert "doctor --repair" in failed.error.hint
    check_whole(lake, entries_of(logs[1:]))

    found = refetch_entries(homes[0], {"the lake": partial(find_entries, lake.fresh())})
    assert (found.mended, found.left) == (((4,), ()) if held == "elsewhere" else ((), (4,)))
    if found.left:
        assert not repair_home(homes[0]).whole_log
    report = ingest_logs(never, lake, logs)
    assert report.failures == []
    lost = 0 if held == "elsewhere" else 1
    assert (report.new, report.again) == (0, 6 - lost)
    kept = {row["raw"] for row in rows_of(lake.bronze)}
    assert kept.issuperset(known)
    assert len(kept) == 1 + len(written) - lost
    assert bytes(50) not in {row["raw"] for row in rows_of(lake.quarantine)}


def test_P1_a_log_that_goes_on_in_a_new_epoch_is_read_again_and_known(
    tmp_path: Path, lake: Lake
) -> None:
    """A backup of ana is restored. What she wrote since is in the lake and nowhere else."""
    home, kept = tmp_path / "ana", tmp_path / "backup"
    with open_node(home, peer="ana", create=True, sync="normal") as node:
        mesh = node.create_mesh("team")
        for number in range(5):
            mesh.state.set("k", number)
        backup(node, kept)
        for number in range(3):
            mesh.state.set("lost", number)
    log = open_log(str(home))
    before = entries_of([log])
    assert ingest_logs(never, lake, [log]).new == 8
    # The same as a copy, and a copy that is older than the lake: nothing to read there.
    twin = tmp_path / "twin"
    shutil.copytree(home, twin)
    assert make_plan(lake.fresh(), [log, open_log(str(twin)), open_log(str(kept))]).rows == 0
    # A home that goes by the same name and is another.
    change(twin, 8, id=bytes(15) + b"x")
    plan = make_plan(lake.fresh(), [open_log(str(twin)), log])
    ((failed,), (found,)) = plan.failures, plan.found
    assert (failed.location, found.log) == (str(twin), log)
    assert isinstance(failed.error, LogForked)
    assert "at offset 8 of epoch 1" in failed.error.message
    fresh = Lake.open(tmp_path / "other", create=True)
    plan = make_plan(fresh, [log, open_log(str(twin))])
    assert (len(plan.failures), plan.rows) == (2, 0)
    assert "differ between offsets 1 and 8" in plan.failures[0].error.message
    with apsw.Connection(str(twin / "data.db")) as connection:
        connection.execute("DELETE FROM log WHERE offset > 6")
    (failed,) = make_plan(lake.fresh(), [open_log(str(twin))]).failures
    assert isinstance(failed.error, LogForked)
    assert "ends at offset 6" in failed.error.message
    # Back in time, and on from there.
    restore(kept, home, force=True)
    with open_node(home, sync="normal") as node:
        node.mesh("team").state.set("after", 1)
        assert node.log.head().epoch == 2
    report = ingest_logs(never, lake, [log])
    assert (report.failures, report.new, report.again) == ([], 1, 5)
    check_whole(lake, {**before, **entries_of([log])})
    # What is truncated before anybody read it is missed, loudly, or noted as a gap.
    with open_node(home, sync="normal") as node:
        for number in range(4):
            node.mesh("team").state.set("more", number)
    with apsw.Connection(str(home / "data.db")) as connection:
        connection.execute("DELETE FROM log WHERE offset < 9")
    (failed,) = make_plan(lake.fresh(), [log]).failures
    assert isinstance(failed.error, Truncated)
    assert "offsets 7 to 8 in epoch 2 of log 'ana'" in failed.error.message
    (failed,) = make_plan(fresh, [log]).failures
    assert "offsets 1 to 8 in epoch 2" in failed.error.message
    report = ingest_logs(never, lake, [log], allow_gaps=True)
    assert (report.failures, report.read, report.quarantined) == ([], 2, {"gap": 1})
    (gap,) = rows_of(lake.quarantine)
    assert (place_of(gap), gap["reason"], gap["raw"]) == (("ana", 2, 7), "gap", None)
    assert gap["detail"].startswith("offsets 7 to 8 in epoch 2 of log 'ana'")
    assert lake.fresh().position("ana", 2) == 10


def test_P1_what_a_home_has_truncated_is_taken_from_its_backup(tmp_path: Path, lake: Lake) -> None:
    home, kept = tmp_path / "ana", tmp_path / "backup"
    with open_node(home, peer="ana", create=True, sync="normal") as node:
        mesh = node.create_mesh("team")
        for number in range(6):
            mesh.state.set("k", number)
        backup(node, kept)
        for number in range(3):
            mesh.state.set("k", number)
    with apsw.Connection(str(home / "data.db")) as connection:
        connection.execute("DELETE FROM log WHERE offset < 4")
    one, other = open_log(str(home)), open_log(str(kept))
    for logs in ([one, other], [other, one]):
        plan = make_plan(lake, logs)
        parts = [(part.log, part.start, part.stop) for part in plan.stretches["ana", 1]]
        assert parts == [(other, 1, 7), (one, 7, 10)]
        assert (plan.gaps, plan.failures, plan.rows) == ([], [], 9)


def test_P1_small_batches_come_to_the_same_and_are_confirmed(
    histories: Histories, lake: Lake
) -> None:
    ana, zoe, _ = histories.homes
    one, two, three = opened(histories)
    report = ingest_logs(never, lake, [one], max_rows=histories.heads[ana] // 2 + 1)
    assert (report.batches, report.again) == (2, 0)
    log = report.of((ana, 1))
    assert log.head - log.before == histories.heads[ana]
    assert report.of((ana, 1)).lag_after == 0
    files = lake.fresh().bronze.files()
    assert len(files) <= 2 * len({file.partition["day"] for file in files})
    ingest_logs(never, lake, [two, three], max_rows=histories.heads[zoe])
    check_whole(lake, entries_of([one, two, three]))
    batch = {row["batch"] for row in rows_of(lake.bronze)}
    assert batch <= set(range(lake.fresh().bronze.version + 1))
    for peer in histories.homes:
        with histories.open(peer) as node:
            (reader,) = node.log.consumers()
            assert (reader.name, reader.lag) == (lake.consumer, 0)


class Killed(BaseException):
    """As a signal that nothing can catch."""


class Killing:
    """Lets so many steps happen, and dies before the next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        self.steps: list[str] = []
        for owner, name in (
            (DriverWorkers, "run"),
            (DriverWorkers, "exchange"),
            (Table, "commit"),
            (HomeLog, "confirm"),
        ):
            monkeypatch.setattr(owner, name, self._wrapped(name, getattr(owner, name)))

    def _wrapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def act(target: Any, *args: Any, **options: Any) -> Any:
            if self.left == 0:
                raise Killed
            self.left -= 1
            other = "log" if isinstance(target, HomeLog) else "tasks"
            where = Path(target.root).name if isinstance(target, Table) else other
            self.steps.append(f"{name} {where}")
            return real(target, *args, **options)

        return act


STEPS = (
    "run tasks",
    "exchange tasks",
    "commit sightings",
    "commit quarantine",
    "commit bronze",
    "commit reads",
    "confirm log",
    "confirm log",
)
"""Of one batch from two logs, with something of everything in it."""


@pytest.fixture(scope="module")
def two_homes(tmp_path_factory: pytest.TempPathFactory) -> Histories:
    """Two nodes that know the same. One has an entry that cannot be read, and a forged one. Of an
    unknown op that both have, the one comes soon in a log, and the other was recorded first.
    """
    histories = grow(5, tmp_path_factory.mktemp("two"), nodes=2, meshes=1, ops=90)
    ana, bob = histories.homes
    first, second, *soon = list(histories.entries(ana))[: histories.heads[ana] * 2 // 3]
    change(histories.homes[ana], first.offset, raw=first.raw[:-1])
    change(histories.homes[ana], second.offset, raw=_as(second, created_at=9))
    by_bob = {entry.id: entry for entry in histories.entries(bob)}
    late = histories.heads[bob] * 2 // 3 + 1
    strange = next(entry for entry in soon if by_bob[entry.id].offset > late)
    raw = _as(strange, op="later.x")
    change(histories.homes[ana], strange.offset, op="later.x", raw=raw)
    there = by_bob[strange.id].offset
    change(histories.homes[bob], there, op="later.x", raw=raw, recorded_at=1)
    return histories


@pytest.mark.parametrize("steps", range(len(STEPS) + 1))
def test_P2_a_job_that_is_killed_between_any_two_steps_is_finished_by_the_next(
    two_homes: Histories,
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
) -> None:
    logs = opened(two_homes)
    entries = entries_of(logs)
    killing = Killing(monkeypatch)
    monkeypatch.setattr(take, "INGEST_PORTION_BYTES", 1)
    killing.left = steps
    with pytest.raises(Killed):
        # It sees less at a time than the one that goes on: what was first then must stay first.
        ingest_logs(never, lake, logs, max_rows=2 * len(entries) // 3)
    assert tuple(killing.steps) == STEPS[:steps]
    found = rows_of(lake.bronze)
    assert bool(found) == (steps > STEPS.index("commit bronze"))
    confirmed = [log.frontier for log in readers_of(two_homes, lake)]
    assert all(offset == 0 or found for offset in confirmed)

    killing.left = -1
    report = ingest_logs(never, lake, logs)

    assert report.failures == []
    check_whole(lake, entries)
    assert [log.lag for log in readers_of(two_homes, lake)] == [0, 0]


def readers_of(histories: Histories, lake: Lake) -> list[Consumer]:
    found = []
    for peer in histories.homes:
        with histories.open(peer) as node:
            found += [one for one in node.log.consumers() if one.name == lake.consumer]
    return found


def test_P11_a_batch_is_done_again_when_another_job_was_first(
    histories: Histories, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = opened(histories)
    real = Table.commit
    between: list[Callable[[], object]] = []

    def commit(table: Table, *args: Any, **options: Any) -> int:
        if table.root.endswith("bronze") and between:
            between.pop(0)()
        return real(table, *args, **options)

    def read_part(rows: int) -> IngestReport:
        """Another job, which sees less of the second log."""
        plan = make_plan(lake.fresh(), [two])
        for key, (part,) in plan.stretches.items():
            plan.stretches[key] = [part.upto(rows)]
        return ingest_planned(DriverWorkers, lake, plan)

    monkeypatch.setattr(Table, "commit", commit)
    # It comes when our sightings are written and our rows for bronze are not.
    between.append(lambda: read_part(20))
    assert ingest_logs(never, lake, [one, three]).failures == []
    # It comes with a part of what we have read.
    between.append(lambda: read_part(30))
    assert ingest_logs(never, lake, [two]).failures == []
    assert between == []
    check_whole(lake, entries_of([one, two, three]))
    batch = {(row["log"], row["offset"]): row["batch"] for row in rows_of(lake.bronze)}
    name = two.place().log
    for (log, offset), number in batch.items():
        assert number == (1 if log != name else 0 if offset <= 20 else 2 if offset <= 50 else 3)
    # Whoever is always second gives up and says so.
    monkeypatch.setattr(ingesting, "LAKE_TRIES_MAX", 1)
    fresh = Lake.open(lake.root + "-2", create=True)
    between.append(lambda: ingest_logs(never, fresh, [two]))
    with pytest.raises(LakeMoved, match="1 times in a row"):
        ingest_logs(never, fresh, [one])


def test_P11_one_log_that_goes_away_does_not_keep_the_others(
    histories: Histories, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ana, zoe, fox = histories.homes
    logs = opened(histories)
    plan = make_plan(lake, logs)
    # Gone between the look and the reading; and one that is not there at all.
    shutil.rmtree(histories.homes[zoe])
    assert make_plan(lake, logs[1:]).failures[0].location == str(histories.homes[zoe])
    report = ingest_planned(DriverWorkers, lake, plan)
    assert [failure.log for failure in report.failures] == [zoe]
    assert str(histories.homes[zoe]) in report.failures[0].error.message
    check_whole(lake, entries_of([logs[0], logs[2]]))
    assert {at.log for at in lake.fresh().positions()} == {ana, fox}
