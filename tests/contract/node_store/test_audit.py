"""What a store keeps of audit streams."""

from __future__ import annotations

from holdfast.rules.audit_chain import AuditChain, AuditRow, next_event
from holdfast.storage.ports import Store
from support.envelopes import MESH, make_id
from support.stores import read, with_mesh

START = ("", "", -1, 0)


def events(stream: str, origin: str, count: int, epoch: int = 1) -> list[AuditRow]:
    chain, made = AuditChain(MESH, stream, origin, epoch), list[AuditRow]()
    for number in range(count):
        id = make_id(hash((stream, origin, epoch)) % 1000 * 100 + number)
        last = made[-1] if made else None
        made.append(next_event(chain, last, id=id, at=number, payload=b'{"n":1}'))
    return made


def add(store: Store, *rows: AuditRow) -> list[bool]:
    return store.write(lambda tx: [tx.audit_add(row) for row in rows])


def test_Q14_events_are_kept_once_and_listed_in_the_order_of_their_origins(store: Store) -> None:
    with_mesh(store)
    rows = [
        *events("a", "ana", 3),
        *events("a", "ana", 2, epoch=2),
        *events("a", "bob", 2),
        *events("b", "ana", 1),
    ]
    assert all(add(store, *reversed(rows)))
    assert add(store, rows[0]) == [False]
    assert read(store, lambda tx: tx.audit_scan(MESH, None, None, START, 99)) == rows
    assert read(store, lambda tx: tx.audit_scan(MESH, "a", "ana", START, 99)) == rows[:5]
    assert (
        read(store, lambda tx: tx.audit_scan(MESH, "a", None, ("a", "ana", 1, 2), 2)) == rows[2:4]
    )
    assert read(store, lambda tx: tx.audit_scan("other", None, None, START, 99)) == []
    assert read(store, lambda tx: tx.audit_get(rows[1].chain, 2)) == rows[1]
    assert read(store, lambda tx: tx.audit_get(rows[1].chain, 4)) is None


def test_Q14_how_much_of_a_chain_is_there_is_counted_with_every_event(store: Store) -> None:
    with_mesh(store)
    rows = events("a", "ana", 9)
    add(store, *(rows[at] for at in (0, 1, 4, 5, 8)))
    chain = rows[0].chain
    found = read(store, lambda tx: tx.audit_chain_get(chain))
    assert found is not None
    assert (found.last, found.events) == (9, 5)
    assert read(store, lambda tx: [tx.audit_gap(chain, at) for at in (0, 4, 6, 8, 9)]) == [
        *((3, 4), (7, 8), (7, 8), None, None)
    ]
    add(store, *rows)
    found = read(store, lambda tx: tx.audit_chain_get(chain))
    assert found is not None
    assert (found.last, found.events) == (9, 9)
    add(store, *events("b", "bob", 1))
    both = read(store, lambda tx: tx.audit_chains(MESH, ("", "", -1), 9))
    assert [(one.stream, one.origin, one.last) for one in both] == [
        ("a", "ana", 9),
        ("b", "bob", 1),
    ]
    assert read(store, lambda tx: tx.audit_chains(MESH, ("a", "ana", 1), 9)) == both[1:]
