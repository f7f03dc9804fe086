"""Which arrivals a store takes in, and what it remembers of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.rules.bus.mesh_store import (
    AcceptedArrivals,
    ArrivalVerdict,
    InboxMessage,
    MeshStore,
    SignedArrival,
)
from holdfast.rules.bus.message import MessageKind
from holdfast.rules.errors import BadSequence, BusInboxFull
from holdfast.rules.limits import BUS_WINDOW
from support.mesh_stores import (
    ANA,
    BEN,
    NOW,
    SetClock,
    StoreMaker,
    bus_message,
    nonce_of,
    signed_arrival,
)

NEW, DUPLICATE, REPLAY = ArrivalVerdict.NEW, ArrivalVerdict.DUPLICATE, ArrivalVerdict.REPLAY


async def numbers(store: MeshStore) -> list[int]:
    """The message numbers in the inbox, in order."""
    return [int.from_bytes(row.message.id[2:6]) for row in await _all(store)]


async def _all(store: MeshStore) -> list[InboxMessage]:
    return await store.pending_inbox(0, 1000)


async def test_B2_a_nonce_is_seen_after_it_was_recorded(store: MeshStore) -> None:
    assert not await store.nonce_seen(nonce_of(1))
    await store.record_nonce(nonce_of(1))
    assert await store.nonce_seen(nonce_of(1))
    assert not await store.nonce_seen(nonce_of(2))


async def test_B2_the_oldest_nonce_goes_first_and_exactly_so_many_are_kept(
    make_store: StoreMaker, tmp_path: Path, clock: SetClock
) -> None:
    kept = BUS_WINDOW + 1
    store = await make_store(tmp_path, clock, nonces_kept=kept)
    await store.record_nonce(nonce_of(1))
    for first in range(2, kept, 100):
        batch = range(first, min(first + 100, kept))
        await store.accept(BEN, [signed_arrival(n, keep=False) for n in batch])
    await store.accept(ANA, [signed_arrival(1, nonce=kept)])
    assert await store.nonce_seen(nonce_of(1))
    await store.accept(ANA, [signed_arrival(n, nonce=kept + n) for n in (2, 3)])
    seen = [number for number in range(1, 10) if await store.nonce_seen(nonce_of(number))]
    assert seen == [3, 4, 5, 6, 7, 8, 9], "two came, so the two oldest went"
    await store.close()


async def test_B2_a_mark_only_rises(store: MeshStore) -> None:
    assert await store.last_seq(ANA) is None
    await store.advance_seq(ANA, 7)
    for number in (7, 6, 0, -1, 1 << 63):
        with pytest.raises(BadSequence):
            await store.advance_seq(ANA, number)
    assert await store.last_seq(ANA) == 7
    assert await store.last_seq(BEN) is None
    await store.advance_seq(ANA, 900)
    assert await store.last_seq(ANA) == 900


async def test_B4_new_messages_are_in_the_inbox_and_the_mark_is_past_them(store: MeshStore) -> None:
    arrivals = [signed_arrival(n) for n in (3, 4, 9)]
    assert await store.accept(ANA, arrivals) == [NEW, NEW, NEW]
    assert await store.last_seq(ANA) == 9
    rows = await store.pending_inbox(0, 1000)
    assert [row.message for row in rows] == [one.message for one in arrivals]
    assert [row.sender for row in rows] == [ANA] * 3
    assert [row.received_at for row in rows] == [NOW] * 3
    assert [row.number for row in rows] == sorted({row.number for row in rows})


async def test_B4_a_store_tells_which_rows_of_the_inbox_a_batch_has_got(store: MeshStore) -> None:
    await store.accept(BEN, [signed_arrival(1)])
    batch = [signed_arrival(2), signed_arrival(3, keep=False), signed_arrival(4, nonce=2)]
    accepted = await store.accept(ANA, [*batch, signed_arrival(5)])
    assert isinstance(accepted, AcceptedArrivals)
    assert accepted == [NEW, NEW, REPLAY, NEW]
    assert accepted.kept == (await store.pending_inbox(0, 10))[1:]


async def test_B1_a_replay_changes_nothing(store: MeshStore) -> None:
    await store.accept(ANA, [signed_arrival(5)])
    again = [
        signed_arrival(5),  # the very same
        signed_arrival(4, nonce=40),  # an older number
        signed_arrival(6, nonce=5),  # a nonce that has come
        signed_arrival(0, nonce=41),
        signed_arrival(-3, message=3, nonce=42),
    ]
    assert await store.accept(ANA, again) == [REPLAY] * 5
    assert await store.last_seq(ANA) == 5
    assert await numbers(store) == [5]
    assert not await store.nonce_seen(nonce_of(40))
    assert await store.accept(ANA, [signed_arrival(6, nonce=60)]) == [NEW]


async def test_B1_a_replay_within_one_batch_is_one(store: MeshStore) -> None:
    batch = [signed_arrival(2), signed_arrival(2), signed_arrival(1), signed_arrival(3, nonce=2)]
    assert await store.accept(ANA, batch) == [NEW, REPLAY, REPLAY, REPLAY]
    assert await store.last_seq(ANA) == 2


async def test_B4_a_resend_is_known_by_its_id_and_moves_the_mark(store: MeshStore) -> None:
    await store.accept(ANA, [signed_arrival(1)])
    resent = signed_arrival(2, message=1)
    assert await store.accept(ANA, [resent, signed_arrival(3, message=1)]) == [DUPLICATE] * 2
    assert await store.last_seq(ANA) == 3
    assert await store.nonce_seen(nonce_of(2))
    assert await numbers(store) == [1]
    twice = [signed_arrival(7, message=7, nonce=70), signed_arrival(8, message=7, nonce=80)]
    assert await store.accept(ANA, twice) == [NEW, DUPLICATE]
    assert await numbers(store) == [1, 7]
    assert await store.accept(ANA, [resent]) == [REPLAY]


async def test_B4_a_resend_is_known_among_new_messages_far_apart(store: MeshStore) -> None:
    await store.accept(ANA, [signed_arrival(n, message=n + 10) for n in range(1, 9)])
    few = [signed_arrival(n, message=m) for n, m in ((9, 10), (10, 17), (11, 30))]
    assert await store.accept(ANA, few) == [NEW, DUPLICATE, NEW], "many are known between these"
    near = [signed_arrival(n, message=m) for n, m in ((12, 29), (13, 30), (14, 31))]
    assert await store.accept(ANA, near) == [NEW, DUPLICATE, NEW]


async def test_B4_messages_are_finished_in_any_order(store: MeshStore) -> None:
    await store.accept(ANA, [signed_arrival(n) for n in range(1, 8)])
    at = {int.from_bytes(row.message.id[2:6]): row.number for row in await _all(store)}
    await store.finish_inbox([at[4], at[2]])
    assert await numbers(store) == [1, 3, 5, 6, 7]
    await store.finish_inbox([at[7], at[5], at[6]])
    assert await numbers(store) == [1, 3]
    await store.finish_inbox([at[1], at[2], at[3], at[3]])
    assert await numbers(store) == []


async def test_B4_an_id_stays_known_after_its_handler_has_finished(store: MeshStore) -> None:
    await store.accept(ANA, [signed_arrival(1), signed_arrival(2)])
    rows = await store.pending_inbox(0, 10)
    await store.finish_inbox([rows[0].number])
    assert await numbers(store) == [2]
    assert await store.accept(ANA, [signed_arrival(3, message=1)]) == [DUPLICATE]
    assert await numbers(store) == [2]
    await store.finish_inbox([rows[0].number, rows[1].number, 12345])
    assert await numbers(store) == []


async def test_B4_nobody_can_use_up_the_ids_of_another(store: MeshStore) -> None:
    await store.accept(ANA, [signed_arrival(1)])
    assert await store.accept(BEN, [signed_arrival(1, nonce=9)]) == [NEW]


async def test_B4_a_peer_that_changed_its_key_is_known_by_its_name(store: MeshStore) -> None:
    await store.accept(ANA, [signed_arrival(8)], name="ana")
    resent = signed_arrival(1, message=8)
    assert await store.accept(BEN, [resent], name="ana") == [DUPLICATE], "another key, one peer"
    assert await store.last_seq(BEN) == 1


async def test_B4_what_nobody_wants_to_keep_is_neither_in_the_inbox_nor_known_by_its_id(
    store: MeshStore,
) -> None:
    """Who handles a request or a reply recognises it when it comes again."""
    assert await store.accept(ANA, [signed_arrival(1, keep=False)]) == [NEW]
    assert await numbers(store) == []
    assert await store.accept(ANA, [signed_arrival(2, message=1, keep=False)]) == [NEW]
    assert await store.accept(ANA, [signed_arrival(1, keep=False)]) == [REPLAY]


async def test_B4_an_id_that_cannot_come_again_is_not_kept(store: MeshStore) -> None:
    """A peer that publishes to nobody cannot fill a disk with ids; its mark is past them."""
    once = bus_message(1, kind=MessageKind.PUBLISH, durable=False)
    first, second = (SignedArrival(n, nonce_of(n), once, False) for n in (1, 2))
    assert await store.accept(ANA, [first]) == [NEW]
    assert await store.accept(ANA, [second]) == [NEW], "its sender never sends it twice"
    assert await store.accept(ANA, [first]) == [REPLAY]


async def test_B4_the_inbox_is_read_page_by_page(store: MeshStore) -> None:
    await store.accept(ANA, [signed_arrival(n) for n in range(1, 8)])
    first = await store.pending_inbox(0, 3)
    second = await store.pending_inbox(first[-1].number, 3)
    third = await store.pending_inbox(second[-1].number, 3)
    found = [row.message.id for page in (first, second, third) for row in page]
    assert found == [signed_arrival(n).message.id for n in range(1, 8)]


async def test_B4_a_full_inbox_refuses_a_batch_whole(
    make_store: StoreMaker, tmp_path: Path, clock: SetClock
) -> None:
    store = await make_store(tmp_path, clock, inbox_max=5)
    await store.accept(ANA, [signed_arrival(1), signed_arrival(2)])
    with pytest.raises(BusInboxFull):
        await store.accept(ANA, [signed_arrival(3), signed_arrival(4)])
    assert await store.last_seq(ANA) == 2
    assert not await store.nonce_seen(nonce_of(3))
    assert await numbers(store) == [1, 2]
    await store.finish_inbox([row.number for row in await store.pending_inbox(0, 1)])
    assert await store.accept(ANA, [signed_arrival(3), signed_arrival(4)]) == [NEW, NEW]
    await store.close()


async def test_B4_a_peer_that_floods_leaves_room_in_the_inbox_for_others(
    make_store: StoreMaker, tmp_path: Path, clock: SetClock
) -> None:
    store = await make_store(tmp_path, clock, inbox_max=10)
    for number in range(1, 6):
        await store.accept(ANA, [signed_arrival(number)])
    with pytest.raises(BusInboxFull):
        await store.accept(ANA, [signed_arrival(6)])
    # What goes to no inbox still comes: a peer whose messages wait can ask and be answered.
    assert await store.accept(ANA, [signed_arrival(7, keep=False)]) == [NEW]
    assert await store.accept(BEN, [signed_arrival(8), signed_arrival(9)]) == [NEW, NEW]
    for row in await store.pending_inbox(0, 2):
        await store.finish_inbox([row.number])
    assert await store.accept(ANA, [signed_arrival(10)]) == [NEW]
    await store.close()


async def test_B4_ids_are_forgotten_when_the_sender_says_that_they_do_not_come_again(
    make_store: StoreMaker, tmp_path: Path, clock: SetClock
) -> None:
    store = await make_store(tmp_path, clock, settled_kept=2)
    await store.accept(ANA, [signed_arrival(n) for n in range(1, 8)], name="ana")
    await store.accept(BEN, [signed_arrival(n, n, n + 60) for n in range(1, 4)], name="ben")
    await store.settle_ids("ana", [signed_arrival(3).message.id])
    again = [signed_arrival(n + 20, n, n + 20) for n in range(1, 8)]
    verdicts = await store.accept(ANA, again, name="ana")
    assert verdicts == [NEW, NEW, DUPLICATE, NEW, NEW, DUPLICATE, DUPLICATE], "3, and the newest"
    again = [signed_arrival(n + 20, n, n + 40) for n in range(1, 4)]
    assert await store.accept(BEN, again, name="ben") == [DUPLICATE] * 3
    await store.close()


async def test_B3_with_a_window_what_was_overtaken_is_taken_once(
    store: MeshStore, kind: str
) -> None:
    await store.accept(ANA, [signed_arrival(1)])  # strictly, and the window goes on from there
    assert await store.accept(ANA, [signed_arrival(5)], window=True) == [NEW]
    late = [signed_arrival(n) for n in (3, 5, 1)]
    if kind == "eight":  # it has no place for a window: it stays strict, and says so
        assert await store.accept(ANA, late, window=True) == [REPLAY] * 3
        return
    assert await store.accept(ANA, late, window=True) == [NEW, REPLAY, REPLAY]
    far = signed_arrival(5 + BUS_WINDOW)
    assert await store.accept(ANA, [far], window=True) == [NEW]
    behind = [signed_arrival(2), signed_arrival(5), signed_arrival(6)]
    assert await store.accept(ANA, behind, window=True) == [REPLAY, REPLAY, NEW]
    assert await store.accept(ANA, [signed_arrival(7)]) == [REPLAY], "strictly it is behind"
