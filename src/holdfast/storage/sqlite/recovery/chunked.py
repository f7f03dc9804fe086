"""Rows of a damaged table, a chunk and a transaction at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw

from holdfast.rules.limits import CHUNK_ROWS
from holdfast.storage.sqlite.recovery.salvage import Salvage

Fields = dict[str, Any]


def named(found: Salvage) -> Iterator[Fields]:
    for row in found:
        yield dict(zip(found.columns, row, strict=True))


def chunks(items: Any) -> Iterator[list[Any]]:
    chunk = []
    for item in items:
        chunk.append(item)
        if len(chunk) == CHUNK_ROWS:
            yield chunk
            chunk = []
    yield chunk


@contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
