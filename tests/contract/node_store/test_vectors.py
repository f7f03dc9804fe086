"""Vectors as a store keeps them: every row stays, the live ones are found."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.rules.errors import BadVector
from holdfast.rules.order import Version
from holdfast.rules.vectors import Model, pack
from holdfast.storage.ports import Store, Transaction
from support.envelopes import MESH, MODEL, make_id
from support.stores import PEERS_IN_ORDER, read, vector_row, with_mesh

OTHER_MODEL = Model(provider="test", name="other", dim=3)
ORIGIN = pack((0.0, 0.0), 2)
ID = MODEL.fingerprint


def keys(store: Store, mesh: str = MESH, limit: int = 10, *, exact: bool = True) -> list[str]:
    hits = read(store, lambda tx: tx.vector_search(mesh, MODEL, ORIGIN, limit, exact=exact))
    assert [far for _, far in hits] == sorted(far for _, far in hits)
    return [row.key for row, _ in hits]


def test_S8_a_vector_comes_back_as_it_was_added(store: Store) -> None:
    with_mesh(store)
    row = vector_row("Zoë", "clé", 3, (1.5, -2.0), metadata=b'{"a":[1]}', content="texte é")
    store.write(lambda tx: tx.vector_add(row, MODEL))
    assert read(store, lambda tx: tx.vector_live(MESH, "Zoë", "clé", ID)) == row
    assert read(store, lambda tx: tx.vector_newest(MESH, "Zoë", "clé", ID)) == row.version
    assert read(store, lambda tx: tx.vector_live(MESH, "ana", "clé", ID)) is None
    assert read(store, lambda tx: tx.vector_newest(MESH, "Zoë", "cle", ID)) is None
    assert read(store, lambda tx: tx.vector_live(MESH, "Zoë", "clé", "0" * 16)) is None


def test_S8_a_model_is_registered_by_its_first_vector(store: Store) -> None:
    with_mesh(store)
    assert read(store, lambda tx: tx.model_list()) == []
    store.write(lambda tx: tx.vector_add(vector_row("ana", "a", 1, updated_at=50), MODEL))
    store.write(lambda tx: tx.vector_add(vector_row("ana", "b", 2, updated_at=60), MODEL))
    third = vector_row(
        "ana", "a", 3, model=OTHER_MODEL.fingerprint, embedding=pack((1, 2, 3), 3), updated_at=55
    )
    store.write(lambda tx: tx.vector_add(third, OTHER_MODEL))
    first, second = read(store, lambda tx: tx.model_list())
    assert (first.id, first.provider, first.name, first.dim) == (ID, "test", "tiny", 2)
    assert (first.created_at, first.deprecated_at, first.last_read_at) == (50, None, None)
    assert second.id == OTHER_MODEL.fingerprint


def test_S8_a_retired_vector_stays_but_is_not_found(store: Store) -> None:
    with_mesh(store)
    store.write(lambda tx: tx.vector_add(vector_row("ana", "a", 1), MODEL))
    store.write(lambda tx: tx.vector_add(vector_row("ana", "b", 2), MODEL))
    store.write(lambda tx: tx.vector_retire(MESH, "ana", "a", ID))
    store.write(lambda tx: tx.vector_retire(MESH, "ana", "a", ID))
    store.write(lambda tx: tx.vector_retire(MESH, "ana", "unknown", ID))
    assert read(store, lambda tx: tx.vector_live(MESH, "ana", "a", ID)) is None
    assert keys(store) == ["b"]
    assert keys(store, exact=False) == ["b"]
    rows = read(store, lambda tx: tx.vector_scan(MESH, None, 0, 99, live_only=False))
    assert [(row.key, row.live) for _, row in rows] == [("a", False), ("b", True)]


def test_S8_a_vector_added_dead_is_never_found(store: Store) -> None:
    with_mesh(store)
    store.write(lambda tx: tx.vector_add(vector_row("ana", "late", 1, live=False), MODEL))
    assert keys(store) == []
    assert read(store, lambda tx: tx.vector_live(MESH, "ana", "late", ID)) is None
    assert read(store, lambda tx: tx.vector_newest(MESH, "ana", "late", ID)) is not None


def test_S8_a_tombstone_is_the_newest_version_of_its_key(store: Store) -> None:
    with_mesh(store)
    store.write(lambda tx: tx.vector_add(vector_row("ana", "a", 1), MODEL))
    store.write(lambda tx: tx.vector_retire(MESH, "ana", "a", ID))
    tomb = vector_row("ana", "a", 4, tombstone=True, live=False, embedding=b"", content="")
    store.write(lambda tx: tx.vector_bury(tomb))
    assert read(store, lambda tx: tx.vector_newest(MESH, "ana", "a", ID)) == tomb.version
    assert keys(store) == []


def test_S8_a_tombstone_of_a_model_that_nobody_knows_is_kept(store: Store) -> None:
    with_mesh(store)
    tomb = vector_row("ana", "a", 4, tombstone=True, live=False, embedding=b"", model="f" * 16)
    store.write(lambda tx: tx.vector_bury(tomb))
    assert read(store, lambda tx: tx.vector_newest(MESH, "ana", "a", "f" * 16)) == tomb.version
    assert read(store, lambda tx: tx.model_list()) == []


def test_S5_the_newest_vector_is_newest_by_bytes(store: Store) -> None:
    with_mesh(store)

    def work(tx: Transaction) -> None:
        for peer in reversed(PEERS_IN_ORDER):
            row = vector_row("own", "k", 2, peer=peer, id=make_id(3), live=False)
            tx.vector_add(row, MODEL)
        tx.vector_add(vector_row("own", "k", 1, peer="\U0010ffff\U0010ffff", live=False), MODEL)

    store.write(work)
    newest = read(store, lambda tx: tx.vector_newest(MESH, "own", "k", ID))
    assert newest == Version(2, PEERS_IN_ORDER[-1], make_id(3))


@pytest.mark.parametrize("exact", [True, False])
def test_S8_a_search_stays_in_its_mesh_and_finds_as_many_as_exist(
    store: Store, exact: bool
) -> None:
    """The mesh filter works inside the search: nearer vectors of others do not use up the limit."""
    with_mesh(store, MESH, "crowd")

    def work(tx: Transaction) -> None:
        for n in range(30):
            row = vector_row("ana", f"c{n}", n + 1, (n / 100, 0.0), mesh="crowd")
            tx.vector_add(row, MODEL)
        for n in range(5):
            tx.vector_add(vector_row("ana", f"t{n}", n + 100, (10.0 + n, 0.0)), MODEL)

    store.write(work)
    assert keys(store, limit=3, exact=exact) == ["t0", "t1", "t2"]
    assert keys(store, limit=10, exact=exact) == ["t0", "t1", "t2", "t3", "t4"]
    assert keys(store, "crowd", 2, exact=exact) == ["c0", "c1"]
    assert keys(store, "nowhere", 2, exact=exact) == []


@pytest.mark.parametrize("exact", [True, False])
def test_S8_a_search_says_how_far(store: Store, exact: bool) -> None:
    with_mesh(store)
    store.write(lambda tx: tx.vector_add(vector_row("ana", "a", 1, (3.0, 4.0)), MODEL))
    hits = read(store, lambda tx: tx.vector_search(MESH, MODEL, ORIGIN, 5, exact=exact))
    ((row, far),) = hits
    assert row.key == "a"
    assert far == pytest.approx(5.0)


@pytest.mark.parametrize("exact", [True, False])
def test_S21_a_search_may_be_of_one_owner_and_misses_none_of_its_vectors(
    store: Store, exact: bool
) -> None:
    with_mesh(store, MESH, "crowd")

    def work(tx: Transaction) -> None:
        # The crowd is nearer: a search that picks first and looks at owners then, finds nothing.
        for n in range(40):
            tx.vector_add(vector_row("bo", f"b{n}", n + 1, (0.01 * n, 0.0)), MODEL)
        for n in range(3):
            tx.vector_add(vector_row("ana", f"a{n}", n + 50, (9.0 + n, 0.0)), MODEL)
        tx.vector_add(vector_row("ana", "other", 60, mesh="crowd"), MODEL)

    store.write(work)
    store.write(lambda tx: tx.vector_retire(MESH, "ana", "a1", ID))

    def of(owner: str | None) -> list[str]:
        hits = read(
            store,
            lambda tx: tx.vector_search(MESH, MODEL, ORIGIN, 5, exact=exact, owner=owner),
        )
        return [row.key for row, _ in hits]

    assert of("ana") == ["a0", "a2"]
    assert of("bo") == of(None) == ["b0", "b1", "b2", "b3", "b4"]
    assert of("cy") == []


def test_S8_an_unknown_model_finds_nothing_and_a_wrong_dimension_is_an_error(store: Store) -> None:
    with_mesh(store)
    far = pack((0, 0, 0), 3)
    assert read(store, lambda tx: tx.vector_search(MESH, OTHER_MODEL, far, 5, exact=True)) == []
    store.write(lambda tx: tx.vector_add(vector_row("ana", "a", 1), MODEL))
    with pytest.raises(BadVector):
        read(store, lambda tx: tx.vector_search(MESH, MODEL, far, 5, exact=True))
    assert read(store, lambda tx: tx.vector_search(MESH, OTHER_MODEL, far, 5, exact=True)) == []


def test_S8_a_scan_goes_on_after_a_row_number(store: Store) -> None:
    with_mesh(store, MESH, "other")

    def work(tx: Transaction) -> None:
        for n in range(6):
            mesh = "other" if n == 2 else MESH
            tx.vector_add(vector_row("ana", f"k{n}", n + 1, mesh=mesh, live=n != 4), MODEL)

    store.write(work)
    page = read(store, lambda tx: tx.vector_scan(MESH, ID, 0, 2, live_only=True))
    assert [row.key for _, row in page] == ["k0", "k1"]
    rest = read(store, lambda tx: tx.vector_scan(MESH, ID, page[-1][0], 9, live_only=True))
    assert [row.key for _, row in rest] == ["k3", "k5"]
    every = read(store, lambda tx: tx.vector_scan(MESH, None, 0, 9, live_only=False))
    assert [row.key for _, row in every] == ["k0", "k1", "k3", "k4", "k5"]
    assert read(store, lambda tx: tx.vector_scan(MESH, "f" * 16, 0, 9, live_only=False)) == []


def test_S8_marks_of_a_model_are_kept_and_reads_only_grow(store: Store) -> None:
    with_mesh(store)
    store.write(lambda tx: tx.vector_add(vector_row("ana", "a", 1), MODEL))
    model = read(store, lambda tx: tx.model_list())[0]
    replace = msgspec.structs.replace
    store.write(lambda tx: tx.model_mark(ID, deprecated_at=500))
    assert read(store, lambda tx: tx.model_list()) == [replace(model, deprecated_at=500)]
    store.write(lambda tx: tx.model_mark(ID, last_read_at=700))
    store.write(lambda tx: tx.model_mark(ID, last_read_at=600))
    marked = replace(model, deprecated_at=500, last_read_at=700)
    assert read(store, lambda tx: tx.model_list()) == [marked]
    store.write(lambda tx: tx.model_mark("f" * 16, deprecated_at=1))
    assert read(store, lambda tx: tx.model_list()) == [marked]


def test_S8_a_dropped_model_is_unknown_until_its_next_vector(store: Store) -> None:
    with_mesh(store)
    store.write(lambda tx: tx.vector_add(vector_row("ana", "a", 1), MODEL))
    store.write(lambda tx: tx.vector_retire(MESH, "ana", "a", ID))
    store.write(lambda tx: tx.model_drop(ID))
    assert read(store, lambda tx: tx.model_list()) == []
    assert keys(store) == []
    store.write(lambda tx: tx.vector_add(vector_row("ana", "b", 2), MODEL))
    assert keys(store) == ["b"]
    assert keys(store, exact=False) == ["b"]
