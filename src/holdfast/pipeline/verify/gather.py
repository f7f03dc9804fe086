"""The second step: a task merges what was sent to it, looks at the rows, and compares them with
what silver has of the same buckets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic

import msgspec
import pyarrow as pa

from holdfast.pipeline.fold.gather import held_rows
from holdfast.pipeline.fold.merge import merged, turned
from holdfast.pipeline.fold.plan import HeldFiles, Span
from holdfast.pipeline.lake.schema import MAKES, SILVER, arrow_schema
from holdfast.pipeline.spark.workers import Parcel, unpacked
from holdfast.pipeline.verify.digests import L
from holdfast.pipeline.verify.silver import Gaps, compare_with_silver
from holdfast.rules.digests import TABLES
from holdfast.rules.errors import JobFailed


class VerifiedSpan(msgspec.Struct, Generic[L], frozen=True, kw_only=True):
    """What a task found."""

    look: L
    gaps: Gaps


class VerifyGather(msgspec.Struct, Generic[L], frozen=True, kw_only=True):
    """The step as an object that is sent to the tasks."""

    spans: Sequence[Span]
    """What each task makes; with files of silver if it is compared with them."""
    things: Sequence[HeldFiles | None]
    """By span: the things of silver; None if they have to be made of its turns."""
    meshes: Mapping[str, str]
    """The meshes by their tags."""
    look: L

    def __call__(self, number: int, parcels: Sequence[Parcel] = ()) -> VerifiedSpan[L]:
        if not self.spans:
            return VerifiedSpan(look=self.look.begun(), gaps={})  # only logs are looked at
        span = self.spans[number]
        parts = [unpacked(parcel.blob) for parcel in parcels]
        if sum(part.num_rows for part in parts) != sum(parcel.rows for parcel in parcels):
            raise JobFailed(f"verify {span.name}: rows came in parcels of another size")
        look = self.look.begun()
        gaps: Gaps = {}
        silver = _silver(span, self.things[number])
        for table, rows in _folded(span, parts).items():
            if table not in TABLES:
                continue  # nodes make no digests of it
            if rows.num_rows:
                look.add(table, rows)
            if silver:
                gaps |= compare_with_silver(table, silver[table], rows, self.meshes)
        return VerifiedSpan(look=look, gaps=gaps)


def _folded(span: Span, parts: Sequence[pa.Table]) -> dict[str, pa.Table]:
    """By table: the rows that these parts make together."""
    found = {span.name: _whole(span.name, merged(span.name, parts, span.buckets) if parts else ())}
    if span.name in MAKES:
        things = MAKES[span.name]
        turns = pa.concat_tables(parts) if parts else found[span.name]
        found[things] = _whole(things, turned(things, turns, span.buckets))
    return found


def _silver(span: Span, stored: HeldFiles | None) -> dict[str, pa.Table]:
    """By table: what silver has of the span; nothing if it is not asked for."""
    if span.base is None:
        return {}
    counts: Counter[str] = Counter()
    rows = held_rows(span, span.base, counts)
    waiting = held_rows(span, span.increments, counts) if span.increments is not None else []
    if waiting:
        rows = list(merged(span.name, [*rows, *waiting], span.buckets))
    found = {span.name: _whole(span.name, rows)}
    things = MAKES.get(span.name)
    if things is not None and stored is not None:
        of_things = msgspec.structs.replace(span, name=things)
        found[things] = _whole(things, held_rows(of_things, stored, counts))
    elif things is not None:
        found[things] = _whole(things, turned(things, found[span.name], span.buckets))
    return found


def _whole(table: str, parts: Iterable[pa.Table]) -> pa.Table:
    schema = arrow_schema(SILVER[table])
    found = [part.select(schema.names) for part in parts]
    return pa.concat_tables(found) if found else schema.empty_table()
