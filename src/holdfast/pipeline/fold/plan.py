"""What the tasks of a fold do: which share of bronze each reads, which part of a table each makes.

Pure functions: everything follows from the files of the tables, as their commits describe them, and
from how many tasks run at the same time.

A table is made in spans of neighbouring buckets, one for each task. Where it can, a span begins
where a file of the table begins, so that a span in which nothing has changed keeps its files.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from holdfast.pipeline.fold.buckets import BUCKET, scaled
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.reader import FileReader
from holdfast.pipeline.lake.writer import FileWriter
from holdfast.rules.limits import (
    FOLD_FILE_ROWS,
    FOLD_SHARE_ROWS_MAX,
    FOLD_TASK_ROWS_MIN,
    LAKE_FILE_BYTES,
)


class HeldFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files of a table that a task merges with what is new."""

    reader: FileReader
    files: tuple[File, ...]
    buckets: int
    """How many buckets there were when these files were written."""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a table that one task makes."""

    name: str
    first: int
    """The first bucket."""
    stop: int
    """The bucket after the last."""
    buckets: int
    """How many buckets the whole table has."""
    base: HeldFiles | None = None
    """What the table holds of these buckets; None if new rows are only merged with each other."""
    increments: HeldFiles | None = None
    forced: bool = False
    """Whether its files are written again also if nothing has changed in it."""
    writer: FileWriter | None
    """None if only things are made of the turns that the table holds."""
    makes: FileWriter | None = None
    """Writes the things that the turns of the span make; None if they are not made."""


def shares_of(files: Sequence[File], parallelism: int) -> list[list[File]]:
    """The files of each task, so that all tasks have about the same number of rows. Fewer and
    larger shares let fewer rows pass.
    """
    rows = sum(file.rows for file in files)
    count = max(
        1, -(-rows // FOLD_SHARE_ROWS_MAX), min(parallelism, -(-rows // FOLD_TASK_ROWS_MIN))
    )
    shares: list[list[File]] = [[] for _ in range(count)]
    taken = [0] * count
    for file in sorted(files, key=lambda file: (-file.rows, file.path)):
        least = taken.index(min(taken))
        shares[least].append(File(path=file.path, size=file.size, rows=file.rows))
        taken[least] += file.rows
    return [share for share in shares if share]


def spans_for(rows: int, size: int, parallelism: int) -> int:
    """In how many spans a table with so many rows and bytes is made."""
    least = max(1, -(-rows // FOLD_FILE_ROWS), -(-size // LAKE_FILE_BYTES))
    return max(least, min(parallelism, -(-rows // FOLD_TASK_ROWS_MIN)))


def cuts_of(count: int, buckets: int, files: Sequence[File] = (), of: int = 0) -> list[range]:
    """So many spans of about the same number of buckets, which begin where a file of the table does
    if there is one nearby. `of`: how many buckets there were when the files were written.
    """
    begins = file_begins(files, of, buckets) if files else []
    step = buckets / count
    cuts = {0, buckets}
    for number in range(1, count):
        cut = round(number * step)
        near = [begin for begin in begins if abs(begin - cut) <= step / 2]
        cuts.add(min(near, key=lambda begin: abs(begin - cut)) if near else cut)
    ordered = sorted(cuts)
    return [range(first, stop) for first, stop in pairwise(ordered)]


def file_begins(files: Sequence[File], of: int, buckets: int) -> list[int]:
    """The buckets at which a file begins and no other goes on."""
    spans = sorted((span.start, span.stop) for span in (held_in(f, of, buckets) for f in files))
    begins, reached = [], 0
    for start, stop in spans:
        if start >= reached > 0:
            begins.append(start)
        reached = max(reached, stop)
    return begins


def held_in(file: File, of: int, buckets: int) -> range:
    """The buckets that a file may have rows of."""
    low, high = file.low.get(BUCKET), file.high.get(BUCKET)
    if low is None or high is None:
        return range(buckets)
    return scaled(range(low, high + 1), of, buckets)


def within(held: HeldFiles, span: range, buckets: int) -> HeldFiles:
    """The files that may have rows of a span."""
    files = tuple(
        File(path=file.path, size=file.size, rows=file.rows)
        for file in held.files
        if _meet(held_in(file, held.buckets, buckets), span)
    )
    return msgspec.structs.replace(held, files=files)


def is_shared(held: HeldFiles, span: range, buckets: int) -> bool:
    """Whether a file has rows of this span and of another."""
    found = (held_in(file, held.buckets, buckets) for file in held.files)
    return any(
        _meet(one, span) and (one.start < span.start or one.stop > span.stop) for one in found
    )


def _meet(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


def spans_of(
    name: str,
    count: int,
    *,
    buckets: int,
    writer: FileWriter,
    base: HeldFiles | None = None,
    increments: HeldFiles | None = None,
    makes: FileWriter | None = None,
) -> list[Span]:
    """The spans of a table. With `base` what it holds is merged with what is new."""
    if base is None:
        cuts = cuts_of(count, buckets)
    else:
        cuts = cuts_of(count, buckets, base.files, base.buckets)
    moves = base is not None and base.buckets != buckets
    # Things are made again as a whole, so all of their turns are read.
    whole = len(cuts) > 1 and (moves or makes is not None)
    return [
        Span(
            name=name,
            first=cut.start,
            stop=cut.stop,
            buckets=buckets,
            base=None if base is None else within(base, cut, buckets),
            increments=None if increments is None else within(increments, cut, buckets),
            forced=base is not None and (whole or is_shared(base, cut, buckets)),
            writer=writer,
            makes=makes,
        )
        for cut in cuts
    ]
