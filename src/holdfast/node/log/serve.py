"""The source's side of a pull: other nodes, and programs, read this node's log here.

Every function takes the caller. What it may read is looked up with each call and narrows the filter
of its consumer, so a filter never outlives a grant that was taken back. A refused call has changed
nothing.

Nothing here waits: a batch without entries that reaches the head means that there is nothing new.
"""

from __future__ import annotations

from functools import partial

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.core.following.committed_pages import commits_page
from holdfast.node.core.following.committed_state import give_state
from holdfast.node.core.views import Consumer
from holdfast.node.log import consumers
from holdfast.protocol.commit_page import CommitsHeld, StateObject, encode_page
from holdfast.protocol.log_wire import Batch, Confirmation, Fetch, Registration
from holdfast.rules.errors import BadInput, NotGranted, TooMany, UnknownMesh
from holdfast.rules.filters import Filter
from holdfast.rules.limits import CONSUMERS_OF_CALLER_MAX, LAMPORT_MAX, SEEN_MS
from holdfast.rules.rows import ConsumerRow, Page
from holdfast.service.caller import Caller
from holdfast.storage.ports import Reader, Transaction


def register(engine: NodeEngine, caller: Caller, r: Registration) -> Consumer:
    """Registers a consumer, or finds the one that is registered. A new filter replaces the old one
    and keeps what is confirmed: the reader does not get what the old filter left out up to there. A
    reader that wants it reads from an offset of its own, or retires and registers anew.

    The same holds for a filter that names no mesh, which means those that the caller may read at
    the time: entries that were left out before a grant stay so. A filter that names its meshes, as
    every link does, is refused while one of them is not granted, and so misses nothing.
    """
    consumers.check_reader(r.consumer, r.retire_ms, r.retire_lag)
    caller.check_consumer(r.consumer)
    filter = _sent_to(caller, r.filter.check())
    caller.narrow(
        filter
    )  # only a check: the filter is stored as it is, so a later grant adds to it
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
    """The next entries of a consumer; confirms first if the fetch says so."""
    consumers.check_limit(f.limit)
    if f.confirm is not None and engine.read("fact.confirm", partial(_has_news, engine, caller, f)):
        engine.write("fact.confirm", partial(_confirm_first, engine, caller, f))

    def read(tx: Reader) -> Batch:
        row, start, spans = _checked(tx, caller, f)
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


def serve_commits(engine: NodeEngine, caller: Caller, mesh: str, first: int) -> bytes:
    """What the quorum of a mesh has committed from a number on: a page (`protocol/commit_page.py`).
    It has no consumer: whoever follows an order knows its number.
    """
    caller.narrow(Filter(meshes=(mesh,)).check())
    if not 1 <= first < LAMPORT_MAX:
        raise BadInput(f"{first} is not the number of a commit")
    return engine.read(
        "commits.page", lambda tx: encode_page(commits_page(tx, check_known(tx, mesh), first))
    )


def serve_state(engine: NodeEngine, caller: Caller, mesh: str, have: int = 0) -> StateObject:
    """All that the quorum of a mesh has committed, as an object that the caller fetches by its hash
    next: for one that lacks what this log has truncated.
    """
    caller.narrow(Filter(meshes=(mesh,)).check())
    engine.read("commits.held", lambda tx: check_known(tx, mesh))
    return give_state(engine, mesh, have)


def commits_held(engine: NodeEngine, caller: Caller) -> CommitsHeld:
    """How far this node is in the orders of the meshes that the caller may read."""
    meshes = frozenset(caller.narrow(Filter()).meshes)

    def read(tx: Reader) -> CommitsHeld:
        rows = [row for row in tx.quorum_list() if not meshes or row.mesh in meshes]
        return CommitsHeld({row.mesh: row.number for row in rows})

    return engine.read("commits.held", read)


def check_known(tx: Reader, mesh: str) -> str:
    if tx.mesh_get(mesh) is None:
        raise UnknownMesh(f"there is no mesh {mesh!r}")
    return mesh


