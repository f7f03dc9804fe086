"""State, memory, files and blobs: the last writer wins, and pages are in the order of bytes."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.order import Version
from holdfast.rules.rows import BlobRow, FileRow, MemoryRow, StateRow, SweptRow
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.ports import Reader, Store, Transaction
from support.envelopes import MESH, MODEL, make_id
from support.stores import (
    PEERS_IN_ORDER,
    blob_row,
    file_row,
    memory_row,
    read,
    state_row,
    vector_row,
    with_mesh,
)

TOP = "\U0010ffff"
# Keys that a pattern, a locale, UTF-16 or an upper bound could get wrong.
STRANGE_KEYS = sorted(
    [
        *("a", "a%", "a%b", "a_", "a_b", "aXb", "a\\", "a*", "a?", "a[b]", "A", "ä", "a\u0308"),
        *("a\ud7ff", "a\ue000", "a\uffff", "a\U00010000", f"a{TOP}", f"a{TOP}{TOP}", f"a{TOP}z"),
        *("b", TOP, f"{TOP}{TOP}", f"{TOP}a", "\ud7ff", "\ue000", "'", '"', "a'b", "a b", " a"),
    ],
    key=lambda key: key.encode(),
)


# --- state ---------------------------------------------------------------------------------------


def test_S6_a_state_row_comes_back_as_it_was_put(store: Store) -> None:
    with_mesh(store)
    row = state_row("clé", 3, "Zoë", value='{"é":[1,null]}'.encode(), tombstone=False)
    store.write(lambda tx: tx.state_put(row))
    assert read(store, lambda tx: tx.state_get(MESH, "clé")) == row
    assert read(store, lambda tx: tx.state_version(MESH, "clé")) == row.version
    assert read(store, lambda tx: tx.state_get(MESH, "cle")) is None
    assert read(store, lambda tx: tx.state_version(MESH, "cle")) is None


def test_S6_many_keys_are_looked_up_and_put_at_once_as_one_by_one(store: Store) -> None:
    with_mesh(store, MESH, "other")
    states = [state_row(key, at) for at, key in enumerate(STRANGE_KEYS, 1)]
    memories = [memory_row("ana", key, at) for at, key in enumerate(STRANGE_KEYS, 1)]
    elsewhere = state_row("a", 9, mesh="other"), memory_row("bob", "a", 9)
    # The same key twice: the newer one stands, in whatever order they come.
    newer = [state_row("a", 90, value=b"2"), state_row("a", 80, value=b"1")]

    def work(tx: Transaction) -> None:
        tx.state_put(elsewhere[0])
        tx.memory_put(elsewhere[1])
        tx.state_put_many([*states, *newer])
        tx.memory_put_many([*memories, memory_row("ana", "a", 95, tombstone=True)])

    store.write(work)
    asked = [*STRANGE_KEYS, "nothing"]
    versions = read(store, lambda tx: tx.state_version_many(MESH, asked))
    assert versions == {row.key: row.version for row in [*states, newer[0]]}
    rows = read(store, lambda tx: tx.memory_get_many(MESH, "ana", asked))
    owned = read(store, lambda tx: tx.memory_scan(MESH, "ana", ("", ""), 1000))
    assert rows == {row.key: row for row in owned}
    assert rows.keys() == set(STRANGE_KEYS)
    assert rows["a"].tombstone
    assert read(store, lambda tx: tx.state_version_many(MESH, [])) == {}


VERSIONS = [
    Version(1, "z", make_id(1)),
    Version(2, "a", make_id(1)),
    Version(2, "z", make_id(1)),
    Version(2, "é", make_id(1)),
    Version(2, "\uffff", make_id(1)),
    Version(2, "\U00010000", make_id(1)),
    Version(2, "\U00010000", make_id(2)),
]


def _put(tx: Transaction, family: str, version: Version, text: str) -> None:
    stamp: dict[str, Any] = {"lamport": version.lamport, "peer": version.peer, "id": version.id}
    if family == "state":
        tx.state_put(state_row("k", **stamp, value=text.encode()))
    elif family == "memory":
        tx.memory_put(memory_row("own", "k", **stamp, value=text.encode()))
    else:
        tx.file_put(file_row("own", "k", **stamp, content=text.encode()))


def _text(tx: Reader, family: str) -> str:
    if family == "state":
        state = tx.state_get(MESH, "k")
        assert state is not None
        return state.value.decode()
    if family == "memory":
        memory = tx.memory_get(MESH, "own", "k")
        assert memory is not None
        return memory.value.decode()
    file = tx.file_get(MESH, "own", "k")
    assert file is not None
    assert file.content is not None
    return file.content.decode()


@pytest.mark.parametrize("family", ["state", "memory", "file"])
def test_S5_the_store_itself_keeps_the_newer_version_by_bytes(store: Store, family: str) -> None:
    """Whatever its caller believed: each pair is tried in both orders."""
    with_mesh(store)
    for one, other in permutations(range(len(VERSIONS)), 2):

        def work(tx: Transaction, one: int = one, other: int = other) -> None:
            _put(tx, family, VERSIONS[one], str(one))
            _put(tx, family, VERSIONS[other], str(other))
            assert _text(tx, family) == str(max(one, other))
            raise StopIteration  # undoes both, for the next pair

        with pytest.raises(StopIteration):
            store.write(work)


def test_S6_the_same_version_again_changes_nothing(store: Store) -> None:
    with_mesh(store)
    row = state_row("k", 5)
    store.write(lambda tx: tx.state_put(row))
    store.write(lambda tx: tx.state_put(msgspec.structs.replace(row, value=b"2", offset=9)))
    assert read(store, lambda tx: tx.state_get(MESH, "k")) == row


def test_S6_state_pages_are_in_the_order_of_bytes_and_hold_the_dead(store: Store) -> None:
    with_mesh(store, MESH, "other")

    def work(tx: Transaction) -> None:
        for n, key in enumerate(reversed(STRANGE_KEYS)):
            tx.state_put(state_row(key, tombstone=n % 3 == 0))
        tx.state_put(state_row("elsewhere", mesh="other"))

    store.write(work)
    for size in (1, 3, 1000):
        found: list[StateRow] = []
        after = ""
        while page := read(store, lambda tx: tx.state_scan(MESH, "", after, size)):  # noqa: B023
            found += page
            after = page[-1].key
        assert [row.key for row in found] == STRANGE_KEYS
    assert sum(row.tombstone for row in found) == len(range(0, len(STRANGE_KEYS), 3))


@pytest.mark.parametrize(
    "prefix", ["a", "a%", "a_", "_", "%", "a\\", "\ud7ff", "\ue000", "a\uffff", TOP, f"a{TOP}", "q"]
)
def test_S6_a_prefix_means_exactly_itself(store: Store, prefix: str) -> None:
    with_mesh(store)

    def work(tx: Transaction) -> None:
        for key in STRANGE_KEYS:
            tx.state_put(state_row(key))

    store.write(work)
    found = [row.key for row in read(store, lambda tx: tx.state_scan(MESH, prefix, "", 1000))]
    assert found == [key for key in STRANGE_KEYS if key.startswith(prefix)]
    if len(found) > 1:
        rest = read(store, lambda tx: tx.state_scan(MESH, prefix, found[0], 1000))
        assert [row.key for row in rest] == found[1:]


_key_texts = st.text(
    st.one_of(
        st.sampled_from(["a", "%", "_", "\ud7ff", "\ue000", "\uffff", "\U00010000", TOP]),
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    ),
    min_size=1,
    max_size=4,
)


@given(
    keys=st.sets(_key_texts, max_size=8), prefix=st.one_of(st.just(""), _key_texts), data=st.data()
)
def test_S6_any_prefix_of_any_keys_finds_the_same_in_both_stores(
    keys: set[str], prefix: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    near: bool = data.draw(st.booleans())
    if keys and near:
        whole = data.draw(st.sampled_from(sorted(keys)))
        prefix = whole[: data.draw(st.integers(0, len(whole)))]
    expected = sorted((key for key in keys if key.startswith(prefix)), key=str.encode)
    for made in (MemoryStore(), _scratch(tmp_path_factory)):
        found: list[str] = []

        def work(tx: Transaction, found: list[str] = found) -> None:
            for key in keys:
                tx.state_put(state_row(key))
            found += [row.key for row in tx.state_scan(MESH, prefix, "", 99)]
            raise StopIteration

        if made.writer.state == "open" and not read(made, lambda tx: tx.mesh_list()):
            with_mesh(made)
        with pytest.raises(StopIteration):
            made.write(work)
        assert found == expected


_kept: list[Any] = []


def _scratch(factory: pytest.TempPathFactory) -> Any:
    """One database for all examples: they undo what they write."""
    from holdfast.storage.sqlite.store import SqliteStore

    if not _kept:
        _kept.append(SqliteStore(factory.mktemp("scan") / "data.db", sync="normal"))
    return _kept[0]


# --- memory --------------------------------------------------------------------------------------


def test_S6_a_memory_row_comes_back_as_it_was_put(store: Store) -> None:
    with_mesh(store)
    row = memory_row("ana", "k", 2, peer="bob", tags=("é", 'a"b', "a"), value=b"[1]")
    store.write(lambda tx: tx.memory_put(row))
    assert read(store, lambda tx: tx.memory_get(MESH, "ana", "k")) == row
    assert read(store, lambda tx: tx.memory_get(MESH, "bob", "k")) is None


def test_S7_all_memories_of_a_key_come_newest_first_then_by_owner(store: Store) -> None:
    with_mesh(store, MESH, "other")

    def work(tx: Transaction) -> None:
        for owner in reversed(PEERS_IN_ORDER):
            tx.memory_put(memory_row(owner, "k", 5))
        tx.memory_put(memory_row("new", "k", 9))
        tx.memory_put(memory_row("old", "k", 1))
        tx.memory_put(memory_row("dead", "k", 7, tombstone=True))
        tx.memory_put(memory_row("ana", "l", 8))
        tx.memory_put(memory_row("far", "k", 8, mesh="other"))

    store.write(work)
    found = read(store, lambda tx: tx.memory_all(MESH, "k"))
    assert [row.owner for row in found] == ["new", *PEERS_IN_ORDER, "old"]


@pytest.mark.parametrize("family", ["memory", "file"])
def test_S6_owned_rows_are_paged_by_owner_and_key_in_the_order_of_bytes(
    store: Store, family: str
) -> None:
    with_mesh(store, MESH, "other")
    expected = [(owner, key) for owner in PEERS_IN_ORDER for key in STRANGE_KEYS]

    def work(tx: Transaction) -> None:
        for owner, key in reversed(expected):
            if family == "memory":
                tx.memory_put(memory_row(owner, key))
            else:
                tx.file_put(file_row(owner, key))
        tx.memory_put(memory_row("far", "k", mesh="other"))
        tx.file_put(file_row("far", "k", mesh="other"))

    def name(row: MemoryRow | FileRow) -> tuple[str, str]:
        return row.owner, row.key if isinstance(row, MemoryRow) else row.path

    def walk(owner: str | None, size: int) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        after = ("", "")
        with store.read() as tx:
            scan = tx.memory_scan if family == "memory" else tx.file_scan
            while page := scan(MESH, owner, after, size):
                found += [name(row) for row in page]
                after = found[-1]
        return found

    store.write(work)
    assert walk(None, 7) == expected
    assert walk(None, 10_000) == expected
    for owner in PEERS_IN_ORDER:
        assert walk(owner, 7) == [(owner, key) for key in STRANGE_KEYS]
    assert walk("nobody", 7) == []


@pytest.mark.parametrize("after", [("a", "z"), ("zz", ""), ("Z", "\U0010ffff"), ("~", "~")])
def test_S6_a_page_of_one_owner_begins_after_the_cursor_whosever_it_is(
    store: Store, after: tuple[str, str]
) -> None:
    with_mesh(store)
    store.write(lambda tx: tx.memory_put(memory_row("m", "a")))
    store.write(lambda tx: tx.memory_put(memory_row("m", "b")))
    found = read(store, lambda tx: tx.memory_scan(MESH, "m", after, 9))
    expected = [key for key in ("a", "b") if ("m", key) > after]
    assert [row.key for row in found] == expected


# --- files and blobs -----------------------------------------------------------------------------


def test_S9_a_file_row_comes_back_as_it_was_put(store: Store) -> None:
    with_mesh(store)
    inline = file_row("ana", "a.txt", 2, content=b"\0\xff", sha256="a" * 64, size=2)
    blob = file_row("ana", "b.bin", 3, content=None, sha256="b" * 64, size=70_000)
    store.write(lambda tx: tx.file_put(inline))
    store.write(lambda tx: tx.file_put(blob))
    assert read(store, lambda tx: tx.file_get(MESH, "ana", "a.txt")) == inline
    assert read(store, lambda tx: tx.file_get(MESH, "ana", "b.bin")) == blob
    assert not inline.in_blob
    assert blob.in_blob


def test_S9_references_are_counted_over_the_live_files_of_all_meshes(store: Store) -> None:
    with_mesh(store, MESH, "other")
    big: dict[str, Any] = {"content": None, "sha256": "c" * 64, "size": 70_000}

    def work(tx: Transaction) -> None:
        tx.file_put(file_row("ana", "one", **big))
        tx.file_put(file_row("bob", "one", **big))
        tx.file_put(file_row("ana", "two", mesh="other", **big))
        tx.file_put(file_row("ana", "dead", tombstone=True, **big))
        tx.file_put(file_row("ana", "small", sha256="c" * 64, content=b"inline"))

    store.write(work)
    assert read(store, lambda tx: tx.blob_refs("c" * 64)) == 3
    assert read(store, lambda tx: tx.blob_refs("d" * 64)) == 0
    dead = file_row("ana", "one", 9, tombstone=True, sha256="", size=0, content=None)
    store.write(lambda tx: tx.file_put(dead))
    assert read(store, lambda tx: tx.blob_refs("c" * 64)) == 2


def test_S9_blobs_are_put_changed_listed_and_dropped(store: Store) -> None:
    rows = [blob_row(digit) for digit in "bca"]

    def add(tx: Transaction) -> None:
        for row in rows:
            tx.blob_put(row)

    store.write(add)
    assert read(store, lambda tx: tx.blob_get("b" * 64)) == rows[0]
    assert _names(read(store, lambda tx: tx.blob_scan("", 99))) == "abc"
    assert _names(read(store, lambda tx: tx.blob_scan("a" * 64, 1))) == "b"
    store.write(lambda tx: tx.blob_drop("b" * 64))
    store.write(lambda tx: tx.blob_drop("b" * 64))
    assert read(store, lambda tx: tx.blob_get("b" * 64)) is None


def test_S9_released_blobs_wait_in_the_order_of_their_release(store: Store) -> None:
    def work(tx: Transaction) -> None:
        tx.blob_put(blob_row("a", released_at=1, released_offset=30))
        tx.blob_put(blob_row("b", released_at=3, released_offset=10))
        tx.blob_put(blob_row("c"))
        tx.blob_put(blob_row("d", released_at=2, released_offset=20))

    store.write(work)
    assert _names(read(store, lambda tx: tx.blob_released(99))) == "bda"
    assert _names(read(store, lambda tx: tx.blob_released(2))) == "bd"
    store.write(lambda tx: tx.blob_put(blob_row("b")))
    assert _names(read(store, lambda tx: tx.blob_released(99))) == "da", "revived"


def _names(rows: list[BlobRow]) -> str:
    return "".join(row.sha256[0] for row in rows)


def test_S6_counts_are_of_live_rows_of_one_mesh(store: Store) -> None:
    with_mesh(store, MESH, "other")

    def work(tx: Transaction) -> None:
        tx.state_put(state_row("a"))
        tx.state_put(state_row("b", tombstone=True))
        tx.memory_put(memory_row("ana", "a"))
        tx.file_put(file_row("ana", "a", mesh="other"))

    store.write(work)
    counts = {"state": 1, "memory": 1, "file": 0, "vector": 0, "task": 0}
    assert read(store, lambda tx: tx.family_counts(MESH)) == counts


def test_S17_tombstones_below_an_offset_go_and_nothing_else(store: Store) -> None:
    with_mesh(store, MESH, "other")

    def work(tx: Transaction) -> None:
        tx.state_put(state_row("dead", 5, offset=5, tombstone=True))
        tx.state_put(state_row("live", 4, offset=4))
        tx.state_put(state_row("young", 9, offset=10, tombstone=True))
        tx.state_put(state_row("far", 3, offset=3, mesh="other", tombstone=True))
        tx.memory_put(memory_row("ana", "dead", 6, offset=6, tombstone=True))
        tx.file_put(file_row("ana", "dead", 7, offset=7, tombstone=True))
        tx.vector_bury(
            vector_row("ana", "dead", 8, offset=8, tombstone=True, live=False, embedding=b"")
        )

    store.write(work)
    store.write(lambda tx: tx.state_seen_put(MESH, "dead", "bob", 4))
    store.write(lambda tx: tx.state_seen_put(MESH, "live", "bob", 3))
    assert store.write(lambda tx: tx.tombstones_sweep(MESH, 10, 100)) == [
        SweptRow("state", "", "dead", "", 5, True),
        SweptRow("memory", "ana", "dead", "", 6, True),
        SweptRow("file", "ana", "dead", "", 7, True),
        SweptRow("vector", "ana", "dead", MODEL.fingerprint, 8, True),
    ]
    assert store.write(lambda tx: tx.tombstones_sweep(MESH, 10, 100)) == []
    assert read(store, lambda tx: tx.state_seen(MESH, "dead")) == {}
    assert read(store, lambda tx: tx.state_seen(MESH, "live")) == {"bob": 3}
    left = [row.key for row in read(store, lambda tx: tx.state_scan(MESH, "", "", 99))]
    assert left == ["live", "young"]
    assert read(store, lambda tx: tx.state_get("other", "far")) is not None
    assert [row.lamport for row in store.write(lambda tx: tx.tombstones_sweep(MESH, 11, 100))] == [
        9
    ]


def test_S17_tombstones_go_in_chunks_over_all_families(store: Store) -> None:
    with_mesh(store)

    def work(tx: Transaction) -> None:
        for n in range(1, 4):
            tx.state_put(state_row(f"s{n}", n, offset=n, tombstone=True))
            tx.memory_put(memory_row("ana", f"m{n}", 10 + n, offset=10 + n, tombstone=True))
            tx.file_put(file_row("ana", f"f{n}", 20 + n, offset=20 + n, tombstone=True))

    store.write(work)
    swept = [store.write(lambda tx: tx.tombstones_sweep(MESH, 99, 2)) for _ in range(6)]
    assert [len(rows) for rows in swept] == [2, 2, 2, 2, 1, 0]
    assert max(row.lamport for rows in swept for row in rows) == 23


def test_S18_what_a_version_has_seen_is_kept_by_peer(store: Store) -> None:
    with_mesh(store)
    store.write(lambda tx: tx.state_put(state_row("k", 5)))
    for peer, lamport in (("bob", 3), ("é", 4), ("bob", 2)):
        store.write(lambda tx, p=peer, at=lamport: tx.state_seen_put(MESH, "k", p, at))  # type: ignore[misc]
    assert read(store, lambda tx: tx.state_seen(MESH, "k")) == {"bob": 2, "é": 4}
    store.write(lambda tx: tx.state_seen_drop(MESH, "k", "bob"))
    store.write(lambda tx: tx.state_seen_drop(MESH, "k", "nobody"))
    assert read(store, lambda tx: tx.state_seen(MESH, "k")) == {"é": 4}
