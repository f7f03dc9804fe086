"""The conflict ledger of state keys: keeps it as `rules.ledger` says.

Only state has versions of several peers under one key. Memory, files and vectors are written by
their owners alone, and tasks have turns (see `fold_tasks`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.rules.bodies import NOTHING, StateSet, encode_body
from holdfast.rules.envelope import Base, Envelope, decode_trusted
from holdfast.rules.limits import LEDGER_OF_KEY_MAX
from holdfast.rules.order import Version, is_newer, order_key, version_of
from holdfast.rules.rows import ConflictRow

if TYPE_CHECKING:
    from holdfast.node.core.context import NodeContext
    from holdfast.rules.ledger import Meeting, Seen, Written
    from holdfast.storage.ports import Reader, Transaction

STATE: Final = "state"
REASON: Final = "both were written without knowing of the other; the higher stamp wins"


def settle(tx: Transaction, ctx: NodeContext, envelope: Envelope, current: Version) -> bool:
    """Decides between an envelope and the version of its key that stands, and keeps the ledger.
    Returns whether the envelope is applied.
    """
    base = envelope.base
    if (
        envelope.origin == current.peer
        and (base is None or base.peer == current.peer)
        and envelope.lamport > current.lamport
    ):
        return True  # the plain case: a peer goes on from its own version
    # Here and below, because the plain case needs none of it.
    from holdfast.rules.ledger import Written, meet

    mesh, key = envelope.mesh, envelope.entity
    rows = tx.conflicts_of(mesh, STATE, key)
    stored = tx.state_seen(mesh, key)
    incoming = version_of(envelope)
    replaced = is_newer(incoming, current) and _saw(envelope, current)
    standing = Written(current, None if replaced else _base(tx, current))
    lost = [Written(row.loser, _base_of(row)) for row in rows]
    history = _History(tx, envelope)
    met = meet(standing, stored, lost, Written(incoming, base), history)
    _note(tx, ctx, rows, met, _Values(tx, envelope, history), incoming if met.wins else current)
    _keep_seen(tx, mesh, key, stored, met.seen, envelope.origin if met.wins else current.peer)
    return met.wins


def first(tx: Transaction, envelope: Envelope) -> None:
    """Notes what the first version of a key had seen: it may arrive later. Called when the version
    is stored.
    """
    base = envelope.base
    if base is not None and base.peer != envelope.origin:
        tx.state_seen_put(envelope.mesh, envelope.entity, base.peer, base.lamport)


def with_winner(tx: Reader, row: ConflictRow) -> ConflictRow:
    """An entry with the version that stands now: that is what it lost against."""
    if row.family != STATE or row.resolved_at is not None:
        return row
    standing = tx.state_version(row.mesh, row.entity)
    return row if standing is None else msgspec.structs.replace(row, winner=standing)


# --- what is written down ------------------------------------------------------------------------


def _note(
    tx: Transaction,
    ctx: NodeContext,
    rows: list[ConflictRow],
    met: Meeting,
    values: _Values,
    winner: Version,
) -> None:
    found, known = set(met.found), {row.loser.id for row in rows}
    waiting = [row for row in rows if row.resolved_at is None and row.loser not in found]
    for row in rows:
        if row.resolved_at is None and row.loser in found:
            tx.conflict_drop(row.number)
    for loser in met.lost:
        if loser.id not in known:
            row = values.entry(loser, winner, ctx.now_ms())
            waiting.append(msgspec.structs.replace(row, number=tx.conflict_add(row)))
    if len(waiting) > LEDGER_OF_KEY_MAX:
        waiting.sort(key=lambda row: order_key(row.loser))
        for row in waiting[:-LEDGER_OF_KEY_MAX]:
            tx.conflict_drop(row.number)


def _keep_seen(
    tx: Transaction, mesh: str, key: str, stored: Seen, seen: Seen, standing: str
) -> None:
    """Stores what differs. Of the peer whose version stands, that version says it all."""
    for peer, lamport in seen.items():
        if peer != standing and stored.get(peer) != lamport:
            tx.state_seen_put(mesh, key, peer, lamport)
    for peer in stored:
        if peer not in seen:
            tx.state_seen_drop(mesh, key, peer)


# --- what the log says ---------------------------------------------------------------------------


class _History:
    """The newest versions of a key in the log, newest first, without the one that arrives. They are
    read when they are needed.
    """

    def __init__(self, tx: Reader, arriving: Envelope) -> None:
        self._tx, self._arriving = tx, arriving
        self.read: dict[bytes, Envelope] = {}

    def __iter__(self) -> Iterator[Written]:
        from holdfast.rules.ledger import Written

        arriving = self._arriving
        for entry in self._tx.log_newest(arriving.mesh, arriving.entity, LEDGER_OF_KEY_MAX):
            if entry.id == arriving.id or not entry.op.startswith("state."):
                continue
            envelope = decode_trusted(entry.raw)
            self.read[entry.id] = envelope
            yield Written(version_of(envelope), envelope.base)


class _Values:
    """What lost versions said: in the log, in the envelope that arrives, or in the row."""

    def __init__(self, tx: Reader, arriving: Envelope, history: _History) -> None:
        self._tx, self._arriving, self._history = tx, arriving, history

    def entry(self, loser: Version, winner: Version, now_ms: int) -> ConflictRow:
        envelope = self._envelope(loser)
        base = None if envelope is None else envelope.base
        op, body = self._row() if envelope is None else (envelope.op, envelope.body)
        return ConflictRow(
            mesh=self._arriving.mesh,
            family=STATE,
            owner="",
            entity=self._arriving.entity,
            reason=REASON,
            winner=winner,
            loser=loser,
            loser_op=op,
            loser_body=body,
            base_lamport=None if base is None else base.lamport,
            base_peer=None if base is None else base.peer,
            found_at=now_ms,
        )

    def _envelope(self, loser: Version) -> Envelope | None:
        if loser.id == self._arriving.id:
            return self._arriving
        return self._history.read.get(loser.id) or _logged(self._tx, loser)

    def _row(self) -> tuple[str, bytes]:
        """The version that stood, where the log has it no more."""
        row = self._tx.state_get(self._arriving.mesh, self._arriving.entity)
        assert row is not None, "what is not in the log is the version that stood"
        if row.tombstone:
            return "state.delete", NOTHING
        return "state.set", encode_body(StateSet(row.value))


def _logged(tx: Reader, version: Version) -> Envelope | None:
    entry = tx.log_find(version.id)
    return None if entry is None else decode_trusted(entry.raw)


def _saw(envelope: Envelope, version: Version) -> bool:
    """Whether its writer saw the version there: what that one was written over is of no account."""
    base = envelope.base
    return base is not None and base.peer == version.peer and base.lamport >= version.lamport


def _base(tx: Reader, version: Version) -> Base | None:
    envelope = _logged(tx, version)
    return None if envelope is None else envelope.base


def _base_of(row: ConflictRow) -> Base | None:
    if row.base_lamport is None or row.base_peer is None:
        return None
    return Base(row.base_lamport, row.base_peer)
