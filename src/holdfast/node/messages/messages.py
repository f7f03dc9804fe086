"""Messages: sending them, and reading those that came.

A message is a change like any other: it stands in our log and in the spool, on the disk, before its
sender is answered. Where it is in its life is told by the spool (see `outbox`). What a broker
brought for us is listed in the inbox, once, in the order in which it came; its content stands in
the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.node.core.change import Change, Receipt
from holdfast.node.core.context import NodeContext
from holdfast.node.core.engine import NodeEngine
from holdfast.rules import names
from holdfast.rules.bodies import MessageSend, decode_trusted_body, encode_body
from holdfast.rules.destinations import KINDS, check_destination, check_priority, entity_of
from holdfast.rules.envelope import Envelope, decode_trusted
from holdfast.rules.errors import (
    BadInput,
    BadValue,
    BodyTooLarge,
    NotShared,
    UnknownDestination,
    UnknownMesh,
    UnknownMessage,
)
from holdfast.rules.fingerprint import canonical_meta, fingerprint, parse_meta
from holdfast.rules.ids import id_text, parse_id
from holdfast.rules.limits import INBOX_PAGE_ROWS, MESSAGE_BYTES_MAX
from holdfast.rules.message import MESSAGE
from holdfast.rules.outbox import OutboxState, lane_of
from holdfast.rules.rows import InboxRow
from holdfast.storage.ports import Reader, Transaction

TEXT = "text/plain"
_PREVIEW_CHARS = 80


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
    """It was here before, with the same content."""


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A message that came for us, without its content."""

    number: int
    id: str
    mesh: str
    kind: str
    ref: str
    sender: str
    priority: str
    content_type: str
    size: int
    preview: str
    """How it begins, if it is text."""
    reply_to: str
    received_at: int
    read_at: int | None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message that came for us, with all that it brought."""

    number: int
    id: str
    mesh: str
    kind: str
    ref: str
    sender: str
    priority: str
    content: bytes
    content_type: str
    meta: dict[str, Any]
    reply_to: str
    created_at: int
    """By the clock of its sender."""
    received_at: int
    read_at: int | None
    broker_id: str | None

    @property
    def text(self) -> str:
        try:
            return self.content.decode()
        except UnicodeDecodeError:
            raise BadValue(f"the content of message {self.id} is not text") from None


# --- sending -------------------------------------------------------------------------------------


class MessageChange(Change):
    """One message, prepared. Its fingerprint is of what the caller asked for, as the broker will
    compute it again.
    """

    __slots__ = ()

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
        """`meta` is canonical."""
        self.ctx, self.mesh, self.op, self.owner = ctx, mesh, MESSAGE, ""
        self.to = check_destination(kind, ref)
        self.entity = entity_of(kind, ref)
        self.body = MessageSend(content, content_type)
        self.encoded = encode_body(self.body)
        self.given = id is not None
        self.id = ctx.new_id() if id is None else parse_id(id)
        self.meta, self.priority = meta, check_priority(priority)
        self.reply_to = id_text(parse_id(reply_to)) if reply_to else ""
        self.fingerprint = fingerprint(
            kind=kind,
            ref=ref,
            body=content,
            reply_to=self.reply_to,
            priority=priority,
            meta=meta,
        )

    def carry_out(self, tx: Transaction) -> Receipt:
        require_shared(tx, self.mesh)
        return super().carry_out(tx)


class SendMessage:
    """Sends, and says how far the message has got: one that is sent again is where it was."""

    repeatable = True
    __slots__ = ("change",)

    def __init__(self, change: MessageChange) -> None:
        self.change = change

    def __call__(self, tx: Transaction) -> Sent:
        change = self.change
        receipt = change(tx)
        assert change.to is not None
        row = tx.outbox_get(lane_of(change.mesh), change.id)
        return Sent(
            id=receipt.id,
            mesh=change.mesh,
            kind=change.to[0],
            ref=change.to[1],
            # What is listed no more ended well, or was given up, long ago.
            state=str(OutboxState.DONE if row is None else row.state),
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
    """Checks a message; `meta` as raw JSON is read as strictly as the fingerprint needs it. A `dm`
    may name a member instead of a key.
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
        names.check_key(content_type, "content type")
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
    """The one that is given, of three ways to say where a message goes."""
    given = [(kind, ref) for kind, ref in zip(KINDS, (topic, dm, queue), strict=True) if ref]
    if len(given) != 1:
        raise BadInput(
            "a message goes to one topic, one member or one queue",
            hint="give exactly one of topic, dm and queue",
        )
    return given[0]


def resolve(tx: Reader, mesh: str, kind: str, ref: str) -> str:
    """The reference of a destination: of a member that is named, its key."""
    require_shared(tx, mesh)
    if kind != "dm" or _is_key(ref):
        return ref
    found = [row.key.hex() for row in tx.known_members_list(mesh) if row.name == ref]
    if len(found) != 1:
        problem = "several members are" if found else "no member is known to be"
        raise UnknownDestination(
            f"{problem} called {ref!r} in the mesh {mesh!r}",
            hint="give the key of the member: 64 hex digits; see: holdfast mesh members",
        )
    return found[0]


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


