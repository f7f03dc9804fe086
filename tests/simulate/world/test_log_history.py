"""The chronicle of a log tells when the log does what logs must not."""

from __future__ import annotations

import pytest

from holdfast.simulate.world.log_history import LogHistory
from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.ports import Transaction
from support.envelopes import MESH, fact_append, make_id

pytestmark = pytest.mark.sim


def _append(store: MemoryStore, *numbers: int, origin: str = "bob") -> None:
    def work(tx: Transaction) -> None:
        for number in numbers:
            id = make_id(number)
            raw = fact_append("a", "is", number, id=id, origin=origin, lamport=number)
            tx.log_append(id, MESH, "fact.append", "a", origin, number, 1, raw)

    store.write(work)


def _look(chronicle: LogHistory, store: MemoryStore, via: str = "cai") -> list[str]:
    with store.read() as tx:
        return chronicle.look(tx, via)[1]


def test_R1_a_log_that_grows_and_is_truncated_is_well() -> None:
    store, chronicle = MemoryStore(), LogHistory("ana")
    _append(store, 1, 2)
    _append(store, 3, origin="ana")
    assert _look(chronicle, store) == []
    assert [(seen.seq, seen.via) for seen in chronicle.entries] == [(1, "cai"), (2, "cai"), (3, "")]
    store.write(lambda tx: tx.log_truncate(3, 10, 5))
    _append(store, 4)
    assert _look(chronicle, store, "dee") == []
    assert (chronicle.first, chronicle.head, chronicle.at(4).via) == (3, 4, "dee")
    assert chronicle.holds(make_id(1))


def test_R1_a_log_that_lost_its_end_is_told() -> None:
    chronicle = LogHistory("ana")
    whole, shorter = MemoryStore(), MemoryStore()
    _append(whole, 1, 2)
    _append(shorter, 1)
    assert _look(chronicle, whole) == []
    assert _look(chronicle, shorter) == ["its log holds [1, 1] and went up to 2"]


def test_R1_a_log_that_holds_something_else_is_told() -> None:
    chronicle = LogHistory("ana")
    one, other = MemoryStore(), MemoryStore()
    _append(one, 1, 2)
    _append(other, 1, 3, 4)
    assert _look(chronicle, one) == []
    assert _look(chronicle, other) == ["offset 2 of its log holds something else than before"]


def test_R1_an_entry_that_stands_twice_is_told() -> None:
    store, chronicle = MemoryStore(), LogHistory("ana")
    _append(store, 1, 2)
    assert _look(chronicle, store) == []
    store.write(lambda tx: tx.log_truncate(2, 10, 5))
    _append(store, 1)
    (problem,) = _look(chronicle, store)
    assert "stands twice: 1, 3" in problem


def test_R1_another_epoch_is_told_unless_the_node_was_restored() -> None:
    store, chronicle = MemoryStore(), LogHistory("ana")
    _append(store, 1)
    assert _look(chronicle, store) == []
    then = list(chronicle.entries)
    _append(store, 2)
    assert _look(chronicle, store) == []
    restored = MemoryStore()
    _append(restored, 1)
    restored.write(lambda tx: tx.set_epoch(2))
    assert _look(chronicle, restored)[0] == "its log counts in epoch 2 after 1"
    with restored.read() as tx:
        assert chronicle.went_back(tx, then) == []
    assert list(chronicle.lost) == [make_id(2)]
    _append(restored, 2)
    assert _look(chronicle, restored) == []
    assert not chronicle.lost


def test_R1_a_restored_log_that_is_not_the_backup_is_told() -> None:
    store, chronicle = MemoryStore(), LogHistory("ana")
    _append(store, 1)
    assert _look(chronicle, store) == []
    then = list(chronicle.entries)
    other = MemoryStore()
    _append(other, 7)
    with other.read() as tx:
        assert chronicle.went_back(tx, then) == [
            "a restored log counts in epoch 1 after 1",
            "a restored log is not the one that was backed up",
        ]
