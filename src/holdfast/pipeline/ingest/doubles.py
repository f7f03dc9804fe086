"""The second step of a batch: ids that several portions have.

Each portion is right by itself. If the bounds of their files show that no id can be in two of them,
they are committed as they are. Otherwise tasks take ranges of ids, read only the ids of the files
there, and find those that are there twice. The first row of each stays; of the others the task of
their portion is told, and writes that portion again without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.ingest import dedupe
from holdfast.pipeline.ingest.dedupe import Flags, JudgedPortion, Numbers
from holdfast.pipeline.ingest.divide import task_count
from holdfast.pipeline.ingest.known import file_bits, group_bits
from holdfast.pipeline.ingest.take import Portion, StagedWriters
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.id_bits import Bits, id_bits
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.reader import FileReader
from holdfast.pipeline.lake.schema import UNKNOWN_OP
from holdfast.pipeline.spark.workers import Parcel, Scattering, Workers, packed, unpacked

_WHO: Final = ("recorded_at", *dedupe.PLACE, "raw")
_LOSERS: Final = pa.schema([("file", pa.int64()), ("row", pa.int64()), ("conflict", pa.bool_())])
"""Rows of a portion that are not the first of their id: which file of it, and which row there."""


class Settled(NamedTuple):
    """Portions that have no id in common."""

    portions: list[Portion]
    replaced: list[Portion]
    """Those that were written again: their files are of no use."""


class _Suspect(msgspec.Struct, frozen=True):
    """A staged file that may share ids with another one."""

    portion: int
    number: int
    """Which of the files of its portion."""
    file: File
    low: int
    high: int


def settle(workers: Workers, lake: Lake, portions: Sequence[Portion], batch: int) -> Settled:
    """Removes the rows that are not the first of their id from the portions."""
    suspects = _suspects(portions)
    if not suspects:
        return Settled(list(portions), [])
    rows = sum(suspect.file.rows for suspect in suspects)
    cuts = _cuts(suspects, task_count(rows, workers.parallelism))
    finding = _Finding(lake.bronze.reader(), tuple(suspects), tuple(cuts))
    touched = sorted({suspect.portion for suspect in suspects})
    mending = _Mending(
        tuple(portions[number] for number in touched),
        (lake.bronze.reader(), lake.sightings.reader(), lake.quarantine.reader()),
        StagedWriters.of(lake),
        batch,
    )
    targets = {portion: at for at, portion in enumerate(touched)}

    def find(number: int) -> Scattering[None]:
        for portion, losers in finding.losers(number):
            yield Parcel(targets[portion], losers.num_rows, packed(losers))

    def mend(number: int, parcels: Sequence[Parcel]) -> Portion | None:
        if not parcels:
            return None
        losers = pa.concat_tables([unpacked(parcel.blob) for parcel in parcels])
        return mending.without(number, losers)

    done = workers.exchange("ingest: doubles", find, len(cuts) - 1, mend, len(touched))
    mended = dict(zip(touched, done.gathered, strict=True))
    return Settled(
        [mended.get(number) or portion for number, portion in enumerate(portions)],
        [portions[number] for number, portion in mended.items() if portion is not None],
    )


def _suspects(portions: Sequence[Portion]) -> list[_Suspect]:
    """The files whose ids may be in another file as well, or twice in this one."""
    files = [
        _Suspect(at, number, file, *file_bits(file))
        for at, portion in enumerate(portions)
        for number, file in enumerate(portion.bronze)
    ]
    files.sort(key=lambda one: one.low)
    found: dict[int, _Suspect] = {}
    furthest = -1
    for at, one in enumerate(files):
        if at and one.low <= files[furthest].high:
            found[furthest], found[at] = files[furthest], one
        if portions[one.portion].rivals:
            found[at] = one
        if furthest < 0 or one.high > files[furthest].high:
            furthest = at
    return [found[at] for at in sorted(found)]


def _cuts(suspects: Sequence[_Suspect], count: int) -> list[int]:
    """Bounds of `count` ranges of ids with about as many rows each: range n is [cut n, cut n + 1)
    of the first halves. Ids are taken to lie evenly between the bounds of their file.
    """
    low = np.array([one.low for one in suspects], np.float64)
    high = np.array([one.high for one in suspects], np.float64)
    rows = np.array([one.file.rows for one in suspects], np.float64)
    points = np.unique(np.concatenate([low, high]))
    width = np.maximum(high - low, 1)
    below = [float((rows * np.clip((point - low) / width, 0, 1)).sum()) for point in points]
    inner = np.interp(rows.sum() * np.arange(1, count) / count, below, points)
    least, most = min(one.low for one in suspects), max(one.high for one in suspects)
    cuts = sorted({least, *(int(cut) for cut in inner if least < int(cut) <= most), most + 1})
    return cuts


class _Finding(msgspec.Struct, frozen=True):
    """Finds the rows that are not the first of their id, by ranges of ids."""

    reader: FileReader
    suspects: tuple[_Suspect, ...]
    cuts: tuple[int, ...]

    def losers(self, number: int) -> Iterator[tuple[int, pa.Table]]:
        """By portion: the losers of a range of ids."""
        first, last, where = self._ids(self.cuts[number], self.cuts[number + 1])
        order = np.lexsort((last, first))
        repeats = dedupe.same_as_before(first[order], last[order])
        if not repeats.any():
            return
        twice = repeats.copy()
        twice[:-1] |= repeats[1:]
        chosen = order[twice]
        chosen = chosen[np.lexsort((where[chosen, 1], where[chosen, 0]))]
        rows = self._rows(where[chosen])
        order = dedupe.in_turn(rows, first[chosen], last[chosen])
        rows, chosen = rows.take(pa.array(order)).combine_chunks(), chosen[order]
        repeats = dedupe.same_as_before(first[chosen], last[chosen])
        alike = dedupe.alike_to_first(rows.column("raw").combine_chunks(), repeats)
        yield from self._parted(where[chosen[repeats]], ~alike[repeats])

    def _parted(self, where: Numbers, conflict: Flags) -> Iterator[tuple[int, pa.Table]]:
        portions = np.array([one.portion for one in self.suspects])[where[:, 0]]
        files = np.array([one.number for one in self.suspects])[where[:, 0]]
        losers = pa.Table.from_arrays([files, where[:, 1], conflict], schema=_LOSERS)
        for portion in np.unique(portions).tolist():
            yield portion, losers.filter(pa.array(portions == portion))

    def _ids(self, begin: int, end: int) -> tuple[Bits, Bits, Numbers]:
        """The ids in [begin, end), and of each the number of its file and its row there."""
        firsts, lasts = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
        places = [np.zeros((0, 2), np.int64)]
        for at, one in enumerate(self.suspects):
            if one.high < begin or one.low >= end:
                continue
            with self.reader.open(one.file) as opened:
                row = 0
                for group in range(opened.groups):
                    low, high = group_bits(opened, group)
                    count = opened.metadata.row_group(group).num_rows
                    if high >= begin and low < end:
                        first, last = id_bits(opened.group(group, ["id"]).column("id"))
                        inside = (first >= np.uint64(begin)) & (first <= np.uint64(end - 1))
                        rows = row + np.flatnonzero(inside)
                        firsts.append(first[inside])
                        lasts.append(last[inside])
                        places.append(np.column_stack([np.full(len(rows), at), rows]))
                    row += count
        return np.concatenate(firsts), np.concatenate(lasts), np.concatenate(places)

    def _rows(self, where: Numbers) -> pa.Table:
        """These rows of these files, which are sorted by file and row."""
        found: list[pa.Table] = []
        for at in np.unique(where[:, 0]).tolist():
            wanted = where[where[:, 0] == at, 1]
            with self.reader.open(self.suspects[at].file) as opened:
                begin = 0
                for group in range(opened.groups):
                    end = begin + opened.metadata.row_group(group).num_rows
                    here = wanted[(wanted >= begin) & (wanted < end)] - begin
                    if len(here):
                        found.append(opened.group(group, _WHO).take(pa.array(here)))
                    begin = end
        return pa.concat_tables(found).combine_chunks()


class _Mending(msgspec.Struct, frozen=True):
    """Writes portions again without the rows that are not the first of their id."""

    portions: tuple[Portion, ...]
    readers: tuple[FileReader, FileReader, FileReader]
    """Of bronze, sightings and quarantine."""
    writers: StagedWriters
    batch: int

    def without(self, number: int, losers: pa.Table) -> Portion:
        portion = self.portions[number]
        bronze, sightings, quarantine = self.readers
        rows = [_read(bronze, file) for file in portion.bronze]
        lost, conflict = _flags([part.num_rows for part in rows], losers)
        whole = pa.concat_tables(rows).combine_chunks()
        first, last = id_bits(whole.column("id"))
        repeats = dedupe.same_as_before(first, last)
        # The places that share the fate of a row are of the first row of its id.
        leading = whole.filter(pa.array(conflict & ~repeats))
        seen = pa.concat_tables(
            [dedupe.SIGHTINGS.empty_table()] + [_read(sightings, f) for f in portion.sightings]
        )
        aside = pa.concat_tables(
            [dedupe.QUARANTINE.empty_table()] + [_read(quarantine, f) for f in portion.quarantine]
        )
        which = pc.index_in(
            seen.column("id").combine_chunks(), value_set=leading.column("id").combine_chunks()
        )
        follows = which.is_valid()
        followers = seen.filter(follows).append_column(
            "raw", leading.column("raw").combine_chunks().take(which.drop_null())
        )
        judged = JudgedPortion(
            bronze=dedupe.as_bronze(whole.filter(pa.array(~lost)), first[~lost], self.batch),
            sightings=pa.concat_tables(
                [
                    seen.filter(pc.invert(follows)),
                    dedupe.as_sightings(whole.filter(pa.array(lost & ~conflict)), self.batch),
                ]
            ),
            quarantine=pa.concat_tables(
                [
                    _without_notes(aside, whole.filter(pa.array(lost))),
                    dedupe.as_conflicts(whole.filter(pa.array(conflict)), self.batch),
                    dedupe.as_conflicts(followers, self.batch),
                ]
            ),
            stored=dedupe.NO_PLACES,
            rivals=False,
        )
        written = self.writers.write(judged)
        kept = {key: n for key, n in portion.counts.items() if key[1] == dedupe.STORED}
        return msgspec.structs.replace(written, counts={**written.counts, **kept})


def _read(reader: FileReader, file: File) -> pa.Table:
    with reader.open(file) as opened:
        return pa.concat_tables([opened.group(group) for group in range(opened.groups)])


def _flags(rows: Sequence[int], losers: pa.Table) -> tuple[Flags, Flags]:
    """Of all rows of some files: whether they lose, and whether because of a conflict."""
    starts = np.concatenate([[0], np.cumsum(rows)])
    lost, conflict = (np.zeros(starts[-1], bool) for _ in range(2))
    at = starts[losers.column("file").to_numpy()] + losers.column("row").to_numpy()
    lost[at] = True
    conflict[at] = losers.column("conflict").to_numpy()
    return lost, conflict


def _without_notes(aside: pa.Table, lost: pa.Table) -> pa.Table:
    """Quarantine without the notes about unknown ops of rows that do not go to bronze."""
    noted = pc.equal(aside.column("reason"), UNKNOWN_OP)
    if not pc.any(noted).as_py():
        return aside
    gone = pc.is_in(_place_texts(aside), value_set=_place_texts(lost))
    return aside.filter(pc.invert(pc.and_(noted, gone)))


def _place_texts(rows: pa.Table) -> pa.Array:
    parts: Mapping[str, pa.Array] = {
        name: rows.column(name).combine_chunks().cast(pa.string()) for name in dedupe.PLACE
    }
    return pc.binary_join_element_wise(*parts.values(), "\0")
