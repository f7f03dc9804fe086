"""What happens when two versions of one thing meet.

Memory, state and files: the last writer wins, by the one order. Vectors: every store is kept, the
newest per key is live. Tasks: see `tasks`. Each rule is a join: any order of delivery, any
repetition, gives the same rows.

A merge that discards something is not silent. Whether something was discarded depends on what the
winner knew: a writer that replaced a value it had seen discards nothing that anyone would miss. The
envelope's base says what its writer saw, so a conflict differs from a plain succession without
version vectors.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from holdfast.rules.envelope import Base, Envelope
from holdfast.rules.order import Version, is_newer


class Merge(StrEnum):
    """How the envelopes of a family become rows: for the node, which folds them one by one, and for
    the pipeline, which folds them all at once.
    """

    LAST_WRITER = "last_writer"
    """One row per key, of the newest version; a delete leaves a tombstone with its stamp."""
    NEWEST_LIVES = "newest_lives"
    """One row per change; of a key's rows the newest is live, if it is not a delete."""
    TURNS = "turns"
    """One row per thing, folded from all turns on it in the one order, and one per turn."""
    EACH = "each"
    """One row per change; no change replaces another."""


MERGES: Final = {
    "state": Merge.LAST_WRITER,
    "memory": Merge.LAST_WRITER,
    "file": Merge.LAST_WRITER,
    "vector": Merge.NEWEST_LIVES,
    "task": Merge.TURNS,
    "fact": Merge.EACH,
    "message": Merge.EACH,
}
"""How each family merges."""

DELETES: Final = frozenset({"state.delete", "memory.forget", "file.delete", "vector.delete"})
"""The ops that leave a tombstone."""


class MergeVerdict(StrEnum):
    """What a merge does with an incoming version."""

    FIRST = "first"
    """It is taken: nothing was there."""
    SUCCEEDS = "succeeds"
    """It replaces a version that its writer had seen."""
    OVERRIDES = "overrides"
    """It wins over a version that its writer had not seen: that version is discarded."""
    PRECEDES = "precedes"
    """It came late and is an ancestor of the version that is there: nothing is lost."""
    LOSES = "loses"
    """It is discarded: a newer version, whose writer had not seen it, is there."""

    @property
    def applies(self) -> bool:
        return self in _APPLIES

    @property
    def discards(self) -> bool:
        return self is MergeVerdict.OVERRIDES or self is MergeVerdict.LOSES


_APPLIES = frozenset({MergeVerdict.FIRST, MergeVerdict.SUCCEEDS, MergeVerdict.OVERRIDES})


def last_writer_wins(
    incoming: Version,
    incoming_base: Base | None,
    current: Version | None,
    current_base: Base | None,
) -> MergeVerdict:
    """The verdict for families where the last writer wins. `current_base` may be None when it is
    not known.
    """
    if current is None:
        return MergeVerdict.FIRST
    if is_newer(incoming, current):
        return (
            MergeVerdict.SUCCEEDS
            if _had_seen(incoming, incoming_base, current)
            else MergeVerdict.OVERRIDES
        )
    return (
        MergeVerdict.PRECEDES if _had_seen(current, current_base, incoming) else MergeVerdict.LOSES
    )


def _had_seen(later: Version, later_base: Base | None, earlier: Version) -> bool:
    # A peer has always seen its own earlier writes; of others, the one it named as its base.
    if later.peer == earlier.peer:
        return True
    return (
        later_base is not None
        and later_base.lamport == earlier.lamport
        and later_base.peer == earlier.peer
    )


def version_of(envelope: Envelope) -> Version:
    return Version(envelope.lamport, envelope.origin, envelope.id)
