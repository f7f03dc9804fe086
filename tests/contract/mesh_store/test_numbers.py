"""The numbers that a store gives for sending."""

from __future__ import annotations

import pytest

from holdfast.rules.bus.mesh_store import MeshStore
from holdfast.rules.errors import BadSequence
from holdfast.rules.limits import BUS_LEAP_MAX


async def test_B2_the_first_number_is_1_and_they_grow(store: MeshStore) -> None:
    assert [await store.next_out_seq() for _ in range(3)] == [1, 2, 3]


async def test_B3_no_number_is_given_twice(store: MeshStore) -> None:
    given = [*await store.reserve(3), await store.next_out_seq(), *await store.reserve(1200)]
    assert given == list(range(1, 1205))


async def test_B3_numbers_leap_past_what_a_peer_has_seen(store: MeshStore) -> None:
    await store.reserve(5)
    assert await store.reserve(2, above=700) == range(701, 703)
    assert await store.reserve(1, above=3) == range(703, 704)
    assert await store.reserve(2) == range(704, 706)


async def test_B3_a_leap_that_no_accident_explains_is_refused(store: MeshStore) -> None:
    await store.reserve(5)
    with pytest.raises(BadSequence):
        await store.reserve(1, above=BUS_LEAP_MAX + 100)
    first = (await store.reserve(1)).start
    assert 6 <= first < 100


async def test_B3_a_store_has_one_incarnation_while_it_lives(store: MeshStore) -> None:
    assert len(await store.incarnation()) == 16
    assert await store.incarnation() == await store.incarnation()
