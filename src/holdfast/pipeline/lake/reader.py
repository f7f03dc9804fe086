"""Files of a table, read by Arrow in the task that needs the rows.

Other engines may rewrite the files of a table, as when somebody optimises it. They then write the
same values in other types (`large_string`, `string_view`, times with other units, columns that
cannot be null). What is read here always has the types of the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.folder import Folder
from holdfast.rules.errors import StoreCorrupt


class FileReader(msgspec.Struct, frozen=True, kw_only=True):
    """Reads files of one table; Spark sends it to the tasks."""

    root: str
    options: Mapping[str, str] | None = None
    schema: pa.Schema
    """The columns that the files hold."""

    def empty(self, columns: Sequence[str]) -> pa.Table:
        """These columns without a row."""
        return pa.schema([self.schema.field(name) for name in columns]).empty_table()

    @contextmanager
    def open(self, file: File, dictionaries: Sequence[str] = ()) -> Iterator[OpenedFile]:
        """A file of the table. Columns in `dictionaries` are read as dictionaries. StoreCorrupt if
        the file is gone, damaged, or not as long as the commit says.
        """
        folder = Folder(self.root, self.options)
        try:
            with folder.system.open_input_file(folder.path(file.path)) as source:
                opened = pq.ParquetFile(source, read_dictionary=list(dictionaries))
                if opened.metadata.num_rows != file.rows:
                    raise StoreCorrupt(
                        f"{self.root}/{file.path} has {opened.metadata.num_rows} rows where its "
                        f"commit says {file.rows}",
                        hint="put the file back from a copy of the lake",
                    )
                yield OpenedFile(opened, self.schema, dictionaries)
        except (OSError, pa.ArrowInvalid) as error:
            raise StoreCorrupt(
                f"{self.root}/{file.path} cannot be read: {error}",
                hint="put the file back from a copy of the lake",
            ) from error


class OpenedFile:
    """A file that is open."""

    def __init__(
        self, file: pq.ParquetFile, schema: pa.Schema, dictionaries: Sequence[str] = ()
    ) -> None:
        self.metadata = file.metadata
        self._file = file
        self._schema = schema
        self._dictionaries = frozenset(dictionaries)

    @property
    def groups(self) -> int:
        return int(self.metadata.num_row_groups)

    def group(self, number: int, columns: Sequence[str] | None = None) -> pa.Table:
        """A row group, or some columns of it."""
        names = self._names(columns)
        rows = self._file.read_row_group(number, columns=self._held(names), use_threads=False)
        return fitted(rows, self._wanted(names))

    def batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        groups: Sequence[int] | None = None,
        rows: int,
    ) -> Iterator[pa.Table]:
        """Some or all row groups, with at most so many rows at once."""
        names = self._names(columns)
        chosen = list(range(self.groups)) if groups is None else list(groups)
        for batch in self._file.iter_batches(
            rows, row_groups=chosen, columns=self._held(names), use_threads=False
        ):
            yield fitted(pa.Table.from_batches([batch]), self._wanted(names))

    def _names(self, columns: Sequence[str] | None) -> list[str]:
        return self._schema.names if columns is None else list(columns)

    def _held(self, names: Sequence[str]) -> list[str]:
        there = set(self.metadata.schema.to_arrow_schema().names)
        return [name for name in names if name in there]

    def _wanted(self, names: Sequence[str]) -> pa.Schema:
        fields = (self._schema.field(name) for name in names)
        return pa.schema(
            [
                f.with_type(pa.dictionary(pa.int32(), f.type))
                if f.name in self._dictionaries
                else f
                for f in fields
            ]
        )


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with exactly these columns. One that the rows do not have is null."""
    if rows.schema.equals(schema):
        return rows
    columns = []
    for field in schema:
        at = rows.schema.get_field_index(field.name)
        if at < 0:
            columns.append(pa.nulls(rows.num_rows, field.type))
        elif rows.schema.field(at).type == field.type:
            columns.append(rows.column(at))
        else:
            columns.append(rows.column(at).cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)
