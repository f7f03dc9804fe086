"""Whether the chains of audit streams hold: no event is missing, and each binds to the one before.

A chain is the events of one origin in one stream and one epoch of its log. Numbers, hashes and what
binds an event to the last stand in its body alone, so the bytes of audit events, and of no others,
are decoded. An event that is missing may still be on its way, or was truncated before the lake read
it: that is a notice. Two events in one place, or one that does not follow the last, is a finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from holdfast.pipeline.audits.arrays import Flags, Numbers, coded, ints, millis, rows_at, whole
from holdfast.pipeline.audits.shape import FINDING, NOTICE, PLACE, Audit, Found, FoundRow, found
from holdfast.rules.audit_chain import BEFORE_ALL, is_whole
from holdfast.rules.bodies import AuditAppend, decode_trusted_body
from holdfast.rules.envelope import decode_trusted

COLUMNS: Final = (*PLACE, "mesh", "origin", "entity", "id", "created_at")
CHAINED: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("log", "mesh", "origin", "entity", "id")),
        *((name, pa.int64()) for name in ("epoch", "offset", "chain_epoch", "number")),
        *((name, pa.string()) for name in ("previous", "hash")),
        ("whole", pa.bool_()),
        ("created_at", pa.timestamp("us", "UTC")),
    ]
)
_APPEND: Final = "audit.append"


def is_event(rows: pa.Table) -> Flags:
    """Which rows are events of audit streams."""
    (numbers,), names = coded(rows["op"])
    events: Flags = numbers == (names.index(_APPEND) if _APPEND in names else -2)
    return events


def open_events(rows: pa.Table) -> pa.Table:
    """The events among the rows, with what chains them as columns."""
    kept = rows.filter(pa.array(is_event(rows)))
    events = []
    for raw in kept["raw"].to_pylist():
        envelope = decode_trusted(raw)
        body = decode_trusted_body(envelope)
        assert isinstance(body, AuditAppend), "audit.append has this body"
        events.append(body.event(envelope))
    parts = {name: whole(kept[name]).cast(CHAINED.field(name).type) for name in COLUMNS}
    parts["chain_epoch"] = pa.array([event.epoch for event in events], pa.int64())
    parts["number"] = pa.array([event.seq for event in events], pa.int64())
    parts["previous"] = pa.array([event.previous.hex() for event in events], pa.string())
    parts["hash"] = pa.array([event.hash.hex() for event in events], pa.string())
    parts["whole"] = pa.array([is_whole(event) for event in events], pa.bool_())
    return pa.table({name: parts[name] for name in CHAINED.names}, schema=CHAINED)


def judge_chains(rows: pa.Table) -> list[Found]:
    """All audit events of some meshes."""
    chains = [coded(rows[name])[0][0] for name in ("mesh", "entity", "origin")]
    epochs, numbers = ints(rows["chain_epoch"]), ints(rows["number"])
    order = np.lexsort((numbers, epochs, *chains[::-1]))
    first = np.ones(len(order), np.bool_)
    for column in (*chains, epochs):
        first[1:] &= column[order][1:] == column[order][:-1]
    first[1:] = ~first[1:]
    at = numbers[order]
    before = np.where(first, 0, np.concatenate(([0], at[:-1])))
    hashes = np.array(rows["hash"].to_pylist(), object)[order]
    previous = np.array(rows["previous"].to_pylist(), object)[order]
    sound = np.array(rows["whole"].to_pylist(), np.bool_)[order]
    bound = np.concatenate(([BEFORE_ALL.hex()], hashes[:-1])) if len(order) else hashes
    twice = ~first & (at == before)
    torn = ~first & (at == before + 1) & (previous != bound)
    missing = np.maximum(at - before - 1, 0)
    made = millis(rows["created_at"])[order]

    def told(wrong: Flags, weights: Numbers, severity: str) -> list[Found]:
        places = np.flatnonzero(wrong)

        def rows_of(chosen: Sequence[int]) -> Iterable[FoundRow]:
            picked = places[chosen]
            for row, place in zip(rows_at(rows, order[picked]), picked.tolist(), strict=True):
                known = {name: row[name] for name in COLUMNS if name != "created_at"}
                detail = _detail(
                    row["number"],
                    int(before[place]),
                    row["hash"],
                    twice[place],
                    torn[place],
                    sound[place],
                )
                yield FoundRow(
                    weight=int(weights[place]), detail=detail, at=row["created_at"], **known
                )

        return found(CHAINS.name, severity, weights[places], made[places], rows_of)

    ones = np.ones(len(order), np.int64)
    return told(twice | torn | ~sound, ones, FINDING) + told(missing > 0, missing, NOTICE)


def _detail(number: int, before: int, hash: str, twice: bool, torn: bool, sound: bool) -> str:
    if not sound:
        return f"event {number} does not hash to what it bears, {hash}"
    if twice:
        return f"two events have the number {number}; one of them has the hash {hash}"
    if torn:
        return f"event {number} does not bind to event {before}"
    return f"the events {before + 1} to {number - 1} are missing before event {number}"


CHAINS: Final = Audit(
    "audit_chains", "chains of audit streams that are torn, forked or have gaps", "missing events"
)
