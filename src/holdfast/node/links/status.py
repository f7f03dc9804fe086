"""How a link stands, for people and for metrics.

The threads of a link write its tracker; a look at it is a copy. Counts begin with the daemon: what
must outlast it stands in the store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.node.core.object_transfer import Pulled
from holdfast.node.links.receive import BatchReceived
from holdfast.protocol.log_wire import Batch
from holdfast.rules.limits import LINK_BATCH_ROWS
from holdfast.rules.links import LinkState, carries_of, phase
from holdfast.rules.rows import LinkRow
from holdfast.service.problem import Problem
from holdfast.service.supervision import Supervision
from holdfast.service.supervisor import UnitStatus


class LinkStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A link at one moment."""

    name: str
    zone: str
    url: str
    meshes: tuple[str, ...] = ()
    carries: tuple[str, ...] = ()
    state: LinkState = LinkState.CONNECTING
    since: int
    """When it came into this state."""
    attempts: int = 0
    """How many times in a row it has failed; 0 after a success."""
    retry_at: int | None = None
    last_error: Problem | None = None
    epoch: int = 0
    cursor: int = 0
    source_head: int | None = None
    """The end of the source's log when it last answered."""
    lag: int | None = None
    """Entries of that log beyond our cursor, those among them that the filter leaves out. None: not
    known, because the source has not answered since the last connection ended."""
    received: int = 0
    new: int = 0
    known: int = 0
    quarantined: int = 0
    """Envelopes that wait in the link's quarantine."""
    objects_pulled: int = 0
    objects_missing: int = 0
    """Objects that entries name and the source did not have."""
    bytes: int = 0
    last_batch_at: int | None = None
    snapshot_rows: int = 0
    """Changes that a snapshot of the source has brought, for what its log no longer holds."""


class LinkStatusTracker(UnitStatus[LinkState, LinkStatus]):
    """The status of one link, written by its threads."""

    def __init__(
        self,
        row: LinkRow,
        quarantined: int,
        now_ms: Callable[[], int],
        on_change: Callable[[LinkStatus], None],
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_step` is called after everything that happens, `on_change` with every new state."""
        self._on_step = on_step
        name = f"link {row.name}"
        super().__init__(name, LinkState.CONNECTING, LinkState.STOPPED, now_ms, on_change)
        self._facts = LinkStatus(
            name=row.name, zone=row.zone, url=row.url, since=now_ms(), quarantined=quarantined
        )
        """What the link itself knows. How it is supervised is filled in when it is shown."""
        self._heard = False
        """The source has said on this connection where its log ends."""
        self.show(row)

    @property
    def status(self) -> LinkStatus:
        with self._lock:
            return self._view()

    def _view(self) -> LinkStatus:
        return msgspec.structs.replace(self._facts, **self.supervision.shown())

    def apply(
        self, event: Callable[[Supervision[LinkState]], Supervision[LinkState]]
    ) -> Supervision[LinkState]:
        after = super().apply(event)
        self._on_step()
        return after

    def show(self, row: LinkRow) -> None:
        """The link as it is stored now."""
        self._change(
            lambda now: {
                "zone": row.zone,
                "url": row.url,
                "meshes": row.filter.meshes,
                "carries": carries_of(row.zone, row.filter),
                **_place(row, now.source_head),
            }
        )

    def recount(self, quarantined: int) -> None:
        self._change(lambda now: {"quarantined": quarantined})

    def heard(self, head: int) -> None:
        """The source says where its log ends."""
        self._heard = True
        self._change(
            lambda now: {"source_head": head, "lag": max(0, head - now.cursor)},
        )

    def unless_heard(self) -> None:
        """A connection broke. How far we lag is known only if the source has said on it that there
        is more: that nothing was new is no longer true for long.
        """
        heard, self._heard = self._heard, False
        self._change(lambda now: {"lag": (now.lag or None) if heard else None})

    def nothing_new(self, batch: Batch) -> None:
        """The source answered, and we have all of it."""
        self._heard = True
        self._change(
            lambda now: {"source_head": batch.head, "lag": max(0, batch.head - now.cursor)},
            state=lambda before: LinkState.LIVE,
            worked=True,
        )

    def arrived(self, batch: Batch) -> None:
        """A batch is here, and not stored yet."""
        self._heard = True
        connecting, catching_up = LinkState.CONNECTING, LinkState.CATCHING_UP
        size = sum(map(len, batch.raws))
        self._change(
            lambda now: {
                "source_head": batch.head,
                "lag": max(0, batch.head - now.cursor),
                "received": now.received + len(batch.raws),
                "bytes": now.bytes + size,
                "last_batch_at": self._now_ms(),
            },
            state=lambda before: catching_up if before is connecting else before,
        )

    def snapshot(self, rows: int, new: int) -> None:
        """A part of a snapshot is stored: so many changes by now, so many of them new."""
        connecting, catching_up = LinkState.CONNECTING, LinkState.CATCHING_UP
        self._change(
            lambda now: {"snapshot_rows": rows, "last_batch_at": self._now_ms()},
            state=lambda before: catching_up if before is connecting else before,
        )

    def pulled(self, more: Pulled) -> None:
        """Something of an object is here."""
        self._change(
            lambda now: {
                "objects_pulled": now.objects_pulled + more.objects,
                "objects_missing": now.objects_missing + more.missing,
                "bytes": now.bytes + more.bytes,
            }
        )

    def taken(self, batch: Batch, taken: BatchReceived) -> None:
        """A batch is stored."""
        self._change(
            lambda now: {
                "new": now.new + taken.new,
                "known": now.known + taken.known,
                "quarantined": now.quarantined + taken.quarantined,
                **_place(taken.link, max(batch.head, now.source_head or 0)),
            },
            state=lambda before: phase(batch.upto, batch.head, len(batch.raws), LINK_BATCH_ROWS),
            worked=True,
        )

    def _change(
        self,
        facts: Callable[[LinkStatus], dict[str, Any]],
        *,
        state: Callable[[LinkState], LinkState] = lambda before: before,
        worked: bool = False,
    ) -> None:
        now_ms = self._now_ms()

        def event(unit: Supervision[LinkState]) -> Supervision[LinkState]:
            # With the lock held: who sees the new state sees the new facts too.
            self._facts = msgspec.structs.replace(self._facts, **facts(self._facts))
            after = state(unit.state)
            moved = unit if after is unit.state else unit.entered(after, now_ms)
            return moved.worked() if worked else moved

        self.apply(event)


def _place(row: LinkRow, head: int | None) -> dict[str, Any]:
    lag = None if head is None else max(0, head - row.cursor)
    return {"epoch": row.epoch, "cursor": row.cursor, "source_head": head, "lag": lag}
