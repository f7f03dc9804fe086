"""Sending messages.

A message is a change like any other: it is in this node's log and in its outbox, on the disk,
before the caller gets an answer. How far it has got since, its row in the outbox says (see
`outbox`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, NoReturn

import msgspec

from holdfast.node.core.change import Receipt
from holdfast.node.core.context import NodeContext
from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.operations import refused_send, set_aside
from holdfast.node.core.runs.plain_changes import PlainChange
from holdfast.rules import names
from holdfast.rules.bodies import MessageSend, check_content_type, decode_trusted_body, encode_body
from holdfast.rules.destinations import KINDS, check_destination, check_priority, entity_of
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import (
    BadInput,
    BadValue,
    BodyTooLarge,
    IdempotencyKeyReused,
    NotShared,
    Refused,
    UnknownDestination,
    UnknownMesh,
)
from holdfast.rules.fingerprint import (
    PREFIX_BYTES,
    canonical_meta,
    fingerprint,
    fingerprint_2,
    parse_meta,
)
from holdfast.rules.idempotency import id_of_key
from holdfast.rules.ids import id_text, parse_id
from holdfast.rules.limits import MESSAGE_BYTES_MAX
from holdfast.rules.member_names import meant_key, whole_key
from holdfast.rules.message import MESSAGE, MESSAGE_VERSION, request_of
from holdfast.rules.outbox import OutboxState, lane_of
from holdfast.rules.reconcile import Outcome
from holdfast.storage.ports import Reader, Transaction

log = logging.getLogger("holdfast")

TEXT = "text/plain"


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is on our disk, and how far it has got."""

    id: str
    mesh: str
    kind: str
    ref: str
    state: str
    """`pending`, `inflight`, `done` (the broker has it), `dead` or `aborted`."""
    offset: int
    duplicate: bool = False
    """An earlier call with this id and content wrote it."""


# --- sending -------------------------------------------------------------------------------------


class MessageChange(PlainChange):
    """One message, checked and ready to be written. Its fingerprint is of what the caller asked
    for; the broker computes it again.
    """

    __slots__ = ("first_fingerprint",)
    answers_alone = True
    ready_by_mesh = True
    version = MESSAGE_VERSION

    def __init__(
        self,
        ctx: NodeContext,
        mesh: str,
        kind: str,
        ref: str,
        content: bytes,
        *,
        content_type: str = "",
        meta: bytes = b"",
        priority: str = "next",
        reply_to: str = "",
        id: str | None = None,
    ) -> None:
        """`meta` is canonical JSON already."""
        self.ctx, self.mesh, self.op, self.owner = ctx, mesh, MESSAGE, ""
        self.to = check_destination(kind, ref)
        self.entity = entity_of(kind, ref)
        self.body = MessageSend(content, content_type)
        self.encoded = encode_body(self.body)
        self.given = id is not None
        self.id = ctx.new_id() if id is None else id_of_key(id, mesh, ctx.peer)
        self.meta, self.priority = meta, check_priority(priority)
        self.reply_to = id_text(parse_id(reply_to)) if reply_to else ""
        asked: dict[str, Any] = {
            "kind": kind,
            "ref": ref,
            "body_hash": sha256(content).hexdigest(),
            "reply_to": self.reply_to,
            "priority": priority,
            "meta": meta,
        }
        self.fingerprint = fingerprint_2(**asked, content_type=content_type)
        self.first_fingerprint = fingerprint(**asked) if self.given else b""
        """By version 1 of the formula: for a message that was sent under it and truncated since."""

    def known(self, tx: Transaction) -> Receipt | None:
        """As for every change; but a message that the broker refused has not used its id up."""
        entry = tx.log_find(self.id)
        if entry is None:
            return self._forgotten(tx)
        envelope = decode_trusted(entry.raw)
        body = decode_trusted_body(envelope)
        if isinstance(body, MessageSend) and entry.mesh == self.mesh:
            first = request_of(envelope, body)
            if first == self.fingerprint:
                return Receipt(
                    self.id,
                    entry.offset,
                    entry.lamport,
                    entry.origin,
                    True,
                    Outcome.NOOP_ALREADY_APPLIED,
                )
            row = refused_send(tx, entry, self.ctx.peer, broker_has_another=False)
            if row is not None:
                set_aside(tx, entry, row)
                return None
            self._refuse(first)
        raise IdempotencyKeyReused(
            f"id {id_text(self.id)} was used before, for {envelope.op} in the mesh {entry.mesh!r}"
        )

    def _forgotten(self, tx: Transaction) -> Receipt | None:
        gone = tx.forgotten(self.id)
        if gone is None:
            return None
        offset, first = gone
        if first not in (self.fingerprint, self.first_fingerprint):
            self._refuse(first)
        return Receipt(self.id, offset, 0, "", True, Outcome.NOOP_ALREADY_APPLIED)

    def _refuse(self, first: bytes) -> NoReturn:
        log.warning(
            "a send under the id %s is refused: that id belongs to another request (fingerprint "
            "%s, this one has %s)",
            id_text(self.id),
            first[:PREFIX_BYTES].hex(),
            self.fingerprint[:PREFIX_BYTES].hex(),
        )
        raise IdempotencyKeyReused(
            f"id {id_text(self.id)} was used before for another request "
            f"(its fingerprint begins with {first[:PREFIX_BYTES].hex()})"
        )

    def make_ready(self, tx: Reader) -> None:
        require_shared(tx, self.mesh)


