"""What becomes of a write that is replayed, as one of five named outcomes.

The questions are asked in this order, and the first that answers decides:

1. Is it here already? Then nothing is to be done, whatever else has changed since: its fence may
   be old and newer revisions may exist exactly because it was applied. Any other answer would
   make its author write it a second time.
2. Does its id belong to other content? That is for ever so, whereas a fence can be renewed: asked
   later, the author would take a new lease only to learn it. Nothing is applied; both sides are
   kept.
3. Is its fence too old? Then it has no authority over the record, and we do not even compare it:
   a deposed coordinator must neither change a record nor fill the list of conflicts.
4. Does it need a decision? Before "superseded", because that outcome drops the write: when both
   hold, to drop it would be to decide.
5. Is there a newer committed revision that replaces it? Then it came too late and loses nothing
   by it.
6. Otherwise it is applied.
"""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    APPLIED = "applied"
    NOOP_ALREADY_APPLIED = "noop_already_applied"
    SUPERSEDED = "superseded"
    CONFLICT_REQUIRES_MERGE = "conflict_requires_merge"
    REJECTED_FENCED = "rejected_fenced"


def reconcile(
    *,
    seen_same: bool,
    seen_other: bool,
    fence_ok: bool,
    newer_exists: bool,
    needs_merge: bool,
) -> Outcome:
    """Decide on a replayed write.

    `seen_same`: its id was applied before with the same fingerprint; `seen_other`: with another
    one. `needs_merge`: what it changes and what is committed cannot both stand, and no rule
    orders them.
    """
    assert not (seen_same and seen_other), "an id has one fingerprint"
    if seen_same:
        return Outcome.NOOP_ALREADY_APPLIED
    if seen_other:
        return Outcome.CONFLICT_REQUIRES_MERGE
    if not fence_ok:
        return Outcome.REJECTED_FENCED
    if needs_merge:
        return Outcome.CONFLICT_REQUIRES_MERGE
    if newer_exists:
        return Outcome.SUPERSEDED
    return Outcome.APPLIED
