"""How many envelopes of bronze each table has not taken in yet. Commits are not counted here: for
the tables of turns all of them may be new.

The statistics of a file with one family and one batch say so. The rows of other files are counted
by tasks, over two narrow columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from holdfast.pipeline.fold.columns import among
from holdfast.pipeline.fold.plan import shares_of
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.reader import FileReader
from holdfast.pipeline.lake.schema import FAMILY_OF
from holdfast.pipeline.spark.workers import Workers

_FAMILY, _BATCH = "family", "batch"


def count_new(
    workers: Workers, bronze: Table, files: Sequence[File], since: Mapping[str, int]
) -> dict[str, int]:
    """By table: how many envelopes of its family these files have in batches after `since`."""
    found: Counter[str] = Counter()
    mixed: list[File] = []
    for file in files:
        family, batch = file.only(_FAMILY), file.only(_BATCH)
        if family is None or batch is None:
            mixed.append(file)
            continue
        for name, at in since.items():
            if FAMILY_OF[name] == family and batch > at:
                found[name] += file.rows
    shares = shares_of(mixed, workers.parallelism)
    count = _Count(bronze=bronze.reader(), shares=shares, since=dict(since))
    for counted in workers.run("count what is new", count, len(shares)):
        found.update(counted)
    return {name: found[name] for name in since}


class _Count(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the new rows of a share, in a task."""

    bronze: FileReader
    shares: Sequence[Sequence[File]]
    since: Mapping[str, int]

    def __call__(self, number: int) -> dict[str, int]:
        found: Counter[str] = Counter()
        for file in self.shares[number]:
            with self.bronze.open(file, [_FAMILY]) as opened:
                for at in range(opened.groups):
                    rows = opened.group(at, [_FAMILY, _BATCH])
                    batches = rows[_BATCH].to_numpy()
                    for name, since in self.since.items():
                        ours = among(rows[_FAMILY], [FAMILY_OF[name]])
                        found[name] += int(np.count_nonzero(ours & (batches > since)))
        return dict(found)
