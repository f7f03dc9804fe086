"""Named readers of the log, and where long work has got to."""

from __future__ import annotations

import msgspec

from holdfast.rules.filters import Filter
from holdfast.rules.rows import ConsumerRow, JobRow
from holdfast.storage.ports import Store
from support.stores import PEERS_IN_ORDER, consumer_row, read


def test_Z4_a_consumer_is_put_changed_and_dropped(store: Store) -> None:
    row = ConsumerRow(name="lager é", frontier="3;5-7", created_at=10, seen_at=20)
    store.write(lambda tx: tx.consumer_put(row))
    assert read(store, lambda tx: tx.consumer_get("lager é")) == row
    moved = msgspec.structs.replace(row, frontier="7", seen_at=30)
    store.write(lambda tx: tx.consumer_put(moved))
    assert read(store, lambda tx: tx.consumer_get("lager é")) == moved
    asked = Filter(meshes=("team",), subjects=("é/", "%"), classes=("facts",), beyond="zoe")
    changed = msgspec.structs.replace(moved, retire_ms=5, retire_lag=100, zone="zoe", filter=asked)
    store.write(lambda tx: tx.consumer_put(changed))
    assert read(store, lambda tx: tx.consumer_list()) == [changed]
    store.write(lambda tx: tx.consumer_put(moved))
    assert read(store, lambda tx: tx.consumer_get("lager é")) == moved
    store.write(lambda tx: tx.consumer_drop("lager é"))
    store.write(lambda tx: tx.consumer_drop("lager é"))
    assert read(store, lambda tx: tx.consumer_get("lager é")) is None
    assert read(store, lambda tx: tx.consumer_list()) == []


def test_Z4_consumers_are_listed_by_the_bytes_of_their_names(store: Store) -> None:
    for name in reversed(PEERS_IN_ORDER):
        store.write(lambda tx, name=name: tx.consumer_put(consumer_row(name)))  # type: ignore[misc]
    found = read(store, lambda tx: tx.consumer_list())
    assert tuple(row.name for row in found) == PEERS_IN_ORDER


def test_S3_the_cursor_of_long_work_is_kept_until_it_is_dropped(store: Store) -> None:
    job = JobRow(name="import", cursor={"line": 7, "path": "é", "done": False}, updated_at=5)
    assert read(store, lambda tx: tx.job_get("import")) is None
    store.write(lambda tx: tx.job_put(job))
    assert read(store, lambda tx: tx.job_get("import")) == job
    later = JobRow(name="import", cursor={}, updated_at=6)
    store.write(lambda tx: tx.job_put(later))
    assert read(store, lambda tx: tx.job_get("import")) == later
    store.write(lambda tx: tx.job_drop("import"))
    store.write(lambda tx: tx.job_drop("import"))
    assert read(store, lambda tx: tx.job_get("import")) is None
