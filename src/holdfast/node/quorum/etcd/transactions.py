"""The transactions of an order, as requests. Each may be sent any number of times and happens once
at most: it compares what it changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.protocol.etcd_json import (
    Operation,
    RangeRequest,
    TxnAnswer,
    TxnRequest,
    ValueIs,
    VersionIs,
    delete,
    get,
    put,
    value_is,
    version_is,
)
from holdfast.rules.etcd.entry import (
    HeldKey,
    OrderState,
    StoredBeat,
    StoredEntry,
    StoredEpoch,
    StoredFloor,
    StoredIncarnation,
    pack,
)
from holdfast.rules.etcd.keys import OrderKeys

STATE_KEYS = 3


def read_state(keys: OrderKeys) -> TxnRequest:
    """Reads, at one moment, what `rules.etcd.entry.order_state` takes, and the last entry's key."""
    return TxnRequest(success=(*_state(keys), get(keys.last)))


def look(keys: OrderKeys) -> TxnRequest:
    """The same with the coordinator's sign of life."""
    return TxnRequest(success=(*_state(keys), get(keys.last), get(keys.beat)))


def begin(keys: OrderKeys, born: StoredIncarnation) -> TxnRequest:
    """Begins an order where there is none."""
    return TxnRequest(
        compare=(version_is(keys.incarnation, 0), version_is(keys.last, 0)),
        success=(put(keys.incarnation, pack(born)),),
        failure=_state(keys),
    )


def begin_incarnation(
    keys: OrderKeys, state: OrderState, born: StoredIncarnation, last_version: int
) -> TxnRequest:
    """Begins the next incarnation of an order behind its last entry, unless one was appended or
    somebody else has begun one.
    """
    return TxnRequest(
        compare=(
            value_is(keys.incarnation, state.incarnation_value),
            version_is(keys.last, last_version),
        ),
        success=(put(keys.incarnation, pack(born)),),
        failure=_state(keys),
    )


def raise_epoch(keys: OrderKeys, state: OrderState, led: StoredEpoch) -> TxnRequest:
    """Makes a node the coordinator, unless somebody else became it since `state`."""
    alive = StoredBeat(1, state.epoch_version + 1)
    return TxnRequest(
        compare=_still(keys, state),
        success=(put(keys.epoch, pack(led)), put(keys.beat, pack(alive)), get(keys.epoch)),
        failure=_state(keys),
    )


def beat(keys: OrderKeys, state: OrderState, version: int, value: StoredBeat) -> TxnRequest:
    """Says that the coordinator is alive, or that it is to let go, unless somebody has said
    something else since `version`.
    """
    return TxnRequest(
        compare=(*_still(keys, state), version_is(keys.beat, version)),
        success=(put(keys.beat, pack(value)),),
        failure=(*_state(keys), get(keys.beat)),
    )


def append(keys: OrderKeys, id: bytes, entry: StoredEntry, state: OrderState) -> TxnRequest:
    """Puts an entry at the end of the order: once, under this epoch, or not at all."""
    return TxnRequest(
        compare=(
            version_is(keys.entry(id), 0),
            *_still(keys, state),
            version_is(keys.floor, state.floor_version),
        ),
        success=(put(keys.entry(id), pack(entry)), put(keys.last)),
        failure=(get(keys.entry(id)), *_state(keys)),
    )


def raise_floor(keys: OrderKeys, state: OrderState, floor: StoredFloor) -> TxnRequest:
    """Says that entries up to a position may be gone, before the first of them is."""
    return TxnRequest(
        compare=(
            value_is(keys.incarnation, state.incarnation_value),
            version_is(keys.floor, state.floor_version),
        ),
        success=(put(keys.floor, pack(floor)),),
        failure=_state(keys),
    )


def delete_keys(found: Sequence[bytes]) -> TxnRequest:
    return TxnRequest(success=tuple(delete(key) for key in found))


def get_at(key: bytes, revision: int) -> RangeRequest:
    """Reads a key as it was at a revision."""
    return RangeRequest(key=key, revision=str(revision))


def get_keys(wanted: Sequence[bytes]) -> TxnRequest:
    return TxnRequest(success=tuple(get(key) for key in wanted))


def read_answer(answer: TxnAnswer, count: int) -> list[HeldKey | None]:
    """What the last `count` operations of a transaction have read."""
    return TxnAnswer(responses=answer.responses[-count:]).ranges(count)


def _still(keys: OrderKeys, state: OrderState) -> tuple[VersionIs | ValueIs, ...]:
    return (
        value_is(keys.incarnation, state.incarnation_value),
        version_is(keys.epoch, state.epoch_version),
    )


def _state(keys: OrderKeys) -> tuple[Operation, ...]:
    return get(keys.incarnation), get(keys.epoch), get(keys.floor)
