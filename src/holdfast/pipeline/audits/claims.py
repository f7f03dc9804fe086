"""Whether a task was in two hands.

The fold gives each generation of a task to one claim and lets one turn end it. Silver that says
otherwise is a finding. Two peers that claim a task while they cannot reach each other both work on
it until they meet, and then the lower stamp wins: that is how Holdfast works without a quorum. It
is reported as a notice, because the work of one of them was for nothing.

The tables `tasks` and `task_events` are read as they are now: tasks with turns that wait as an
increment are folded again, and so are all tasks if a job was killed before it made them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.audits.arrays import Numbers, coded, millis, numbered, rows_at
from holdfast.pipeline.audits.parcels import by_kind, parcels_of, targets_of
from holdfast.pipeline.audits.shape import FINDING, NOTICE, Audit, Found, FoundRow, found
from holdfast.pipeline.fold.silver import EVENTS, things_are_current
from holdfast.pipeline.fold.tasks import TURN, fold_turns
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.reader import FileReader
from holdfast.pipeline.lake.schema import KEYS, SILVER, arrow_schema
from holdfast.pipeline.spark.workers import Parcel, Scattering, Workers
from holdfast.rules.limits import AUDIT_SHARE_ROWS
from holdfast.rules.order import ORDER_COLUMNS
from holdfast.rules.tasks import TaskEvent, TaskStatus

_TASKS: Final = "tasks"
_NEW: Final = "new"
_ENDS: Final = (TaskEvent.COMPLETED.value, TaskEvent.CANCELLED.value)
_COLUMNS: Final = {
    EVENTS: (*TURN, "event", "against_peer", "against_id"),
    _TASKS: ("mesh", "task", "status", "holder_id", "holder_peer", "ended_id", "updated_at"),
}
_WANTED: Final = {
    name: pa.schema([arrow_schema(SILVER[name]).field(column) for column in columns])
    for name, columns in _COLUMNS.items()
}


class ClaimsJob(msgspec.Struct, frozen=True, kw_only=True):
    """The audit as an object that Spark sends to the tasks."""

    files: Sequence[tuple[str, File]]
    """Files with what they hold: events, new events, or tasks."""
    readers: Mapping[str, FileReader]
    stale: bool
    """Whether the table `tasks` was not made of the events that are there."""
    gathers: int

    def scatter(self, number: int) -> Scattering[int]:
        kind, file = self.files[number]
        columns = _COLUMNS[_TASKS if kind == _TASKS else EVENTS]
        with self.readers[kind].open(file) as opened:
            for group in range(opened.groups):
                rows = opened.group(group, columns)
                yield from parcels_of(kind, rows, targets_of(rows["task"], self.gathers))
        return file.rows

    def gather(self, target: int, parcels: Sequence[Parcel]) -> list[Found]:
        tables = by_kind(parcels)
        events, new = (tables.get(kind, _WANTED[EVENTS].empty_table()) for kind in (EVENTS, _NEW))
        tasks = tables.get(_TASKS, _WANTED[_TASKS].empty_table())
        return judge_claims(*as_now(tasks, events, new, stale=self.stale))


def audit_claims(workers: Workers, lake: Lake) -> tuple[list[Found], int]:
    """What the audit finds, and how many rows it has looked at."""
    # Increments first: one that is merged meanwhile is then read twice, and not left out.
    new, events, tasks = lake.increments(EVENTS), lake.silver(EVENTS), lake.silver(_TASKS)
    tables: dict[str, Table] = {_NEW: new, EVENTS: events, _TASKS: tasks}
    files = [
        (kind, File(path=file.path, size=file.size, rows=file.rows))
        for kind, table in tables.items()
        for file in table.files()
    ]
    rows = sum(file.rows for _, file in files)
    job = ClaimsJob(
        files=files,
        readers={kind: table.reader() for kind, table in tables.items()},
        stale=not things_are_current(lake, _TASKS),
        gathers=1 + rows // AUDIT_SHARE_ROWS,
    )
    done = workers.exchange("audit claims", job.scatter, len(files), job.gather, job.gathers)
    return [part for parts in done.gathered for part in parts], rows


def as_now(
    tasks: pa.Table, events: pa.Table, new: pa.Table, *, stale: bool
) -> tuple[pa.Table, pa.Table]:
    """Tasks and events as they are now, of the tables as they are stored."""
    if not new.num_rows and not stale:
        return tasks, events
    all_events = pa.concat_tables([events, new])
    touched = pc.unique(_names(new))
    if stale:
        touched = pc.unique(_names(all_events))
    again = pc.is_in(_names(all_events), value_set=touched)
    made, judged = _refolded(all_events.filter(again))
    left = tasks.filter(pc.invert(pc.is_in(_names(tasks), value_set=touched)))
    if stale:
        left = left.slice(0, 0)
    return (
        pa.concat_tables([left, made]),
        pa.concat_tables([all_events.filter(pc.invert(again)), judged]),
    )


def _names(rows: pa.Table) -> pa.Array:
    """The tasks as one text each."""
    joined = pc.binary_join_element_wise(rows["mesh"], rows["task"], "\0")
    return joined.combine_chunks()


def _refolded(turns: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The tasks and events that these turns make."""
    order = [(name, "ascending") for name in (*KEYS[_TASKS], *ORDER_COLUMNS)]
    batches = turns.select(TURN).sort_by(order).to_batches()
    made, judged = (
        pa.Table.from_batches(fold_turns(name, iter(batches)), arrow_schema(SILVER[name]))
        for name in (_TASKS, EVENTS)
    )
    return made.select(_COLUMNS[_TASKS]), judged.select(_COLUMNS[EVENTS])


