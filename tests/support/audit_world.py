"""A lake that is written row by row while a test tells what happened, for audits to look at."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import msgspec
import pyarrow as pa

from holdfast.pipeline.audits.live_facts import LogFacts
from holdfast.pipeline.lake.delta import Table, fingerprint
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.reads import PART, Read, as_rows
from holdfast.pipeline.lake.schema import arrow_schema
from holdfast.rules.audit_chain import AuditRow
from holdfast.rules.envelope import Fence, encode
from holdfast.rules.ids import id_text
from holdfast.rules.rebuild import rebuild_event
from support.envelopes import envelope, make_id

START: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
EVENTS: Final = "task_events"
Row = dict[str, Any]


class World:
    """Tables that fill while a test tells what happened."""

    def __init__(self) -> None:
        self.numbers = count(1)
        self.rows: dict[str, list[Row]] = {
            name: [] for name in ("bronze", "sightings", "quarantine", "tasks", EVENTS)
        }
        self.positions: dict[tuple[str, int], int] = {}
        """Of logs that the lake has read further than to their last row here."""
        self.logs: list[LogFacts] = []

    def id(self) -> str:
        # A second apart, so that ids can be divided among tasks by their times.
        number = next(self.numbers)
        return id_text(make_id(number, 1000 * (int(START.timestamp()) + number)))

    def entry(
        self, log: str, offset: int, mesh: str, origin: str, seq: int, lamport: int, **more: Any
    ) -> str:
        """An envelope that was first seen here."""
        made = START + timedelta(seconds=lamport % 1000)
        row: Row = {
            **{"log": log, "epoch": 1, "offset": offset, "id": self.id(), "mesh": mesh},
            **{"op": "state.set", "entity": f"key {seq}", "origin": origin, "lamport": lamport},
            **{"recorded_at": made + timedelta(seconds=2), "raw": b"four", "owner": ""},
            **{"origin_epoch": 1, "seq": seq, "created_at": made, "write_class": "queued"},
            **{"state": "committed", "family": "state", "day": START.date(), "batch": 0},
            **more,
        }
        self.rows["bronze"].append(row)
        return str(row["id"])

    def again(self, log: str, offset: int, id: str, **more: Any) -> None:
        """The same envelope, seen here too."""
        place = {"log": log, "epoch": 1, "offset": offset, "id": id, "batch": 0}
        at = START + timedelta(hours=1)
        self.rows["sightings"].append({**place, "recorded_at": at, **more})

    def refuse(self, log: str, offset: int, reason: str, id: str | None = None) -> None:
        self.rows["quarantine"].append(
            {
                **{"log": log, "epoch": 1, "offset": offset},
                **{"id": self.id() if id is None else id, "batch": 0},
                **{"reason": reason, "detail": "so it is", "raw": b"?", "recorded_at": START},
            }
        )

    def own(self, mesh: str, origin: str, seqs: str, start: int = 1, **more: Any) -> list[str]:
        """A log of an origin's own, with these numbers of one mesh; stamps are ten times those."""
        return [
            self.entry(origin, start + place, mesh, origin, int(seq), 10 * int(seq), **more)
            for place, seq in enumerate(seqs.split())
        ]

    def strong(self, offset: int, mesh: str, fence: Fence | None, **more: Any) -> str:
        """A strong write in a log that is in order."""
        raw = encode(envelope("state.set", "k", write_class="strong", fence=fence))
        given = {"raw": raw, "write_class": "strong", **more}
        return self.entry(mesh, offset, mesh, mesh, offset, offset, **given)

    def event(self, offset: int, mesh: str, event: AuditRow) -> str:
        """An event of an audit stream in a log that is in order."""
        raw = rebuild_event(msgspec.structs.replace(event, lamport=offset))
        given = {"op": "audit.append", "family": "audit", "entity": event.stream, "raw": raw}
        return self.entry(mesh, offset, mesh, mesh, offset, offset, **given)

    def turn(self, task: str, lamport: int, peer: str, kind: str, event: str, **more: Any) -> str:
        row: Row = {
            **{"mesh": "tasks", "task": task, "lamport": lamport, "peer": peer, "id": self.id()},
            **{"kind": kind, "generation": 0, "event": event, "event_time": START, **more},
        }
        self.rows[EVENTS].append(row)
        return str(row["id"])

    def task(self, task: str, status: str, **more: Any) -> None:
        row = {"mesh": "tasks", "task": task, "status": status, "generation": 0, **more}
        self.rows["tasks"].append({**row, "updated_at": START})

    def reached(self) -> dict[tuple[str, int], int]:
        """How far the lake has read each log."""
        found: dict[tuple[str, int], int] = {}
        for name in ("bronze", "sightings", "quarantine"):
            for row in self.rows[name]:
                key = (row["log"], row["epoch"])
                found[key] = max(found.get(key, 0), row["offset"])
        return found | self.positions

    def lake(self, root: Path, files: int = 1) -> Lake:
        """All of it as a lake, each table in about so many files."""
        lake = Lake.open(root, create=True)
        events, tasks = lake.silver(EVENTS), lake.silver("tasks")
        tables = {"sightings": lake.sightings, "quarantine": lake.quarantine, EVENTS: events}
        for name, table in tables.items():
            table.commit(written(table, self.rows[name], files))
        made_of = fingerprint(file.path for file in lake.silver(EVENTS).files())
        tasks.commit(written(tasks, self.rows["tasks"], files), txns={EVENTS: made_of})
        lake.bronze.commit(written(lake.bronze, self.rows["bronze"], files))
        read = [
            Read(log=log, epoch=epoch, first=1, last=offset, rows=offset, batch=0)
            for (log, epoch), offset in self.reached().items()
        ]
        # As a part of a lake: nobody has counted what was read, so nothing can be lost.
        lake.reads.commit(lake.reads.stage_rows(as_rows(read)).files, txns={PART: 0})
        return lake.fresh()


def written(table: Table, rows: list[Row], files: int = 1) -> list[Any]:
    """The rows as files of a table that no commit names yet, sorted by id where they have one."""
    order = sorted(rows, key=lambda row: str(row.get("day")) + str(row.get("id")))
    if "bucket" in table.schema.names:
        order = [{**row, "bucket": crc32(row["task"].encode()) % 64} for row in order]
    writer, found = table.writer(), []
    size = max(1, -(-len(order) // files))
    for at in range(0, len(order), size):
        part = pa.Table.from_pylist(order[at : at + size], schema=arrow_schema(table.schema))
        found += writer.write([part])
    return found