class SendMessage:
    """The transaction that sends a message and returns how far it has got; a message that is sent
    again stays where it was.
    """

    repeatable = True
    __slots__ = ("change",)

    def __init__(self, change: MessageChange) -> None:
        self.change = change

    def __call__(self, tx: Transaction) -> Sent:
        receipt = self.change(tx)
        row = tx.outbox_get(lane_of(self.change.mesh), self.change.id)
        return self._sent(receipt, None if row is None else row.state)

    @staticmethod
    def together(tx: Transaction, sends: Iterable[SendMessage]) -> Sequence[Sent | Refused]:
        """As `PlainChange.together`."""
        taken: list[SendMessage] = []

        def changes() -> Iterator[MessageChange]:
            for send in sends:
                taken.append(send)
                yield send.change

        answers = PlainChange.together(tx, changes())
        if not answers:
            return ()
        ids = [send.change.id for send in taken]
        states = tx.outbox_states(lane_of(taken[0].change.mesh), ids)
        return [
            one if isinstance(one, Refused) else send._sent(one, states.get(send.change.id))
            for send, one in zip(taken, answers, strict=False)
        ]

    def _sent(self, receipt: Receipt, state: str | None) -> Sent:
        """`state` of its row in the outbox; None if it has none."""
        change = self.change
        assert change.to is not None
        return Sent(
            id=receipt.id,
            mesh=change.mesh,
            kind=change.to[0],
            ref=change.to[1],
            # No row any more: the broker got it, or an operator gave it up, long ago.
            state=str(OutboxState.DONE if state is None else state),
            offset=receipt.offset,
            duplicate=receipt.duplicate,
        )


def prepare(
    engine: NodeEngine,
    mesh: str,
    kind: str,
    ref: str,
    content: bytes | str,
    *,
    content_type: str | None = None,
    meta: Mapping[str, Any] | bytes | None = None,
    priority: str = "next",
    reply_to: str | None = None,
    id: str | None = None,
) -> SendMessage:
    """Checks a message and returns the transaction that sends it. `meta` as raw JSON is read as
    strictly as the fingerprint needs it. A `dm` may name a member instead of a key. `id` is any
    idempotency key (see `rules.idempotency`).
    """
    if isinstance(content, str):
        content, content_type = _encoded(content), content_type or TEXT
    if not isinstance(content, bytes):
        raise BadValue(f"the content is {type(content).__name__}", hint="give text or bytes")
    if len(content) > MESSAGE_BYTES_MAX:
        raise BodyTooLarge(
            f"the message has {len(content)} bytes; the most is {MESSAGE_BYTES_MAX}",
            hint="share a file or put an object, and send its name",
        )
    if content_type:
        check_content_type(content_type)
    check_priority(priority)
    names.check_mesh(mesh)
    ref = engine.read("send", lambda tx: resolve(tx, mesh, kind, ref))
    return SendMessage(
        MessageChange(
            engine.ctx,
            mesh,
            kind,
            ref,
            content,
            content_type=content_type or "",
            meta=canonical_meta(parse_meta(meta) if isinstance(meta, bytes) else meta),
            priority=priority,
            reply_to=reply_to or "",
            id=id,
        )
    )


def one_destination(topic: str | None, dm: str | None, queue: str | None) -> tuple[str, str]:
    """Kind and reference of the one destination that the caller gave."""
    given = [(kind, ref) for kind, ref in zip(KINDS, (topic, dm, queue), strict=True) if ref]
    if len(given) != 1:
        raise BadInput(
            "a message goes to one topic, one member or one queue",
            hint="give exactly one of topic, dm and queue",
        )
    return given[0]


def resolve(tx: Reader, mesh: str, kind: str, ref: str) -> str:
    """The reference of a destination as envelopes carry it: a member's name becomes its key."""
    require_shared(tx, mesh)
    if kind != "dm" or _is_key(ref):
        return ref
    if (key := whole_key(ref)) is not None:
        return key.hex()
    found = meant_key(ref, ((row.name, row.key) for row in tx.known_members_list(mesh)))
    if found is None:
        raise UnknownDestination(
            f"no member is known to be called {ref!r} in the mesh {mesh!r}",
            hint=f"give its name, or its key as on its card; see: holdfast mesh members {mesh}",
        )
    return found.hex()


def require_shared(tx: Reader, mesh: str) -> None:
    row = tx.mesh_get(mesh)
    if row is None:
        raise UnknownMesh(f"there is no mesh {mesh!r}")
    if not row.shared:
        raise NotShared(f"the mesh {mesh!r} is personal: there is nobody to send to")


def _is_key(ref: str) -> bool:
    return len(ref) == 64 and not ref.strip("0123456789abcdef")


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadValue("the content contains half of a surrogate pair, which is not text") from None
