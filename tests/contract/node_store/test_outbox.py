"""What waits for a broker, on every store."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.rules.rows import OutboxRow
from holdfast.storage.ports import Store
from support.envelopes import MESH, make_id
from support.stores import outbox_row, read

LANE = f"broker:{MESH}"
OTHER = "broker:other"


def fill(store: Store, *rows: OutboxRow) -> None:
    assert store.write(lambda tx: tx.outbox_add(rows)) == len(rows)


def numbers(rows: list[OutboxRow]) -> list[int]:
    return [row.number for row in rows]


FULL = outbox_row(
    7,
    entity="state//k",
    rank=2,
    state="dead",
    attempts=3,
    not_before=4,
    tried_at=5,
    ended_at=6,
    code="not_granted",
    error="no, said the broker",
    broker_id=b"b" * 16,
    broker_epoch=2,
    broker_seq=9,
    replaces=make_id(3),
)


def test_D11_a_row_comes_back_as_it_was_added_with_a_number(store: Store) -> None:
    fill(store, outbox_row(1), FULL)
    expected = msgspec.structs.replace(FULL, number=2)
    assert read(store, lambda tx: tx.outbox_get(LANE, FULL.id)) == expected
    assert read(store, lambda tx: tx.outbox_find(FULL.id)) == [expected]
    assert read(store, lambda tx: tx.outbox_get(OTHER, FULL.id)) is None
    assert read(store, lambda tx: tx.outbox_get(LANE, make_id(9))) is None


def test_D11_an_id_stands_once_in_a_lane_and_stays_as_it_is(store: Store) -> None:
    fill(store, outbox_row(1))
    store.write(lambda tx: tx.outbox_done([(1, b"b" * 16, 1, 1)], 5))
    again = [outbox_row(1), outbox_row(2), outbox_row(2), outbox_row(1, lane=OTHER)]
    assert store.write(lambda tx: tx.outbox_add(again)) == 2
    assert store.write(lambda tx: tx.outbox_add([outbox_row(1)])) == 0
    rows = read(store, lambda tx: tx.outbox_list(None, (), 0, 99))
    assert [(row.lane, row.id, row.state) for row in rows] == [
        (LANE, make_id(1), "done"),
        (LANE, make_id(2), "pending"),
        (OTHER, make_id(1), "pending"),
    ]
    assert read(store, lambda tx: numbers(tx.outbox_find(make_id(1)))) == [rows[0].number, 3]


def test_D12_what_is_due_comes_by_rank_and_then_as_it_was_written(store: Store) -> None:
    fill(
        store,
        outbox_row(1, rank=2),
        outbox_row(2, rank=1),
        outbox_row(3, rank=0),
        outbox_row(4, rank=1, not_before=50),
        outbox_row(5, rank=1, lane=OTHER),
        outbox_row(6, rank=1, state="inflight"),
        outbox_row(7, rank=1, state="dead", attempts=1),
        outbox_row(8, rank=0),
        outbox_row(9, rank=1),
    )
    assert read(store, lambda tx: numbers(tx.outbox_due(LANE, 49, 99))) == [3, 8, 2, 9, 1]
    assert read(store, lambda tx: numbers(tx.outbox_due(LANE, 50, 99))) == [3, 8, 2, 4, 9, 1]
    assert read(store, lambda tx: numbers(tx.outbox_due(LANE, 50, 2))) == [3, 8]
    assert read(store, lambda tx: numbers(tx.outbox_due(LANE, 50, 99, (1, 2)))) == [4, 9, 1]
    assert read(store, lambda tx: numbers(tx.outbox_due(LANE, 50, 99, (2, 1)))) == []


def test_D11_the_time_of_the_next_one_is_that_of_the_first_that_waits(store: Store) -> None:
    assert read(store, lambda tx: tx.outbox_next_at(LANE)) is None
    fill(store, outbox_row(1, not_before=90), outbox_row(2, not_before=70, rank=2))
    fill(store, outbox_row(3, not_before=0, lane=OTHER), outbox_row(4, state="done", ended_at=1))
    assert read(store, lambda tx: tx.outbox_next_at(LANE)) == 70
    fill(store, outbox_row(5))
    assert read(store, lambda tx: tx.outbox_next_at(LANE)) == 0


def test_D12_the_first_that_fails_is_found_for_each_entity_and_for_the_lane(store: Store) -> None:
    fill(
        store,
        outbox_row(1, entity="a", attempts=1, state="done", ended_at=1),
        outbox_row(2, entity="a"),
        outbox_row(3, entity="b", attempts=2, not_before=99),
        outbox_row(4, entity="a", attempts=1, state="dead"),
        outbox_row(5, entity="b", attempts=1),
        outbox_row(6, entity="a", attempts=1, state="aborted", ended_at=1),
        outbox_row(7, entity="c", attempts=1, lane=OTHER),
    )
    with store.read() as tx:
        assert numbers(tx.outbox_failing(LANE, None)) == [3]
        assert numbers(tx.outbox_failing(LANE, ["a", "b", "c", "a"])) == [3, 4]
        assert numbers(tx.outbox_failing(LANE, ["c"])) == []
        assert numbers(tx.outbox_failing(LANE, ())) == []
        assert numbers(tx.outbox_failing(OTHER, None)) == [7]
        assert numbers(tx.outbox_failing("broker:third", None)) == []


def test_D11_in_flight_goes_only_what_was_pending_in_that_lane(store: Store) -> None:
    fill(
        store, outbox_row(1), outbox_row(2), outbox_row(3, state="dead"), outbox_row(4, lane=OTHER)
    )
    store.write(lambda tx: tx.outbox_inflight(LANE, [1, 3, 4, 99]))
    assert read(store, _states) == ["inflight", "pending", "dead", "pending"]
    assert read(store, lambda tx: numbers(tx.outbox_due(LANE, 9, 9))) == [2]


def test_D11_what_was_in_flight_is_pending_at_the_start(store: Store) -> None:
    fill(store, outbox_row(1), outbox_row(2, attempts=3, state="inflight"))
    fill(store, outbox_row(3, lane=OTHER, state="inflight"), outbox_row(4, state="dead"))
    assert store.write(lambda tx: tx.outbox_recover(LANE)) == 1
    assert read(store, _states) == ["pending", "pending", "inflight", "dead"]
    assert store.write(lambda tx: tx.outbox_recover()) == 1
    assert read(store, _states) == ["pending", "pending", "pending", "dead"]
    assert read(store, lambda tx: tx.outbox_list(None, (), 1, 1))[0].attempts == 3, (
        "no more, no less"
    )
    assert store.write(lambda tx: tx.outbox_recover()) == 0


def test_D11_what_the_broker_has_is_done_and_says_where_it_stands(store: Store) -> None:
    failed = {"attempts": 2, "code": "busy", "error": "later"}
    fill(store, outbox_row(1, state="inflight", **failed), outbox_row(2))
    store.write(lambda tx: tx.outbox_done([(1, b"b" * 16, 3, 14)], 77))
    row = read(store, lambda tx: tx.outbox_get(LANE, make_id(1)))
    assert row == outbox_row(
        1,
        number=1,
        state="done",
        attempts=2,
        ended_at=77,
        tried_at=77,
        broker_id=b"b" * 16,
        broker_epoch=3,
        broker_seq=14,
    )


def test_D11_what_the_broker_brought_need_not_go_any_more(store: Store) -> None:
    fill(store, outbox_row(1), outbox_row(2, state="inflight"), outbox_row(3, lane=OTHER))
    fill(store, outbox_row(4, not_before=500, attempts=2, code="busy", error="later"))
    brought = [(make_id(number), b"b" * 16, 3, number) for number in (2, 3, 4, 9)]
    assert store.write(lambda tx: tx.outbox_arrived(LANE, brought, 77)) == 1
    assert read(store, _states) == ["pending", "inflight", "pending", "done"], (
        "the answer to what is in flight is still to come"
    )
    row = read(store, lambda tx: tx.outbox_get(LANE, make_id(4)))
    assert row is not None
    assert (row.ended_at, row.broker_id, row.broker_epoch, row.broker_seq) == (77, b"b" * 16, 3, 4)
    assert store.write(lambda tx: tx.outbox_arrived(LANE, brought, 78)) == 0
    assert store.write(lambda tx: tx.outbox_arrived("broker:none", brought, 78)) == 0


def test_D11_many_that_follow_each_other_go_and_are_done_each_with_its_own_place(
    store: Store,
) -> None:
    rows = [outbox_row(number) for number in range(1, 61)]
    rows[19] = outbox_row(20, lane=OTHER)
    rows[29] = outbox_row(30, state="dead", ended_at=3)
    fill(store, *rows)
    asked = [number for number in range(60, 0, -1) if number not in (7, 8)]
    store.write(lambda tx: tx.outbox_inflight(LANE, asked))
    found = read(store, lambda tx: tx.outbox_list(None, ("inflight",), 0, 99))
    gone = [number for number in range(1, 61) if number not in (7, 8, 20, 30)]
    assert numbers(found) == gone
    # Seqs that leave one out, an epoch that ends, an id of another length, one out of turn.
    places = {
        number: (1 if number < 40 else 2, number + (5 if number > 15 else 0)) for number in gone
    }
    done = [
        (number, bytes([number]) * (15 if number == 50 else 16), *places[number])
        for number in [*gone[:-9], gone[-1], *gone[-9:-1]]
    ]
    store.write(lambda tx: tx.outbox_done(done, 77))
    kept = read(store, lambda tx: tx.outbox_list(None, ("done",), 0, 99))
    assert [
        (row.number, row.broker_id, row.broker_epoch, row.broker_seq) for row in kept
    ] == sorted(done)
    assert {(row.ended_at, row.tried_at) for row in kept} == {(77, 77)}
    left = read(store, lambda tx: tx.outbox_list(None, ("pending", "dead", "inflight"), 0, 99))
    assert numbers(left) == [7, 8, 20, 30]


def test_D11_a_row_is_changed_by_its_number(store: Store) -> None:
    fill(store, outbox_row(1), outbox_row(7))
    changed = msgspec.structs.replace(FULL, number=2)
    store.write(lambda tx: tx.outbox_put(changed))
    assert read(store, lambda tx: tx.outbox_list(None, (), 0, 9)) == [
        outbox_row(1, number=1),
        changed,
    ]
    store.write(lambda tx: tx.outbox_put(msgspec.structs.replace(FULL, number=5)))
    assert read(store, lambda tx: len(tx.outbox_list(None, (), 0, 9))) == 2, "none is added by it"


def test_D11_rows_are_listed_by_lane_state_and_number(store: Store) -> None:
    fill(store, outbox_row(1), outbox_row(2, state="dead"), outbox_row(3, lane=OTHER))
    fill(store, outbox_row(4, state="done", ended_at=3), outbox_row(5, state="dead", lane=OTHER))
    with store.read() as tx:
        assert numbers(tx.outbox_list(None, ("dead",), 0, 9)) == [2, 5]
        assert numbers(tx.outbox_list(OTHER, ("dead", "pending"), 0, 9)) == [3, 5]
        assert numbers(tx.outbox_list(LANE, (), 0, 9)) == [1, 2, 4]
        assert numbers(tx.outbox_list(None, (), 2, 2)) == [3, 4]
        assert tx.outbox_list("broker:third", (), 0, 9) == []


def test_D16_rows_are_counted_by_lane_and_state(store: Store) -> None:
    assert read(store, lambda tx: tx.outbox_counts()) == {}
    fill(store, outbox_row(1), outbox_row(2), outbox_row(3, state="inflight"))
    fill(store, outbox_row(4, state="done", ended_at=3), outbox_row(5, state="dead", ended_at=3))
    fill(store, outbox_row(6, state="aborted", ended_at=3), outbox_row(7, lane=OTHER))
    assert read(store, lambda tx: tx.outbox_counts()) == {
        (LANE, "pending"): 2,
        (LANE, "inflight"): 1,
        (LANE, "done"): 1,
        (LANE, "dead"): 1,
        (LANE, "aborted"): 1,
        (OTHER, "pending"): 1,
    }
    fill(store, outbox_row(8, state="done", ended_at=3, lane=OTHER), outbox_row(9, lane="broker:c"))
    counts = read(store, lambda tx: tx.outbox_counts())
    assert (counts[LANE, "done"], counts[OTHER, "done"], counts["broker:c", "pending"]) == (1, 1, 1)
    assert len(counts) == 8


def test_D16_the_oldest_is_the_first_that_the_broker_has_not(store: Store) -> None:
    assert read(store, lambda tx: tx.outbox_oldest(LANE)) is None
    fill(store, outbox_row(1, state="done", ended_at=3), outbox_row(2, state="dead"))
    fill(store, outbox_row(3, rank=2), outbox_row(4, rank=0), outbox_row(5, state="inflight"))
    assert read(store, lambda tx: tx.outbox_oldest(LANE)) == 1003
    store.write(lambda tx: tx.outbox_done([(3, b"", 1, 1)], 1))
    assert read(store, lambda tx: tx.outbox_oldest(LANE)) == 1004
    store.write(lambda tx: tx.outbox_done([(4, b"", 1, 1)], 1))
    assert read(store, lambda tx: tx.outbox_oldest(LANE)) == 1005


def test_D8_old_messages_are_found_and_no_changes(store: Store) -> None:
    fill(store, outbox_row(1, entity="state//k"), outbox_row(2, entity="", state="dead"))
    fill(store, outbox_row(3, entity="", created_at=9), outbox_row(4, entity="", created_at=5))
    fill(store, outbox_row(5, entity="", created_at=4), outbox_row(6, entity="", lane=OTHER))

    def old(before_ms: int, limit: int = 10) -> list[int]:
        rows = read(store, lambda tx: tx.outbox_old(LANE, before_ms, 10**15, limit))
        return [row.number for row in rows]

    assert (old(4), old(5), old(6), old(10, 2)) == ([], [5], [5, 4], [5, 4])


@pytest.mark.parametrize("state", ["pending", "inflight", "dead"])
def test_S17_the_floor_is_the_lowest_offset_that_is_still_needed(store: Store, state: str) -> None:
    assert read(store, lambda tx: tx.outbox_floor()) is None
    fill(store, outbox_row(1, state="done", ended_at=3), outbox_row(2, state="aborted", ended_at=3))
    assert read(store, lambda tx: tx.outbox_floor()) is None
    fill(store, outbox_row(9), outbox_row(5, state=state, lane=OTHER))
    assert read(store, lambda tx: tx.outbox_floor()) == 5


def test_D7_the_sweep_takes_what_ended_long_ago_in_chunks(store: Store) -> None:
    fill(
        store,
        outbox_row(1, state="done", ended_at=30),
        outbox_row(2, state="aborted", ended_at=10),
        outbox_row(3, state="dead", ended_at=10),
        outbox_row(4, state="done", ended_at=20),
        outbox_row(5),
        outbox_row(6, state="done", ended_at=50),
        outbox_row(7, state="done", ended_at=10),
        outbox_row(8),
    )
    assert store.write(lambda tx: tx.outbox_sweep(40, 10**15, 2)) == 2
    assert read(store, lambda tx: numbers(tx.outbox_list(None, (), 0, 9))) == [3, 4, 5, 6, 7, 8]
    assert store.write(lambda tx: tx.outbox_sweep(40, 10**15, 2)) == 1
    assert store.write(lambda tx: tx.outbox_sweep(40, 10**15, 2)) == 0, (
        "up to the first that ended later"
    )
    assert read(store, lambda tx: numbers(tx.outbox_list(None, (), 0, 9))) == [3, 5, 6, 7, 8]
    assert store.write(lambda tx: tx.outbox_sweep(51, 10**15, 9)) == 2


def test_D7_a_number_is_not_given_again_after_a_sweep(store: Store) -> None:
    fill(store, *(outbox_row(n, state="done", ended_at=1) for n in range(1, 4)))
    while store.write(lambda tx: tx.outbox_sweep(99, 10**15, 9)):
        pass
    assert read(store, lambda tx: numbers(tx.outbox_list(None, (), 0, 9))) == [3]
    fill(store, outbox_row(9))
    assert read(store, lambda tx: numbers(tx.outbox_list(None, (), 0, 9))) == [3, 4]


def _states(tx: object) -> list[str]:
    return [str(row.state) for row in tx.outbox_list(None, (), 0, 99)]  # type: ignore[attr-defined]


def test_D11_the_states_of_many_rows_are_told_at_once(store: Store) -> None:
    rows = [outbox_row(1), outbox_row(2, state="inflight"), outbox_row(3, lane="broker:other")]
    store.write(lambda tx: tx.outbox_add(rows))
    asked = [make_id(number) for number in (1, 2, 3, 9)]
    found = read(store, lambda tx: tx.outbox_states(rows[0].lane, asked))
    assert found == {make_id(1): "pending", make_id(2): "inflight"}
    assert read(store, lambda tx: tx.outbox_states(rows[0].lane, [])) == {}
