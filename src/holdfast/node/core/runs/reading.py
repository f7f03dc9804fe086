"""Committed envelopes read one by one, by all rules that need no state; and a decision in words."""

from __future__ import annotations

from holdfast.rules.bodies import Body
from holdfast.rules.envelope import Envelope, decode
from holdfast.rules.errors import BadEnvelope, Refused
from holdfast.rules.quorum.decide import Decision
from holdfast.rules.quorum.intents import decode_intent


def read_envelope(mesh: str, raw: bytes) -> Envelope | Refused:
    try:
        envelope = decode(raw)
        if envelope.mesh != mesh:
            raise BadEnvelope(f"an entry of the mesh {envelope.mesh!r} in the order of {mesh!r}")
    except Refused as error:
        return error
    return envelope


def read_body(envelope: Envelope | Refused) -> Body | None:
    """The body of an intent. One that breaks a rule has none here: the decision says why."""
    try:
        return None if isinstance(envelope, Refused) else decode_intent(envelope)
    except Refused:
        return None


def shown(decision: Decision) -> str:
    """A decision for people."""
    outcome = "refused" if decision.outcome is None else decision.outcome.value
    made = ", ".join(f"{one.type}/{one.id} at {one.revision}" for one in decision.revisions)
    return " ".join(part for part in (outcome, decision.reason, made) if part)