# --- what is wrong -------------------------------------------------------------------------------


def judge_claims(tasks: pa.Table, events: pa.Table) -> list[Found]:
    (kinds,), names = coded(events["event"])
    places = {name: number for number, name in enumerate(names)}
    claimed = np.flatnonzero(kinds == places.get(TaskEvent.CLAIMED.value, -2))
    ended = np.flatnonzero(np.isin(kinds, [places[end] for end in _ENDS if end in places]))
    return [
        *_too_often(
            events,
            claimed,
            ("mesh", "task", "generation"),
            "generation {generation} was given to {times} claims",
        ),
        *_too_often(events, ended, ("mesh", "task"), "the task ended {times} times"),
        *_unlike_events(tasks, events),
        *_superseded(events, claimed, kinds == places.get(TaskEvent.SUPERSEDED.value, -2)),
    ]


def _too_often(events: pa.Table, chosen: Numbers, of: Sequence[str], detail: str) -> list[Found]:
    """Events of which there may be one."""
    rows = events.take(pa.array(chosen))
    number = numbered(*(_texts(rows, name) for name in of))
    times = np.bincount(number)[number] if len(number) else number
    wrong = np.flatnonzero(times > 1)

    def said(row: Mapping[str, Any], at: int) -> str:
        return detail.format(times=times[at], **row)

    return _of_events(rows, wrong, times[wrong], FINDING, said)


def _unlike_events(tasks: pa.Table, events: pa.Table) -> list[Found]:
    """Tasks whose holder or end is not the one in their events."""
    named = tasks.filter(pc.not_equal(tasks["status"], TaskStatus.OPEN.value))
    claimed = pc.equal(named["status"], TaskStatus.CLAIMED.value)
    event = pc.if_else(claimed, TaskEvent.CLAIMED.value, named["status"])
    id = pc.if_else(claimed, named["holder_id"], named["ended_id"])
    both = numbered(
        *(
            pa.chunked_array([*ours.chunks, *events[name].chunks], pa.string())
            for name, ours in (
                ("mesh", named["mesh"]),
                ("task", named["task"]),
                ("event", event),
                ("id", id),
            )
        )
    )
    wrong = np.flatnonzero(~np.isin(both[: named.num_rows], both[named.num_rows :]))
    told = pa.table({"event": event, "id": id})

    def rows_of(places: Sequence[int]) -> Iterable[FoundRow]:
        at = wrong[places]
        for row, said in zip(rows_at(named, at), rows_at(told, at), strict=True):
            id = "?" if said["id"] is None else said["id"]
            yield FoundRow(
                weight=1,
                mesh=row["mesh"],
                entity=row["task"],
                origin=row["holder_peer"],
                id=said["id"],
                at=row["updated_at"],
                detail=f"the task is {said['event']} by {id}, and its events do not say so",
            )

    ones, times = np.ones(len(wrong), np.int64), millis(named["updated_at"])[wrong]
    return found(CLAIMS.name, FINDING, ones, times, rows_of)


def _superseded(
    events: pa.Table, claimed: Numbers, superseded: np.ndarray[Any, np.dtype[np.bool_]]
) -> list[Found]:
    """Claims that lost against another of the same generation."""
    claims = pc.equal(events["kind"], "claim").to_numpy()
    lost = events.take(pa.array(np.flatnonzero(superseded & claims)))
    winners = events.take(pa.array(claimed))
    both = numbered(
        *(
            pa.chunked_array(
                [*_texts(lost, ours).chunks, *_texts(winners, theirs).chunks], pa.string()
            )
            for ours, theirs in (
                ("mesh", "mesh"),
                ("task", "task"),
                ("generation", "generation"),
                ("against_id", "id"),
            )
        )
    )
    vain = np.flatnonzero(np.isin(both[: lost.num_rows], both[lost.num_rows :]))

    def said(row: Mapping[str, Any], at: int) -> str:
        return (
            f"generation {row['generation']} was claimed by {row['against_peer']} too, whose stamp "
            "is lower"
        )

    return _of_events(lost, vain, np.ones(len(vain), np.int64), NOTICE, said)


def _texts(rows: pa.Table, name: str) -> pa.ChunkedArray:
    return rows[name].cast(pa.string())


def _of_events(
    rows: pa.Table, chosen: Numbers, weights: Numbers, severity: str, said: Any
) -> list[Found]:
    times = millis(rows["event_time"])[chosen]
    make = partial(_event_rows, rows, chosen, weights, said)
    return found(CLAIMS.name, severity, weights, times, make)


def _event_rows(
    rows: pa.Table, chosen: Numbers, weights: Numbers, said: Any, places: Sequence[int]
) -> Iterable[FoundRow]:
    at = chosen[places]
    for row, place, weight in zip(
        rows_at(rows, at), at.tolist(), weights[places].tolist(), strict=True
    ):
        yield FoundRow(
            weight=weight,
            mesh=row["mesh"],
            entity=row["task"],
            origin=row["peer"],
            id=row["id"],
            at=row["event_time"],
            detail=said(row, place),
        )


CLAIMS: Final = Audit("claims", "tasks in two hands, or ended twice", "how many claims or ends")
