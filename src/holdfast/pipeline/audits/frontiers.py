"""Whether logs kept what their readers had not confirmed, and whether readers confirmed only what
is there.

A log may truncate what all its readers have confirmed, and the lake confirms what it has committed.
So a log begins at most one place after the lowest frontier, no frontier is past the end of its log,
and no frontier of the lake is past what bronze has. Only nodes that were asked are judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from holdfast.pipeline.audits.live_facts import LogFacts
from holdfast.pipeline.audits.scan import Positions
from holdfast.pipeline.audits.shape import FINDING, NOTICE, Audit, Found, FoundRow, found_rows


def judge_frontiers(logs: Sequence[LogFacts], positions: Positions, consumer: str) -> list[Found]:
    """`consumer`: the name by which the lake reads logs."""
    wrong = [row for log in logs for row in _of_readers(log, positions, consumer)]
    firsts: dict[tuple[str, int], int] = {}
    for log in logs:
        key = (log.log, log.epoch)
        firsts[key] = min(log.first, firsts.get(key, log.first))
    late: list[FoundRow] = []
    for (name, epoch), first in firsts.items():
        read = positions.get((name, epoch))
        if first <= (read or 0) + 1:
            continue
        known: dict[str, Any] = {"log": name, "epoch": epoch, "offset": first}
        if read is None:
            # A lake that starts to read a log late cannot have what was truncated before.
            detail = f"the log begins at {first}, and nothing of this epoch was read before"
            late.append(FoundRow(weight=first - 1, detail=detail, **known))
        else:
            detail = f"offsets {read + 1} to {first - 1} are gone unread"
            wrong.append(FoundRow(weight=first - read - 1, detail=detail, **known))
    return found_rows(FRONTIERS.name, FINDING, wrong) + found_rows(FRONTIERS.name, NOTICE, late)


def _of_readers(log: LogFacts, positions: Positions, consumer: str) -> Iterator[FoundRow]:
    for reader, frontier in log.readers.items():
        if log.first > frontier + 1:
            yield _row(
                log,
                log.first,
                log.first - frontier - 1,
                f"the log begins at {log.first}, but its reader {reader} has confirmed only up to "
                f"{frontier}",
            )
        if frontier > log.head:
            yield _row(
                log,
                frontier,
                frontier - log.head,
                f"its reader {reader} has confirmed up to {frontier}, but the log ends at "
                f"{log.head}: it went back in time",
            )
        read = positions.get((log.log, log.epoch))
        if reader.endswith(consumer) and read is not None and frontier > read:
            yield _row(
                log,
                frontier,
                frontier - read,
                f"the lake has confirmed up to {frontier} and holds the log only up to {read}",
            )


def _row(log: LogFacts, offset: int, weight: int, detail: str) -> FoundRow:
    return FoundRow(weight=weight, detail=detail, log=log.log, epoch=log.epoch, offset=offset)


FRONTIERS: Final = Audit(
    "frontiers",
    "logs that forgot too much, readers that confirmed too much",
    "how many offsets it is about",
)
