"""One key follows another: who can be believed, and for how long."""

from __future__ import annotations

from functools import partial

import msgspec
from nacl.signing import SigningKey

from holdfast.rules.bus.succession import (
    KeySuccession,
    is_chain,
    keys_before,
    read_chain,
    shown_chain,
    sought,
    succeed,
    with_step,
)
from holdfast.rules.limits import BUS_SUCCESSIONS_MAX

SEEDS = [bytes((number,)) * 32 for number in range(1, BUS_SUCCESSIONS_MAX + 4)]
KEYS = [bytes(SigningKey(seed).verify_key) for seed in SEEDS]


def chain(count: int) -> tuple[KeySuccession, ...]:
    steps: tuple[KeySuccession, ...] = ()
    for seed, after in zip(SEEDS[:count], KEYS[1:], strict=False):
        steps = with_step(steps, succeed(seed, after))
    return steps


def test_B6_a_chain_proves_the_keys_that_a_node_had_before() -> None:
    assert keys_before(chain(2), KEYS[2]) == (KEYS[1], KEYS[0])
    assert keys_before(chain(2), KEYS[1]) == (), "it leads to another key"
    assert keys_before((), KEYS[0]) == ()
    long = chain(BUS_SUCCESSIONS_MAX + 2)
    assert len(long) == BUS_SUCCESSIONS_MAX
    assert keys_before(long, long[-1].after)[-1] == KEYS[2], "the oldest are forgotten"
    again = with_step(chain(2), succeed(SEEDS[1], KEYS[2]))
    assert again == chain(2), "a switch that was cut short signs the same"


def test_B6_every_flipped_bit_of_a_step_is_refused() -> None:
    good = succeed(SEEDS[0], KEYS[1])
    believed = []
    for field in ("before", "after", "signature"):
        raw = getattr(good, field)
        for at in range(len(raw) * 8):
            bad = bytearray(raw)
            bad[at // 8] ^= 1 << at % 8
            step = msgspec.structs.replace(good, **{field: bytes(bad)})
            if keys_before([step], KEYS[1]):
                believed.append((field, at))
    assert not believed


def test_B6_a_chain_that_turns_in_a_circle_ends() -> None:
    there, back = succeed(SEEDS[0], KEYS[1]), succeed(SEEDS[1], KEYS[0])
    assert keys_before([there, back, there], KEYS[1]) == (KEYS[0],)
    assert keys_before([succeed(SEEDS[0], KEYS[0])], KEYS[0]) == ()


def test_B6_a_chain_is_shown_among_capabilities_and_rubbish_is_none() -> None:
    shown = shown_chain(chain(2))
    assert is_chain(shown)
    assert read_chain([b"rubbish", shown]) == chain(2)
    assert read_chain([shown[:-1]]) == ()
    assert read_chain([b"rubbish"]) == ()
    too_long = [succeed(SEEDS[0], KEYS[1])] * (BUS_SUCCESSIONS_MAX + 1)
    assert read_chain([shown_chain(too_long)]) == ()


def test_B6_who_does_not_know_a_key_learns_nothing_of_whom_a_dialler_seeks() -> None:
    seek = partial(sought, KEYS[0])
    assert seek(b"n" * 32) == seek(b"n" * 32)
    assert seek(b"n" * 32) != seek(b"m" * 32), "nobody can recognise it at another dial"
    assert KEYS[0] not in seek(b"n" * 32)
