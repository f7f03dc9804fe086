"""Server-sent events: the lines of a stream, read as events.

An event ends with an empty line; its last lines win, and lines that begin with a colon are
comments. The part of an event that was underway when the stream broke is no event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from holdfast.rules.errors import BadAnswer
from holdfast.rules.limits import EVENT_BYTES_MAX

MEDIA_TYPE: Final = "text/event-stream"
ENTRY: Final = "entry"
MESSAGE: Final = "message"
ERROR: Final = "error"
END: Final = "end"


class ServerEvent(NamedTuple):
    """One event. Without data it is a place, or a sign of life."""

    id: str
    """Empty if it has none."""
    kind: str
    data: bytes


def read_events(pieces: Iterable[bytes]) -> Iterator[ServerEvent]:
    """The events in a stream that comes in pieces."""
    rest = b""
    for piece in pieces:
        # What was looked through already holds no end of an event, but for its last byte.
        looked = max(0, len(rest) - 1)
        rest += piece
        begin = 0
        while (end := rest.find(b"\n\n", max(begin, looked))) >= 0:
            yield _event(rest[begin:end])
            begin = end + 2
        rest = rest[begin:]
        if len(rest) > EVENT_BYTES_MAX:
            raise BadAnswer(f"an event of the stream is larger than {EVENT_BYTES_MAX} bytes")


def _event(lines: bytes) -> ServerEvent:
    id = kind = data = b""
    for line in lines.split(b"\n"):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"id":
            id = value
        elif name == b"event":
            kind = value
        elif name == b"data":
            data = data + b"\n" + value if data else value
    try:
        return ServerEvent(id.decode("ascii"), kind.decode("ascii"), data)
    except UnicodeDecodeError:
        raise BadAnswer("an event of the stream has a name that no node gives") from None
