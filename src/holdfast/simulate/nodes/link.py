"""One link of a simulated world: what is asked and answered over it, and what both ends do then.

The source runs `node.giving` and keeps a consumer, the reader runs `node.taking` and keeps a link,
each in its own database. Here are the calls; `holdfast.simulate.nodes.pulling` plays the network
between them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from hashlib import sha256
from os import SEEK_END
from typing import Final, NamedTuple

from holdfast.node.core.engine import NodeEngine
from holdfast.node.library.node import Node
from holdfast.node.links import receive
from holdfast.node.log import serve as giving
from holdfast.node.snapshots.link_export import give_part
from holdfast.protocol.link_snapshot import LinkSnapshotPart, SnapshotPartAsked
from holdfast.protocol.log_wire import Batch, Confirmation, Fetch, Registration
from holdfast.rules.errors import (
    BadAnswer,
    Broken,
    DiskFull,
    EpochChanged,
    ForgedOrigin,
    HoldfastError,
    StoreBusy,
    StoreClosed,
    Unknown,
)
from holdfast.rules.filters import Filter
from holdfast.rules.frontier import Frontier
from holdfast.rules.links import LinkState, consumer_name
from holdfast.rules.rows import LinkRow, ZoneKey, ZoneRow
from holdfast.service.caller import Caller
from holdfast.storage.ports import Transaction

BATCH_ENTRIES_MAX: Final = 5
PIECE_BYTES: Final = 48 * 1024
"""Small enough that the objects of a world come in two pieces."""
OWN_TROUBLE: Final = (Broken, Unknown, DiskFull, StoreBusy, StoreClosed)
"""Errors of a node's own disk, which the other side does not hear of."""


class Retirement(NamedTuple):
    """The question that makes the source forget a consumer."""

    consumer: str


class Piece(NamedTuple):
    """The question for a part of an object."""

    sha256: str
    start: int


class Object(NamedTuple):
    """The answer: a part of an object, and its whole size; None if the source does not have it."""

    size: int | None
    content: bytes = b""


Question = Retirement | Registration | Fetch | Confirmation | Piece | SnapshotPartAsked
Answer = Batch | Object | LinkSnapshotPart | HoldfastError | None


@dataclass(slots=True)
class ReaderState:
    """What the reader's process has in memory about a link, besides the row in its database."""

    connected: bool = False
    attempts: int = 0
    state: LinkState = LinkState.CONNECTING
    awaited: int = 0
    """The number of the question whose answer it waits for."""
    new_epoch: int | None = None
    """The epoch in which the source counts now, if an answer said so."""
    wants_snapshot: bool = False
    """The source no longer holds what comes next."""
    batch: Batch | None = None
    """Entries that wait for the objects that they name."""
    absent: set[str] = field(default_factory=set)
    """Objects of the batch that the source does not have."""


@dataclass(slots=True, eq=False)
class SimulatedLink:
    """One link of a world."""

    name: str
    reader: str
    source: str
    filter: Filter
    """As in its row: what the reader asks for, and whose entries the source may carry."""
    reads: tuple[str, ...] | None = None
    """The meshes that the source lets the reader read; None for all."""
    retire_ms: int | None = None
    retire_lag: int | None = None
    slow: bool = False
    """Its reader asks seldom."""
    added_at: int = 0
    rows: int = BATCH_ENTRIES_MAX
    """How many entries its reader asks for at a time: fewer after the line broke."""
    memory: ReaderState = field(default_factory=ReaderState)

    def anew(self, filter: Filter) -> SimulatedLink:
        """The same link, added again: it has read nothing."""
        return replace(self, filter=filter, added_at=0, memory=ReaderState())

    @property
    def consumer(self) -> str:
        return consumer_name(self.reader, self.name)

    @property
    def caller(self) -> Caller:
        return Caller("zone", self.reader, None if self.reads is None else frozenset(self.reads))

    @property
    def label(self) -> str:
        return f"link {self.name} of {self.reader}"


# --- at the source -------------------------------------------------------------------------------


def serve(node: Node, relation: SimulatedLink, question: Question) -> tuple[Answer]:
    """What a node answers to a question; raises errors of its own disk."""
    engine, caller = node._engine, relation.caller
    try:
        match question:
            case Retirement():
                giving.retire(engine, caller, question.consumer)
            case Registration():
                giving.register(engine, caller, question)
            case Confirmation():
                giving.confirm(engine, caller, question)
            case Fetch():
                return (giving.serve_batch(engine, caller, question),)
            case Piece():
                return (_piece(engine, question),)
            case SnapshotPartAsked():
                return (give_part(engine, caller, question),)
    except OWN_TROUBLE:
        raise
    except HoldfastError as error:
        return (error,)
    return (None,)


def _piece(engine: NodeEngine, asked: Piece) -> Object:
    if not engine.blobs.exists(asked.sha256):
        return Object(None)
    with engine.blobs.open_unchecked(asked.sha256) as content:
        size = content.seek(0, SEEK_END)
        content.seek(asked.start)
        return Object(size, content.read(PIECE_BYTES))


# --- at the reader -------------------------------------------------------------------------------


def take_in(engine: NodeEngine, link: str, batch: Batch) -> receive.BatchReceived | HoldfastError:
    try:
        return receive.receive_batch(engine, link, batch)
    except (BadAnswer, ForgedOrigin, EpochChanged) as error:
        return error


def lacking_of(engine: NodeEngine, batch: Batch, absent: Collection[str]) -> list[Piece]:
    """The pieces of objects that the reader must have before it may take the batch in."""
    blobs = engine.blobs
    return [
        Piece(named.sha256, blobs.partial(named.sha256))
        for named in receive.objects_named(batch)
        if named.sha256 not in absent and not blobs.exists(named.sha256)
    ]


def store_piece(engine: NodeEngine, asked: Piece, found: Object) -> bool:
    assert found.size is not None
    here = engine.blobs.put_piece(asked.sha256, asked.start, found.content)
    if here >= found.size:
        engine.blobs.finish(asked.sha256, found.size)
    return True


def row_of(node: Node, link: str) -> LinkRow | None:
    return node._engine.read("link.get", lambda tx: tx.link_get(link))


def add_link(node: Node, relation: SimulatedLink) -> None:
    """Adds a link as a person would: trusts the zone, then adds the link."""
    now = relation.added_at = node._engine.ctx.now_ms()
    key = ZoneKey(key=sha256(relation.source.encode()).digest(), added_at=now)
    zone = ZoneRow(name=relation.source, keys=(key,), added_at=now)
    row = LinkRow(
        name=relation.name,
        url=f"https://{relation.source}:1",
        zone=relation.source,
        filter=relation.filter,
        added_at=now,
    )

    def work(tx: Transaction) -> None:
        tx.zone_put(zone)
        tx.link_put(row)

    node._engine.write("link.add", work)


def place_of(reader: Node, source: Node, relation: SimulatedLink) -> tuple[int, int, int]:
    """Epoch and cursor of a link, and the frontier of its consumer; zeros where there is none."""
    row = row_of(reader, relation.name)
    consumer = source._engine.read("consumer", lambda tx: tx.consumer_get(relation.consumer))
    return (
        0 if row is None else row.epoch,
        0 if row is None else row.cursor,
        0 if consumer is None else Frontier.decode(consumer.frontier).prefix,
    )
