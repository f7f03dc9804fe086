"""The inbox: messages that a broker brought for this node, each once, in the order of their
arrival.

A row of the inbox names the place in the log where the message stands; its content is read from
there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.messages.send import Sent, prepare
from holdfast.rules.arguments import checks_arguments
from holdfast.rules.bodies import MessageSend, decode_trusted_body
from holdfast.rules.canonical import stored_meta
from holdfast.rules.envelope import Envelope, decode_trusted
from holdfast.rules.errors import (
    BadValue,
    UnknownMessage,
)
from holdfast.rules.ids import id_text, parse_id
from holdfast.rules.inbox_match import EVERY_MESSAGE, InboxMatch
from holdfast.rules.limits import INBOX_PAGE_ROWS, INBOX_SCAN_ROWS
from holdfast.rules.rows import InboxRow
from holdfast.rules.structs import copy_to
from holdfast.storage.ports import Reader, Transaction

_PREVIEW_CHARS = 80


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
    """The first characters on one line; empty if the content is not text."""
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


class FoundMessages(NamedTuple):
    """A page of the inbox."""

    messages: Sequence[Received]
    next: int | None
    """The `after` of the next page; None when there is none."""


@checks_arguments()
class Inbox:
    """Messages for us, of one mesh or of all."""

    def __init__(self, engine: NodeEngine, mesh: str | None = None) -> None:
        self._engine = engine
        self._mesh = mesh

    def list(
        self,
        *,
        unread: bool = False,
        after: int = 0,
        sender: str | None = None,
        topic: str | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        text: str | None = None,
    ) -> Iterator[Received]:
        """The messages after a number, in the order of their arrival; reads a page at a time.

        They can be narrowed down to a sender, a topic, the time of their arrival (from `since_ms`
        to before `until_ms`, in milliseconds since 1970), and words that stand in their text.
        """
        match = InboxMatch(
            sender=sender, topic=topic, since_ms=since_ms, until_ms=until_ms, text=text
        ).check()
        place: int | None = after
        while place is not None:
            page = self.page(unread=unread, after=place, limit=INBOX_PAGE_ROWS, match=match)
            yield from page.messages
            place = page.next

    def page(
        self, *, unread: bool, after: int, limit: int, match: InboxMatch = EVERY_MESSAGE
    ) -> FoundMessages:
        """At most `limit` of the messages after a number. A search that meets few of many looks at
        a part of the inbox, and `next` says where it goes on.
        """

        def read(tx: Reader) -> FoundMessages:
            rows = tx.inbox_list(self._mesh, unread, after, limit, match)
            found = []
            for row in rows:
                envelope, body = _opened(tx, row)
                if match.says(row.sender, row.ref, body.content):
                    found.append(_received(row, envelope, body))
            looked_upto = rows[-1].number if len(rows) == limit else after + INBOX_SCAN_ROWS
            more = len(rows) == limit or (match.narrows and looked_upto < tx.inbox_last())
            return FoundMessages(found, looked_upto if more else None)

        return self._engine.read("inbox.list", read)

    def get(self, id: str) -> Message:
        """One message with its content. It does not become read."""
        return self._engine.read("inbox.get", lambda tx: self._message(tx, parse_id(id)))

    def read(self, id: str) -> Message:
        """One message with its content; it counts as read from now on."""
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
        """Sends an answer to the sender of a message, and to nobody else."""
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
        return copy_to(
            Message,
            row,
            id=id_text(row.id),
            content=body.content,
            content_type=body.content_type,
            meta=stored_meta(envelope.meta),
            reply_to=envelope.reply_to,
            created_at=envelope.created_at,
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


def _received(row: InboxRow, envelope: Envelope | None, body: MessageSend) -> Received:
    return copy_to(
        Received,
        row,
        id=id_text(row.id),
        content_type=body.content_type,
        size=len(body.content),
        preview=preview(body.content),
        reply_to="" if envelope is None else envelope.reply_to,
    )


def preview(content: bytes) -> str:
    """The first characters of a content on one line; empty if it is not text."""
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
