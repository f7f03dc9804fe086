"""What of bronze makes which columns of silver.

A column of silver comes from a column of bronze, from the name of the op, or from the bytes of the
envelope (`decode.py`). This is said here once, for the tasks of a fold, which make rows by Arrow,
and for the folds of the past, which Spark makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.fold.decode import body_columns
from holdfast.pipeline.lake.reader import fitted
from holdfast.pipeline.lake.schema import FAMILY_OF, SILVER, arrow_schema
from holdfast.rules.bodies import OPS, family_of
from holdfast.rules.merge import DELETES

Flags = np.ndarray[Any, np.dtype[np.bool_]]

MADE_LIKE: Final = {"tasks": "task_events", "models": "vectors"}
"""Tables that are made of the same changes as another one."""
STRONG: Final = "strong"
"""The write class of envelopes that count by their commits only, not as bronze has them."""
_ENTITY: Final = {
    "files": "path",
    "task_events": "task",
    "facts": "subject",
    "audit_events": "stream",
}
"""By table: the column for the envelope's `entity`; `key` in the others."""
_TIME: Final = {
    "task_events": "event_time",
    **dict.fromkeys(("facts", "messages", "audit_events"), "created_at"),
}
"""By table: the column for the envelope's `created_at`; `updated_at` in the others."""


def ops_of(name: str) -> list[str]:
    """The ops that make rows of a table. Ops that this version does not know make none."""
    ops = sorted(op for op in OPS if family_of(op) == FAMILY_OF[name])
    # A deletion says nothing about the model.
    return [op for op in ops if op not in DELETES] if name == "models" else ops


def taken_from(name: str) -> dict[str, str]:
    """By column of a table: the column of bronze that it comes from."""
    if name == "models":
        return {"id": "model"}
    known = {column: column for column in ("mesh", "owner", "model", "meta", "lamport", "id")}
    known |= {_ENTITY.get(name, "key"): "entity", _TIME.get(name, "updated_at"): "created_at"}
    known["peer"] = "origin"
    return {column: known[column] for column in SILVER[name].names if column in known}


def needed_for(name: str) -> set[str]:
    """The columns of bronze that `rows_of` needs."""
    return {*taken_from(name).values(), "op", "raw"}


def rows_of(name: str, changes: pa.Table) -> pa.Table:
    """The rows that envelopes make, each by itself. Columns that only the merge fills are null."""
    found = {column: changes[source] for column, source in taken_from(name).items()}
    if name == "task_events":
        found["kind"] = _last_words(changes["op"])
    if name != "models":
        found["tombstone"] = pa.array(among(changes["op"], sorted(DELETES)))
    found |= body_columns(name, changes["raw"].combine_chunks())
    schema = arrow_schema(SILVER[name])
    known = {field.name: found[field.name] for field in schema if field.name in found}
    return fitted(pa.table(known), schema)


def among(column: pa.ChunkedArray, values: Sequence[str]) -> Flags:
    """For each row of a column of few different values: whether it has one of these."""
    wanted = pa.array(values, pa.string())
    flags: list[Flags] = [np.zeros(0, np.bool_)]
    for chunk in column.chunks:
        known = pc.is_in(chunk.dictionary, value_set=wanted).to_numpy(zero_copy_only=False)
        flags.append(known[chunk.indices.to_numpy()])
    return np.concatenate(flags)


def _last_words(ops: pa.ChunkedArray) -> pa.ChunkedArray:
    texts = ops.cast(pa.string())
    return pc.replace_substring_regex(texts, pattern=r"^.*\.", replacement="")
