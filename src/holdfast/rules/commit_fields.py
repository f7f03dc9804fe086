"""What an envelope from outside may say about its own commit: nothing.

`state`, `fence`, `intent` and `committed_at` are about strong writes. All other writes are
committed when their origin has them on its disk, and say so by `state`; the rest is absent. A
strong envelope says only that it is an intent: what a quorum made of it stands in a commit record
beside the bytes (docs/decisions, 0075). It enters with the order that its quorum committed. Brought
alone, by a peer that is honest or by one that is not, it is held at the door.
"""

from __future__ import annotations

from holdfast.rules.envelope import Envelope
from holdfast.rules.errors import BadEnvelope, NotCommitted


def check_commit_fields(envelope: Envelope) -> None:
    """Raises NotCommitted for a strong envelope, and BadEnvelope for one that is not strong and
    says what only a strong one can, or that must not have left its node.
    """
    if envelope.write_class == "strong":
        raise NotCommitted(
            f"{envelope.op} {envelope.entity!r} of {envelope.origin} is a strong write, and came "
            "without the record of its commit"
        )
    if envelope.write_class == "local":
        raise BadEnvelope("a local write does not leave its node")
    if envelope.state != "committed":
        raise BadEnvelope(f"a write that no quorum decides is not {envelope.state!r}")
    if envelope.fence is not None or envelope.intent is not None:
        raise BadEnvelope("a write that no quorum decides has neither fence nor intent")
    if envelope.committed_at is not None:
        raise BadEnvelope("a write that no quorum decides has no time of a commit")
