"""What is stored of an entry, and of the order as a whole.

Every node computes the fence of an entry from what is stored: incarnation, epoch and coordinator
stand in the value, because they are those under which it was appended, and the sequence is the
revision at which etcd committed it. A retry that finds the entry sees the same.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from holdfast.rules.errors import EntryDamaged, QuorumSetBack
from holdfast.rules.limits import ETCD_BASES_MAX, LAMPORT_MAX

Number = Annotated[int, Meta(ge=0, le=LAMPORT_MAX)]
Kind = Literal["entry", "abandoned"]
"""`abandoned`: somebody gave the id up; an entry that comes later with this id is void."""
FORMAT: Final = 1


class StoredEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The value of `i/ID`."""

    format: Literal[1]
    incarnation: Number
    epoch: Number
    coordinator: str
    kind: Kind
    fingerprint: bytes
    body: bytes


class OrderBase(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Where an incarnation began: behind which entry of this order, and behind which commit of the
    mesh. A node that has not folded exactly that cannot go on with it.
    """

    incarnation: Number
    position: Number
    commits: Number
    """The number of the last commit before it; 0 if it was the first incarnation of the mesh."""
    fence: str
    """Of that commit, as text; empty if there was none."""
    nonce: bytes
    """Tells it from any other incarnation: the tag of the quorum that a node notes."""


class StoredIncarnation(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The value of `n`."""

    format: Literal[1]
    incarnation: Number
    epoch_base: Number
    """Epochs count from here: an order that moves to this etcd brings the last one of its old
    engine along, so that epochs never fall."""
    nonce: bytes
    """Made by whoever wrote it: who gets no answer knows its own writing by this."""
    bases: Annotated[tuple[OrderBase, ...], Meta(max_length=ETCD_BASES_MAX)] = ()
    """Of all incarnations that this order has had, the newest last."""


class StoredEpoch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The value of `f`."""

    format: Literal[1]
    coordinator: str
    nonce: bytes


class StoredBeat(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The value of `c`. How often it was written shows that the coordinator is alive. It decides
    nothing: it only says when another node had better take over.
    """

    format: Literal[1]
    epoch_version: Number
    """Under which epoch it was written; one of an earlier epoch says nothing."""
    let_go: bool = False
    """An operator wants somebody else to coordinate."""
    to: str = ""
    """Who; empty for whoever comes first."""


class StoredFloor(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The value of `g`: entries up to a position may have been forgotten, ids up to a time with
    them.
    """

    format: Literal[1]
    position: Number
    ids_before_ms: Number


class HeldKey(NamedTuple):
    """A key as an etcd holds it."""

    key: bytes
    value: bytes
    revision: int
    """At which it was written last."""
    version: int
    """How often it was written."""


class OrderPoint(NamedTuple):
    """A place in the order: the revision of an entry, and how many entries there are up to it."""

    position: int
    number: int


START: Final = OrderPoint(0, 0)


class OrderedEntry(msgspec.Struct, frozen=True, gc=False):
    """One entry in its place."""

    id: bytes
    kind: Kind
    fingerprint: bytes
    body: bytes
    incarnation: int
    epoch: int
    coordinator: str
    point: OrderPoint


class OrderState(msgspec.Struct, frozen=True):
    """What an etcd says of a whole order, at one moment."""

    incarnation: int
    epoch_base: int
    incarnation_value: bytes
    """As stored: a transaction compares it."""
    epoch_version: int
    coordinator: str
    """Empty while nobody has coordinated."""
    floor_version: int
    floor: int
    ids_before_ms: int
    bases: tuple[OrderBase, ...] = ()

    def base(self, incarnation: int) -> OrderBase | None:
        """Where an incarnation began; None if this order has had none of that number."""
        found = [one for one in self.bases if one.incarnation == incarnation]
        return found[-1] if found else None

    @property
    def epoch(self) -> int:
        return self.epoch_base + self.epoch_version


T = TypeVar("T", bound=msgspec.Struct)
_encoder: Final = msgspec.msgpack.Encoder()


def pack(value: msgspec.Struct) -> bytes:
    return _encoder.encode(value)


def unpack(kind: type[T], held: HeldKey) -> T:
    try:
        return msgspec.msgpack.decode(held.value, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        name = held.key.decode("ascii", "replace")
        raise EntryDamaged(
            f"{name} in the etcd is not what Holdfast writes: {error}",
            hint="somebody else has written there, or a newer Holdfast; find out before you go on",
        ) from None


def ordered_entry(id: bytes, held: HeldKey, number: int) -> OrderedEntry:
    stored = unpack(StoredEntry, held)
    return OrderedEntry(
        id=id,
        kind=stored.kind,
        fingerprint=stored.fingerprint,
        body=stored.body,
        incarnation=stored.incarnation,
        epoch=stored.epoch,
        coordinator=stored.coordinator,
        point=OrderPoint(held.revision, number),
    )


def order_state(
    incarnation: HeldKey | None,
    epoch: HeldKey | None,
    floor: HeldKey | None,
    *,
    was: OrderState | None,
) -> OrderState | None:
    """What three keys say; None if the order was never begun. Raises QuorumSetBack if they are
    older than what they `was` before.
    """
    if incarnation is None:
        if was is not None:
            raise QuorumSetBack("the order is no longer in the etcd")
        return None
    born = unpack(StoredIncarnation, incarnation)
    led = None if epoch is None else unpack(StoredEpoch, epoch)
    gone = None if floor is None else unpack(StoredFloor, floor)
    state = OrderState(
        incarnation=born.incarnation,
        epoch_base=born.epoch_base,
        incarnation_value=incarnation.value,
        epoch_version=0 if epoch is None else epoch.version,
        coordinator="" if led is None else led.coordinator,
        floor_version=0 if floor is None else floor.version,
        floor=0 if gone is None else gone.position,
        ids_before_ms=0 if gone is None else gone.ids_before_ms,
        bases=born.bases,
    )
    if was is not None and _is_older(state, was):
        raise QuorumSetBack(
            f"the etcd says incarnation {state.incarnation}, epoch {state.epoch}; "
            f"it said {was.incarnation} and {was.epoch} before"
        )
    return state


def newer(one: OrderState | None, other: OrderState) -> OrderState:
    """The one of two that was read later, whichever answer came first."""
    return other if one is None or not _is_older(other, one) else one


def _is_older(state: OrderState, other: OrderState) -> bool:
    if state.incarnation != other.incarnation:
        return state.incarnation < other.incarnation or state.epoch < other.epoch
    return state.epoch < other.epoch or state.floor_version < other.floor_version
