"""Bugs of publishing, joining and time to plant, for `faults.planted`: what a world of delivery
must find besides those of `planted_delivery`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast.node.sharing import join
from holdfast.node.sharing.publish import Publishing
from holdfast.node.snapshots.mesh_export import entries, is_exported
from holdfast.node.sync import session
from holdfast.rules.clock_check import ClockCheck
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.outbox import lane_of, outbox_row
from holdfast.rules.rows import OutboxRow
from holdfast.storage.broker.sqlite import accept, sweep
from holdfast.storage.ports import Reader

Patch = Callable[[pytest.MonkeyPatch], None]


def _backfill_in_two_steps(patch: pytest.MonkeyPatch) -> None:
    """That the backfill is done stands there before what it brings does."""
    bring = Publishing._bring

    def hasty(publishing: Publishing, job: Any) -> Any:
        engine, mesh = publishing._engine, publishing._mesh
        way = job.way or engine.read("mesh.publish", partial(publishing._choose, job))
        if way == "snapshot":
            return bring(publishing, job)

        def read(tx: Reader) -> list[OutboxRow]:
            page, _ = entries(tx, mesh, job.cursor, job.upto)
            told = [entry for entry in page if is_exported(tx, entry)]
            return [
                outbox_row(lane_of(mesh), decode_trusted(entry.raw), entry.offset, 0)
                for entry in told
            ]

        rows = engine.read("mesh.publish", read)
        done = publishing._note(job, msgspec.structs.replace(job, phase="wait", way=way))
        engine.write("mesh.publish", lambda tx: tx.outbox_add(rows))
        return done

    patch.setattr(Publishing, "_bring", hasty)


def _published_by_the_log_alone(patch: pytest.MonkeyPatch) -> None:
    """What the log has forgotten is not brought."""
    patch.setattr(Publishing, "_choose", lambda publishing, job, tx: "backfill")


def _joined_without_the_snapshot(patch: pytest.MonkeyPatch) -> None:
    """Whoever joins waits for changes, and asks for nothing from before."""
    patch.setattr(join, "take_snapshot", lambda *args, **kwargs: None)


def _ids_forgotten_with_their_messages(patch: pytest.MonkeyPatch) -> None:
    """An id is remembered for as long as its message is kept."""
    insert = accept.insert_messages

    def brief(con: Any, mesh: Any, now_ms: int, keep_until: int, known_until: int | None) -> None:
        insert(con, mesh, now_ms, keep_until, now_ms)

    patch.setattr(accept, "insert_messages", brief)
    patch.setattr(sweep, "BROKER_DEDUPE_GRACE_MS", 0)
    patch.setattr(sweep, "DAY_MS", 0)


def _messages_sent_however_old(patch: pytest.MonkeyPatch) -> None:
    """The outbox sends what it has, also if the broker may have had it and forgotten."""
    patch.setattr(session, "expire", lambda engine, lane, hours, on_dead: 0)


def _swept_by_any_clock(patch: pytest.MonkeyPatch) -> None:
    """What the clock says is old is old."""
    patch.setattr(ClockCheck, "is_believed", property(lambda pace: True))


PLANTS: dict[str, Patch] = {
    "backfill in two steps": _backfill_in_two_steps,
    "published by the log alone": _published_by_the_log_alone,
    "joined without the snapshot": _joined_without_the_snapshot,
    "ids forgotten with their messages": _ids_forgotten_with_their_messages,
    "messages sent however old": _messages_sent_however_old,
    "swept by any clock": _swept_by_any_clock,
}
