"""Audits: each finds exactly what was planted for it, and nothing where nothing is wrong.

Tables are made by hand. Everything that is planted lies in a mesh, a log or a task of its own
beside others that are in order, so that one job shows what all audits say of all of it.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from holdfast.node.recovery.backup import backup, restore
from holdfast.pipeline.audits import AUDITS, MEASURES, chosen
from holdfast.pipeline.audits.conflicts import FAMILIES
from holdfast.pipeline.audits.gold import APP, findings_table, rows_of, run_audits
from holdfast.pipeline.audits.live_facts import LiveFacts, LogFacts, ask_logs
from holdfast.pipeline.audits.plots import save_plots
from holdfast.pipeline.fold.silver import fold_lake
from holdfast.pipeline.ingest.ingest import ingest_logs
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.logs.log import open_log
from holdfast.pipeline.spark.workers import DriverWorkers
from holdfast.rules.audit_chain import AuditChain, AuditRow, next_event
from holdfast.rules.bodies import family_of
from holdfast.rules.envelope import Envelope, Fence, decode_trusted
from holdfast.rules.errors import UnknownKey
from holdfast.rules.ids import id_text
from holdfast.rules.ledger import Written, lost_among
from holdfast.rules.limits import HOT_SPOT_OVERRIDES, LAMPORT_LEAP_MAX
from holdfast.rules.merge import version_of
from holdfast.rules.order import order_key
from support.audit_world import START, Row, World, written
from support.envelopes import make_id
from support.histories import Histories, grow

LAKE = "lake-0123abcd"


# --- what is planted -----------------------------------------------------------------------------

Said = set[tuple[str, str, str]]
"""Audit, severity, and what it is about: the id, or else the place."""


def plant_order(world: World) -> Said:
    """Everything that may happen in good order."""
    ids = world.own("team", "ana", "1 2 3 4")
    for offset, id in enumerate(ids, 1):
        world.again("bob", offset, id)
    bob = world.entry("bob", 5, "team", "bob", 1, 45, base_lamport=40, base_peer="ana")
    world.again("ana", 5, bob)
    # Restored from a copy that stood at 3: the same log again, and on in a new epoch.
    for offset, id in enumerate(ids[:3], 1):
        world.again("ana", offset, id, epoch=2)
    restored = {"epoch": 2, "origin_epoch": 2}
    world.entry("ana", 4, "team", "ana", 4, 2**33, **restored)
    world.entry("ana", 5, "team", "ana", 5, 2**33 + 1, **restored)
    # Another that went back further than its clock knew: stamps grow within an epoch.
    world.own("reborn", "rea", "1 2")
    world.entry("rea", 3, "reborn", "rea", 2, 15, **restored)
    # A log that was truncated before anybody read it, at the place where its readers are.
    world.own("late", "lea", "8 9", start=20)
    world.logs = [
        LogFacts(log="ana", epoch=2, first=1, head=9, readers={LAKE: 5, "bob": 9}),
        LogFacts(log="bob", epoch=1, first=6, head=6, readers={f"token:a/{LAKE}": 5}),
        LogFacts(log="lea", epoch=1, first=20, head=21),
    ]
    held = world.turn("fine", 1, "ana", "claim", "claimed")
    ended = world.turn("fine", 3, "ana", "complete", "completed")
    world.task("fine", "completed", holder_id=held, ended_id=ended)
    world.turn("open", 1, "ana", "create", "created")
    world.task("open", "open")
    world.strong(1, "quorum", Fence(1, "ana", 1))
    world.strong(2, "quorum", Fence(1, "ana", 2))
    world.strong(3, "quorum", Fence(2, "bob", 2))
    world.strong(4, "quorum", None)
    # Of what came before its log was read, nobody can say more.
    return {("gaps", "notice", "late/lea")}


def plant_orphans(world: World) -> Said:
    lost = world.id()
    world.again("orphan", 1, lost)
    twice = world.own("twice", "twice", "1")[0]
    world.entry("twice", 2, "twice", "twice", 2, 20, id=twice)
    place = world.own("place", "place", "1 2")[1]
    world.again("place", 2, place)
    first = world.own("conflict", "conflict", "1")[0]
    world.refuse("conflict", 2, "id_conflict", first)
    alone = world.id()
    world.refuse("conflict", 3, "id_conflict", alone)
    return {("orphans", "finding", id) for id in (lost, twice, place, first, alone)}


def plant_holes(world: World) -> Said:
    # Between offsets 1 and 3; 3 itself could not be read, so that nothing is missing there.
    world.own("holes", "holes", "1")
    world.refuse("holes", 3, "unknown_op")
    world.own("holes", "holes", "2", start=4)
    # Stretches that nobody had any more: before anything was read, and in between.
    world.refuse("never", 1, "gap", "")
    world.own("never", "never", "3 4", start=8)
    world.own("since", "since", "1 2")
    world.refuse("since", 3, "gap", "")
    world.own("since", "since", "3 4", start=8)
    world.own("some", "some", "1")
    world.own("some", "some", "2", start=3)
    world.refuse("some", 5, "gap", "")
    world.logs.append(LogFacts(log="some", epoch=1, first=1, head=3, whole=False))
    return {
        ("offsets", "finding", "holes/3"),
        ("offsets", "notice", "some/3"),
        ("offsets", "finding", "some/5"),
        ("offsets", "notice", "never/1"),
        ("offsets", "finding", "since/3"),
        ("gaps", "notice", "never/never"),
        ("refused", "notice", "holes/3"),
    }


def plant_gaps(world: World) -> Said:
    lost = world.own("gap", "gap", "1 2 5")[2]
    head = world.own("head", "head", "2 3")[0]
    # By others only: they may have been given a part.
    for offset, seq in enumerate((1, 4, 7), 1):
        world.entry("carrier", offset, "heard", "hal", seq, seq)
    # Its own log was read, but not yet so far as others tell of.
    world.own("ahead", "ida", "1 2")
    world.entry("carrier", 4, "ahead", "ida", 5, 50)
    return {
        ("gaps", "finding", lost),
        ("gaps", "finding", head),
        ("gaps", "notice", "heard/hal"),
        ("gaps", "notice", "ahead/ida"),
    }


def plant_repeats(world: World) -> Said:
    ids = world.own("copy", "copied", "1 2 3")
    # Its stamp is above that of number 3, which says nothing about the order of either home.
    other = world.entry("carrier", 5, "copy", "copied", 2, 35)
    return {("repeats", "finding", ids[1]), ("repeats", "finding", other)}


def plant_stamps(world: World) -> Said:
    world.own("back", "back", "1 2")
    back = world.entry("back", 3, "back", "back", 3, 20)
    world.own("base", "base", "1")
    base = world.entry("base", 2, "base", "base", 2, 20, base_lamport=20, base_peer="ana")
    world.own("leap", "leap", "1")
    leap = world.entry("leap", 2, "leap", "leap", 2, 11 + LAMPORT_LEAP_MAX)
    world.entry("leap", 3, "leap", "leap", 3, 12 + LAMPORT_LEAP_MAX)
    order = world.own("order", "order", "2 1 3")[1]
    return {("stamps", "finding", id) for id in (back, base, leap, order)}


def plant_fences(world: World) -> Said:
    one = world.strong(1, "fence", Fence(7, "ana", 3))
    two = world.strong(2, "fence", Fence(7, "ana", 3))
    world.strong(3, "fence", Fence(7, "ana", 3), state="rejected")
    other = world.strong(1, "lease", Fence(7, "ana", 1))
    lease = world.strong(2, "lease", Fence(7, "bob", 2))
    return {("fences", "finding", id) for id in (one, two, other, lease)}


def plant_chains(world: World) -> Said:
    chain = AuditChain("chain", "s", "chain", 1)
    events: list[AuditRow] = []
    for number in range(6):
        last = events[-1] if events else None
        events.append(next_event(chain, last, id=make_id(number), at=0, payload=b"1"))
    one, _, _, four, five, _ = events
    world.event(1, "chain", one)
    late = world.event(2, "chain", four)
    twin = next_event(chain, four, id=make_id(9), at=0, payload=b"2")
    same = {world.event(3, "chain", five), world.event(4, "chain", twin)}
    stray = next_event(
        chain, msgspec.structs.replace(four, seq=5), id=make_id(8), at=0, payload=b"3"
    )
    torn = world.event(5, "chain", stray)
    false = world.event(6, "chain", msgspec.structs.replace(one, epoch=2, hash=b"\1" * 32))
    twice = max(same)  # of two in one place the later one in the order of the audit
    return {
        ("audit_chains", "notice", late),
        *(("audit_chains", "finding", id) for id in (twice, torn, false)),
    }


def plant_frontiers(world: World) -> Said:
    world.logs += [
        LogFacts(log="cut", epoch=1, first=9, head=20, readers={"zed": 7, "yan": 8}),
        LogFacts(log="old", epoch=1, first=1, head=5, readers={"zed": 6}),
        LogFacts(log="gone", epoch=1, first=9, head=20, readers={"zed": 8}),
        LogFacts(log="lied", epoch=1, first=1, head=20, readers={LAKE: 9, "zed": 12}),
        LogFacts(log="new", epoch=2, first=4, head=20),
    ]
    world.positions |= {
        ("cut", 1): 20,
        ("gone", 1): 6,
        ("lied", 1): 8,
        ("old", 1): 5,
        ("new", 1): 9,
    }
    return {
        ("frontiers", "finding", "cut/9"),
        ("frontiers", "finding", "old/6"),
        ("frontiers", "finding", "gone/9"),
        ("frontiers", "finding", "lied/9"),
        ("frontiers", "notice", "new/4"),
    }


def plant_claims(world: World) -> Said:
    one = world.turn("hands", 1, "ana", "claim", "claimed")
    two = world.turn("hands", 2, "bob", "claim", "claimed")
    world.turn("hands", 3, "bob", "claim", "claimed", generation=1)
    world.task("hands", "claimed", holder_id=one)
    ends = [
        world.turn("ends", n, "ana", kind, kind) for n, kind in ((1, "completed"), (2, "cancelled"))
    ]
    world.task("ends", "completed", ended_id=ends[0])
    wrong = world.turn("told", 1, "ana", "claim", "superseded", generation=4)
    world.task("told", "claimed", holder_id=wrong, holder_peer="ana")
    winner = world.turn("vain", 1, "ana", "claim", "claimed")
    against = {"against_lamport": 1, "against_peer": "ana", "against_id": winner}
    vain = world.turn("vain", 2, "bob", "claim", "superseded", **against)
    world.turn("vain", 3, "bob", "claim", "superseded", generation=1, **against)
    world.task("vain", "claimed", holder_id=winner)
    return {("claims", "finding", id) for id in (one, two, *ends, wrong)} | {
        ("claims", "notice", vain)
    }


def plant_refusals(world: World) -> Said:
    for offset, reason in enumerate(("bad_signature", "forged_origin", "bad_envelope"), 1):
        world.refuse("refused", offset, reason)
    return {
        ("signatures", "finding", "refused/1"),
        ("signatures", "finding", "refused/2"),
        ("refused", "finding", "refused/3"),
    }


def plant_hot_spots(world: World) -> Said:
    """Two peers who write in turns: on `hot` without looking, on `calm` each after the other."""
    for number in range(1, HOT_SPOT_OVERRIDES + 2):
        peer = ("pia", "quy")[number % 2]
        for key, seen in (("hot", number - 2), ("calm", number - 1)):
            base = (seen, ("pia", "quy")[seen % 2]) if seen > 0 else (None, None)
            world.entry(
                *("spots", 2 * number + (key == "hot"), f"spots {key}", f"{peer} {key}"),
                *((number + 1) // 2, number),
                entity=key,
                base_lamport=base[0],
                base_peer=None if base[1] is None else f"{base[1]} {key}",
            )
    return {("hot_spots", "notice", "spots hot/hot")}


PLANTS = {
    "order": plant_order,
    "orphans": plant_orphans,
    "holes": plant_holes,
    "gaps": plant_gaps,
    "repeats": plant_repeats,
    "stamps": plant_stamps,
    "fences": plant_fences,
    "audit_chains": plant_chains,
    "frontiers": plant_frontiers,
    "claims": plant_claims,
    "refusals": plant_refusals,
    "hot spots": plant_hot_spots,
}


class Audited:
    """What was planted, and what all audits say of it."""

    def __init__(self, root: Path) -> None:
        world = World()
        self.planted = {name: plant(world) for name, plant in PLANTS.items()}
        self.rows = said_of(world, world.lake(root / "lake"))

    @property
    def said(self) -> Said:
        return {(row["audit"], row["severity"], about(row)) for row in self.rows}


def said_of(world: World, lake: Lake) -> list[Row]:
    """The table `findings` after all audits have run."""
    logs = tuple(rename(log, lake.consumer) for log in world.logs)
    run_audits(None, lake, list(AUDITS), facts=LiveFacts(logs))
    return list(rows_of(findings_table(lake)).to_pylist())


def rename(log: LogFacts, consumer: str) -> LogFacts:
    """The log with the lake's real name among its readers."""
    readers = {name.replace(LAKE, consumer): at for name, at in log.readers.items()}
    return msgspec.structs.replace(log, readers=readers)