# --- what came -----------------------------------------------------------------------------------


class Inbox:
    """Messages for us, of one mesh or of all."""

    def __init__(self, engine: NodeEngine, mesh: str | None = None) -> None:
        self._engine = engine
        self._mesh = mesh

    def list(self, *, unread: bool = False, after: int = 0) -> Iterator[Received]:
        """In the order in which they came, those after a number."""
        place = after
        while True:
            rows = self.page(unread=unread, after=place, limit=INBOX_PAGE_ROWS)
            yield from rows
            if len(rows) < INBOX_PAGE_ROWS:
                return
            place = rows[-1].number

    def page(self, *, unread: bool, after: int, limit: int) -> Sequence[Received]:
        def read(tx: Reader) -> Sequence[Received]:
            return [_received(tx, row) for row in tx.inbox_list(self._mesh, unread, after, limit)]

        return self._engine.read("inbox.list", read)

    def get(self, id: str) -> Message:
        """One message; it stays as unread as it was."""
        return self._engine.read("inbox.get", lambda tx: self._message(tx, parse_id(id)))

    def read(self, id: str) -> Message:
        """One message, which is read from now on."""
        raw_id, now = parse_id(id), self._engine.ctx.now_ms()

        def work(tx: Transaction) -> Message:
            found = self._message(tx, raw_id)
            if found.read_at is None:
                tx.inbox_read(raw_id, now)
                found = msgspec.structs.replace(found, read_at=now)
            return found

        return self._engine.write("inbox.read", work)

    def reply(
        self,
        id: str,
        content: bytes | str,
        *,
        content_type: str | None = None,
        meta: Mapping[str, Any] | None = None,
        priority: str = "next",
        new_id: str | None = None,
    ) -> Sent:
        """Answers whoever sent a message, and nobody else."""
        message = self.get(id)
        send = prepare(
            self._engine,
            message.mesh,
            "dm",
            message.sender,
            content,
            content_type=content_type,
            meta=meta,
            priority=priority,
            reply_to=message.id,
            id=new_id,
        )
        return self._engine.write("message.send", send)

    def counts(self) -> tuple[int, int]:
        """How many there are in all meshes, and how many of them are unread."""
        return self._engine.read("inbox.counts", lambda tx: tx.inbox_counts())

    def _message(self, tx: Reader, id: bytes) -> Message:
        row = tx.inbox_get(id)
        if row is None or self._mesh not in (None, row.mesh):
            raise UnknownMessage(f"there is no message {id_text(id)} in the inbox")
        envelope, body = _opened(tx, row)
        if envelope is None:
            raise UnknownMessage(f"the content of message {id_text(id)} is gone with the old log")
        return Message(
            number=row.number,
            id=id_text(row.id),
            mesh=row.mesh,
            kind=row.kind,
            ref=row.ref,
            sender=row.sender,
            priority=row.priority,
            content=body.content,
            content_type=body.content_type,
            meta=parse_meta(envelope.meta),
            reply_to=envelope.reply_to,
            created_at=envelope.created_at,
            received_at=row.received_at,
            read_at=row.read_at,
            broker_id=None if row.broker_id is None else row.broker_id.hex(),
        )


def _opened(tx: Reader, row: InboxRow) -> tuple[Envelope | None, MessageSend]:
    entry = tx.log_get(row.offset)
    if entry is None or entry.id != row.id:
        return None, MessageSend(b"")
    envelope = decode_trusted(entry.raw)
    body = decode_trusted_body(envelope)
    assert isinstance(body, MessageSend)
    return envelope, body


def _received(tx: Reader, row: InboxRow) -> Received:
    envelope, body = _opened(tx, row)
    return Received(
        number=row.number,
        id=id_text(row.id),
        mesh=row.mesh,
        kind=row.kind,
        ref=row.ref,
        sender=row.sender,
        priority=row.priority,
        content_type=body.content_type,
        size=len(body.content),
        preview=preview(body.content),
        reply_to="" if envelope is None else envelope.reply_to,
        received_at=row.received_at,
        read_at=row.read_at,
    )


def preview(content: bytes) -> str:
    """The beginning of a content on one line, if it is text."""
    # A character has four bytes at most; one that is cut at the end is no reason to show nothing.
    begin = content[: 4 * _PREVIEW_CHARS]
    try:
        text = content.decode() if len(content) == len(begin) else begin.decode(errors="ignore")
    except UnicodeDecodeError:
        return ""
    line = " ".join(text.split())
    if not line.isprintable():
        return ""
    return line if len(line) <= _PREVIEW_CHARS else f"{line[: _PREVIEW_CHARS - 1]}…"
