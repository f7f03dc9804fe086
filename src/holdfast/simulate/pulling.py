"""How nodes of a simulated world learn of each other's changes.

A reader asks with the cursor that it keeps in its own database; the source takes that as the
confirmation of everything before it and sends the next piece of its log, with the content of files
that its entries name. The reader stores the content, applies the entries, and only then moves the
cursor: whatever dies in between, the same piece comes again and nothing is skipped.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.node.intake import Applied
from holdfast.node.node import Node
from holdfast.rules.bodies import FileShare, decode_trusted_body
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.rows import Entry, JobRow
from holdfast.storage.ports import Reader, Transaction

BATCH_ENTRIES_MAX: Final = 8


class Cursor(NamedTuple):
    """How far one node has read the log of another."""

    epoch: int
    offset: int


class Batch(NamedTuple):
    """A piece of a log on its way, with the content that its entries name."""

    epoch: int
    start: int
    entries: tuple[Entry, ...]
    blobs: tuple[bytes, ...]
    more: bool


def take_in(node: Node, source: str, batch: Batch) -> tuple[list[Applied], bool]:
    """What a node does with a piece of another's log: content, entries, then the cursor."""
    for content in batch.blobs:
        node.receive_blob(content)
    applied = node.apply(entry.raw for entry in batch.entries)
    return applied, move_cursor(node, source, batch)


def move_cursor(node: Node, source: str, batch: Batch) -> bool:
    """Past the batch, unless there is a hole before it or it is old news."""
    end = batch.start + len(batch.entries) - 1

    def work(tx: Transaction) -> bool:
        known = _read_cursor(tx, source)
        if known.epoch != batch.epoch:
            known = Cursor(batch.epoch, 0)
        moves = known.offset + 1 >= batch.start and end > known.offset
        if moves:
            cursor = {"epoch": batch.epoch, "offset": end}
            tx.job_put(JobRow(name=f"pull {source}", cursor=cursor, updated_at=0))
        return moves

    return node._core.write("cursor", work)


def cursor_of(node: Node, source: str) -> Cursor:
    return node._core.read("cursor", lambda tx: _read_cursor(tx, source))


def _read_cursor(tx: Reader, source: str) -> Cursor:
    job = tx.job_get(f"pull {source}")
    return Cursor(1, 0) if job is None else Cursor(job.cursor["epoch"], job.cursor["offset"])


def batch_for(node: Node, reader: str, cursor: Cursor) -> Batch:
    """The next piece of a node's log for a reader, which has safely stored all before it."""
    head = node.log.head()
    if cursor.epoch != head.epoch:
        cursor = Cursor(head.epoch, 0)
    elif cursor.offset > _confirmed(node, reader):
        node.log.confirm(reader, cursor.offset)
    end = min(cursor.offset + BATCH_ENTRIES_MAX, head.offset)
    start = cursor.offset + 1
    entries = tuple(node.log.range(start, end + 1)) if end >= start else ()
    blobs = tuple(content for entry in entries if (content := _content(node, entry)) is not None)
    return Batch(head.epoch, start, entries, blobs, end < head.offset)


def _confirmed(node: Node, reader: str) -> int:
    return next(row.frontier for row in node.log.consumers() if row.name == reader)


def _content(node: Node, entry: Entry) -> bytes | None:
    """What an entry names and does not carry, if it is here."""
    body = decode_trusted_body(decode_trusted(entry.raw))
    if not isinstance(body, FileShare) or body.content is not None:
        return None
    sha = body.sha256.hex()
    return node._core.blobs.read(sha) if node._core.blobs.exists(sha) else None


def missing_content(node: Node, mesh: str) -> list[str]:
    return [f"{info.peer}/{info.path}" for info in node.mesh(mesh).files.list() if not info.here]
