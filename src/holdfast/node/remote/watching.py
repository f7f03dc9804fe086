"""Watches over a connection: what a daemon sees, as it comes.

A watch holds one stream of server-sent events. It keeps its place by the ids in it; so when the
stream breaks (the daemon was killed, a proxy cut it, this program read too slowly), it asks for
another one from there, and misses and repeats nothing. It does so for as long as the daemon stays
away, up to `WATCH_AWAY_MS_MAX`.

What was read and not yielded is one piece of the stream: whoever reads slowly holds no more, and
the daemon waits, or cuts it off.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from time import monotonic
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from holdfast.node.calls.shapes import ENTRY as ENTRY_SHAPE
from holdfast.node.calls.shapes import EntryDocument
from holdfast.node.messages.inbox import Received
from holdfast.node.remote.faces import query
from holdfast.node.remote.line import Line
from holdfast.node.watching.changes import LogChange, watch_filter
from holdfast.node.watching.source import Bell, WatchSource
from holdfast.node.watching.watches import ChangeWatch
from holdfast.protocol.event_stream import END, ENTRY, ERROR, MESSAGE, ServerEvent, read_events
from holdfast.protocol.log_wire import JSON
from holdfast.rules import limits
from holdfast.rules.cursor import LogCursor, Since, since_text
from holdfast.rules.errors import (
    BadAnswer,
    HoldfastError,
    NotGranted,
    StoreClosed,
    TooMany,
    Unreachable,
)
from holdfast.rules.inbox_match import InboxMatch
from holdfast.storage.fork_gate import refusal
from holdfast.transport.remote_errors import error_of

T = TypeVar("T")
C = TypeVar("C", LogCursor, int)

_GONE: Final = (Unreachable, StoreClosed)
"""The daemon is away, or about to be."""
_ENTRY: Final = msgspec.json.Decoder(EntryDocument)
_MESSAGE: Final = msgspec.json.Decoder(Received)


class _Form(NamedTuple, Generic[T, C]):
    """What the events of a stream are."""

    path: str
    kind: str
    """The events that matter; all others are passed over."""
    place: Callable[[str], C]
    """Reads an id."""
    read: Callable[[bytes, C], T]
    """What a watch yields, of the data of an event and its place."""


class _Ready(NamedTuple):
    """Something that was read from the stream: what to yield, or only a place."""

    place: Any
    found: Any


_NOTHING: Final = object()


class RemoteSource(WatchSource[T]):
    """Follows something that a daemon sees. One thread reads; any may close it."""

    def __init__(
        self, line: Line, form: _Form[T, C], asked: Mapping[str, Any], since: str | None
    ) -> None:
        self._line, self._asked = line, asked
        self._form: _Form[T, Any] = form
        self._ready: deque[_Ready] = deque()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._reading = False
        self._events: Generator[ServerEvent, None, None] | None = None
        self._pid = os.getpid()
        self._client = line.own_client()
        line.enlist(self)
        # At once: what is wrong with the question comes with the call, and what is written from now
        # on is seen.
        try:
            self._cursor: Any = self._begin(since)
        except BaseException:
            self.close()
            raise

    # --- what was read -----------------------------------------------------------------------

    @property
    def cursor(self) -> LogCursor | int:
        self._pass_places()
        found: LogCursor | int = self._cursor
        return found

    @property
    def has_more(self) -> bool:
        self._pass_places()
        return bool(self._ready)

    def pop(self) -> T:
        self._pass_places()
        ready = self._ready.popleft()
        self._cursor = ready.place
        found: T = ready.found
        return found

    def _pass_places(self) -> None:
        """Places behind which nothing is left to yield: only whoever yields may move on."""
        with self._lock:
            while self._ready and self._ready[0].found is _NOTHING:
                self._cursor = self._ready.popleft().place

    def _put(self, ready: _Ready) -> None:
        with self._lock:
            if self._ready and self._ready[-1].found is _NOTHING:
                self._ready.pop()  # a quiet stream tells its place for days
            self._ready.append(ready)

    # --- reading -----------------------------------------------------------------------------

    def read(self) -> bool:
        """Waits until something passes; False if this was closed."""
        return self._read_on(present=False)

    def present(self) -> Iterator[T]:
        """A stream that the daemon ends takes the place of the one that waits."""
        self._end_stream()
        while self.has_more or self._read_on(present=True):
            yield self.pop()

    def _read_on(self, *, present: bool) -> bool:
        if self._pid != os.getpid():
            raise refusal()
        self._reading = True
        try:
            return self._read_until(present=present)
        finally:
            self._reading = False
            if self._closed.is_set():
                self._end_line()

    def _read_until(self, *, present: bool) -> bool:
        away_at: float | None = None
        tries = 0
        while not self._closed.is_set():
            try:
                if self._events is None:
                    self._begin_again(present=present)
                    away_at = None
                if (found := self._next_of_stream()) is not None:
                    return found
                raise Unreachable(f"the daemon at {self._line.address} has ended the stream")
            except _GONE as error:
                self._end_stream()
                away_at = monotonic() if away_at is None else away_at
                self._check_patience(away_at, error)
            except TooMany:  # of the streams that it counts, one is ours that broke
                self._end_stream()
            except BaseException:
                self._end_stream()
                if self._closed.is_set():
                    return False
                raise
            pause_ms = min(limits.WATCH_AGAIN_MS_MIN << tries, limits.EVENT_RETRY_MS)
            tries = min(tries + 1, limits.EVENT_RETRY_MS.bit_length())
            self._closed.wait(pause_ms / limits.SECOND_MS)
        return False

    def _next_of_stream(self) -> bool | None:
        """True: something passes. False: the daemon has sent all that is there. None: the stream
        has ended for another reason.
        """
        assert self._events is not None
        for event in self._events:
            if event.kind == ERROR:
                raise error_of(0, JSON, event.data, self._line.address)
            if event.id:
                place = self._place(event.id)
                if event.kind == self._form.kind and event.data:
                    self._put(_Ready(place, self._form.read(event.data, place)))
                    return True
                self._put(_Ready(place, _NOTHING))
            if event.kind == END:
                self._end_stream()
                return False
        return None

    def _place(self, id: str) -> Any:
        try:
            return self._form.place(id)
        except ValueError:
            raise BadAnswer(f"an event of the stream has the id {id!r:.80}") from None

    def _check_patience(self, away_at: float, error: HoldfastError) -> None:
        away_ms = (monotonic() - away_at) * limits.SECOND_MS
        if away_ms < limits.WATCH_AWAY_MS_MAX or self._closed.is_set():
            return
        self._pass_places()
        raise Unreachable(
            f"{error.message}; a watch waited {away_ms / limits.SECOND_MS:.0f} s for it",
            hint=f"start the daemon, and go on with since={str(self._cursor)!r}",
        ) from error

    # --- the stream ----------------------------------------------------------------------------

    def _begin(self, since: str | None, *, present: bool = False) -> Any:
        """Asks for a stream; the place where it begins."""
        asked = {**self._asked, "since": since, "follow": False if present else None}
        events = _stream(self._client, self._form.path + query(asked))
        try:
            return self._place(next(events).id)
        except StopIteration:
            raise Unreachable(f"the daemon at {self._line.address} has ended the stream") from None
        finally:
            self._events = events

    def _begin_again(self, *, present: bool) -> None:
        self._pass_places()
        last = self._ready[-1].place if self._ready else self._cursor
        found = self._line.ask_peer()
        if found != self._line.peer():
            raise NotGranted(
                f"{self._line.address} is the daemon of {found!r} now, and not of "
                f"{self._line.peer()!r}: it has another log",
                hint="connect to it again",
            )
        self._begin(str(last), present=present)

    def _end_stream(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            events.close()

    # --- waiting -----------------------------------------------------------------------------

    def bell(self) -> Bell:
        return _Unrung(self)

    def enlist(self, watch: ChangeWatch[T]) -> None:
        self._line.enlist(watch)

    async def stream(self) -> AsyncGenerator[T, None]:
        try:
            while True:
                while self.has_more:
                    yield self.pop()
                if not await _in_own_thread(self.read):
                    return
        finally:
            self.close()

    def close(self) -> None:
        self._closed.set()
        if self._pid != os.getpid():
            return  # the connection is the parent's
        self._client.abort()
        if not self._reading:  # else the thread that reads wakes up, and does it
            self._end_line()

    def _end_line(self) -> None:
        self._end_stream()
        self._client.close()

    def __del__(self) -> None:
        if hasattr(self, "_client"):
            self.close()


class _Unrung:
    """In place of a bell: reading waits by itself."""

    def __init__(self, source: RemoteSource[Any]) -> None:
        self._source = source

    def hush(self) -> None:
        pass

    def wait(self, timeout_ms: int) -> None:
        pass

    def close(self) -> None:
        self._source.close()


def _stream(client: Any, path: str) -> Generator[ServerEvent, None, None]:
    pieces = client.stream(
        "GET", path, begin_ms=limits.LINK_READ_MS_MAX, read_ms=limits.WATCH_SILENCE_MS_MAX
    )
    with closing(pieces):
        yield from read_events(pieces)


async def _in_own_thread(work: Callable[[], bool]) -> bool:
    """What the work returns. It may wait for days: in the threads of the event loop it would keep
    others from theirs, and the program from its end.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bool] = loop.create_future()

    def settle(found: bool, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(found)
        else:
            done.set_exception(error)

    def run() -> None:
        found, failed = False, None
        try:
            found = work()
        except BaseException as error:
            failed = error
        with suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(settle, found, failed)

    threading.Thread(target=run, name="holdfast-watch", daemon=True).start()
    return await done


# --- the log and the inbox -----------------------------------------------------------------------


def _cursor(id: str) -> LogCursor:
    epoch, offset = id.split(":")
    return LogCursor(int(epoch), int(offset))


def _change(data: bytes, cursor: LogCursor) -> LogChange:
    return LogChange(ENTRY_SHAPE.read(_decoded(_ENTRY, data)), cursor.epoch)


def _message(data: bytes, number: int) -> Received:
    found: Received = _decoded(_MESSAGE, data)
    return found


def _decoded(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadAnswer(f"an event of the stream is not what belongs there: {error}") from None


_CHANGES: Final = _Form("/v1/events", ENTRY, _cursor, _change)
_ARRIVALS: Final = _Form("/v1/inbox-events", MESSAGE, int, _message)


def follow_log(
    line: Line,
    since: Since,
    *,
    mesh: str | None = None,
    ops: Iterable[str] = (),
    prefix: str = "",
    peer: str | None = None,
    family: str | None = None,
) -> WatchSource[LogChange]:
    """What is new in the log of a daemon's node."""
    named = ops if isinstance(ops, str) else tuple(ops)
    watch_filter(mesh=mesh, ops=named, prefix=prefix, peer=peer)  # as strict as a home is
    asked = {"mesh": mesh, "op": [*named] or None, "family": family, "prefix": prefix or None}
    return RemoteSource(line, _CHANGES, {**asked, "peer": peer, "raw": True}, since_text(since))


def follow_inbox(line: Line, mesh: str, match: InboxMatch, since: Since) -> WatchSource[Received]:
    """Messages that come for a daemon's node."""
    asked = {"mesh": mesh or None, "sender": match.sender, "topic": match.topic}
    return RemoteSource(line, _ARRIVALS, asked, None if since is None else str(since))