def about(row: Any) -> str:
    planted = {"gaps": ("mesh", "origin"), "hot_spots": ("mesh", "entity")}
    if row["audit"] in planted and row["severity"] == "notice":
        return "/".join(str(row[name]) for name in planted[row["audit"]])
    if row["audit"] in ("offsets", "frontiers", "signatures", "refused"):
        return f"{row['log']}/{row['offset']}"
    return str(row["id"])


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    return Audited(tmp_path_factory.mktemp("audited"))


@pytest.mark.parametrize("name", PLANTS)
def test_P5_what_is_planted_is_found(audited: Audited, name: str) -> None:
    assert audited.planted[name] - audited.said == set()


def test_P5_nothing_else_is_found(audited: Audited) -> None:
    assert audited.said - set().union(*audited.planted.values()) == set()


def test_P5_every_audit_has_something_planted_for_it(audited: Audited) -> None:
    planted = {audit for said in audited.planted.values() for audit, _, _ in said}
    assert planted == set(AUDITS)


def test_P5_every_row_says_what_is_wrong(audited: Audited) -> None:
    details = {(row["audit"], about(row)): row["detail"] for row in audited.rows}
    assert all("?" not in detail for detail in details.values()), details
    assert details["offsets", "holes/3"] == "offsets 2 to 2 were not read"
    lost = next(row for row in audited.rows if row["audit"] == "gaps" and row["mesh"] == "gap")
    assert lost["detail"].startswith("numbers 3 to 4 of epoch 1 are missing")
    assert details["gaps", "heard/hal"].startswith(
        "4 numbers of epoch 1 between 2 and 6 are missing"
    )
    hot = details["hot_spots", "spots hot/hot"]
    assert hot.startswith(f"state: {HOT_SPOT_OVERRIDES} writes of 2 peers")


