"""By this package Spark finds the format `holdfast_lake` without being told: it imports every
package whose name begins with `pyspark_`. So nothing heavy may be imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from holdfast.pipeline.frames.table_source import LakeTableSource


class DefaultSource(DataSource):
    """The format; all of it is in `holdfast.pipeline.frames.table_source`."""

    @classmethod
    def name(cls) -> str:
        return "holdfast_lake"

    def schema(self) -> StructType:
        return self._source().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._source().reader(schema)

    def _source(self) -> LakeTableSource:
        from holdfast.pipeline.frames.table_source import LakeTableSource

        return LakeTableSource(self.options)
