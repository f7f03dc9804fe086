"""Messages that came, what was heard of the broker's numbering, and mates, on every store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from holdfast.rules.id_prefix import IdSpan
from holdfast.rules.ids import id_text
from holdfast.rules.inbox_match import InboxMatch
from holdfast.rules.limits import INBOX_SCAN_ROWS
from holdfast.rules.rows import InboxRow
from holdfast.storage.ports import Store, Transaction
from support.envelopes import MESH, make_id
from support.stores import inbox_row, known_member, outbox_row, read, task_row, with_mesh


def numbers(rows: list[InboxRow]) -> list[int]:
    return [row.number for row in rows]


def test_D13_a_message_comes_back_as_it_was_added_with_a_number(store: Store) -> None:
    assert read(store, lambda tx: tx.inbox_last()) == 0
    full = inbox_row(4, priority="now", broker_id=b"b" * 16, read_at=7, hooked_at=8)
    assert store.write(lambda tx: tx.inbox_add(inbox_row(3)))
    assert store.write(lambda tx: tx.inbox_add(full))
    assert read(store, lambda tx: tx.inbox_get(make_id(4))) == msgspec.structs.replace(
        full, number=2
    )
    assert read(store, lambda tx: tx.inbox_get(make_id(5))) is None


def test_D13_a_redelivery_changes_nothing(store: Store) -> None:
    assert store.write(lambda tx: tx.inbox_add(inbox_row(1)))
    store.write(lambda tx: tx.inbox_read(make_id(1), 50))
    again = inbox_row(1, sender="eve", received_at=9_999)
    assert not store.write(lambda tx: tx.inbox_add(again))
    assert read(store, lambda tx: tx.inbox_list(None, False, 0, 9)) == [
        inbox_row(1, number=1, read_at=50)
    ]


def test_D13_messages_are_listed_in_the_order_they_came(store: Store) -> None:
    for row in (inbox_row(9), inbox_row(2, mesh="other"), inbox_row(5), inbox_row(1, read_at=3)):
        assert store.write(lambda tx, row=row: tx.inbox_add(row))  # type: ignore[misc]
    with store.read() as tx:
        assert numbers(tx.inbox_list(None, False, 0, 9)) == [1, 2, 3, 4]
        assert numbers(tx.inbox_list(MESH, False, 0, 9)) == [1, 3, 4]
        assert numbers(tx.inbox_list(None, True, 1, 9)) == [2, 3]
        assert numbers(tx.inbox_list(None, False, 1, 2)) == [2, 3]
        assert tx.inbox_counts() == (4, 3)
        assert tx.inbox_last() == 4


def test_D13_messages_are_found_by_sender_topic_and_time(store: Store) -> None:
    rows = (
        inbox_row(1, sender="bob", kind="topic", ref="news", received_at=10),
        inbox_row(2, sender="eve", kind="topic", ref="news", received_at=20),
        inbox_row(3, sender="bob", kind="queue", ref="news", received_at=30),
        inbox_row(4, sender="bob", kind="topic", ref="other", received_at=40, read_at=41),
    )
    for row in rows:
        store.write(lambda tx, row=row: tx.inbox_add(row))  # type: ignore[misc]

    def found(unread: bool = False, after: int = 0, **match: Any) -> list[int]:
        with store.read() as tx:
            return numbers(tx.inbox_list(None, unread, after, 9, InboxMatch(**match).check()))

    assert found() == [1, 2, 3, 4]
    assert found(sender="bob") == [1, 3, 4]
    assert found(sender="bob", unread=True, after=1) == [3]
    assert found(topic="news") == [1, 2], "a queue of that name is no topic"
    assert found(since_ms=20, until_ms=40) == [2, 3]
    assert found(sender="eve", topic="other") == []


def test_D13_a_filtered_read_looks_at_a_part_of_the_inbox(store: Store) -> None:
    def fill(tx: Transaction) -> None:
        for number in range(1, INBOX_SCAN_ROWS + 3):
            tx.inbox_add(inbox_row(number, sender="eve" if number > INBOX_SCAN_ROWS else "bob"))

    store.write(fill)
    with store.read() as tx:
        assert tx.inbox_list(None, False, 0, 9, InboxMatch(sender="eve")) == []
        later = tx.inbox_list(None, False, INBOX_SCAN_ROWS, 9, InboxMatch(sender="eve"))
    assert numbers(later) == [INBOX_SCAN_ROWS + 1, INBOX_SCAN_ROWS + 2]


def test_D13_a_message_is_read_once(store: Store) -> None:
    store.write(lambda tx: tx.inbox_add(inbox_row(1)))
    assert store.write(lambda tx: tx.inbox_read(make_id(1), 50))
    assert store.write(lambda tx: tx.inbox_read(make_id(1), 60)), "again is no error"
    row = read(store, lambda tx: tx.inbox_get(make_id(1)))
    assert row is not None
    assert row.read_at == 50
    assert not store.write(lambda tx: tx.inbox_read(make_id(2), 50))


def test_D13_hooks_are_told_of_each_message_once(store: Store) -> None:
    for number in range(1, 5):
        store.write(lambda tx, n=number: tx.inbox_add(inbox_row(n)))  # type: ignore[misc]
    assert read(store, lambda tx: numbers(tx.inbox_unhooked(3))) == [1, 2, 3]
    store.write(lambda tx: tx.inbox_hooked([1, 3], 70))
    store.write(lambda tx: tx.inbox_hooked([1, 99], 80))
    assert read(store, lambda tx: numbers(tx.inbox_unhooked(9))) == [2, 4]
    row = read(store, lambda tx: tx.inbox_get(make_id(1)))
    assert row is not None
    assert row.hooked_at == 70


def test_S17_the_floor_of_the_inbox_is_the_lowest_offset_that_is_unread(store: Store) -> None:
    assert read(store, lambda tx: tx.inbox_floor(0)) is None
    for row in (inbox_row(8), inbox_row(5, read_at=1), inbox_row(6), inbox_row(7)):
        store.write(lambda tx, row=row: tx.inbox_add(row))  # type: ignore[misc]
    assert read(store, lambda tx: tx.inbox_floor(0)) == 6
    assert read(store, lambda tx: tx.inbox_floor(6)) == 7, "one that came long ago waits no more"
    assert read(store, lambda tx: tx.inbox_floor(9_999)) is None


def test_D13_the_sweep_takes_messages_with_their_place_in_the_log(store: Store) -> None:
    for number in (7, 3, 9, 5, 2):
        store.write(lambda tx, n=number: tx.inbox_add(inbox_row(n)))  # type: ignore[misc]
    assert store.write(lambda tx: tx.inbox_sweep(8, 2)) == 2
    assert read(store, lambda tx: [row.offset for row in tx.inbox_list(None, False, 0, 9)]) == [
        *(7, 9, 2)
    ]
    assert store.write(lambda tx: tx.inbox_sweep(8, 2)) == 1
    assert store.write(lambda tx: tx.inbox_sweep(8, 2)) == 0, "the last one stays"
    store.write(lambda tx: tx.inbox_add(inbox_row(6)))
    assert read(store, lambda tx: numbers(tx.inbox_list(None, False, 0, 9))) == [3, 5, 6], (
        "its number is not given again"
    )


# --- what was heard ------------------------------------------------------------------------------


def test_D6_what_stood_above_a_seq_of_an_epoch_is_found_in_pages(store: Store) -> None:
    store.write(lambda tx: tx.broker_positions_add(MESH, 1, [(3, 30), (1, 10), (2, 20), (4, 25)]))
    store.write(lambda tx: tx.broker_positions_add(MESH, 2, [(4, 40)]))
    store.write(lambda tx: tx.broker_positions_add("other", 1, [(9, 90)]))
    with store.read() as tx:
        assert tx.broker_positions_above(MESH, 1, 1, 0, 9) == [(2, 20), (3, 30), (4, 25)]
        assert tx.broker_positions_above(MESH, 1, 1, 0, 2) == [(2, 20), (3, 30)]
        assert tx.broker_positions_above(MESH, 1, 1, 3, 9) == [(4, 25)]
        assert tx.broker_positions_at(30) == [(MESH, 3)]
        assert tx.broker_positions_at(31) == []
        assert tx.broker_positions_above(MESH, 3, 0, 0, 9) == []


def test_D6_the_epochs_are_told_in_which_anything_stood(store: Store) -> None:
    assert read(store, lambda tx: tx.broker_positions_epochs(MESH)) == []
    store.write(lambda tx: tx.broker_positions_add(MESH, 7, [(1, 1), (2, 2)]))
    store.write(lambda tx: tx.broker_positions_add(MESH, 5_000_000, [(1, 3)]))
    store.write(lambda tx: tx.broker_positions_add(MESH, 1, [(1, 4), (2, 5), (9, 6)]))
    store.write(lambda tx: tx.broker_positions_add("other", 2, [(9, 90)]))
    assert read(store, lambda tx: tx.broker_positions_epochs(MESH)) == [1, 7, 5_000_000]


def test_D6_a_place_that_is_known_stays_as_it_was(store: Store) -> None:
    store.write(lambda tx: tx.broker_positions_add(MESH, 1, [(3, 30)]))
    store.write(lambda tx: tx.broker_positions_add(MESH, 1, [(3, 31), (4, 40), (4, 41)]))
    assert read(store, lambda tx: tx.broker_positions_above(MESH, 1, 0, 0, 9)) == [(3, 30), (4, 40)]


def test_D6_places_of_entries_that_are_gone_are_swept_in_chunks(store: Store) -> None:
    store.write(lambda tx: tx.broker_positions_add(MESH, 1, [(1, 30), (2, 10), (3, 20), (4, 40)]))
    assert store.write(lambda tx: tx.broker_positions_sweep(31, 2)) == 2
    assert read(store, lambda tx: tx.broker_positions_above(MESH, 1, 0, 0, 9)) == [(1, 30), (4, 40)]
    assert store.write(lambda tx: tx.broker_positions_sweep(31, 2)) == 1
    assert store.write(lambda tx: tx.broker_positions_sweep(31, 2)) == 0


# --- mates ---------------------------------------------------------------------------------------


def test_D15_the_members_are_those_that_were_told_last(store: Store) -> None:
    store.write(
        lambda tx: tx.known_members_put(MESH, [known_member("b"), known_member("a", seen_at=None)])
    )
    store.write(lambda tx: tx.known_members_put("other", [known_member("a", mesh="other")]))
    assert read(store, lambda tx: tx.known_members_list(MESH)) == [
        known_member("a", seen_at=None),
        known_member("b"),
    ]
    store.write(
        lambda tx: tx.known_members_put(
            MESH, [known_member("c", grants=()), known_member("b", name="bo")]
        )
    )
    assert read(store, lambda tx: tx.known_members_list(MESH)) == [
        known_member("b", name="bo"),
        known_member("c", grants=()),
    ]
    assert read(store, lambda tx: tx.known_members_list("other")) == [
        known_member("a", mesh="other")
    ]


def test_U2_ids_are_found_by_a_span(store: Store) -> None:
    with_mesh(store)
    span = IdSpan(make_id(2), make_id(4))
    for at in (5, 4, 3, 2, 1):
        store.write(lambda tx, at=at: tx.inbox_add(inbox_row(at)))  # type: ignore[misc]
        there, elsewhere = outbox_row(at), outbox_row(at, lane="quorum:team", mesh="team")
        store.write(lambda tx, rows=(there, elsewhere): tx.outbox_add(rows))  # type: ignore[misc]
        known, unknown = id_text(make_id(at)), id_text(make_id(100 + at))
        store.write(lambda tx, task=known: tx.task_put(task_row(task)))  # type: ignore[misc]
        store.write(lambda tx, task=unknown: tx.task_put(task_row(task, known=False)))  # type: ignore[misc]
    with store.read() as tx:
        found = [make_id(2), make_id(3), make_id(4)]
        assert tx.inbox_ids_within(span, 9) == found
        assert tx.inbox_ids_within(span, 2) == found[:2]
        assert tx.outbox_ids_within(None, span, 9) == found
        assert tx.outbox_ids_within("quorum:team", span, 2) == found[:2]
        assert tx.outbox_ids_within("broker:none", span, 9) == []
        assert tx.task_ids_within(MESH, span, 9) == [id_text(id) for id in found]
        assert tx.task_ids_within("other", span, 9) == []
        everything = IdSpan(bytes(16), b"\xff" * 16)
        assert len(tx.task_ids_within(MESH, everything, 99)) == 5


@pytest.mark.parametrize(
    "seqs",
    [
        range(5, 25),
        [*range(1, 12), *range(30, 45)],
        [*range(20, 30), *range(1, 9), 9, 9, 50],
        [*range(1, 10), *range(4, 20)],
    ],
    ids=["a run", "a gap", "backwards", "twice"],
)
def test_D6_a_run_of_places_is_added_as_each_of_them_would_be(
    store: Store, seqs: Sequence[int]
) -> None:
    known = [(7, 700), (33, 3300)]
    rows = [(seq, 10 * at + 3) for at, seq in enumerate(seqs)]
    store.write(lambda tx: tx.broker_positions_add(MESH, 1, known))
    store.write(lambda tx: tx.broker_positions_add(MESH, 1, rows))
    first: dict[int, int] = {}
    for seq, offset in (*known, *rows):
        first.setdefault(seq, offset)
    with store.read() as tx:
        assert tx.broker_positions_above(MESH, 1, 0, 0, 99) == sorted(first.items())
        assert tx.broker_positions_at(rows[-1][1]) == (
            [(MESH, rows[-1][0])] if first[rows[-1][0]] == rows[-1][1] else []
        )
