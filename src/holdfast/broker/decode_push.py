"""Reading what a member hands in: everything that can be said about an envelope by itself.

What passes here is well formed, belongs to the mesh that it was handed in for, and bears the
fingerprint of its content. Whether the sender may, and whether there is such a destination, is
asked in the transaction that accepts it.

Reading costs time, and meanwhile no other connection is served. So a push is read in slices
(`slice_size`), each is handed in by itself, and others have their turn in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from holdfast.broker.verdicts import Outcome, answer_of
from holdfast.protocol.frames import Acks, Item, PushAnswer
from holdfast.rules import limits
from holdfast.rules.broker_rows import PushedEnvelope
from holdfast.rules.envelope import decode
from holdfast.rules.errors import BadEnvelope, HoldfastError
from holdfast.rules.message import CHANGE, check_arriving

NewId = Callable[[], bytes]
"""Makes UUIDs of version 7."""

SLICE_ITEMS: Final = 256
"""Items that are read in one turn of the loop: others wait meanwhile."""
_HALF_MIN: Final = 32
"""Fewer are not worth a commit of their own."""


def slice_size(items: int, *, by_halves: bool) -> int:
    """How many items of a push are read in one turn, and handed in together.

    A member that waits for answers before it sends more would have this process and that of the
    store take turns. So while the store is quick, each half of what it sends is read, or answered,
    while the other is written. Where a commit takes its time two of them would cost more than the
    turns do, and a store in this process would gain little.
    """
    wanted = (items + 1) // 2 if by_halves and items >= 2 * _HALF_MIN else items
    return max(1, min(SLICE_ITEMS, wanted))


class PushSlice:
    """Items that are handed in together: the good ones, and why the bad ones are, by their place.

    `size` counts the bytes of the frames that have their answer with this slice.
    """

    __slots__ = ("bad", "good", "items", "mesh", "size")

    def __init__(
        self,
        mesh: str,
        items: Sequence[Item],
        good: list[PushedEnvelope],
        bad: dict[int, HoldfastError],
        size: int,
    ) -> None:
        self.mesh, self.items, self.good, self.bad, self.size = mesh, items, good, bad, size

    def acks(self, outcomes: Sequence[Outcome]) -> Acks:
        """The answer to all items, from the outcomes of the good ones."""
        if self.bad:
            rest = iter(outcomes)
            outcomes = [self.bad.get(at) or next(rest) for at in range(len(self.items))]
        epoch = 0
        answers: list[PushAnswer] = []
        for item, outcome in zip(self.items, outcomes, strict=True):
            if not isinstance(outcome, HoldfastError):
                epoch = outcome.epoch
            answers.append(answer_of(item.number, outcome))
        return Acks(self.mesh, epoch, answers)


def decode_slice(
    mesh: str, epoch: int, items: Sequence[Item], size: int, sender: bytes, new_id: NewId
) -> PushSlice:
    good: list[PushedEnvelope] = []
    bad: dict[int, HoldfastError] = {}
    for at, item in enumerate(items):
        try:
            good.append(decode_push(item.raw, mesh, sender, epoch, new_id))
        except HoldfastError as error:
            bad[at] = error
    return PushSlice(mesh, items, good, bad, size)


def decode_push(raw: bytes, mesh: str, sender: bytes, epoch: int, new_id: NewId) -> PushedEnvelope:
    if not 0 <= epoch <= limits.LAMPORT_MAX:
        # A store that cannot count so far would refuse all that shares its transaction.
        raise BadEnvelope(f"{epoch} is no epoch of a mesh")
    envelope = decode(raw)
    if envelope.mesh != mesh:
        raise BadEnvelope(f"the envelope is of mesh {envelope.mesh!r}, not {mesh!r}")
    kind, ref = check_arriving(envelope)
    if kind == CHANGE and envelope.op.startswith("message."):
        raise BadEnvelope("a message names no destination")
    return PushedEnvelope(
        mesh=mesh,
        id=envelope.id,
        fingerprint=envelope.fingerprint,
        kind=kind,
        ref=ref,
        origin=envelope.origin,
        sender=sender,
        priority=envelope.priority,
        raw=raw,
        broker_id=new_id(),
        epoch=epoch,
        lamport=envelope.lamport,
    )
