"""Messages, and what a broker does with an envelope.

A message is an envelope like any other, with the op `message.send`: `to` and the entity hold its
destination, `reply_to` the message that it answers. The fingerprint of these fields (see
`fingerprint`) says what the sender asked for; every holder of the envelope can compute it again.
An envelope of version 1.0 bears version 1 of the formula, one of version 1.1 or later version 2.
All other ops are changes of the mesh's state, which every member gets.
"""

from __future__ import annotations

from typing import Final

from holdfast.rules.bodies import MessageSend, decode_body
from holdfast.rules.envelope import VERSION, Envelope
from holdfast.rules.errors import BadEnvelope
from holdfast.rules.fingerprint import fingerprint, fingerprint_2

MESSAGE: Final = "message.send"
CHANGE: Final = "change"
MESSAGE_VERSION: Final = "1.1"
"""The version of the envelopes in which messages are sent: their fingerprint is of version 2."""


def kind_of(envelope: Envelope) -> tuple[str, str]:
    """Kind and name of a message's destination; for any other op, `change` and an empty name."""
    return (CHANGE, "") if envelope.to is None else envelope.to


def check_arriving(envelope: Envelope) -> tuple[str, str]:
    """Checks every rule for an envelope that a member pushes to a broker; returns its kind and
    name.

    Its bytes were checked by `envelope.decode` before.
    """
    body = decode_body(envelope)
    if isinstance(body, MessageSend):
        check_fingerprint(envelope, body)
    elif envelope.to is not None:
        raise BadEnvelope(f"{envelope.op} is no message, but has a destination")
    return kind_of(envelope)


def check_fingerprint(envelope: Envelope, body: MessageSend) -> None:
    """Raises unless the fingerprint of a message is that of its fields."""
    if by_version(envelope, body) != envelope.fingerprint:
        raise BadEnvelope("the fingerprint of the message is not that of its content")


def by_version(envelope: Envelope, body: MessageSend) -> bytes:
    """The fingerprint of a message by the formula that its envelope's version names."""
    assert envelope.to is not None, "checked with the body"
    return fingerprint_by(
        envelope.version,
        to=envelope.to,
        content=body.content,
        reply_to=envelope.reply_to,
        priority=envelope.priority,
        meta=envelope.meta,
        content_type=body.content_type,
    )


def fingerprint_by(
    version: str,
    *,
    to: tuple[str, str],
    content: bytes,
    reply_to: str,
    priority: str,
    meta: bytes,
    content_type: str,
) -> bytes:
    """The fingerprint of such a message in an envelope of this version."""
    kind, ref = to
    if version == VERSION:
        return fingerprint(
            kind=kind, ref=ref, body=content, reply_to=reply_to, priority=priority, meta=meta
        )
    return fingerprint_2(
        kind=kind,
        ref=ref,
        body=content,
        reply_to=reply_to,
        priority=priority,
        meta=meta,
        content_type=content_type,
    )


def request_of(envelope: Envelope, body: MessageSend) -> bytes:
    """The fingerprint of a message by version 2, whichever it bears: so a message that was sent
    under version 1 is known when it is asked for again.
    """
    assert envelope.to is not None, "checked with the body"
    return fingerprint_by(
        MESSAGE_VERSION,
        to=envelope.to,
        content=body.content,
        reply_to=envelope.reply_to,
        priority=envelope.priority,
        meta=envelope.meta,
        content_type=body.content_type,
    )