# --- a lake ---------------------------------------------------------------------------------------


def with_a_restore(histories: Histories, folder: Path) -> None:
    """One node goes back to a backup after others have heard what it wrote since."""
    ana, bob, *_ = histories.peers
    with histories.open(ana) as node:
        backup(node, folder / "backup")
        mesh = node.mesh(histories.meshes[0])
        written = [mesh.state.set("lost", number).offset for number in range(3)]
        raws = [entry.raw for entry in node.log.range(written[0])]
    with histories.open(bob) as node:
        assert all(applied.error is None for applied in node.apply(raws))
    restore(folder / "backup", histories.homes[ana], force=True)
    with histories.open(ana) as node:
        node.mesh(histories.meshes[0]).state.set("found", 1)
        assert node.log.head().epoch == 2


def replayed(histories: Histories) -> int:
    """Overrides by the rule itself: every version against the one before it in the one order."""
    versions: dict[tuple[str, ...], dict[bytes, Envelope]] = {}
    for peer in histories.peers:
        for entry in histories.entries(peer):
            envelope = decode_trusted(entry.raw)
            family = family_of(envelope.op)
            if family in FAMILIES:
                key = (envelope.mesh, family, envelope.owner, envelope.entity)
                versions.setdefault(key, {})[envelope.id] = envelope
    overrides = 0
    for found in versions.values():
        ordered = sorted(found.values(), key=lambda one: order_key(version_of(one)))
        for before, after in pairwise(ordered):
            both = [Written(version_of(one), one.base) for one in (before, after)]
            overrides += len(lost_among(both))
    return overrides


