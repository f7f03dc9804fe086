"""One run of a job, as a catalog of lineage sees it: it began, and it was completed, failed or was
stopped.

A catalog that does not answer must not stop the work. What could not be told is given to `warn`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final
from uuid import uuid4

from holdfast.pipeline.lineage.events import Document, RunState, run_event
from holdfast.pipeline.lineage.outlet import Lineage
from holdfast.rules.errors import HoldfastError

_ENGINE: Final = "spark"

Warn = Callable[[str], None]


@dataclass
class JobRun:
    """What the job has read and written so far; the job itself fills it in."""

    inputs: Sequence[Document] = ()
    outputs: Sequence[Document] = ()
    problems: list[str] = field(default_factory=list)
    """What went wrong without ending the job; it has failed if there is anything."""


@contextmanager
def followed(
    lineage: Lineage | None,
    job: str,
    inputs: Sequence[Document],
    outputs: Sequence[Document],
    *,
    warn: Warn,
) -> Iterator[JobRun]:
    """Tells the lineage that a job begins with these inputs and outputs and, after the block, how
    it ended.
    """
    now = JobRun(inputs, outputs)
    if lineage is None:
        yield now
        return
    told = _Told(lineage, job, str(uuid4()), warn)
    told.event(RunState.START, now)
    try:
        yield now
    except Exception as error:
        now.problems.append(error.message if isinstance(error, HoldfastError) else repr(error))
        told.event(RunState.FAIL, now)
        raise
    except BaseException:  # Ctrl-C, SIGTERM
        told.event(RunState.ABORT, now)
        raise
    told.event(RunState.FAIL if now.problems else RunState.COMPLETE, now)


@dataclass(frozen=True)
class _Told:
    lineage: Lineage
    job: str
    run: str
    warn: Warn

    def event(self, state: RunState, now: JobRun) -> None:
        event = run_event(
            state,
            run=self.run,
            job=(self.lineage.namespace, self.job),
            at_ms=time.time_ns() // 1_000_000,
            inputs=now.inputs,
            outputs=now.outputs,
            engine=(_ENGINE, version("pyspark")),
            problem="; ".join(now.problems) or None,
        )
        try:
            self.lineage.outlet.emit(event)
        except HoldfastError as error:
            self.warn(f"lineage was not told that the run is {state.value}: {error.message}")
