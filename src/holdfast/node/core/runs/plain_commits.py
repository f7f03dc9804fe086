"""The fold of a run in which every entry is plain: entities that stand alone are put as a whole.

Nearly all runs are such. Their entries are decided together and stored together: no view of the
state is made, and no rows that stand between a decision and its tables. What comes out of it is
what `commit` makes of the same run entry by entry.

`fold_plain` never refuses anything. It returns None, and has changed nothing, for a run in which
something needs a second look: an intent that is known, a fence that is not newer, a base that has
moved. The caller then takes the long way, which says what becomes of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.node.core.read_intents import ReadIntent
from holdfast.rules.errors import FenceForged, FenceTooOld
from holdfast.rules.quorum.commit_record import encode_applied
from holdfast.rules.quorum.fence import FenceToken, check_newer
from holdfast.rules.quorum.plain_intents import CHANGE, PlainPut, read_plain
from holdfast.rules.quorum.state_rows import CommitRow, QuorumRow, RevisionRow
from holdfast.rules.quorum.view import EntityRevision, EntityRow
from holdfast.storage.ports import Transaction
from holdfast.storage.quorum_state_port import EntityKey


class PlainCommit(NamedTuple):
    """An entry of the run, and the authority under which it was committed."""

    put: PlainPut
    fence: FenceToken
    committed_at: int


class PlainFolded(NamedTuple):
    """What became of a run: all of it was applied, and counts from these on."""

    number: int
    offset: int
    revisions: list[EntityRevision]


def read_all_plain(
    mesh: str, raws: Sequence[bytes], known: Sequence[ReadIntent | PlainPut | None]
) -> list[PlainPut] | None:
    """The entries of a run, if all of them are plain. `known` is what was read of them before."""
    puts = []
    for raw, read in zip(raws, known, strict=True):
        put = read_plain(raw) if read is None else read
        if not isinstance(put, PlainPut) or put.mesh != mesh:
            return None
        puts.append(put)
    return puts


def fold_plain(
    tx: Transaction, standing: QuorumRow, commits: Sequence[PlainCommit], now_ms: int
) -> PlainFolded | None:
    mesh, number = standing.mesh, standing.number
    puts = [commit.put for commit in commits]
    ids = [put.id for put in puts]
    if not _is_newer(standing, commits) or not tx.intents_are_new(mesh, ids):
        return None
    keys: list[EntityKey] = [(put.type, put.entity) for put in puts]
    stands = tx.entity_revision_many(mesh, keys)
    made: list[EntityRevision] = []
    records: list[bytes] = []
    last: dict[EntityKey, int] = {}
    for place, (key, (put, fence, committed_at)) in enumerate(zip(keys, commits, strict=True)):
        revision = stands.get(key, 0)
        if put.base is not None and put.base != revision:
            return None
        stands[key] = revision = revision + 1
        last[key] = place
        one = EntityRevision(put.type, put.entity, revision)
        made.append(one)
        records.append(
            encode_applied(
                *(mesh, put.id, put.fingerprint, number + 1 + place, fence, committed_at, one)
            )
        )
    first = tx.log_append_new(
        [(put.id, mesh, CHANGE, put.name, put.origin, put.lamport, put.raw) for put in puts], now_ms
    )
    if first is None:
        return None  # one of them has waited in the log, or stands here twice
    _store(tx, mesh, commits, _Places(number + 1, first, made, records, last))
    return PlainFolded(number + 1, first, made)


def _is_newer(standing: QuorumRow, commits: Sequence[PlainCommit]) -> bool:
    """Whether each has a newer fence than what was before it: nearly always one coordinator has
    gone on counting.
    """
    fence = commits[0].fence
    if fence.incarnation != standing.incarnation:
        return False
    try:
        check_newer(standing.fence, fence, standing.mesh)
    except (FenceTooOld, FenceForged):
        return False
    incarnation, epoch, coordinator = fence.incarnation, fence.lease_epoch, fence.coordinator
    sequence = fence.sequence
    for _, fence, _ in commits[1:]:
        if (
            fence.sequence <= sequence
            or fence.lease_epoch != epoch
            or fence.coordinator != coordinator
            or fence.incarnation != incarnation
        ):
            return False
        sequence = fence.sequence
    return True


class _Places(NamedTuple):
    number: int
    offset: int
    revisions: list[EntityRevision]
    records: list[bytes]
    last: dict[EntityKey, int]
    """Where in the run an entity was put for the last time."""


def _store(tx: Transaction, mesh: str, commits: Sequence[PlainCommit], at: _Places) -> None:
    number, offset = at.number, at.offset
    tx.commits_add(
        [
            CommitRow(offset + place, mesh, number + place, one.put.id, offset + place, record)
            for place, (one, record) in enumerate(zip(commits, at.records, strict=True))
        ]
    )
    entities = []
    for place in at.last.values():
        put, fence, committed_at = commits[place]
        entities.append(
            EntityRow(
                type=put.type,
                id=put.entity,
                revision=at.revisions[place].revision,
                fields=put.fields,
                origin=put.origin,
                lamport=put.lamport,
                fence=fence,
                committed_at=committed_at,
            )
        )
    tx.entities_put(mesh, entities)
    tx.entity_revisions_add(
        mesh,
        [
            RevisionRow(one.type, one.id, one.revision, number + place, deleted=False, whole=True)
            for place, one in enumerate(at.revisions)
        ],
    )
