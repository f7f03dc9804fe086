"""The commit record: what a quorum made of an envelope, beside the envelope's unchanged bytes.

An origin makes the bytes of a strong envelope before anybody has voted, and those bytes are what
every node keeps and hashes. So `state`, fence and commit time cannot stand in them (docs/decisions,
0075). They stand here, in canonical bytes too: all nodes that fold the same order make the same
record of an entry, byte for byte, and two that differ have folded differently.

It also says everything that decisions ask about an intent that was committed. One that was given up
has no record of its own: that of the entry that gave it up tells when that was.

`number` counts the entries of a mesh in commit order, without gaps: what the origin's `seq` is for
other envelopes. It goes on counting across incarnations and engines.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from holdfast.rules import ids, names
from holdfast.rules.canonical import check_packed_form
from holdfast.rules.envelope import IntentId, Moment, Positive, State
from holdfast.rules.errors import (
    BadEnvelope,
    BadInput,
    EntryDamaged,
    IntentAbandoned,
    UnsupportedProtocol,
)
from holdfast.rules.quorum.fence import FenceToken, check_order
from holdfast.rules.quorum.view import EntityRevision, IntentRecord
from holdfast.rules.reconcile import Outcome

RECORD_VERSION: Final = 1


class CommitRecord(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """What became of one committed envelope."""

    version: int = RECORD_VERSION
    mesh: str
    id: IntentId
    """The id of the envelope."""
    fingerprint: Annotated[bytes, Meta(min_length=32, max_length=32)]
    number: Positive
    fence: FenceToken
    committed_at: Moment
    """By the clock of the coordinator that proposed the entry: for people, never for order."""
    outcome: Outcome | None
    """None if the envelope was refused for good."""
    reason: str = ""
    """The code of the error where there is one. Not its text: that may differ between versions."""
    revisions: tuple[EntityRevision, ...] = ()
    """Of every entity that it changed, after the change."""


_APPLIED: Final = Outcome.APPLIED.value
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(CommitRecord)

_STATES: Final[dict[Outcome | None, State]] = {
    Outcome.APPLIED: "committed",
    Outcome.NOOP_ALREADY_APPLIED: "committed",
    Outcome.SUPERSEDED: "reconciled",
    Outcome.CONFLICT_REQUIRES_MERGE: "rejected",
    Outcome.REJECTED_FENCED: "rejected",
    None: "rejected",
}


def encode_applied(
    mesh: str,
    id: bytes,
    fingerprint: bytes,
    number: int,
    fence: FenceToken,
    committed_at: int,
    revision: EntityRevision,
) -> bytes:
    """The record of an envelope that was applied and made one revision, as `encode_record` encodes
    it, at a third of the price.
    """
    return _encoder.encode(
        (
            *(RECORD_VERSION, mesh, id, fingerprint, number, fence, committed_at, _APPLIED, ""),
            (revision,),
        )
    )


def encode_record(record: CommitRecord) -> bytes:
    return _encoder.encode(record)


def decode_record(raw: bytes) -> CommitRecord:
    """Reads and checks a record from outside. Fields that a later version has added are kept where
    the bytes are kept.
    """
    try:
        record = _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadEnvelope(f"the commit record cannot be read: {error}") from None
    if record.version < RECORD_VERSION:
        raise UnsupportedProtocol(f"commit records have no version {record.version}")
    try:
        names.check_mesh(record.mesh)
        ids.check_id(record.id)
        check_order(record.fence.order)
        names.check_peer(record.fence.coordinator)
    except BadInput as error:
        raise BadEnvelope(f"the commit record: {error.message}") from None
    if (record.outcome is None) and not record.reason:
        raise BadEnvelope("the commit record refuses an envelope and gives no reason")
    newer = record.version > RECORD_VERSION
    check_packed_form(raw, encode_record(record), "the commit record", newer=newer)
    return record


def decode_stored_record(raw: bytes) -> CommitRecord:
    """Reads a record that this node stored. EntryDamaged if it has changed since."""
    try:
        return _decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EntryDamaged(f"a stored commit record cannot be read: {error}") from None


def state_of(record: CommitRecord) -> State:
    """The state of the envelope by the source's words. A conflict is rejected: what is committed
    stands, and the intent's content enters only by another intent that decides between them.
    """
    return _STATES[record.outcome]


# --- what is on record of an intent --------------------------------------------------------------


def intent_of(record: bytes) -> IntentRecord:
    """What is on record of the intent whose commit record this is."""
    found = decode_stored_record(record)
    return IntentRecord(
        id=found.id,
        fingerprint=found.fingerprint,
        outcome=found.outcome,
        reason=found.reason,
        fence=found.fence,
        committed_at=found.committed_at,
        revisions=found.revisions,
    )


def void_intent(id: bytes, record: bytes) -> IntentRecord:
    """What is on record of an intent that the entry with this commit record gave up."""
    found = decode_stored_record(record)
    return IntentRecord(
        id=id,
        fingerprint=b"",
        void=True,
        outcome=None,
        reason=IntentAbandoned.code,
        fence=found.fence,
        committed_at=found.committed_at,
    )