def add(table: Table, row: Row) -> None:
    """A row that no job of ours would have written there."""
    table.commit(written(table, [row]))


def gold(lake: Lake, name: str) -> Any:
    return DeltaTable(f"{lake.root}/gold/{name}").to_pandas()


def test_P5_nothing_is_wrong_with_histories_in_which_nothing_went_wrong(
    spark: SparkSession, tmp_path: Path
) -> None:
    histories = grow(5, tmp_path, meshes=5, ops=400, settled=False)
    with_a_restore(histories, tmp_path)
    lake = Lake.open(tmp_path / "lake", create=True)
    logs = [open_log(str(home)) for home in histories.homes.values()]
    assert ingest_logs(spark, lake, logs).failures == []
    fold_lake(DriverWorkers(), lake)
    facts = ask_logs(logs)
    assert all(lake.consumer in log.readers for log in facts.logs)

    lake = lake.fresh()
    read = lake.bronze.rows + lake.sightings.rows
    head = lake.positions()[0]
    stray = {"log": head.log, "epoch": head.epoch, "id": id_text(make_id(1)), "batch": 9}
    # A job that was killed before it came to bronze.
    add(lake.sightings, {**stray, "offset": head.offset + 1, "recorded_at": START})
    said: list[tuple[str, int, int]] = []
    report = run_audits(None, lake, facts=facts, progress=lambda *told: said.append(told))
    assert [one for audit in report.audits if audit.findings for one in audit.sample] == []
    assert [audit.name for audit in report.audits] == list(AUDITS)
    assert said[0] == (f"audit {lake.bronze.rows} envelopes", 0, 2)
    assert [done for _, done, _ in said] == [0, 1, 2]

    assert {measure.name: measure.rows > 0 for measure in report.measures} == dict.fromkeys(
        MEASURES, True
    )
    assert gold(lake, "growth")["rows"].sum() == lake.bronze.rows
    assert gold(lake, "lag")["entries"].sum() == read
    assert gold(lake, "conflicts")["overrides"].sum() == replayed(histories) > 0
    assert len(save_plots(lake, tmp_path / "pictures")) == len(MEASURES)

    # One audit again, after something has gone wrong: the others' rows stay as they are.
    before = gold(lake, "findings")
    assert len(before) == report.notices > 0
    forged = {**stray, "offset": head.offset, "reason": "bad_signature", "detail": "by nobody"}
    forged["recorded_at"] = START
    add(lake.quarantine, forged)
    again = run_audits(None, lake, ["signatures"])
    assert (again.findings, again.notices, again.measures) == (1, 0, ())
    assert [(one.detail, one.at) for one in again.audits[0].sample] == [
        ("bad_signature: by nobody", START)
    ]
    after = gold(lake, "findings")
    assert sorted(after["detail"]) == sorted([*before["detail"], "bad_signature: by nobody"])
    assert findings_table(lake).txn(APP) == lake.bronze.version


def test_P5_an_empty_lake_is_audited_too(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path / "lake", create=True)
    report = run_audits(None, lake)
    assert (report.findings, report.notices, report.bronze_version) == (0, 0, -1)
    assert len(save_plots(lake, tmp_path / "pictures")) == len(MEASURES)
    assert [audit.name for audit in run_audits(None, lake, ["gaps"], write=False).audits] == [
        "gaps"
    ]


def test_P5_only_audits_that_exist_can_be_chosen() -> None:
    assert chosen(["stamps", "lag"]) == ([AUDITS["stamps"]], [MEASURES["lag"]])
    with pytest.raises(UnknownKey, match="stamp"):
        chosen(["stamp"])
