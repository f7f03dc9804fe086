"""What a set of changes comes to, by the words of the contract. Order of arrival does not occur.

- State, memory, files: of all changes of a key the one with the highest stamp holds.
- Vectors: every store and every delete is kept; of a key and model the newest is live, unless it
  is a delete.
- Tasks: the lowest end counts, and what comes after it is too late. Among the claims of a
  generation the lowest holds; the holder's first release after its claim opens the next generation.
- The ledger: a change is lost if the change that holds did not know of it. A writer knows what it
  replaced, all that it wrote before itself, and what the writers of those knew.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, NamedTuple

from model.reading import Written

Key = tuple[str, ...]
_LAST_WRITER = {
    "state.set": "state",
    "state.delete": "state",
    "memory.set": "memory",
    "memory.forget": "memory",
    "file.share": "file",
    "file.delete": "file",
}


def by_key(changes: Iterable[Written], family: str) -> dict[Key, list[Written]]:
    """The changes of a family where the last writer wins, by what they are about."""
    found: dict[Key, list[Written]] = defaultdict(list)
    for change in changes:
        if _LAST_WRITER.get(change.op) == family:
            owner = () if family == "state" else (change.owner,)
            found[change.mesh, *owner, change.entity].append(change)
    return found


def winner(changes: list[Written]) -> Written:
    return max(changes, key=lambda change: change.version)


def state(changes: list[Written]) -> dict[Key, tuple[Any, ...]]:
    rows = {}
    for key, versions in by_key(changes, "state").items():
        best = winner(versions)
        gone = best.op == "state.delete"
        rows[key] = (*best.version, gone, None if gone else json.loads(best.body[0]))
    return rows


def memory(changes: list[Written]) -> dict[Key, tuple[Any, ...]]:
    rows = {}
    for key, versions in by_key(changes, "memory").items():
        best = winner(versions)
        gone = best.op == "memory.forget"
        what = (None, []) if gone else (json.loads(best.body[0]), list(best.body[1]))
        rows[key] = (*best.version, gone, *what)
    return rows


def files(changes: list[Written]) -> dict[Key, tuple[Any, ...]]:
    rows = {}
    for key, versions in by_key(changes, "file").items():
        best = winner(versions)
        gone = best.op == "file.delete"
        rows[key] = (*best.version, gone, None if gone else (best.body[0].hex(), best.body[1]))
    return rows


# --- vectors -------------------------------------------------------------------------------------


def _model(change: Written) -> str:
    if change.op == "vector.delete":
        return str(change.body[0])
    named = ":".join(str(part) for part in change.body[:5])
    return sha256(named.encode()).hexdigest()[:16]


def vectors(changes: list[Written]) -> dict[Key, tuple[Any, ...]]:
    """By owner, key, model and id: the stamp, whether it is live, and the embedding."""
    groups: dict[Key, list[Written]] = defaultdict(list)
    for change in changes:
        if change.op in ("vector.store", "vector.delete"):
            groups[change.mesh, change.owner, change.entity, _model(change)].append(change)
    rows = {}
    for key, versions in groups.items():
        newest = winner(versions)
        for change in versions:
            stored = change.op == "vector.store"
            live = stored and change is newest
            rows[*key, change.id.hex()] = (*change.version, live, change.body[5] if stored else b"")
    return rows


# --- tasks ---------------------------------------------------------------------------------------


class TaskAnswer(NamedTuple):
    """A task, and what each of its turns came to."""

    status: str
    generation: int
    holder: tuple[int, bytes, bytes] | None
    """Who holds it, or held it when it ended."""
    ended: tuple[int, bytes, bytes] | None
    title: str | None
    events: dict[tuple[int, bytes, bytes], str]


def tasks(changes: list[Written]) -> dict[Key, TaskAnswer]:
    turns: dict[Key, list[Written]] = defaultdict(list)
    for change in changes:
        if change.op.startswith("task."):
            turns[change.mesh, change.entity].append(change)
    return {key: _task(sorted(some, key=lambda t: t.version)) for key, some in turns.items()}


def _task(turns: list[Written]) -> TaskAnswer:
    creates = [turn for turn in turns if turn.op == "task.create"]
    ends = [turn for turn in turns if turn.op in ("task.complete", "task.cancel")]
    end = ends[0] if ends else None
    events = {turn.version: "ignored" for turn in creates[1:]}
    if creates:
        events[creates[0].version] = "created"
    in_time = []
    for turn in turns:
        if turn.op == "task.create":
            continue
        if end is not None and turn.version > end.version:
            events[turn.version] = "rejected_terminal"
        else:
            in_time.append(turn)
    generation, holder = _generations(in_time, events)
    if end is not None:
        status = "completed" if end.op == "task.complete" else "cancelled"
        events[end.version] = status
    else:
        status = "open" if holder is None else "claimed"
    return TaskAnswer(
        status,
        generation,
        None if holder is None else holder.version,
        None if end is None else end.version,
        creates[0].body[0] if creates else None,
        events,
    )


def _generations(turns: list[Written], events: dict[Any, str]) -> tuple[int, Written | None]:
    """The generation that the task has come to and its holder; fills in what the turns came to."""
    for turn in turns:
        if turn.op == "task.claim":
            events[turn.version] = "superseded"
        elif turn.op == "task.release":
            events[turn.version] = "ignored"
    generation = 0
    while True:
        claims = [t for t in turns if t.op == "task.claim" and t.body[0] == generation]
        if not claims:
            return generation, None
        holder = claims[0]
        events[holder.version] = "claimed"
        releases = [
            turn
            for turn in turns
            if turn.op == "task.release"
            and turn.body[0] == generation
            and turn.origin == holder.origin
            and turn.version > holder.version
        ]
        for claim in claims[1:]:
            held = not releases or claim.version < releases[0].version
            if claim.origin == holder.origin and held:
                events[claim.version] = "renewed"
        if not releases:
            return generation, holder
        events[releases[0].version] = "released"
        generation += 1


# --- the ledger ----------------------------------------------------------------------------------


def known_to(change: Written, versions: list[Written]) -> set[bytes]:
    """The ids of all changes of the same key that the writer of a change knew of, itself among
    them.
    """
    known: set[bytes] = set()
    waiting = [change]
    while waiting:
        one = waiting.pop()
        if one.id in known:
            continue
        known.add(one.id)
        waiting += [
            other
            for other in versions
            if (other.origin == one.origin and other.version < one.version)
            or one.base == (other.lamport, other.origin)
        ]
    return known


def ledger(changes: list[Written]) -> set[tuple[str, Key, str]]:
    """What was lost: family, key and id."""
    lost = set()
    for family in ("state", "memory", "file"):
        for key, versions in by_key(changes, family).items():
            known = known_to(winner(versions), versions)
            lost |= {(family, key, v.id.hex()) for v in versions if v.id not in known}
    return lost
