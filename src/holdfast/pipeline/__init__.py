"""The pipeline: the logs of all nodes in one lake, on Spark.

    from holdfast import pipeline

    spark = pipeline.start()
    lake = pipeline.Lake.open("lake", create=True)
    pipeline.run(spark, lake, [pipeline.log_source("/srv/ana")])
    pipeline.current(spark, lake, "state").show()

These names are the public ones; each is loaded when it is first used, so that importing this
package loads no Spark. `holdfast.pipeline.minilm` is public as well: its path stands in command
lines. Nothing outside this package imports Spark: without the extra `spark` a node works as before.

The path of an envelope into the lake:

1.  `jobs/run.py` opens the logs that `jobs/sources.py` remembers (again and again:
    `jobs/follow.py`).
2.  `ingest/plan.py` asks each log where it stands and decides which offsets the lake lacks.
3.  `ingest/divide.py` gives ranges of offsets to tasks (`spark/workers.py`). Each task reads its
    ranges as Arrow batches (`logs/`), and `logs/unpack.py` adds the columns that stand in the
    bytes. `ingest/take.py` lets `ingest/dedupe.py` decide which rows are new, seen before or
    unreadable, and writes them where no reader looks. `ingest/doubles.py` finds ids that two tasks
    have read.
4.  `ingest/batch.py` compares what was planned, read and written, and commits it to sightings,
    quarantine, bronze and, last, `reads`, which says how far each log was read. Only then is it
    confirmed to the logs.
5.  `fold/silver.py` folds what bronze got since the last fold into the tables of silver, by the
    merge rules of the nodes (`fold/fold.py`, `fold/winners.py`, `fold/decode.py`, `fold/tasks.py`).

What reads the lake: `frames/` (tables without Spark), `query.py` (SQL), `history.py` (the past),
`verify/` (do nodes hold what their logs make?), `audits/` (what must never happen). What gives
something back to nodes: `snapshot/`, `sink/` and `embed/`. `serve/` keeps a session warm and does
runs and queries on demand. `source/` is the Spark format `holdfast` for users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.pipeline.audits.gold import run_audits
    from holdfast.pipeline.audits.live_facts import LiveFacts, ask_logs
    from holdfast.pipeline.audits.plots import save_plots
    from holdfast.pipeline.embed.reembed import reembed
    from holdfast.pipeline.fold.current import current
    from holdfast.pipeline.fold.silver import fold_lake
    from holdfast.pipeline.frames.catalog import register_tables
    from holdfast.pipeline.frames.changes import TableChanges, changes
    from holdfast.pipeline.frames.frame import LakeFrame, LakeFrames, read_lake
    from holdfast.pipeline.history import Range, backfill, state_as_of
    from holdfast.pipeline.ingest.ingest import ingest_logs
    from holdfast.pipeline.jobs.compaction import compact
    from holdfast.pipeline.jobs.follow import stream
    from holdfast.pipeline.jobs.repair import repair
    from holdfast.pipeline.jobs.run import run
    from holdfast.pipeline.jobs.run_lineage import followed_run
    from holdfast.pipeline.jobs.sources import (
        LogSource,
        forget,
        forgets,
        log_source,
        remember,
        remembered,
    )
    from holdfast.pipeline.jobs.status import status
    from holdfast.pipeline.lake.lake import Lake
    from holdfast.pipeline.lineage.outlet import Lineage, lineage_to
    from holdfast.pipeline.logs.log import open_log
    from holdfast.pipeline.query import ask_lake, model_id, run_query, table_rows
    from holdfast.pipeline.serve.client import server_of
    from holdfast.pipeline.serve.daemon import LakeService
    from holdfast.pipeline.snapshot.build import build_snapshot
    from holdfast.pipeline.source.source import register
    from holdfast.pipeline.spark.session import start
    from holdfast.pipeline.verify.verify import verify_nodes

_MODULES = {
    "audits.gold": "run_audits",
    "audits.live_facts": "LiveFacts ask_logs",
    "audits.plots": "save_plots",
    "embed.reembed": "reembed",
    "fold.current": "current",
    "fold.silver": "fold_lake",
    "frames.catalog": "register_tables",
    "frames.changes": "TableChanges changes",
    "frames.frame": "LakeFrame LakeFrames read_lake",
    "history": "Range backfill state_as_of",
    "ingest.ingest": "ingest_logs",
    "jobs.compaction": "compact",
    "jobs.follow": "stream",
    "jobs.repair": "repair",
    "jobs.run": "run",
    "jobs.run_lineage": "followed_run",
    "jobs.sources": "LogSource forget forgets log_source remember remembered",
    "jobs.status": "status",
    "lake.lake": "Lake",
    "lineage.outlet": "Lineage lineage_to",
    "logs.log": "open_log",
    "query": "ask_lake model_id run_query table_rows",
    "serve.client": "server_of",
    "serve.daemon": "LakeService",
    "snapshot.build": "build_snapshot",
    "source.source": "register",
    "spark.session": "start",
    "verify.verify": "verify_nodes",
}
"""By module: its public names. None may be the name of a room or a module of this package, since
importing that would replace it."""
_WHERE = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "Lake",
    "LakeFrame",
    "LakeFrames",
    "LakeService",
    "Lineage",
    "LiveFacts",
    "LogSource",
    "Range",
    "TableChanges",
    "ask_lake",
    "ask_logs",
    "backfill",
    "build_snapshot",
    "changes",
    "compact",
    "current",
    "fold_lake",
    "followed_run",
    "forget",
    "forgets",
    "ingest_logs",
    "lineage_to",
    "log_source",
    "model_id",
    "open_log",
    "read_lake",
    "reembed",
    "register",
    "register_tables",
    "remember",
    "remembered",
    "repair",
    "run",
    "run_audits",
    "run_query",
    "save_plots",
    "server_of",
    "start",
    "state_as_of",
    "status",
    "stream",
    "table_rows",
    "verify_nodes",
]


if not TYPE_CHECKING:  # checkers see plain imports, and know a name that does not exist

    def __getattr__(name: str) -> Any:
        """Loads a public name. NoSpark, which says what to install, if one of its packages is
        missing.
        """
        if name not in _WHERE:
            raise AttributeError(f"module 'holdfast.pipeline' has no attribute {name!r}")
        from importlib import import_module

        from holdfast.rules.errors import NoSpark

        try:
            module = import_module(f"holdfast.pipeline.{_WHERE[name]}")
        except ImportError as missing:
            raise NoSpark(f"the pipeline needs packages that are not here: {missing}") from None
        return getattr(module, name)


def __dir__() -> list[str]:
    return __all__
