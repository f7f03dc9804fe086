"""What became of an append.

One transaction appends an entry if nobody has used its id, if nobody else coordinates meanwhile, if
the incarnation is the same and if nothing was forgotten since. If any of that does not hold, it
reads all four at the same moment, and here is what follows:

- The id is there: with our fingerprint it is our entry, from an earlier try whose answer was lost.
- A compared key has changed. It never changes back, so no earlier try can succeed any more: what
  was not there now will not come later.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from holdfast.rules.errors import BadAnswer, IdReused, TooOld
from holdfast.rules.etcd.entry import HeldKey, OrderState, StoredEntry, unpack
from holdfast.rules.ids import id_text, id_time_ms


class EntryAppended(msgspec.Struct, frozen=True):
    """The entry stands in the order, once."""

    position: int
    incarnation: int
    epoch: int
    coordinator: str
    already: bool
    """Whether an earlier try had appended it."""


class EntryAbandoned(msgspec.Struct, frozen=True):
    """The id was given up: no entry with it will ever stand in the order."""

    position: int


class EntryFenced(msgspec.Struct, frozen=True):
    """Another epoch or incarnation has begun. Nothing was appended, nor will an earlier try be."""

    state: OrderState


class FloorMoved(msgspec.Struct, frozen=True):
    """The floor was raised meanwhile: nothing was appended, and the same may be asked again."""

    state: OrderState


AppendOutcome: TypeAlias = EntryAppended | EntryAbandoned | EntryFenced | FloorMoved


def appended(mine: StoredEntry, revision: int) -> EntryAppended | EntryAbandoned:
    """What follows when the transaction wrote at this revision."""
    if mine.kind == "abandoned":
        return EntryAbandoned(revision)
    return EntryAppended(revision, mine.incarnation, mine.epoch, mine.coordinator, already=False)


def not_appended(
    id: bytes, mine: StoredEntry, found: HeldKey | None, asked: OrderState, now: OrderState
) -> AppendOutcome:
    """What follows when the transaction wrote nothing: `found` is what has the id, `asked` what was
    compared with, `now` what is there.
    """
    if found is not None:
        return _found(id, mine, found)
    if (now.incarnation_value, now.epoch_version) != (asked.incarnation_value, asked.epoch_version):
        return EntryFenced(now)
    if now.floor_version != asked.floor_version:
        check_age(id, now)
        return FloorMoved(now)
    raise BadAnswer("the etcd refused a transaction although everything is as it should be")


def check_age(id: bytes, state: OrderState) -> None:
    """Raises TooOld for an id whose entry may have been forgotten: it could be appended twice."""
    made_ms = id_time_ms(id)
    if made_ms and made_ms < state.ids_before_ms:
        raise TooOld(
            f"{id_text(id)} is older than the ids that the order still knows",
            hint="read whether it was applied; if not, write it again with a new id",
        )


def _found(id: bytes, mine: StoredEntry, found: HeldKey) -> EntryAppended | EntryAbandoned:
    there = unpack(StoredEntry, found)
    if there.kind == "abandoned":
        return EntryAbandoned(found.revision)
    # Giving up comes too late where any entry is: that one was committed.
    if mine.kind == "entry" and there.fingerprint != mine.fingerprint:
        raise IdReused(f"{id_text(id)} belongs to other content, at {found.revision}")
    return EntryAppended(
        found.revision, there.incarnation, there.epoch, there.coordinator, already=True
    )
