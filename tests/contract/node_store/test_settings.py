"""SQLite as it is set up, read back on every kind of connection."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, cast

import apsw
import pytest

from holdfast.node.home.opening import open_home
from holdfast.rules.errors import BadInput, NotOurs, StoreBusy, StoreClosed, StoreFailed
from holdfast.storage.sqlite.connection import APPLICATION_ID, connect, sync_mode
from holdfast.storage.sqlite.store import SqliteStore
from support.envelopes import MODEL
from support.stores import vector_row, with_mesh

FULL, NORMAL = 2, 1
KINDS = ("writer", "reader", "bare", "bare reader")


def connection_of(store: SqliteStore, kind: str, path: Path, sync: str) -> Any:
    if kind == "writer":
        return store._con
    if kind == "reader":
        with store.read() as reader:
            return cast(Any, reader)._con
    return connect(path, sync=sync, read_only=kind == "bare reader")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("sync", "level"), [("full", FULL), ("normal", NORMAL)])
def test_S2_every_setting_is_in_place_on_every_connection(
    tmp_path: Path, kind: str, sync: str, level: int
) -> None:
    path = tmp_path / "data.db"
    store = SqliteStore(path, sync=sync)
    with_mesh(store)
    connection = connection_of(store, kind, path, sync)
    found = {
        name: connection.pragma(name)
        for name in (
            *("journal_mode", "synchronous", "foreign_keys", "cache_size", "mmap_size"),
            *("temp_store", "busy_timeout", "application_id", "query_only"),
        )
    }
    assert found == {
        "journal_mode": "wal",
        "synchronous": level,
        "foreign_keys": 1,
        "cache_size": -8000,
        "mmap_size": 30_000_000,
        "temp_store": 2,
        "busy_timeout": 5000,
        "application_id": APPLICATION_ID,
        "query_only": int("reader" in kind),
    }
    store.stop()


def test_S2_settings_hold_after_the_vector_extension_is_loaded(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "data.db")
    with_mesh(store)
    store.write(lambda tx: tx.vector_add(vector_row("ana", "k"), MODEL))
    assert store._con.pragma("synchronous") == FULL
    assert store._con.pragma("foreign_keys") == 1
    store.stop()


@pytest.mark.parametrize(
    ("argument", "environment", "level"),
    [
        (None, None, FULL),
        (None, "normal", NORMAL),
        (None, "NORMAL", NORMAL),
        (None, "full", FULL),
        (None, "", FULL),
        ("full", "normal", FULL),
        ("normal", "full", NORMAL),
    ],
)
def test_S2_durability_is_chosen_by_argument_then_environment_then_full(
    tmp_path: Path, argument: str | None, environment: str | None, level: int
) -> None:
    environ = {} if environment is None else {"HOLDFAST_STORE_SYNC": environment}
    opened = open_home(tmp_path / "h", peer="ana", create=True, sync=argument, environ=environ)
    assert opened.store._con.pragma("synchronous") == level
    with opened.store.read() as reader:
        assert cast(Any, reader)._con.pragma("synchronous") == level
    opened.close()


@pytest.mark.parametrize("mode", ["off", "extra", "0", "fast"])
def test_S2_any_other_durability_is_refused(tmp_path: Path, mode: str) -> None:
    with pytest.raises(BadInput):
        sync_mode(mode, None)
    with pytest.raises(BadInput):
        open_home(tmp_path / "h", peer="ana", create=True, environ={"HOLDFAST_STORE_SYNC": mode})
    assert not (tmp_path / "h").exists()


def test_S2_foreign_keys_are_kept(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "data.db")
    from support.stores import state_row

    with pytest.raises(apsw.ConstraintError):
        store.write(lambda tx: tx.state_put(state_row("k")))
    store.stop()


def test_S1_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "data.db"
    with closing(apsw.Connection(str(path))) as other:
        other.execute("CREATE TABLE theirs (x)")
    before = path.read_bytes()
    with pytest.raises(NotOurs):
        SqliteStore(path)
    assert path.read_bytes() == before, "not even its journal mode"


def test_S2_a_path_that_cannot_be_opened_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed):
        SqliteStore(tmp_path / "missing" / "data.db")
    with pytest.raises(StoreFailed):
        connect(tmp_path / "none.db", read_only=True)


def test_S1_a_second_process_that_holds_the_lock_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two connections stand for two processes: SQLite's locks do not tell them apart."""
    path = tmp_path / "data.db"
    store = SqliteStore(path, holders=lambda: "process 7 (other)")
    with_mesh(store)
    store._con.set_busy_timeout(1)
    other = connect(path)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy, match="process 7"):
        store.write(lambda tx: tx.tick("team"))
    with store.read() as reader:
        assert reader.mesh_get("team") is not None, "readers go on"
    other.execute("ROLLBACK")
    assert store.write(lambda tx: tx.tick("team")) == (1, 1, None, 0)
    other.close()
    store.stop()
    with pytest.raises(StoreClosed):
        store.write(lambda tx: None)
