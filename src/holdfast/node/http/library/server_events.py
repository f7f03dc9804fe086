"""How a stream of server-sent events is written: what each piece of it looks like.

    retry: 1000
    id: 1:812

    id: 1:813
    event: entry
    data: {"offset":813,…}

An id is a place to go on after. One that stands alone, at the beginning and with each sign of life,
says how far the stream has got where nothing passed: whoever was cut off goes on from there.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.protocol.event_stream import END, ERROR
from holdfast.rules.cursor import LogCursor
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import EVENT_RETRY_MS
from holdfast.service.http.errors import failure
from holdfast.service.http.route import Param

FOLLOW: Final = Param("follow", "`false`: end with what is there now.", bool)


def begun(place: LogCursor | int) -> bytes:
    """How a stream begins: when a client that is cut off asks again, and from where."""
    return f"retry: {EVENT_RETRY_MS}\nid: {place}\n\n".encode()


def reached(place: LogCursor | int) -> bytes:
    """Nothing more has passed up to here."""
    return f"id: {place}\n\n".encode()


def still_here(place: LogCursor | int) -> bytes:
    return f"id: {place}\n: still here\n\n".encode()


def event(kind: str, document: Any, *, id: LogCursor | int | None = None) -> bytes:
    head = "" if id is None else f"id: {id}\n"
    # Encoded JSON has no line ends, which would end the event.
    return f"{head}event: {kind}\ndata: ".encode() + msgspec.json.encode(document) + b"\n\n"


def failed(error: HoldfastError) -> bytes:
    """The answer has begun, so its status cannot report the error any more."""
    return event(ERROR, failure(error))


def ended(place: LogCursor | int) -> bytes:
    """All that was there has been sent."""
    return event(END, {}, id=place)
