"""Taking from a queue of a shared mesh: one message for one taker, until it is finished.

A taken message is hidden from others for a while. The taker says that it is done, gives it back,
gives it up (it goes to the dead letters), or asks for more time. If the taker says nothing, others
get the message after that while, and after too many deliveries it dies by itself. So a message may
come twice: what is done with it must bear that, or remember its id.

Queues live at the broker: taking needs it to be there.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import msgspec

from holdfast.node.broker_client.client import BrokerClient
from holdfast.protocol.broker_log_http import (
    DeadLetters,
    DeadMessage,
    QueueInfo,
    QueueList,
    Revived,
    SettleRequest,
    SettleResponse,
    TakenAll,
    TakenResponse,
    TakeRequest,
)
from holdfast.rules.bodies import MessageSend, decode_stored_body
from holdfast.rules.canonical import stored_meta
from holdfast.rules.envelope import Envelope, decode_stored
from holdfast.rules.errors import BadAnswer, BadInput, Refused
from holdfast.rules.ids import id_text
from holdfast.rules.message import check_fingerprint, kind_of

ENDS: Final = ("done", "again", "dead", "extend")


class TakenMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message in our hands."""

    handle: str
    """Says whose it is when it is settled."""
    id: str
    queue: str
    sender: str
    content: bytes
    content_type: str
    meta: dict[str, Any]
    priority: str
    reply_to: str
    deliveries: int
    """How often it was delivered, this time included."""
    until: int
    """Until when it is hidden from others, by the broker's clock."""

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")


class QueueClient:
    """One queue of one mesh."""

    def __init__(self, calls: BrokerClient, mesh: str, queue: str) -> None:
        self._calls, self._mesh, self._queue = calls, mesh, queue
        self._at = f"{_queues(mesh)}/{quote(queue, safe='/')}"

    def take(self, most: int = 1) -> list[TakenMessage]:
        answer = self._calls.ask(TakenAll, "POST", f"{self._at}/take", TakeRequest(most))
        return [self._message(taken) for taken in answer.messages]

    def settle(self, handle: str, how: str, reason: str = "") -> bool:
        if how not in ENDS:
            raise BadInput(f"{how!r} is no end of a message", hint=f"use: {', '.join(ENDS)}")
        seq, _, lease = handle.partition(":")
        if not seq.isascii() or not seq.isdecimal() or not lease:
            raise BadInput("that is not the handle of a taken message")
        request = SettleRequest(int(seq), lease, how, reason)
        return self._calls.ask(SettleResponse, "POST", f"{self._at}/settle", request).settled

    def letters(self, limit: int = 100) -> list[DeadMessage]:
        return self._calls.ask(DeadLetters, "GET", f"{self._at}/dead?limit={limit}").letters

    def revive(self, seq: int) -> bool:
        return self._calls.ask(Revived, "POST", f"{self._at}/dead/{seq}/revive").revived

    def _message(self, taken: TakenResponse) -> TakenMessage:
        envelope, body = self._read(taken.envelope)
        return TakenMessage(
            handle=f"{taken.seq}:{taken.lease}",
            id=id_text(envelope.id),
            queue=self._queue,
            sender=envelope.origin,
            content=body.content,
            content_type=body.content_type,
            meta=stored_meta(envelope.meta),
            priority=envelope.priority,
            reply_to=envelope.reply_to,
            deliveries=taken.deliveries,
            until=taken.until,
        )

    def _read(self, raw: bytes) -> tuple[Envelope, MessageSend]:
        """What the broker hands out is checked, but for its form: it may have kept it since before
        that was asked for, and a message that nobody can take stands in the way of the others.
        """
        try:
            envelope = decode_stored(raw)
            body = decode_stored_body(envelope)
            if isinstance(body, MessageSend):
                check_fingerprint(envelope, body)
        except Refused as error:
            raise BadAnswer(f"the broker hands out what is no message: {error.message}") from None
        if not isinstance(body, MessageSend) or kind_of(envelope) != ("queue", self._queue):
            raise BadAnswer(f"the broker hands out what was not sent to {self._queue!r}")
        return envelope, body


def queue_list(calls: BrokerClient, mesh: str) -> list[QueueInfo]:
    return calls.ask(QueueList, "GET", _queues(mesh)).queues


def _queues(mesh: str) -> str:
    return f"/v1/meshes/{quote(mesh, safe='')}/queues"
