"""Entries by id, straight from the files of bronze: a repair asks for them, and starts no Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc

from holdfast.pipeline.lake.lake import Lake
from holdfast.rules.limits import CHUNK_ROWS


def find_entries(lake: Lake, ids: list[str]) -> Iterator[bytes]:
    """The bytes that a lake has under these ids. The caller checks what they are worth."""
    table = lake.bronze.delta
    if table is None:
        return
    for at in range(0, len(ids), CHUNK_ROWS):
        chosen = pc.field("id").isin(ids[at : at + CHUNK_ROWS])
        found = table.to_pyarrow_dataset().to_table(columns=["raw"], filter=chosen)
        yield from found.column("raw").to_pylist()
