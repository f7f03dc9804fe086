"""Random rows of every table that has digests, as a node keeps them."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from holdfast.rules.digests import MeshEntity
from holdfast.rules.order import Version
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.view import EntityRow
from holdfast.rules.rows import (
    Entry,
    FileRow,
    MemoryRow,
    StateRow,
    TaskEventRow,
    TaskRow,
    VectorRow,
)
from holdfast.rules.tasks import TaskStatus

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
LONGS = st.integers(0, 2**63 - 2)
TIMES = st.integers(0, 253_402_300_799_999)
"""Up to the end of the year 9999."""
IDS = st.binary(min_size=16, max_size=16)
VERSIONS = st.builds(Version, LONGS, TEXTS, IDS)
STAMP: dict[str, Any] = {
    "mesh": TEXTS,
    "lamport": LONGS,
    "peer": TEXTS,
    "id": IDS,
    "offset": LONGS,
    "updated_at": TIMES,
    "tombstone": st.booleans(),
}
JSON = TEXTS.map(msgspec.json.encode)

ROWS: dict[str, st.SearchStrategy[Any]] = {
    "state": st.builds(StateRow, key=TEXTS, value=JSON, **STAMP),
    "memory": st.builds(
        MemoryRow, owner=TEXTS, key=TEXTS, value=JSON, tags=st.lists(TEXTS).map(tuple), **STAMP
    ),
    "files": st.builds(
        FileRow,
        owner=TEXTS,
        path=TEXTS,
        sha256=TEXTS,
        size=LONGS,
        content=st.none() | st.binary(max_size=4),
        **STAMP,
    ),
    "vectors": st.builds(
        VectorRow,
        owner=TEXTS,
        key=TEXTS,
        model=TEXTS,
        content=TEXTS,
        metadata=JSON,
        embedding=st.binary(max_size=8),
        live=st.booleans(),
        **STAMP,
    ),
    "tasks": st.builds(
        TaskRow,
        mesh=TEXTS,
        task=TEXTS,
        known=st.booleans(),
        title=TEXTS,
        description=TEXTS,
        created_by=TEXTS,
        created_at=TIMES,
        status=st.sampled_from(TaskStatus),
        generation=LONGS,
        holder=st.none() | VERSIONS,
        claimed_at=st.none() | TIMES,
        ended=st.none() | VERSIONS,
        ended_at=st.none() | TIMES,
        last=VERSIONS,
        offset=LONGS,
        updated_at=TIMES,
    ),
    "task_events": st.builds(
        TaskEventRow,
        mesh=TEXTS,
        task=TEXTS,
        version=VERSIONS,
        kind=TEXTS,
        generation=LONGS,
        event=TEXTS,
        event_time=TIMES,
        applied_at=LONGS,
        against=st.none() | VERSIONS,
        title=TEXTS,
        description=TEXTS,
    ),
    "entities": st.builds(
        MeshEntity,
        TEXTS,
        st.builds(
            EntityRow,
            type=TEXTS,
            id=TEXTS,
            revision=LONGS,
            fields=JSON,
            parent=TEXTS,
            deleted=st.booleans(),
            whole=st.booleans(),
            origin=TEXTS,
            lamport=LONGS,
            fence=st.builds(FenceToken, LONGS, LONGS, TEXTS, LONGS),
            committed_at=TIMES,
        ),
    ),
    "log": st.builds(
        Entry, LONGS, IDS, TEXTS, TEXTS, TEXTS, TEXTS, LONGS, LONGS, st.binary(max_size=8)
    ),
}