def confirm(engine: NodeEngine, caller: Caller, c: Confirmation) -> Consumer:
    """Confirms what a consumer has stored: up to an offset, or ranges."""
    consumers.check_confirmation(c.offset, c.ranges)

    def work(tx: Transaction) -> Consumer:
        row = _require_own(tx, caller, c.consumer)
        consumers.check_epoch(tx, c.epoch)
        row = consumers.confirmed(tx, row, c.offset, c.ranges, engine.ctx.now_ms())
        tx.consumer_put(row)
        return Consumer.of(row, tx.log_bounds()[1])

    return engine.write("fact.confirm", work)


def retire(engine: NodeEngine, caller: Caller, consumer: str) -> None:
    """Forgets a consumer: the log no longer keeps entries for it."""

    def work(tx: Transaction) -> None:
        _require_own(tx, caller, consumer)
        tx.consumer_drop(consumer)

    engine.write("consumer.retire", work)


def filter_of(tx: Reader, caller: Caller, consumer: str, epoch: int) -> Filter:
    """What a caller's consumer may read now."""
    row = _require_own(tx, caller, consumer)
    consumers.check_epoch(tx, epoch)
    return caller.narrow(_sent_to(caller, row.filter))


# --- the caller ----------------------------------------------------------------------------------


def _require_own(tx: Reader, caller: Caller, name: str) -> ConsumerRow:
    caller.check_consumer(name)
    row = consumers.require(tx, name)
    _check_owner(caller, row)
    return row


def _check_owner(caller: Caller, row: ConsumerRow) -> None:
    # A zone's name may contain a slash, so the name of the consumer does not show whose it is.
    if caller.kind == "zone" and row.zone != caller.name:
        raise NotGranted(f"the consumer {row.name!r} is not one of zone {caller.name!r}")


def _check_room(tx: Reader, caller: Caller) -> None:
    """Raises TooMany if a caller from outside has too many consumers: sweeps wait for each of
    them.
    """
    if caller.is_local:
        return
    prefix = f"{caller.kind}:{caller.name}/"
    count = sum(row.name.startswith(prefix) for row in tx.consumer_list())
    if count >= CONSUMERS_OF_CALLER_MAX:
        raise TooMany(
            f"{caller.kind} {caller.name!r} has {count} consumers already",
            hint="retire those that no longer read",
        )


def _sent_to(caller: Caller, filter: Filter) -> Filter:
    """The filter for a caller: a zone does not get back what it wrote or brought here."""
    if caller.kind != "zone":
        return filter
    return msgspec.structs.replace(filter, beyond=caller.name)


# --- the request ---------------------------------------------------------------------------------


def _checked(tx: Reader, caller: Caller, f: Fetch) -> tuple[ConsumerRow, int, list[consumers.Span]]:
    """The consumer, and where the fetch begins; raises for a bad fetch before anything changes."""
    row = _require_own(tx, caller, f.consumer)
    consumers.check_epoch(tx, f.epoch)
    caller.narrow(row.filter)
    return row, *consumers.unread(tx, row, f.start)


def _has_news(engine: NodeEngine, caller: Caller, f: Fetch, tx: Reader) -> bool:
    """Whether a confirmation needs a write: one that confirms nothing new does only now and
    then.
    """
    row, _, _ = _checked(tx, caller, f)
    now = engine.ctx.now_ms()
    after = consumers.confirmed(tx, row, f.confirm, None, now)
    seen_ms = SEEN_MS if row.retire_ms is None else min(SEEN_MS, row.retire_ms // 4)
    return after.frontier != row.frontier or not 0 <= now - row.seen_at < seen_ms


def _confirm_first(engine: NodeEngine, caller: Caller, f: Fetch, tx: Transaction) -> None:
    row, _, _ = _checked(tx, caller, f)
    tx.consumer_put(consumers.confirmed(tx, row, f.confirm, None, engine.ctx.now_ms()))


def _look(tx: Reader, filter: Filter, start: int, end: int, limit: int, bytes_max: int) -> Page:
    return tx.log_page(start, end, limit, bytes_max, filter)


def _raws(page: Page) -> list[bytes]:
    return page.raws
