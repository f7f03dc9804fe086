"""The source's side of a pull: other nodes, and programs, read this node's log here.

Who asks is part of every question. What a caller may read is looked up with each call and narrows
the filter that its consumer was registered with, so a filter never outlives a grant that was taken
back. Whatever is refused has changed nothing.

Nothing here waits: an answer that holds no entries and reaches the head means that there is nothing
new.
"""

from __future__ import annotations

from functools import partial

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.views import Consumer
from holdfast.node.log import consumers
from holdfast.protocol.log_wire import Batch, Confirmation, Fetch, Registration
from holdfast.rules.errors import NotGranted, TooMany
from holdfast.rules.filters import Filter
from holdfast.rules.limits import CONSUMERS_OF_CALLER_MAX, SEEN_MS
from holdfast.rules.rows import ConsumerRow, Page
from holdfast.service.caller import Caller
from holdfast.storage.ports import Reader, Transaction


def register(engine: NodeEngine, caller: Caller, r: Registration) -> Consumer:
    """Registers a consumer, or finds it as it is. Another filter replaces the one before and keeps
    what is confirmed: what the old one left out up to there is not given any more. A reader that
    wants it reads from an offset of its own, or retires and registers anew.

    The same holds for a filter that names no mesh, which means those that the caller may read at
    the time: entries that were passed over before a grant stay so. One that names its meshes, as
    every link does, is refused whole while one of them is not granted, and misses nothing.
    """
    consumers.check_reader(r.consumer, r.retire_ms, r.retire_lag)
    caller.check_consumer(r.consumer)
    filter = _sent_to(caller, r.filter.check())
    caller.narrow(filter)  # stored as it was asked for: a grant that grows later is part of it
    now = engine.ctx.now_ms()

    def work(tx: Transaction) -> Consumer:
        row = tx.consumer_get(r.consumer)
        if row is None:
            _check_room(tx, caller)
            zone = caller.name if caller.kind == "zone" else ""
            row = msgspec.structs.replace(consumers.fresh(tx, r.consumer, r.start, now), zone=zone)
        _check_owner(caller, row)
        row = msgspec.structs.replace(
            row, filter=filter, retire_ms=r.retire_ms, retire_lag=r.retire_lag
        )
        tx.consumer_put(row)
        return Consumer.of(row, tx.log_bounds()[1])

    return engine.write("consumer.add", work)


def serve_batch(engine: NodeEngine, caller: Caller, f: Fetch) -> Batch:
    """What comes next for a consumer; confirms first if that is asked for too."""
    consumers.check_limit(f.limit)
    if f.confirm is not None and engine.read("fact.confirm", partial(_has_news, engine, caller, f)):
        engine.write("fact.confirm", partial(_confirm_first, engine, caller, f))

    def read(tx: Reader) -> Batch:
        row, start, spans = _asked(tx, caller, f)
        filter = caller.narrow(_sent_to(caller, row.filter))
        first, head = tx.log_bounds()
        upto = head
        offsets: list[int] = []
        raws: list[bytes] = []
        look = partial(_look, tx, filter)
        for page in consumers.pieces(look, _raws, spans, f.limit):
            offsets += page.offsets
            raws += page.raws
            upto = page.upto
        if spans and upto == spans[-1][1] - 1:
            upto = head
        return Batch(tx.epoch(), first, head, start, max(upto, start - 1), offsets, raws)

    return engine.read("fact.fetch", read)


def confirm(engine: NodeEngine, caller: Caller, c: Confirmation) -> Consumer:
    """Confirms what a consumer has taken over: up to an offset, or ranges."""
    consumers.check_confirmation(c.offset, c.ranges)

    def work(tx: Transaction) -> Consumer:
        row = _require_own(tx, caller, c.consumer)
        consumers.check_epoch(tx, c.epoch)
        row = consumers.confirmed(tx, row, c.offset, c.ranges, engine.ctx.now_ms())
        tx.consumer_put(row)
        return Consumer.of(row, tx.log_bounds()[1])

    return engine.write("fact.confirm", work)


def retire(engine: NodeEngine, caller: Caller, consumer: str) -> None:
    """Forgets a consumer: the log no longer waits for it."""

    def work(tx: Transaction) -> None:
        _require_own(tx, caller, consumer)
        tx.consumer_drop(consumer)

    engine.write("consumer.retire", work)


# --- who asks ------------------------------------------------------------------------------------


def _require_own(tx: Reader, caller: Caller, name: str) -> ConsumerRow:
    caller.check_consumer(name)
    row = consumers.require(tx, name)
    _check_owner(caller, row)
    return row


def _check_owner(caller: Caller, row: ConsumerRow) -> None:
    # A zone's name may hold a slash, so the name of the consumer alone does not tell whose it is.
    if caller.kind == "zone" and row.zone != caller.name:
        raise NotGranted(f"the consumer {row.name!r} is not one of zone {caller.name!r}")


def _check_room(tx: Reader, caller: Caller) -> None:
    """Everything waits for every consumer, so nobody from outside may add them without end."""
    if caller.is_local:
        return
    prefix = f"{caller.kind}:{caller.name}/"
    mine = sum(row.name.startswith(prefix) for row in tx.consumer_list())
    if mine >= CONSUMERS_OF_CALLER_MAX:
        raise TooMany(
            f"{caller.kind} {caller.name!r} has {mine} consumers already",
            hint="retire those that no longer read",
        )


def _sent_to(caller: Caller, filter: Filter) -> Filter:
    """Whatever a zone asks for: what it wrote or brought here is not sent back to it."""
    if caller.kind != "zone":
        return filter
    return msgspec.structs.replace(filter, beyond=caller.name)


# --- what is asked -------------------------------------------------------------------------------


def _asked(tx: Reader, caller: Caller, f: Fetch) -> tuple[ConsumerRow, int, list[consumers.Span]]:
    """All that can be wrong with a question, before anything is changed or read."""
    row = _require_own(tx, caller, f.consumer)
    consumers.check_epoch(tx, f.epoch)
    caller.narrow(row.filter)
    return row, *consumers.unread(tx, row, f.start)


def _has_news(engine: NodeEngine, caller: Caller, f: Fetch, tx: Reader) -> bool:
    """Whether a confirmation is worth a write: one that only says "still here" is now and then."""
    row, _, _ = _asked(tx, caller, f)
    now = engine.ctx.now_ms()
    after = consumers.confirmed(tx, row, f.confirm, None, now)
    seen_ms = SEEN_MS if row.retire_ms is None else min(SEEN_MS, row.retire_ms // 4)
    return after.frontier != row.frontier or not 0 <= now - row.seen_at < seen_ms


def _confirm_first(engine: NodeEngine, caller: Caller, f: Fetch, tx: Transaction) -> None:
    row, _, _ = _asked(tx, caller, f)
    tx.consumer_put(consumers.confirmed(tx, row, f.confirm, None, engine.ctx.now_ms()))


def _look(tx: Reader, filter: Filter, start: int, end: int, limit: int, bytes_max: int) -> Page:
    return tx.log_page(start, end, limit, bytes_max, filter)


def _raws(page: Page) -> list[bytes]:
    return page.raws
