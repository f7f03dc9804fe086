"""Who carries out the tasks of a job: the executors of Spark, or the driver itself.

A job of the pipeline is a function that is called with the number of each task and returns a small
report. Spark decides where each call runs, repeats it if an executor is lost, and moves rows
between tasks where that is needed. The driver gets the reports and commits.

    reports = workers.run("ingest", work, 8)
    done = workers.exchange("fold", scatter, 8, gather, 4)

`SparkWorkers` (in `spark_workers.py`) runs the calls on a cluster or on the cores of this machine.
`DriverWorkers` runs the same functions in this process: for little work that is much faster than to
start Spark.

A task may run twice, at the same time even. So what a task writes must have a name that no other
attempt uses, and only what its report names counts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

S = TypeVar("S")
T = TypeVar("T")


class Parcel(NamedTuple):
    """Rows on their way from one task to another."""

    target: int
    """The number of the task that gets them."""
    rows: int
    blob: bytes | pa.Buffer
    """The rows in a form that both tasks know, as of `packed`."""


Scattering = Generator[Parcel, None, S]
"""What a task sends, one parcel after another; it returns the task's report."""


@dataclass(frozen=True)
class Exchanged(Generic[S, T]):
    """The reports of both steps of an exchange, in the order of the tasks."""

    scattered: list[S]
    gathered: list[T]


class Workers(Protocol):
    """Runs tasks. Errors of the tasks are raised as errors of ours."""

    @property
    def parallelism(self) -> int:
        """How many tasks run at the same time."""

    def run(self, what: str, work: Callable[[int], T], count: int) -> list[T]:
        """Calls `work` with every number below `count`, each in a task of its own; returns what the
        calls return, in that order. `what` is the name of the job that people see.
        """

    def exchange(
        self,
        what: str,
        scatter: Callable[[int], Scattering[S]],
        scatters: int,
        gather: Callable[[int, Sequence[Parcel]], T],
        gathers: int,
    ) -> Exchanged[S, T]:
        """Calls `scatter` with every number below `scatters`, then `gather` with every number below
        `gathers` and all parcels for it, in any order. Raises JobFailed if a row that was sent has
        not arrived.
        """


class DriverWorkers:
    """Runs all tasks in this process, one after another."""

    @property
    def parallelism(self) -> int:
        return 1

    def run(self, what: str, work: Callable[[int], T], count: int) -> list[T]:
        return [work(number) for number in range(count)]

    def exchange(
        self,
        what: str,
        scatter: Callable[[int], Scattering[S]],
        scatters: int,
        gather: Callable[[int, Sequence[Parcel]], T],
        gathers: int,
    ) -> Exchanged[S, T]:
        waiting: list[list[Parcel]] = [[] for _ in range(gathers)]
        scattered = [_drained(scatter(number), waiting) for number in range(scatters)]
        return Exchanged(scattered, [gather(at, waiting[at]) for at in range(gathers)])


def _drained(parcels: Scattering[S], waiting: Sequence[list[Parcel]]) -> S:
    """Puts the parcels of a task where their targets find them; returns the task's report."""
    while True:
        try:
            parcel = next(parcels)
        except StopIteration as end:
            report: S = end.value
            return report
        waiting[parcel.target].append(parcel)


def packed(rows: pa.RecordBatch | pa.Table) -> pa.Buffer:
    """Rows as the blob of a parcel."""
    measure = pa.MockOutputStream()
    _write(rows, measure)
    # As large as it has to be: a buffer that grows is copied again and again.
    blob = pa.allocate_buffer(measure.size())
    _write(rows, pa.FixedSizeBufferWriter(blob))
    return blob


def _write(rows: pa.RecordBatch | pa.Table, sink: pa.NativeFile) -> None:
    with pa.ipc.new_stream(sink, rows.schema) as out:
        out.write(rows)


def unpacked(blob: bytes | pa.Buffer) -> pa.Table:
    """The rows in the blob of a parcel; they are not copied."""
    return pa.ipc.open_stream(blob).read_all()
