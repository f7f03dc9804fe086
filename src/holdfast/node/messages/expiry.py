"""Messages that have waited for too long.

A broker knows the ids of what it accepted for a while only. A message that waited for longer might
have arrived before, and nobody could tell: it is not sent again but marked as dead, where operators
see it and decide. Changes of state never expire: a node that receives one twice knows it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from holdfast.node.core.engine import NodeEngine
from holdfast.rules.ids import id_text
from holdfast.rules.limits import HOUR_MS, OUTBOX_PAGE_ROWS
from holdfast.rules.outbox import after_expiry, is_expired
from holdfast.rules.rows import OutboxRow
from holdfast.storage.ports import Transaction

log = logging.getLogger("holdfast")


def expire(
    engine: NodeEngine,
    lane: str,
    max_age_hours: int,
    on_dead: Callable[[OutboxRow], None] = lambda row: None,
) -> int:
    """Marks the messages of a lane that are older than this as dead; returns how many, and hands
    each to `on_dead` after it is stored. Called
    before anything of the lane is sent: only then this node knows how long the broker remembers ids
    (see `retention.outbox_max_age_hours`).
    """
    now = engine.ctx.now_ms()
    before = now - max_age_hours * HOUR_MS
    total = 0
    # Nearly always nothing is old: a read finds that out without holding up the writers.
    while engine.read("outbox.expire", lambda tx: tx.outbox_old(lane, before, now, 1)):
        dead = engine.write("outbox.expire", partial(_expire_page, lane, now, max_age_hours))
        if not dead:
            break  # another process was faster
        for row in dead:
            log.warning("%s: message %s is dead: %s", lane, id_text(row.id), row.error)
            on_dead(row)
        total += len(dead)
    return total


def _expire_page(lane: str, now_ms: int, max_age_hours: int, tx: Transaction) -> list[OutboxRow]:
    before = now_ms - max_age_hours * HOUR_MS
    found = tx.outbox_old(lane, before, now_ms, OUTBOX_PAGE_ROWS)
    old_upto = tx.log_at(before, now_ms, cautious=True)
    old = [row for row in found if is_expired(row, now_ms, max_age_hours, old_upto)]
    dead = [after_expiry(row, now_ms, max_age_hours) for row in old]
    for row in dead:
        tx.outbox_put(row)
    return dead
