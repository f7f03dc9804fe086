"""Silver is what a node would hold, whatever part of bronze is folded in whatever pieces."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from uuid import UUID

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from holdfast.node.core import fold as node_fold
from holdfast.pipeline.fold.columns import ops_of
from holdfast.pipeline.fold.fold import fold_family, merged
from holdfast.pipeline.fold.turned import things_of
from holdfast.pipeline.fold.winners import contenders, winners
from holdfast.pipeline.lake.schema import FAMILY_OF, KEYS, SILVER
from holdfast.rules.audit_chain import AuditChain, AuditRow, next_event
from holdfast.rules.bodies import OPS, MemorySet, family_of
from holdfast.rules.envelope import CREATED_VERSION
from holdfast.rules.ids import id_text
from holdfast.rules.limits import FOLD_KEYS_AT_ONCE_ROWS_MAX, FOLD_TWO_SCANS_ROWS_MIN
from holdfast.rules.merge import DELETES, MERGES, Merge
from holdfast.rules.order import ORDER_COLUMNS, Version, is_newer
from holdfast.rules.rebuild import rebuild_event
from holdfast.rules.vectors import Model
from support.envelopes import (
    file_share,
    make_id,
    memory_set,
    raw,
    state_set,
    task_claim,
    task_create,
    task_release,
    vector_delete,
    vector_store,
)
from support.histories import PEERS, Histories, grow
from support.lake_rows import STAMPED, Rows, bronze_of, held, silver_rows

pytestmark = pytest.mark.timeout(400)  # many jobs, on a machine that may be busy

SMALL = Model(provider="test", name="tiny", dim=2, quantization="int8")
BITS = Model(provider="test", name="tiny", dim=8, quantization="binary")
CROWDED = 40
"""Keys that many peers write at the same moments."""


def crowd(rng: random.Random) -> list[bytes]:
    """What never happens often enough by itself: equal stamps of different peers, and of one peer
    whose home was copied; and tasks that several peers end. A few tasks are never created.
    """
    tasks = [id_text(make_id(number + 1)) for number in range(CROWDED)]
    raws = []
    for number in range(CROWDED * 30):
        key = f"crowded {rng.randrange(CROWDED)}"
        # What has an owner is written by that one alone: fewer keys, as each peer has its own.
        own = f"crowded {rng.randrange(CROWDED // len(PEERS))}"
        task = rng.choice(tasks)
        stamp = {"origin": rng.choice(PEERS), "lamport": rng.randint(1, 4), "mesh": "mesh-0"}
        again = MemorySet(b"%d" % number, ("again",), 1_600_000_000_000 + number)
        made: list[Callable[..., bytes]] = [
            partial(state_set, key, number),
            partial(raw, "state.delete", key),
            partial(memory_set, own, number),
            partial(raw, "memory.set", own, again, version=CREATED_VERSION),
            partial(raw, "memory.forget", own),
            partial(file_share, own, b"%d" % number),
            partial(raw, "file.delete", own),
            partial(vector_store, own, [1, number]),
            partial(vector_store, own, [number % 100, -1], model=SMALL),
            partial(vector_store, own, bytes((number % 256,)), model=BITS),
            partial(vector_delete, own),
            partial(task_claim, task, rng.randint(0, 1)),
            partial(task_release, task, rng.randint(0, 1)),
            partial(raw, f"task.{rng.choice(('complete', 'cancel'))}", task),
        ]
        raws.append(rng.choice(made)(seq=number + 1, **stamp))
    for number, task in enumerate(tasks[:-3], start=len(raws)):
        # Once each: a task is named by the id of its creation.
        stamp = {"origin": rng.choice(PEERS), "lamport": rng.randint(1, 4), "mesh": "mesh-0"}
        raws.append(task_create(task, f"task {number}", seq=number + 1, **stamp))
    event: AuditRow | None = None
    for number in range(1, 5):
        chain = AuditChain("mesh-0", "activityLog", PEERS[0], 1)
        event = next_event(chain, event, id=make_id(7000 + number), at=number, payload=b"1")
        raws.append(rebuild_event(msgspec.structs.replace(event, lamport=number)))
    return raws


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Histories:
    histories = grow(
        11, tmp_path_factory.mktemp("homes"), nodes=3, meshes=8, ops=600, message_watch=40
    )
    rng = random.Random(12)
    raws = crowd(rng)
    for peer in histories.peers:
        rng.shuffle(raws)
        with histories.open(peer) as node:
            assert [applied.error for applied in node.apply(raws) if applied.error] == []
    return histories


@pytest.fixture(scope="module")
def bronze(spark: SparkSession, histories: Histories) -> DataFrame:
    return bronze_of(spark, histories.homes.values()).cache()


@pytest.fixture(scope="module")
def nodes(histories: Histories) -> list[Rows]:
    rows = []
    for peer in histories.peers:
        with histories.open(peer) as node:
            rows.append(held(node._engine.store))
    return rows


def test_P3_every_table_is_what_every_node_holds(bronze: DataFrame, nodes: list[Rows]) -> None:
    for name in STAMPED:
        folded = silver_rows(name, fold_family(name, bronze))
        assert folded, name
        for rows in nodes:
            assert folded == rows[name], name


def test_P3_parts_that_were_folded_apart_and_repeatedly_merge_to_the_whole(
    bronze: DataFrame, nodes: list[Rows]
) -> None:
    some, others = F.xxhash64("id") % 3 != 0, F.xxhash64("id") % 3 != 1
    for name in STAMPED:
        # Both ways to find winners, and in both ways of looking up what the first scan has found.
        first = fold_family(name, bronze.where(some), FOLD_TWO_SCANS_ROWS_MIN)
        again = fold_family(name, bronze.where(others), FOLD_KEYS_AT_ONCE_ROWS_MAX + 1)
        if name == "tasks":
            parts = [fold_family("task_events", bronze.where(part)) for part in (some, others)]
            whole = things_of("tasks", parts[0].unionByName(parts[1]))
        else:
            parts = [first, again, first]
            whole = merged(name, parts[0].unionByName(parts[1]).unionByName(parts[2]))
        assert silver_rows(name, whole) == nodes[0][name], name


def test_P3_what_this_version_does_not_know_is_not_folded(
    spark: SparkSession, bronze: DataFrame, nodes: list[Rows]
) -> None:
    """Its bytes stay in bronze, and nobody tries to read them."""
    newer = bronze.where("op = 'state.set'").withColumns(
        {"op": F.lit("state.append"), "raw": F.lit(b"?"), "lamport": F.lit(1 << 60)}
    )
    folded = fold_family("state", bronze.unionByName(newer))
    assert silver_rows("state", folded) == nodes[0]["state"]


# --- the rule, against its plain statement -------------------------------------------------------

NARROW = StructType(
    [
        StructField("key", StringType()),
        StructField("lamport", LongType()),
        StructField("peer", StringType()),
        StructField("id", StringType()),
    ]
)


def random_versions(seed: int) -> list[tuple[str, Version]]:
    """Many keys of few versions with many ties; some come twice."""
    rng = random.Random(seed)
    found = []
    for key in range(300):
        for _ in range(rng.randint(1, 6)):
            id = rng.choice((0, rng.getrandbits(128))).to_bytes(16, "big")
            version = Version(rng.choice((1, 2, 1 << 62)), rng.choice(PEERS), id)
            found += [(f"key {key}", version)] * rng.choice((1, 1, 2))
    rng.shuffle(found)
    return found


def by_the_rule(versions: Iterable[tuple[str, Version]]) -> dict[str, Version]:
    """As a node does it: one after the other, in the order of arrival."""
    kept: dict[str, Version] = {}
    for key, version in versions:
        if key not in kept or is_newer(version, kept[key]):
            kept[key] = version
    return kept


def test_P3_winners_are_those_of_the_rule_even_where_all_hashes_agree(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = random_versions(3)
    rows = [(key, v.lamport, v.peer, str(UUID(bytes=v.id))) for key, v in versions]
    frame = spark.createDataFrame(rows, NARROW)

    def found(frame: DataFrame) -> dict[str, Version]:
        rows = winners(frame, ("key",)).select("key", *ORDER_COLUMNS).collect()
        assert len({row.key for row in rows}) == len(rows)
        return {row.key: Version(row.lamport, row.peer, UUID(row.id).bytes) for row in rows}

    expected = by_the_rule(versions)
    assert found(frame) == expected
    assert found(contenders(frame, ("key",), spread=True)) == expected
    monkeypatch.setattr(F, "xxhash64", lambda *columns: F.lit(7).cast("bigint"))
    assert found(contenders(frame, ("key",), spread=True)) == expected


def test_P3_the_merge_of_every_family_is_named_once() -> None:
    families = {family_of(op) for op in OPS}
    assert set(MERGES) == {*families, "entity"} == set(FAMILY_OF.values())
    # What only quorums decide is folded from commits.
    assert not ops_of("entities")
    # The log is all the table that messages have; facts hold on to the objects that they name.
    assert set(node_fold._FAMILIES) == families - {"message"}
    assert set(KEYS) == set(SILVER) == set(FAMILY_OF)
    for name in STAMPED:
        assert ops_of(name), name
        tombstones = {op for op in ops_of(name) if op in DELETES}
        versions = MERGES[FAMILY_OF[name]] in (Merge.LAST_WRITER, Merge.NEWEST_LIVES)
        versions = versions and name != "models"
        assert bool(tombstones) == versions, name
    assert DELETES <= OPS
