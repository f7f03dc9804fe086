"""Which arrivals are taken in, compared with the rule applied to one message at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.rules.bus.acceptance import judge_arrivals, known_until
from holdfast.rules.bus.mesh_store import ArrivalVerdict, SignedArrival
from holdfast.rules.bus.replay import Window, is_above
from holdfast.rules.limits import BUS_ID_MARGIN_MS, BUS_TTL_MS_MAX, BUS_WINDOW
from support.mesh_stores import bus_message, id_of, nonce_of, signed_arrival

NUMBERS = st.one_of(st.integers(-1, 40), st.integers(BUS_WINDOW - 5, BUS_WINDOW + 60))
ARRIVALS = st.lists(
    st.builds(signed_arrival, NUMBERS, st.integers(0, 30), st.integers(0, 60)), max_size=30
)


def one_by_one(
    before: Window, arrivals: list[SignedArrival], *, window: bool
) -> tuple[list[ArrivalVerdict], Window]:
    """The rule in its plainest form."""
    mark, nonces, ids = before, {nonce_of(0)}, {id_of(0)}
    verdicts: list[ArrivalVerdict] = []
    for arrival in arrivals:
        after = mark.take(arrival.sequence)
        strictly = window or is_above(mark.highest, arrival.sequence)
        if after is None or not strictly or arrival.nonce in nonces:
            verdicts.append(ArrivalVerdict.REPLAY)
            continue
        mark = after
        nonces.add(arrival.nonce)
        known = arrival.message.id in ids
        verdicts.append(ArrivalVerdict.DUPLICATE if known else ArrivalVerdict.NEW)
        ids.add(arrival.message.id)
    return verdicts, mark


@given(st.lists(NUMBERS, max_size=5), ARRIVALS, st.booleans())
def test_B1_a_batch_is_judged_as_its_messages_one_by_one(
    earlier: list[int], arrivals: list[SignedArrival], window: bool
) -> None:
    before = Window()
    for number in earlier:
        before = before.take(number) or before
    judged = judge_arrivals(before, arrivals, {nonce_of(0)}, {id_of(0)}, window=window)
    verdicts, mark = one_by_one(before, arrivals, window=window)
    assert judged.verdicts == verdicts
    assert judged.window == mark
    assert len(judged.nonces) == len(verdicts) - verdicts.count(ArrivalVerdict.REPLAY)
    assert len(judged.new) == verdicts.count(ArrivalVerdict.NEW)


@given(
    st.integers(0, 2),
    st.integers(1, 2),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=3)
    | st.integers(1, BUS_WINDOW + 9).map(lambda count: [(n, n) for n in range(1, count)]),
)
def test_B1_a_batch_in_a_row_is_judged_as_its_messages_one_by_one(
    last: int, above: int, each: list[tuple[int, int]]
) -> None:
    """As batches come over one link: most often all are new."""
    before = Window.strict(last)
    arrivals = [
        signed_arrival(number, message, nonce)
        for number, (message, nonce) in enumerate(each, last + above)
    ]
    judged = judge_arrivals(before, arrivals, {nonce_of(0)}, {id_of(0)}, window=False)
    assert (judged.verdicts, judged.window) == one_by_one(before, arrivals, window=False)
    new = [
        arrival
        for arrival, verdict in zip(arrivals, judged.verdicts, strict=True)
        if verdict is ArrivalVerdict.NEW
    ]
    assert judged.new == new


def test_B4_an_id_is_known_for_as_long_as_its_sender_may_send_it_again() -> None:
    assert known_until(bus_message(1, ttl_ms=5000), 100) == 5100 + BUS_ID_MARGIN_MS
    assert known_until(bus_message(1), 100) == 100 + BUS_TTL_MS_MAX + BUS_ID_MARGIN_MS
    assert known_until(bus_message(1, durable=False), 100) == 100 + BUS_ID_MARGIN_MS
