"""What a store keeps of telemetry."""

from __future__ import annotations

from holdfast.rules.telemetry import TelemetryRow
from holdfast.storage.ports import Store, Transaction
from support.envelopes import MESH
from support.stores import read, telemetry_row, with_mesh

START = ("", "")


def put(store: Store, *rows: TelemetryRow) -> None:
    def work(tx: Transaction) -> None:
        for row in rows:
            tx.telemetry_put(row)

    store.write(work)


def test_Q1_telemetry_is_kept_by_kind_and_key_and_counted(store: Store) -> None:
    with_mesh(store)
    rows = [telemetry_row(kind, key) for kind in ("agent", "run", "é") for key in ("a", "b", "c")]
    put(store, *reversed(rows))
    assert read(store, lambda tx: tx.telemetry_scan(MESH, None, START, 99)) == rows
    assert read(store, lambda tx: tx.telemetry_scan(MESH, None, ("agent", "c"), 2)) == rows[3:5]
    assert read(store, lambda tx: tx.telemetry_scan(MESH, "run", START, 99)) == rows[3:6]
    assert read(store, lambda tx: tx.telemetry_scan(MESH, "run", ("run", "a"), 1)) == [rows[4]]
    assert read(store, lambda tx: tx.telemetry_scan(MESH, "run", ("é", "a"), 9)) == []
    assert read(store, lambda tx: tx.telemetry_scan("other", None, START, 99)) == []
    newer = telemetry_row("run", "a", value=b"2")
    put(store, newer)
    assert read(store, lambda tx: tx.telemetry_get(MESH, "run", "a")) == newer
    assert read(store, lambda tx: tx.telemetry_count(MESH)) == 9
    assert store.write(lambda tx: tx.telemetry_drop(MESH, "run", "a"))
    assert not store.write(lambda tx: tx.telemetry_drop(MESH, "run", "a"))
    counts = read(store, lambda tx: (tx.telemetry_count(MESH), tx.telemetry_count("other")))
    assert counts == (8, 0)


def test_Q1_telemetry_whose_time_is_up_goes_in_chunks_the_oldest_first(store: Store) -> None:
    with_mesh(store)
    put(
        store,
        *(
            telemetry_row("run", key, expires_at=at)
            for key, at in zip("abcd", (4, 3, 2, 5), strict=True)
        ),
    )
    assert store.write(lambda tx: tx.telemetry_expire(4, 2)) == 2
    assert [row.key for row in read(store, lambda tx: tx.telemetry_scan(MESH, None, START, 9))] == [
        *("a", "d")
    ]
    assert store.write(lambda tx: tx.telemetry_expire(4, 2)) == 1
    assert store.write(lambda tx: tx.telemetry_expire(4, 2)) == 0
    assert read(store, lambda tx: tx.telemetry_count(MESH)) == 1
