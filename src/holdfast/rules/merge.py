"""What happens when two versions of one thing meet.

Memory, state and files: the last writer wins, by the one order. Vectors: every store is kept, the
newest per key is live. Tasks: see `tasks`. Each rule is a join: any order of delivery, any
repetition, gives the same rows.

What a merge loses is not silent: see `ledger`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from holdfast.rules.order import version_of as version_of


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
    "entity": Merge.TURNS,
    "fact": Merge.EACH,
    "message": Merge.EACH,
    "audit": Merge.EACH,
}
"""How each family merges."""

DELETES: Final = frozenset({"state.delete", "memory.forget", "file.delete", "vector.delete"})
"""The ops that leave a tombstone."""
