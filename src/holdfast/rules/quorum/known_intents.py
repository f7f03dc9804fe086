"""What is on record of an intent, from the commit record that a store keeps of it.

The commit record of an envelope says everything that decisions ask about the intent. An intent that
was given up has none of its own: the record of the entry that gave it up tells when that was.
"""

from __future__ import annotations

from holdfast.rules.errors import IntentAbandoned
from holdfast.rules.quorum.commit_record import decode_stored_record
from holdfast.rules.quorum.view import IntentRecord


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
