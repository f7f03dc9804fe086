"""The inbox: messages that a broker brought for this node, each once, in the order of their
arrival.

A row of the inbox names the place in the log where the message stands; its content is read from
there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.messages.send import Sent, prepare
from holdfast.node.watching.source import HomeSource, WatchSource
from holdfast.node.watching.verb import watches
from holdfast.rules.arguments import checked, checks_arguments
from holdfast.rules.bodies import MessageSend, decode_trusted_body
from holdfast.rules.canonical import stored_meta
from holdfast.rules.cursor import START, Since
from holdfast.rules.envelope import Envelope, decode_trusted
from holdfast.rules.errors import BadInput, BadValue, PastEnd, UnknownMessage
from holdfast.rules.ids import id_text, parse_id
from holdfast.rules.inbox_match import EVERY_MESSAGE, InboxMatch
from holdfast.rules.limits import INBOX_PAGE_ROWS, INBOX_SCAN_ROWS, LAMPORT_MAX
from holdfast.rules.listed import listed
from holdfast.rules.rows import InboxRow
from holdfast.rules.shown import Shown, ShownFace
from holdfast.rules.structs import copy_to
from holdfast.storage.ports import Reader, Transaction

_PREVIEW_CHARS = 80


class Received(Shown, msgspec.Struct, frozen=True, kw_only=True):
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
class Inbox(ShownFace):
    """Messages for us, of one mesh or of all."""

    def __init__(self, engine: NodeEngine, mesh: str | None = None) -> None:
        self._engine = engine
        self._mesh = mesh

    @listed(Received)
    @checked
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

        >>> [message.preview for message in node.inbox.list(sender="bo")]
        ['hello']
        """
        match = InboxMatch(
            sender=sender, topic=topic, since_ms=since_ms, until_ms=until_ms, text=text
        ).check()
        place: int | None = after
        while place is not None:
            page = self.page(unread=unread, after=place, limit=INBOX_PAGE_ROWS, match=match)
            yield from page.messages
            place = page.next

    @watches
    @checked
    def watch(
        self,
        *,
        sender: str | None = None,
        topic: str | None = None,
        since: Since = None,
    ) -> WatchSource[Received]:
        """Messages as they arrive, of one sender or topic if it is named. `since` is the number of
        a message, to go on after it, or `start`; without it the watch begins with what comes next.

        >>> with node.inbox.watch(since="start") as arrivals:
        ...     next(arrivals).sender
        'bo'
        """
        return self._follow(InboxMatch(sender=sender, topic=topic).check(), since)

    def _follow(self, match: InboxMatch, since: Since) -> WatchSource[Received]:
        return Arrivals(self, since, match)

    def page(
        self, *, unread: bool, after: int, limit: int, match: InboxMatch = EVERY_MESSAGE
    ) -> FoundMessages:
        """At most `limit` of the messages after a number. A search that meets few of many looks at
        a part of the inbox, and `next` says where it goes on.

        >>> node.inbox.page(unread=False, after=0, limit=10).next
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
        """One message with its content. It does not become read.

        >>> found = next(node.inbox.list())
        >>> node.inbox.get(found.id).text
        'hello'
        """
        return self._engine.read("inbox.get", lambda tx: self._message(tx, parse_id(id)))

    def read(self, id: str) -> Message:
        """One message with its content; it counts as read from now on.

        >>> found = next(node.inbox.list())
        >>> node.inbox.read(found.id).content
        b'hello'
        """
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
        """Sends an answer to the sender of a message, and to nobody else.

        >>> found = next(node.inbox.list())
        >>> node.inbox.reply(found.id, "and to you").state
        'pending'
        """
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
        """How many there are in all meshes, and how many of them are unread.

        >>> node.inbox.counts()[0]
        1
        """
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

    def _shown_rows(self) -> Iterable[Any]:
        return self.list()


class Arrivals(HomeSource[Received]):
    """Follows the inbox by number. Not by the log: a message that came as history first has an old
    place there when the broker brings it.
    """

    def __init__(self, inbox: Inbox, since: Since, match: InboxMatch) -> None:
        super().__init__(inbox._engine)
        self._inbox, self._match = inbox, match
        self._looked = self._cursor = self.engine.read("inbox.list", lambda tx: _number(tx, since))

    @property
    def cursor(self) -> int:
        """The number up to which everything was yielded."""
        return self._cursor

    def pop(self) -> Received:
        found = self._ready.popleft()
        self._cursor = found.number if self._ready else self._looked
        return found

    def read(self) -> bool:
        while not self._ready:
            before = self._looked
            self._ready.extend(self.engine.read("inbox.list", self._page))
            if not self._ready:
                self._cursor = self._looked
                if self._looked == before:
                    return False
        return True

    def _page(self, tx: Reader) -> list[Received]:
        after, mesh, most = self._looked, self._inbox._mesh, INBOX_PAGE_ROWS
        rows = tx.inbox_list(mesh, False, after, most, self._match)
        if len(rows) == most:
            self._looked = rows[-1].number
        elif self._match.narrows:
            self._looked = max(after, min(after + INBOX_SCAN_ROWS, tx.inbox_last()))
        else:
            self._looked = max(after, tx.inbox_last())
        return [_received(row, *_opened(tx, row)) for row in rows]


def _number(tx: Reader, since: Since) -> int:
    last = tx.inbox_last()
    if since is None:
        return last
    if since == START:
        return 0
    text = str(since)
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(LAMPORT_MAX)):
        raise BadInput(
            f"since is {since!r:.80}, which is no number of a message",
            hint="give the number of a message, or start",
        )
    if int(text) > last:
        raise PastEnd(f"no message has the number {text} yet; the newest is {last}")
    return int(text)


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
