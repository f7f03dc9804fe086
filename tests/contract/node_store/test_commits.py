"""Whoever wants to know of commits is told of each, by the thread that made it."""

from __future__ import annotations

import logging
import threading

import pytest

from holdfast.storage.memory.store import MemoryStore
from holdfast.storage.ports import Transaction, Work
from holdfast.storage.sqlite.store import SqliteStore
from holdfast.storage.tickets import Ticket
from support.envelopes import MESH
from support.stores import read, state_row, with_mesh

AnyStore = MemoryStore | SqliteStore


def fail(tx: Transaction) -> None:
    tx.state_put(state_row("k"))
    raise RuntimeError("stop")


def test_Z3_a_lone_write_tells_after_its_commit_and_before_it_returns(store: AnyStore) -> None:
    with_mesh(store)
    seen: list[object] = []

    def told() -> None:
        with store.read() as reader:
            seen.append((threading.get_ident(), reader.state_get(MESH, "k")))

    store.on_commit(told)
    store.write(lambda tx: tx.state_put(state_row("k")))
    assert seen == [(threading.get_ident(), state_row("k"))]


def test_Z3_a_group_tells_once_before_its_writes_are_answered(store: AnyStore) -> None:
    with_mesh(store)
    tape: list[str] = []
    store.on_commit(lambda: tape.append("told"))
    for key in ("a", "b"):
        work = lambda tx, key=key: tx.state_put(state_row(key))  # noqa: E731
        store.writer.enqueue(Ticket(work, lambda tickets: tape.append("answered")))
    store.writer.run_group()
    assert tape[0] == "told"
    assert set(tape[1:]) == {"answered"}


def test_Z3_writes_of_the_writers_own_thread_are_told_too(store: AnyStore) -> None:
    with_mesh(store)
    told = threading.Event()
    store.on_commit(told.set)
    done = threading.Event()
    ticket = Ticket(lambda tx: tx.state_put(state_row("k")), lambda tickets: done.set())
    store.writer.submit([ticket])
    assert done.wait(30)
    assert told.is_set()


def test_Z3_who_follows_streams_is_told_apart_of_groups_that_are_in_none(store: AnyStore) -> None:
    class Unstreamed:
        in_no_stream = True

        def __call__(self, tx: Transaction) -> None:
            tx.state_put(state_row("k"))

        def committed(self) -> None:
            tape.append("committed")

    with_mesh(store)
    tape: list[str] = []
    store.on_commit(lambda: tape.append("streams"), unstreamed=lambda: tape.append("none"))
    store.on_commit(lambda: tape.append("all"))
    groups: list[list[Work[None]]] = [
        [Unstreamed(), Unstreamed()],
        [Unstreamed(), lambda tx: None],
    ]
    for group in groups:
        for work in group:
            store.writer.enqueue(Ticket(work, lambda tickets: None))
        store.writer.run_group()
    assert tape == ["committed", "committed", "none", "all", "streams", "all"]


def test_Z3_what_was_not_committed_is_not_told(store: AnyStore) -> None:
    with_mesh(store)
    told: list[int] = []
    store.on_commit(lambda: told.append(1))
    with pytest.raises(RuntimeError, match="stop"):
        store.write(fail)
    assert told == []


def test_Z3_all_who_asked_are_told_and_one_that_fails_harms_nobody(
    store: AnyStore, caplog: pytest.LogCaptureFixture
) -> None:
    with_mesh(store)
    told: list[str] = []

    def broken() -> None:
        raise RuntimeError("no")

    store.on_commit(lambda: told.append("one"))
    store.on_commit(broken)
    store.on_commit(lambda: told.append("two"))
    with caplog.at_level(logging.ERROR, "holdfast"):
        store.write(lambda tx: tx.state_put(state_row("k")))
    assert told == ["one", "two"]
    assert "could not be told" in caplog.text
    assert read(store, lambda tx: tx.state_get(MESH, "k")) is not None
