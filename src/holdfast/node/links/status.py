"""How a link stands, kept while it works and shown to whoever asks.

The threads of a link write on its board; a look at it is a copy. What counts is counted since the
daemon started: what must outlast it stands in the store.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.node.core.object_transfer import Pulled
from holdfast.node.links.receive import BatchReceived
from holdfast.protocol.log_wire import Batch
from holdfast.rules.limits import LINK_BATCH_ROWS
from holdfast.rules.links import LinkPlan, LinkState, after_success, carries_of, phase
from holdfast.rules.rows import LinkRow

log = logging.getLogger("holdfast")


class Problem(msgspec.Struct, frozen=True):
    """What went wrong last."""

    code: str
    message: str
    hint: str
    at: int


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
    """Failures in a row."""
    retry_at: int | None = None
    last_error: Problem | None = None
    epoch: int = 0
    cursor: int = 0
    source_head: int | None = None
    """The end of the source's log when it last answered."""
    lag: int | None = None
    """Entries of that log beyond our cursor, those among them that the filter leaves out."""
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


class LinkStatusTracker:
    """The status of one link, written by its threads."""

    def __init__(
        self,
        row: LinkRow,
        quarantined: int,
        now_ms: Callable[[], int],
        changed: Callable[[LinkStatus], None],
    ) -> None:
        """`changed` is told of every new state, in the thread that brought it about."""
        self._lock = threading.Lock()
        self._now_ms = now_ms
        self._changed = changed
        self._status = LinkStatus(
            name=row.name, zone=row.zone, url=row.url, since=now_ms(), quarantined=quarantined
        )
        self.show(row)

    @property
    def status(self) -> LinkStatus:
        return self._status

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

    def enter(self, state: LinkState) -> None:
        self._change(lambda now: {"state": state, "retry_at": None})

    def failed(self, plan: LinkPlan, code: str, message: str, hint: str) -> None:
        """An error, and what follows from it."""
        at = self._now_ms()
        self._change(
            lambda now: {
                "state": plan.state,
                "attempts": now.attempts + 1,
                "retry_at": None if plan.delay_ms is None else at + plan.delay_ms,
                "last_error": Problem(code, message, hint, at),
            }
        )

    def nothing_new(self, batch: Batch) -> None:
        """The source answered, and we have all of it."""
        self._change(
            lambda now: {
                "state": LinkState.LIVE,
                "attempts": after_success(),
                "source_head": batch.head,
                "lag": max(0, batch.head - now.cursor),
            }
        )

    def arrived(self, batch: Batch) -> None:
        """A batch is here, and not stored yet."""
        connecting = LinkState.CONNECTING
        size = sum(map(len, batch.raws))
        self._change(
            lambda now: {
                "state": LinkState.CATCHING_UP if now.state is connecting else now.state,
                "source_head": batch.head,
                "lag": max(0, batch.head - now.cursor),
                "received": now.received + len(batch.raws),
                "bytes": now.bytes + size,
                "last_batch_at": self._now_ms(),
            }
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
                "state": phase(batch.upto, batch.head, len(batch.raws), LINK_BATCH_ROWS),
                "attempts": after_success(),
                "new": now.new + taken.new,
                "known": now.known + taken.known,
                "quarantined": now.quarantined + taken.quarantined,
                **_place(taken.link, max(batch.head, now.source_head or 0)),
            }
        )

    def _change(self, fields: Callable[[LinkStatus], dict[str, Any]]) -> None:
        with self._lock:
            before = self._status
            status = msgspec.structs.replace(before, **fields(before))
            moved = status.state is not before.state
            if moved:
                status = msgspec.structs.replace(status, since=self._now_ms())
            self._status = status
        if not moved:
            return
        try:
            self._changed(status)
        except Exception:
            # Who listens must not end who works.
            log.exception("telling of link %s failed", status.name)


def _place(row: LinkRow, head: int | None) -> dict[str, Any]:
    lag = None if head is None else max(0, head - row.cursor)
    return {"epoch": row.epoch, "cursor": row.cursor, "source_head": head, "lag": lag}
