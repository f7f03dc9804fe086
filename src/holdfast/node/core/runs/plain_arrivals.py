"""Envelopes from outside that are taken together: values of the shared state and memories, as the
page of a link, a broker or a snapshot brings them.

Plain is one that is read without an error, of a family that is asked for in sets, and whose id is
not known here. A run of them is of one mesh and has each key once, so none of them meets another:
what stands under all their keys is looked up at once, and they go into the log and into each table
as a whole. What the ledger says of each is still asked one by one, in order, where somebody else's
version stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from holdfast.node.core import ledger
from holdfast.node.core.context import NodeContext
from holdfast.node.core.fold import memory_row_of, state_row_of
from holdfast.rules.arrivals import Arrival, Arrived
from holdfast.rules.bodies import Body
from holdfast.rules.envelope import Envelope
from holdfast.rules.merge import version_of
from holdfast.rules.order import Version, is_newer
from holdfast.rules.reconcile import Outcome
from holdfast.rules.rows import MemoryRow, StateRow
from holdfast.storage.ports import Reader, Transaction

_STATE: Final = frozenset(("state.set", "state.delete"))
_PLAIN: Final = _STATE | {"memory.set", "memory.forget"}
_FEWEST: Final = 4
"""Fewer are taken one by one: to look up a list costs as much as to look up some."""

Plain = tuple[Envelope, Body, bytes]
"""An envelope, its body and its bytes."""
_Key = tuple[bool, str, str]
"""Whether it is of the shared state, the owner and the key."""


class BatchPart(NamedTuple):
    """Arrivals that follow each other, and what they are as a run; None: to be taken one by one."""

    members: Sequence[Arrival]
    run: Sequence[Plain] | None


def plain_runs(tx: Reader, batch: Sequence[Arrival]) -> Iterator[BatchPart]:
    """The parts of a batch, in its order."""
    candidates = [_plain(arrival) for arrival in batch]
    known = tx.ids_known({one[0].id for one in candidates if one is not None})
    run: list[Plain] = []
    keys: set[_Key] = set()
    for at, one in enumerate(candidates):
        plain = one is not None and one[0].id not in known
        if run and not (plain and _goes_with(run, keys, one)):
            yield _part(batch[at - len(run) : at], run)
            run, keys = [], set()
        if one is None or not plain:
            yield BatchPart(batch[at : at + 1], None)
            continue
        run.append(one)
        keys.add(_key(one[0]))
        known.add(one[0].id)  # if the batch has it once more
    if run:
        yield _part(batch[-len(run) :], run)


def _goes_with(run: Sequence[Plain], keys: set[_Key], one: Plain | None) -> bool:
    return one is not None and one[0].mesh == run[0][0].mesh and _key(one[0]) not in keys


def _part(members: Sequence[Arrival], run: Sequence[Plain]) -> BatchPart:
    return BatchPart(members, run if len(run) >= _FEWEST else None)


def _plain(arrival: Arrival) -> Plain | None:
    envelope, body = arrival.envelope, arrival.body
    if envelope is None or body is None or arrival.error is not None or envelope.op not in _PLAIN:
        return None
    return envelope, body, arrival.raw


def _key(envelope: Envelope) -> _Key:
    return envelope.op in _STATE, envelope.owner, envelope.entity


def take_plain(
    tx: Transaction, ctx: NodeContext, run: Sequence[Plain], via: int
) -> list[tuple[int, Outcome]] | None:
    """Appends a run and folds it; says of each where it stands and what became of it. None, and
    nothing has changed, if an id among them is known.
    """
    standing = _standing(tx, run)
    first = tx.log_append_new([_arrived(one) for one in run], ctx.now_ms(), via)
    if first is None:
        return None
    taken: list[tuple[int, Outcome]] = []
    states: list[StateRow] = []
    memories: list[MemoryRow] = []
    new: list[Envelope] = []
    for offset, (envelope, body, _) in enumerate(run, first):
        current = standing.get(_key(envelope))
        if envelope.op not in _STATE:
            version = version_of(envelope)
            applied = current is None or is_newer(version, current)
            if applied:
                e, at = envelope, (version, offset, envelope.created_at)
                memories.append(memory_row_of(e.mesh, e.owner, e.entity, body, *at))
        else:
            applied = current is None or ledger.settle(tx, ctx, envelope, current)
            if applied:
                states.append(state_row_of(envelope, body, offset))
            if current is None:
                new.append(envelope)
        taken.append((offset, Outcome.APPLIED if applied else Outcome.SUPERSEDED))
    tx.state_put_many(states)
    tx.memory_put_many(memories)
    for envelope in new:
        ledger.first(tx, envelope)
    return taken


def _standing(tx: Reader, run: Sequence[Plain]) -> dict[_Key, Version]:
    """The version under each key that has one."""
    mesh = run[0][0].mesh
    owned: dict[str, list[str]] = {}
    shared: list[str] = []
    for envelope, _, _ in run:
        if envelope.op in _STATE:
            shared.append(envelope.entity)
        else:
            owned.setdefault(envelope.owner, []).append(envelope.entity)
    found: dict[_Key, Version] = {}
    if shared:
        for key, version in tx.state_version_many(mesh, shared).items():
            found[True, "", key] = version
    for owner, keys in owned.items():
        for key, row in tx.memory_get_many(mesh, owner, keys).items():
            found[False, owner, key] = row.version
    return found


def _arrived(one: Plain) -> Arrived:
    e, _, raw = one
    return e.id, e.mesh, e.op, e.entity, e.origin, e.lamport, raw
