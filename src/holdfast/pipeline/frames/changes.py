"""What has changed in a table of the state since a version of bronze that the caller had got to.

    told = changes(lake, "state", since=17)
    for batch in told.batches():
        ...                      # rows as they are now, each with its `change`
    keep(told.upto)              # the next `since`

A consumer that replaces the rows of each key by the rows that it gets here has what the table has:
from nothing (`since` of -1) or from any version that it got to, in steps of any length, and however
often it repeats a step. Deletions are rows too: tombstones. Nothing is kept for a consumer, and
vacuum and compaction do not matter: the column `batch` of bronze and commits says what came when.

A key is given if one of its envelopes came since and the key has other rows now. Of tables with one
row for each key, these are the rows whose envelope came since. Of vectors, tasks, entities and
their turns all rows of the key are given, since a late envelope may change what became of others.
A strong envelope comes with its commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.fold import silver
from holdfast.pipeline.fold.columns import ops_of
from holdfast.pipeline.fold.committed import (
    NEEDED,
    CommittedFrame,
    committed_frame,
    rows_of_commits,
)
from holdfast.pipeline.fold.current import current
from holdfast.pipeline.fold.turned import turns_table
from holdfast.pipeline.frames.frame import LakeFrame, dataset
from holdfast.pipeline.frames.overlay import places
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import COMMITTED, FAMILY_OF, KEYS, SILVER, arrow_schema
from holdfast.rules.errors import BadInput, UnknownKey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHANGE: Final = "change"
SET: Final = "set"
DELETED: Final = "deleted"
_TOMBSTONE: Final = "tombstone"
_BY_KEY: Final = {
    "vectors": {"mesh": "mesh", "owner": "owner", "key": "entity", "model": "model"},
    "models": {"id": "model"},
    "tasks": {"mesh": "mesh", "task": "entity"},
    "task_events": {"mesh": "mesh", "task": "entity"},
    "entities": {"mesh": "mesh", "type": "", "entity": ""},
    "entity_revisions": {"mesh": "mesh", "type": "", "entity": ""},
}
"""By table in which a key may have several rows, or rows of many envelopes: by column of its key,
the column of bronze. Rows of the other tables are known by the id of their envelope, and those of
entities by their commits alone."""


class TableChanges(msgspec.Struct, frozen=True):
    """The changes of one table; nothing is read before the rows are asked for."""

    lake: Lake
    table: str
    since: int
    """The version of bronze that the caller had got to; -1 for none."""
    upto: int
    """The version of bronze that these changes lead to: the next `since`. What changes while they
    are read comes with the next ones."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table, and `change`: `set` or `deleted`."""
        return arrow_schema(SILVER[self.table]).append(pa.field(CHANGE, pa.string()))

    @property
    def key(self) -> tuple[str, ...]:
        """The columns by which a consumer replaces rows."""
        return KEYS[self.table]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, batch by batch."""
        frame = LakeFrame(self.lake, self.table, None)
        if self.since < 0:
            yield from map(self._marked, frame.batches())
        elif self.since < self.upto:
            new = self._new()
            for batch in frame.batches() if new.num_rows else ():
                if len(found := places(batch, new)):
                    yield self._marked(batch.take(found))

    def arrow(self) -> pa.Table:
        return pa.Table.from_batches(self.batches(), self.schema)

    def spark(self, session: SparkSession) -> DataFrame:
        """The same as a Spark frame, which Spark itself computes."""
        from pyspark.sql import functions as F

        lake = self.lake.fresh()
        rows = current(session, lake, self.table)
        if self.since >= 0:
            known = self._known(session, lake)
            rows = rows.join(known, list(self._columns), "left_semi").select(*rows.columns)
        change = F.lit(SET)
        if _TOMBSTONE in rows.columns:
            change = F.when(F.col(_TOMBSTONE), DELETED).otherwise(SET)
        return rows.withColumn(CHANGE, change)

    def _known(self, session: SparkSession, lake: Lake) -> DataFrame:
        """What is known of the envelopes that came since, by Spark."""
        from pyspark.sql import functions as F

        def came(table: Table) -> DataFrame:
            files = table.files(lambda file: file.may_hold("batch", self.since + 1, self.upto))
            new = F.col("batch").between(self.since + 1, self.upto)
            return table.read_files(session, files).where(new)

        turns, names = turns_table(self.table), list(self._columns)
        lost = lake.known_commits.lost
        found = (
            committed_frame(turns, CommittedFrame(came(lake.commits), lost))
            if turns in COMMITTED
            else None
        )
        if found is not None and not ops_of(self.table):
            return found.select(*names)
        new = came(lake.bronze).where(F.col("family") == self._of)
        known = new.select(*(F.col(of).alias(name) for name, of in self._columns.items()))
        return known if found is None else known.unionByName(found.select(*names))

    @property
    def _of(self) -> str:
        return FAMILY_OF[self.table]

    @property
    def _columns(self) -> dict[str, str]:
        """The columns by which rows are known to have changed, with the columns of bronze."""
        return _BY_KEY.get(self.table, {"id": "id"})

    def _new(self) -> pa.Table:
        """What is known of the envelopes that came since, each key once."""
        came = pc.field("batch") > self.since
        came &= pc.field("batch") <= self.upto
        names, lake = list(self._columns), self.lake.fresh()
        parts: list[pa.Table] = []
        if ops_of(self.table):
            bronze = dataset(lake.bronze)
            ours = came & (pc.field("family") == self._of)
            found = bronze.to_table(columns=list(self._columns.values()), filter=ours)
            parts.append(found.rename_columns(names))
        if (turns := turns_table(self.table)) in COMMITTED:
            made = dataset(lake.commits).to_table(columns=list(NEEDED), filter=came)
            empty = arrow_schema(SILVER[turns]).empty_table()
            parts.append(
                rows_of_commits(made, lake.known_commits.lost).get(turns, empty).select(names)
            )
        return pa.concat_tables(parts).group_by(names).aggregate([])

    def _marked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if _TOMBSTONE in batch.schema.names:
            change = pc.if_else(batch[_TOMBSTONE], DELETED, SET)
        else:
            change = pa.repeat(SET, batch.num_rows)
        return pa.RecordBatch.from_arrays([*batch.columns, change], schema=self.schema)


def changes(lake: Lake, table: str, since: int = -1) -> TableChanges:
    """What has changed in a table of the state since a version of bronze; all of it without one."""
    if table not in SILVER:
        raise UnknownKey(f"the state has no table {table!r}", hint=f"use: {', '.join(SILVER)}")
    lake = lake.fresh()
    upto = silver.position(lake, turns_table(table))
    if since > upto:
        raise BadInput(
            f"{table} has taken in bronze up to version {upto}; nobody can have got to {since}",
            hint="this is another lake, or it was set back: begin again with -1",
        )
    return TableChanges(lake, table, max(since, -1), upto)


def change_documents(told: TableChanges) -> Iterator[dict[str, Any]]:
    """The changes as plain rows."""
    for batch in told.batches():
        yield from batch.to_pylist()
