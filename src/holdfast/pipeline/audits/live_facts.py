"""What live nodes say about their logs: bounds, readers, and how far those have confirmed.

Nothing here judges; `frontiers.py` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.node.core.views import Consumer
from holdfast.pipeline.logs.broker import BrokerLog
from holdfast.pipeline.logs.disk import HomeLog
from holdfast.pipeline.logs.http import NodeLog
from holdfast.pipeline.logs.log import LogBounds, ReadableLog
from holdfast.rules.errors import EpochChanged

_AGAIN: Final = "ask again"


class LogFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One log, as its node describes it."""

    log: str
    epoch: int
    first: int
    head: int
    whole: bool = True
    """Whether the reader gets every entry, and not only those of some meshes."""
    readers: dict[str, int] = {}
    """By name of the reader: the last offset that it has confirmed."""


class LiveFacts(msgspec.Struct, frozen=True):
    """What all nodes that were asked have answered."""

    logs: tuple[LogFacts, ...] = ()


class _Consumers(msgspec.Struct, frozen=True):
    consumers: list[Consumer]


def ask_logs(logs: Sequence[ReadableLog]) -> LiveFacts:
    """Asks logs for their bounds and readers. Backups and exports have no readers."""
    return LiveFacts(tuple(_ask(log) for log in logs))


def _ask(log: ReadableLog) -> LogFacts:
    if isinstance(log, NodeLog):
        return _ask_node(log)
    if isinstance(log, BrokerLog):
        # What expired before the reader registered is in no range that it gets.
        began, read = log.place(), log.readers()
        return msgspec.structs.replace(_facts(began, log.place(), []), readers=read, whole=False)
    if not isinstance(log, HomeLog):
        place = log.place()
        return _facts(place, place, [])
    name = log.place().log
    with log.looked_at() as reader:
        place = LogBounds(name, reader.epoch(), *reader.log_bounds())
        readers = [Consumer.of(row, place.head) for row in reader.consumer_list()]
    return _facts(place, place, readers)


def _ask_node(log: NodeLog) -> LogFacts:
    # Meanwhile its readers go on, it truncates and it grows. With `first` from before and `head`
    # from after, no reader can wrongly appear to be outside the log.
    before = log.place()
    readers = log.get("/v1/consumers").json(_Consumers).consumers
    return _facts(before, log.place(), readers)


def _facts(before: LogBounds, after: LogBounds, readers: Sequence[Consumer]) -> LogFacts:
    if before.epoch != after.epoch:
        raise EpochChanged(
            f"log {after.log!r} was restored while it was asked", epoch=after.epoch, hint=_AGAIN
        )
    return LogFacts(
        log=after.log,
        epoch=after.epoch,
        first=before.first,
        head=after.head,
        readers={reader.name: reader.frontier for reader in readers},
    )
