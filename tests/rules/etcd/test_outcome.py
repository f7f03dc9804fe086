"""What became of an append, and whether an etcd has gone back."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.rules.errors import BadAnswer, EntryDamaged, IdReused, QuorumSetBack, TooOld
from holdfast.rules.etcd.entry import (
    HeldKey,
    Kind,
    OrderState,
    StoredEntry,
    StoredEpoch,
    StoredFloor,
    StoredIncarnation,
    newer,
    order_state,
    ordered_entry,
    pack,
)
from holdfast.rules.etcd.outcome import (
    EntryAbandoned,
    EntryAppended,
    EntryFenced,
    FloorMoved,
    appended,
    not_appended,
)
from holdfast.rules.ids import uuid7, uuid8

MADE_MS = 1_800_000_000_000
ID = uuid7(MADE_MS, bytes(10))
BORN = StoredIncarnation(1, 3, 40, b"nonce")


def _state(epoch: int = 2, floor: int = 0, *, incarnation: int = 3, ids_ms: int = 0) -> OrderState:
    born = StoredIncarnation(1, incarnation, 40, b"nonce")
    led = HeldKey(b"f", pack(StoredEpoch(1, "ana", b"n")), 9, epoch)
    gone = HeldKey(b"g", pack(StoredFloor(1, 5 * floor, ids_ms)), 9, floor)
    state = order_state(
        HeldKey(b"n", pack(born), 1, 1), led if epoch else None, gone if floor else None, was=None
    )
    assert state is not None
    return state


def _entry(fingerprint: bytes = b"f", kind: Kind = "entry") -> StoredEntry:
    return StoredEntry(1, 3, 42, "ana", kind, fingerprint, b"body")


def _held(entry: StoredEntry, revision: int = 77) -> HeldKey:
    return HeldKey(b"i/" + ID.hex().encode(), pack(entry), revision, 1)


def test_Q4_the_epoch_counts_on_from_that_of_the_engine_before() -> None:
    assert _state(2).epoch == 42
    assert _state(0).coordinator == ""


def test_Q4_every_node_reads_the_same_fence_from_an_entry() -> None:
    entry = ordered_entry(ID, _held(_entry()), 5)
    assert (entry.incarnation, entry.epoch, entry.coordinator) == (3, 42, "ana")
    assert entry.point == (77, 5)


def test_Q3_what_was_written_is_appended_where_it_was_written() -> None:
    assert appended(_entry(), 8) == EntryAppended(8, 3, 42, "ana", already=False)
    assert appended(_entry(kind="abandoned"), 8) == EntryAbandoned(8)


def test_Q3_an_entry_that_is_there_already_is_told_with_its_first_place() -> None:
    got = not_appended(ID, _entry(), _held(_entry()), _state(2), _state(9))
    assert got == EntryAppended(77, 3, 42, "ana", already=True)


def test_Q3_an_id_of_other_content_is_a_conflict() -> None:
    with pytest.raises(IdReused):
        not_appended(ID, _entry(b"other"), _held(_entry()), _state(), _state())


def test_Q6_giving_up_comes_too_late_or_for_ever() -> None:
    late = not_appended(ID, _entry(b"", "abandoned"), _held(_entry()), _state(), _state())
    assert isinstance(late, EntryAppended)
    void = not_appended(ID, _entry(), _held(_entry(b"", "abandoned")), _state(), _state())
    assert void == EntryAbandoned(77)


def test_Q4_an_epoch_or_incarnation_that_has_passed_appends_nothing() -> None:
    for now in (_state(3), _state(2, incarnation=4)):
        assert not_appended(ID, _entry(), None, _state(2), now) == EntryFenced(now)


def test_Q3_an_id_that_may_have_been_forgotten_is_not_appended_again() -> None:
    now = _state(floor=1, ids_ms=MADE_MS)
    assert not_appended(ID, _entry(), None, _state(), now) == FloorMoved(now)
    with pytest.raises(TooOld):
        not_appended(ID, _entry(), None, _state(), _state(floor=1, ids_ms=MADE_MS + 1))
    computed = uuid8(b"x" * 16)  # tells no time, and is never forgotten
    moved = not_appended(computed, _entry(), None, _state(), _state(floor=1, ids_ms=MADE_MS * 2))
    assert isinstance(moved, FloorMoved)


def test_Q3_a_refusal_without_a_reason_is_no_answer() -> None:
    with pytest.raises(BadAnswer):
        not_appended(ID, _entry(), None, _state(), _state())


def test_Q4_an_etcd_that_goes_back_is_noticed() -> None:
    was = _state(2, 2)
    for now in (_state(1, 2), _state(2, 1), _state(9, 9, incarnation=2), _state(2, 0)):
        keys = _keys(now)
        with pytest.raises(QuorumSetBack):
            order_state(*keys, was=was)
    with pytest.raises(QuorumSetBack):
        order_state(None, None, None, was=was)
    assert order_state(None, None, None, was=None) is None
    assert order_state(*_keys(_state(3, 2)), was=was) == _state(3, 2)


def test_Q4_answers_that_overtake_each_other_leave_what_is_newest() -> None:
    old, new = _state(2), _state(3)
    assert newer(new, old) == newer(old, new) == newer(None, new) == new


def test_Q3_what_others_wrote_under_our_keys_is_not_taken_for_an_entry() -> None:
    wrong = [b"", b"hello", b"\x90", msgspec.msgpack.encode([2, 3, 42, "ana", "entry", b"", b""])]
    for value in wrong:
        with pytest.raises(EntryDamaged):
            ordered_entry(ID, HeldKey(b"i/x", value, 1, 1), 1)


def _keys(state: OrderState) -> tuple[HeldKey | None, HeldKey | None, HeldKey | None]:
    led = HeldKey(b"f", pack(StoredEpoch(1, "ana", b"n")), 9, state.epoch_version)
    gone = HeldKey(b"g", pack(StoredFloor(1, state.floor, 0)), 9, state.floor_version)
    return (
        HeldKey(b"n", state.incarnation_value, 1, 1),
        led,
        gone if state.floor_version else None,
    )
