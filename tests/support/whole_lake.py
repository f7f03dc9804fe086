"""Whether a lake is what it must be, looked at from outside: by the Delta tables alone, no Spark.

`check_promises` holds at every moment, whatever was killed; `check_whole` when a job has finished.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from holdfast.node.library.node import open_node
from holdfast.node.recovery.restore_snapshot import restore_snapshot
from holdfast.node.snapshots.manifest import read_manifest
from holdfast.pipeline.fold.silver import FOLDED
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import SILVER
from holdfast.rules.ids import id_text
from support.histories import Histories
from support.lake_rows import Row, Rows, held
from support.plain_snapshot import table_digests

Place = tuple[str, int, int]


def rows_of(table: Table) -> list[dict[str, Any]]:
    """As an outsider reads it."""
    if not table.fresh().exists:
        return []
    found: list[dict[str, Any]] = DeltaTable(table.root).to_pyarrow_table().to_pylist()
    return found


def check_promises(lake: Lake, histories: Histories) -> None:
    """No id twice, no place twice, and nothing confirmed that the lake does not have."""
    lake = lake.fresh()
    ids = Counter(row["id"] for row in rows_of(lake.bronze))
    assert [id for id, times in ids.items() if times > 1] == []
    places = _places(lake)
    assert [place for place, times in places.items() if times > 1] == []
    for peer in histories.peers:
        with histories.open(peer) as node:
            epoch = node.log.head().epoch
            known = lake.position(peer, epoch) or 0
            said = [one for one in node.log.consumers() if one.name == lake.consumer]
        assert all(one.frontier <= known for one in said), f"{peer} may forget what nobody has"
        read = {offset for log, _, offset in places if log == peer}
        assert read.issuperset(range(1, known + 1)), f"the lake lacks entries of {peer}"


def check_whole(lake: Lake, histories: Histories) -> None:
    """Everything that the nodes have is there once, and they were told."""
    check_promises(lake, histories)
    lake = lake.fresh()
    entries = {
        (peer, 1, entry.offset): id_text(entry.id)
        for peer in histories.peers
        for entry in histories.entries(peer)
    }
    assert set(_places(lake)) == set(entries)
    bronze = rows_of(lake.bronze)
    assert {row["id"] for row in bronze} == set(entries.values())
    for row in [*bronze, *rows_of(lake.sightings)]:
        assert row["id"] == entries[row["log"], row["epoch"], row["offset"]]
    assert rows_of(lake.quarantine) == []
    for peer in histories.peers:
        assert lake.position(peer, 1) == histories.heads[peer]
        with histories.open(peer) as node:
            (said,) = (one for one in node.log.consumers() if one.name == lake.consumer)
            assert said.frontier == histories.heads[peer]


def check_compacted(lake: Lake, histories: Histories) -> None:
    """Silver, when nothing waits to be merged, holds the rows of every node."""
    lake = lake.fresh()
    assert [name for name in FOLDED if lake.increments(name).files()] == []
    found = {name: silver_rows(name, lake.silver(name)) for name in SILVER}
    for peer in histories.peers:
        expected: Rows
        with histories.open(peer) as node:
            expected = held(node._engine.store)
        for name in SILVER:
            assert found[name] == expected[name], name


def check_snapshot(snapshot: Path, home: Path, histories: Histories) -> None:
    """A node that begins with it holds what the others hold."""
    assert not restore_snapshot(home, snapshot, "new", sync="normal").refused
    meshes = sorted(read_manifest(snapshot).meshes)
    with open_node(home, sync="normal") as node, histories.open(histories.peers[0]) as other:
        assert table_digests(node, meshes) == table_digests(other, meshes)


def silver_rows(name: str, table: Table) -> list[Row]:
    columns = SILVER[name].names
    rows = ([_plain(row[column]) for column in columns] for row in rows_of(table))
    return sorted((tuple(row) for row in rows), key=repr)


def _plain(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    return int(value.timestamp()) * 1000 + value.microsecond // 1000


def _places(lake: Lake) -> Counter[Place]:
    tables: Iterable[Table] = (lake.bronze, lake.sightings, lake.quarantine)
    return Counter(
        (row["log"], row["epoch"], row["offset"]) for table in tables for row in rows_of(table)
    )
