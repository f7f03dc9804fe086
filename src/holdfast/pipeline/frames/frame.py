"""What a user holds: a lake, its tables by name, and each of them as a frame of any engine.

A frame is read anew by each call, so it shows what the lake has then. `columns` and `filters` are
given to Arrow, Spark or DuckDB before they read, so that they read no more than is asked for.
Nothing here starts Spark but `spark()`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs

from holdfast.pipeline.audits import gold
from holdfast.pipeline.fold import silver
from holdfast.pipeline.fold.current import current
from holdfast.pipeline.frames.filters import Condition, column_names, expression, spark_rows
from holdfast.pipeline.frames.overlay import Overlay, over_things, overlaid, things_from
from holdfast.pipeline.lake.delta import Table
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import ABOUT, MADE_OF, SILVER, arrow_schema
from holdfast.rules.errors import NoSpark

if TYPE_CHECKING:
    import duckdb
    import pandas
    import polars
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class LakeFrames:
    """The tables of a lake, each as an attribute: `lake.state`, `lake.bronze`, …"""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    @property
    def tables(self) -> list[str]:
        return list(_tables(self.lake))

    def __getitem__(self, name: str) -> LakeFrame:
        return LakeFrame(self.lake, name, _tables(self.lake)[name])

    def __getattr__(self, name: str) -> LakeFrame:
        if name.startswith("_") or name == "lake" or name not in self.tables:
            raise AttributeError(f"a lake has no table {name!r}; `tables` lists them")
        return self[name]

    def __dir__(self) -> list[str]:
        return ["lake", "tables", *self.tables]

    def __repr__(self) -> str:
        return f"LakeFrames({self.lake.root!r})"


def read_lake(
    path: str | Path, *, create: bool = False, options: Mapping[str, str] | None = None
) -> LakeFrames:
    """The tables of the lake at a place, which is opened as by `Lake.open`.

    >>> holdfast.lake("lake", create=True)
    LakeFrames(...)
    """
    return LakeFrames(Lake.open(path, create=create, options=options))


class LakeFrame:
    """One table of a lake. The tables of the state are shown as they are now: what was folded since
    the last compaction is merged in.
    """

    def __init__(self, lake: Lake, name: str, stored: Table | None) -> None:
        self._lake = lake
        self.name = name
        self._stored = stored
        """The table itself; None for one of the state, which is made of several."""

    def __repr__(self) -> str:
        return f"LakeFrame({self.name!r}: {', '.join(self.schema.names)})"

    @property
    def schema(self) -> pa.Schema:
        return arrow_schema(self.columns)

    @property
    def columns(self) -> StructType:
        """The columns as Spark has them, with their comments."""
        return SILVER[self.name] if self._stored is None else self._stored.schema

    @property
    def about(self) -> str:
        """What a row of the table is."""
        return ABOUT[self.name] if self._stored is None else self._stored.about

    def batches(
        self, columns: Sequence[str] | None = None, filters: Sequence[Condition] = ()
    ) -> Iterator[pa.RecordBatch]:
        """The rows, batch by batch, for a table that does not fit into memory."""
        names, wanted = column_names(self.schema, columns), expression(self.schema, filters)
        base, over = self.parts()
        keys = [] if over.keys is None else over.keys.column_names
        read = list(dict.fromkeys([*names, *keys]))
        for batch in base.scanner(columns=read, filter=wanted).to_batches():
            if (shown := over.shown(batch)).num_rows:
                yield shown.select(names)
        rows = over.rows if wanted is None else over.rows.filter(wanted)
        yield from rows.select(names).to_batches()

    def arrow(
        self, columns: Sequence[str] | None = None, filters: Sequence[Condition] = ()
    ) -> pa.Table:
        names = column_names(self.schema, columns)
        schema = pa.schema([self.schema.field(name) for name in names])
        return pa.Table.from_batches(self.batches(names, filters), schema)

    def pandas(
        self, columns: Sequence[str] | None = None, filters: Sequence[Condition] = ()
    ) -> pandas.DataFrame:
        package("pandas")
        return self.arrow(columns, filters).to_pandas()

    def polars(
        self, columns: Sequence[str] | None = None, filters: Sequence[Condition] = ()
    ) -> polars.DataFrame:
        frame: polars.DataFrame = package("polars").from_arrow(self.arrow(columns, filters))
        return frame

    def duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> Any:
        """A relation, of the connection or of DuckDB's own default one. DuckDB itself decides which
        columns and rows it reads of the base.
        """
        engine = package("duckdb")
        where = engine.default_connection() if connection is None else connection
        base, over = self.parts()
        names = ", ".join(f'"{name}"' for name in self.schema.names)
        shown = where.from_arrow(base)
        if over.keys is not None:
            using = ", ".join(f'"{name}"' for name in over.keys.column_names)
            shown = shown.join(where.from_arrow(over.keys), using, how="anti")
        shown = shown.project(names)
        rows = where.from_arrow(over.rows).project(names)
        return shown.union(rows) if over.rows.num_rows else shown

    def spark(
        self,
        session: SparkSession | None = None,
        columns: Sequence[str] | None = None,
        filters: Sequence[Condition] = (),
    ) -> DataFrame:
        """A Spark frame, of this session or of the one that this process has; one is started if
        there is none.
        """
        from pyspark.sql import SparkSession as Sessions

        from holdfast.pipeline.spark.session import is_running, start

        spark = session or (Sessions.getActiveSession() if is_running() else None) or start()
        lake = self._lake.fresh()
        if self._stored is None:
            frame = current(spark, lake, self.name)
        else:
            frame = self._stored.fresh().read(spark)
        rows = spark_rows(frame, self.schema, filters)
        return rows.select(*column_names(self.schema, columns))

    def parts(self) -> tuple[ds.Dataset, Overlay]:
        """The base and what is shown over it."""
        base, over = self.stored()
        return ds.dataset(self.schema.empty_table()) if base is None else dataset(base), over

    def stored(self) -> tuple[Table | None, Overlay]:
        """The table that is the base, None if it cannot be used, and what is shown over it."""
        if self._stored is not None:
            return self._stored.fresh(), Overlay(self.schema.empty_table())
        lake = self._lake.fresh()
        if self.name in MADE_OF:
            return _things(lake, self.name)
        # Increments first: one that is merged meanwhile is then read twice, and not left out.
        new = dataset(lake.increments(self.name)).to_table()
        base = lake.silver(self.name)
        return base, overlaid(self.name, dataset(base), new)


def _tables(lake: Lake) -> dict[str, Table | None]:
    """Every table by its name; None for those of the state."""
    stored: dict[str, Table | None] = {
        "bronze": lake.bronze,
        "sightings": lake.sightings,
        "quarantine": lake.quarantine,
        "reads": lake.reads,
        "commits": lake.commits,
    }
    state: dict[str, Table | None] = dict.fromkeys(SILVER)
    return {**stored, **state, **gold.gold_tables(lake)}


def _things(lake: Lake, name: str) -> tuple[Table | None, Overlay]:
    new = dataset(lake.increments(MADE_OF[name])).to_table()
    turns, base = dataset(lake.silver(MADE_OF[name])), lake.silver(name)
    if silver.things_are_current(lake, name):
        return base, over_things(name, turns, new)
    # A job was killed after it had merged turns and before it made things of them.
    whole = LakeFrame(lake, MADE_OF[name], None).arrow()
    return None, Overlay(things_from(name, [whole]))


def dataset(table: Table) -> ds.Dataset:
    """The rows of a table for Arrow, which leaves out files by the bounds in the commits."""
    schema = arrow_schema(table.schema)
    if table.delta is None:
        return ds.dataset(schema.empty_table())
    folder = table.folder
    place = pyarrow.fs.SubTreeFileSystem(folder.base, folder.system)
    return table.delta.to_pyarrow_dataset(filesystem=place, schema=schema)


def package(name: str) -> Any:
    """A package that frames can do without; NoSpark, which names it, if it is not installed."""
    try:
        return import_module(name)
    except ImportError as missing:
        raise NoSpark(
            f"frames of {name} need a package that is not here: {missing}",
            hint=f"pip install {name}",
        ) from None
