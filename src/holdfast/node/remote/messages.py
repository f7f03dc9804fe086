"""Messages over a connection: sending, the inbox, the outbox."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.node.messages.inbox import FoundMessages, Inbox, Message, Received
from holdfast.node.messages.outbox import FAILED, LaneInfo, Outbox, OutboxItem
from holdfast.node.messages.send import Sent, one_destination
from holdfast.node.remote.faces import AS_JSON, RemoteFace, asks, decoded, new_id, query, quoted
from holdfast.node.remote.line import Line
from holdfast.node.watching.source import WatchSource
from holdfast.rules.cursor import Since
from holdfast.rules.errors import BadInput, BadValue
from holdfast.rules.inbox_match import EVERY_MESSAGE, InboxMatch
from holdfast.rules.structs import copy_to


class _Opened(msgspec.Struct):
    number: int
    id: str
    mesh: str
    kind: str
    ref: str
    sender: str
    priority: str
    created_at: int
    received_at: int
    body: str | None = None
    body_base64: str | None = None
    content_type: str = ""
    meta: dict[str, Any] = {}
    reply_to: str = ""
    read_at: int | None = None
    broker_id: str | None = None


class _Inbox(msgspec.Struct):
    messages: list[Received]
    next: int | None
    total: int
    unread: int


class _Outbox(msgspec.Struct):
    items: list[OutboxItem]
    lanes: list[LaneInfo]


_SENT: Final = msgspec.json.Decoder(Sent)
_MESSAGE: Final = msgspec.json.Decoder(_Opened)
_MESSAGES: Final = msgspec.json.Decoder(_Inbox)
_ITEM: Final = msgspec.json.Decoder(OutboxItem)
_ITEMS: Final = msgspec.json.Decoder(_Outbox)


def send(
    line: Line,
    mesh: str,
    content: bytes | str,
    to: tuple[str | None, str | None, str | None],
    *,
    content_type: str | None,
    meta: Mapping[str, Any] | None,
    priority: str,
    reply_to: str | None,
    id: str | None,
) -> Sent:
    """Sends a message to one topic, member or queue."""
    one_destination(*to)
    id = new_id(id)
    asked = {
        "to": dict(zip(("topic", "dm", "queue"), to, strict=True)),
        **_content(content),
        "mesh": mesh,
        "content_type": content_type,
        "priority": priority,
        "reply_to": reply_to,
        "id": id,
    }
    return _sent(line, "/v1/send", id, asked, meta)


def _sent(
    line: Line, path: str, id: str, asked: dict[str, Any], meta: Mapping[str, Any] | None
) -> Sent:
    if meta is not None:
        asked["meta"] = dict(meta)
    try:
        body = msgspec.json.encode(asked)
    except (TypeError, msgspec.MsgspecError) as error:
        raise BadValue(f"that is not JSON: {error}") from None
    answer = line.write("POST", path, id=id, body=body, headers=AS_JSON)
    sent: Sent = decoded(answer, _SENT)
    return sent


def _content(content: bytes | str) -> dict[str, Any]:
    if isinstance(content, str):
        return {"body": content}
    if not isinstance(content, bytes):
        raise BadInput(f"content is {type(content).__name__}, not bytes or str")
    return {"body_base64": b64encode(content).decode()}


@asks
class RemoteInbox(RemoteFace, Inbox):
    """`Inbox`, asked of a daemon."""

    def page(
        self, *, unread: bool, after: int, limit: int, match: InboxMatch = EVERY_MESSAGE
    ) -> FoundMessages:
        match.check()
        asked = {
            "mesh": self._slug or None,
            "unread": unread,
            "after": after,
            "limit": limit,
            "sender": match.sender,
            "topic": match.topic,
            "since": match.since_ms,
            "until": match.until_ms,
            "text": match.text,
        }
        found = decoded(self._line.call("GET", f"/v1/inbox{query(asked)}"), _MESSAGES)
        return FoundMessages(found.messages, found.next)

    def _follow(self, match: InboxMatch, since: Since) -> WatchSource[Received]:
        from holdfast.node.remote.watching import follow_inbox

        return follow_inbox(self._line, self._slug, match, since)

    def get(self, id: str) -> Message:
        return _opened(decoded(self._line.call("GET", f"/v1/inbox/{quoted(id)}"), _MESSAGE))

    def read(self, id: str) -> Message:
        answer = self._line.call("POST", f"/v1/inbox/{quoted(id)}/read")
        return _opened(decoded(answer, _MESSAGE))

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
        named = _named(new_id)
        asked = {
            **_content(content),
            "content_type": content_type,
            "priority": priority,
            "id": named,
        }
        return _sent(self._line, f"/v1/inbox/{quoted(id)}/reply", named, asked, meta)

    def counts(self) -> tuple[int, int]:
        found = decoded(self._line.call("GET", "/v1/inbox?limit=1"), _MESSAGES)
        return found.total, found.unread


def _named(id: str | None) -> str:
    return new_id(id)


def _opened(found: _Opened) -> Message:
    packed = found.body_base64
    content = (found.body or "").encode() if packed is None else b64decode(packed)
    return copy_to(Message, found, content=content)


@asks
class RemoteOutbox(RemoteFace, Outbox):
    """`Outbox`, asked of a daemon."""

    def page(
        self, *, states: Collection[str], lane: str | None, after: int, limit: int
    ) -> Sequence[OutboxItem]:
        asked: dict[str, Any] = {"lane": lane, "after": after, "limit": limit}
        if set(states) == set(FAILED):
            asked["failed"] = True
        else:
            asked["state"] = list(states) or None
        found: list[OutboxItem] = self._asked(asked).items
        return found

    def get(self, id: str) -> OutboxItem:
        return self._item("GET", id, "")

    def lanes(self) -> Sequence[LaneInfo]:
        found: list[LaneInfo] = self._asked({"limit": 1}).lanes
        return found

    def retry(self, id: str) -> OutboxItem:
        return self._item("POST", id, "/retry")

    def drop(self, id: str) -> OutboxItem:
        return self._item("POST", id, "/drop")

    def requeue(self, id: str, *, new_id: str | None = None) -> Sent:
        named = _named(new_id)
        return _sent(self._line, f"/v1/outbox/{quoted(id)}/requeue", named, {"new_id": named}, None)

    def _asked(self, asked: Mapping[str, Any]) -> Any:
        return decoded(self._line.call("GET", f"/v1/outbox{query(asked)}"), _ITEMS)

    def _item(self, method: str, id: str, verb: str) -> OutboxItem:
        answer = self._line.call(method, f"/v1/outbox/{quoted(id)}{verb}")
        item: OutboxItem = decoded(answer, _ITEM)
        return item
