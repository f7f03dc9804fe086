"""The log over a connection: its entries, and the readers that it waits for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.node.core.views import Consumer
from holdfast.node.log import consumers as readers
from holdfast.node.log.log import Head, Log
from holdfast.node.remote.faces import AS_JSON, RemoteFace, asks, decoded, quoted
from holdfast.protocol.log_wire import (
    MSGPACK,
    Batch,
    Confirmation,
    Fetch,
    Registration,
    decode_batch,
)
from holdfast.rules import limits
from holdfast.rules.cursor import Since
from holdfast.rules.errors import AlreadyExists
from holdfast.rules.filters import EVERYTHING, Filter
from holdfast.rules.listed import listed_rows

if TYPE_CHECKING:
    from holdfast.node.watching.changes import LogChange
    from holdfast.node.watching.source import WatchSource

# The class has a verb `consumers`, and other verbs return lists.
Rows = list


class _Head(msgspec.Struct):
    epoch: int
    first: int
    head: int


class _Readers(msgspec.Struct):
    consumers: list[Consumer]


_HEAD: Final = msgspec.json.Decoder(_Head)
_READERS: Final = msgspec.json.Decoder(_Readers)
_READER: Final = msgspec.json.Decoder(Consumer)


@asks
class RemoteLog(RemoteFace, Log):
    """`Log`, asked of a daemon."""

    def _follow(
        self, mesh: str | None, ops: Iterable[str], prefix: str, peer: str | None, since: Since
    ) -> WatchSource[LogChange]:
        # It brings asyncio with it, which most callers do not need.
        from holdfast.node.remote.watching import follow_log

        return follow_log(self._line, since, mesh=mesh, ops=ops, prefix=prefix, peer=peer)

    def head(self) -> Head:
        found = decoded(self._line.call("GET", "/v1/log"), _HEAD)
        return Head(found.epoch, found.first, found.head)

    @listed_rows(Consumer)
    def consumers(self) -> Rows[Consumer]:
        found: list[Consumer] = decoded(self._line.call("GET", "/v1/consumers"), _READERS).consumers
        return found

    def add_consumer(
        self,
        name: str,
        start: str | int = "start",
        *,
        retire_ms: int | None = None,
        retire_lag: int | None = None,
        filter: Filter = EVERYTHING,
    ) -> Consumer:
        readers.check_reader(name, retire_ms, retire_lag)
        if any(row.name == name for row in self.consumers()):
            raise AlreadyExists(f"consumer {name!r} is registered already")
        asked = Registration(
            consumer=name,
            start=start,
            filter=filter.check(),
            retire_ms=retire_ms,
            retire_lag=retire_lag,
        )
        return self._reader("/v1/consumers", asked)

    def batch(self, consumer: str, limit: int = limits.FETCH_ROWS_DEFAULT) -> Batch:
        body = msgspec.json.encode(Fetch(consumer=consumer, limit=limit))
        headers = {**AS_JSON, "Accept": MSGPACK}
        answer = self._line.call("POST", "/v1/facts/fetch", body=body, headers=headers)
        return decode_batch(answer.msgpack())

    def confirm(
        self,
        consumer: str,
        offset: int | None = None,
        *,
        ranges: Iterable[tuple[int, int]] | None = None,
    ) -> Consumer:
        spans = None if ranges is None else list(ranges)
        asked = Confirmation(consumer=consumer, offset=offset, ranges=spans)
        return self._reader("/v1/facts/confirm", asked)

    def retire(self, consumer: str) -> None:
        self._line.call("DELETE", f"/v1/consumers/{quoted(consumer)}")

    def _reader(self, path: str, asked: msgspec.Struct) -> Consumer:
        answer = self._line.call("POST", path, body=msgspec.json.encode(asked), headers=AS_JSON)
        consumer: Consumer = decoded(answer, _READER)
        return consumer
