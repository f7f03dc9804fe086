"""`holdfast pipeline run`, `stream`, `serve`, `status`, `forget`: logs into the lake."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.apps.cli import documents, output, tables
from holdfast.apps.cli.commands.pipeline_job import Work, job, no_server
from holdfast.apps.cli.commands.pipeline_report import tell_run, tell_step
from holdfast.apps.cli.declare import DRY
from holdfast.apps.cli.serving_log import log_options
from holdfast.apps.cli.times import parse_span, size
from holdfast.rules.errors import BadInput, UnknownKey, Unreachable

if TYPE_CHECKING:
    from holdfast.pipeline import Lake, Lineage, LogSource
    from holdfast.pipeline.jobs.run import RunReport
    from holdfast.pipeline.serve.calls import ServerStatus

FAILED = 1
_EVERY = "How long after one commit the next may come; logs say by themselves when they grow."
_REACHING = (
    click.option("--token-file", metavar="FILE", help="The token for nodes, in a file."),
    click.option("--key-file", metavar="HOME|FILE", help="The key for brokers: a member's home."),
    click.option("--card", metavar="CARD", help="The card of the broker."),
    click.option("--ca", metavar="FILE", help="The authority that signed nodes' certificates."),
    click.option("--pin", metavar="SHA256|FILE", help="The certificate of the node."),
    click.option("--name", "names", metavar="NAME=LOG", multiple=True, help="Call a log NAME."),
)
_max_rows = click.option(
    "--max-rows", type=click.IntRange(1), help="Rows that one commit takes in at most."
)


def reaching(function: Any) -> Any:
    """Adds the options that say how to reach logs."""
    for option in reversed(_REACHING):
        function = option(function)
    return function


@job("run")
@click.argument("logs", nargs=-1, metavar="[LOG]...")
@reaching
@_max_rows
@click.option(
    "--allow-gaps", is_flag=True, help="Skip entries that no log has any more, and note them."
)
@click.option(
    "--lineage",
    metavar="FILE|URL",
    help="Where OpenLineage events go: a file, or a server; without it, $OPENLINEAGE_URL.",
)
@no_server
def run(
    work: Work,
    logs: tuple[str, ...],
    max_rows: int | None,
    allow_gaps: bool,
    lineage: str | None,
    no_server: bool,
    **how: Any,
) -> int:
    """Read what is new in every LOG, and bring the state up to date.

    A LOG is a node (https://host:port, http://, unix:), a mesh at a broker
    (broker+https://host:port/MESH), a home, a backup or an export. The lake remembers them, so the
    next run needs no names. A folder that is empty or missing becomes a lake. A run may be stopped
    at any point; the next one goes on from there.
    """
    told_to = _lineage(lineage)
    lake, given = _lake_and_logs(work, logs, **how)
    from holdfast import pipeline

    warn = partial(work.session.warn, "lineage_not_told")
    server = work.server(lake, wanted=not no_server and max_rows is None)
    with pipeline.followed_run(told_to, lake, given, warn=warn) as tell:
        if server is not None:
            report = server.run(allow_gaps=allow_gaps)
        else:
            with work.spark_when_needed(by_tasks=True) as start:
                report = pipeline.run(
                    start,
                    lake,
                    given,
                    max_rows=max_rows,
                    allow_gaps=allow_gaps,
                    progress=work.progress,
                )
        _note_names(lake, given, report)
        tell(report)
    tell_run(work, lake, report)
    return 0 if report.ok else FAILED


def _lineage(target: str | None) -> Lineage | None:
    from holdfast.pipeline import lineage_to
    from holdfast.pipeline.lineage.outlet import lineage_of

    return lineage_of(os.environ) if target is None else lineage_to(target)


@job("stream")
@click.argument("logs", nargs=-1, metavar="[LOG]...")
@reaching
@click.option("--every", default="2s", show_default=True, metavar="SPAN", help=_EVERY)
@click.option("--once", is_flag=True, help="End when the lake has what the logs have now.")
@_max_rows
def stream(
    work: Work, logs: tuple[str, ...], every: str, once: bool, max_rows: int | None, **how: Any
) -> None:
    """Read every LOG into the lake as it grows, until Ctrl-C or SIGTERM.

    The batch in progress is finished first. If it is killed, nothing is lost: the next run or
    stream goes on.
    """
    every_ms = parse_span(every)
    lake, given = _lake_and_logs(work, logs, **how)
    from holdfast import pipeline

    stop = Event()
    with work.spark_when_needed(by_tasks=True) as start, work.ending_gently(stop.set):
        work.session.talk("reading; end it with Ctrl-C")
        pipeline.stream(
            start,
            lake,
            given,
            every_ms=every_ms,
            once=once,
            max_rows=max_rows,
            on_step=lambda step: tell_step(work, step),
            stop=stop,
        )


@job("serve")
@click.argument("logs", nargs=-1, metavar="[LOG]...")
@reaching
@click.option("--every", default="2s", show_default=True, metavar="SPAN", help=_EVERY)
@log_options
def serve(
    work: Work,
    logs: tuple[str, ...],
    every: str,
    log_level: str,
    log_format: str | None,
    **how: Any,
) -> int:
    """Keep Spark warm for a lake: follow its logs, and answer `run`, `query` and `status`.

    It follows all logs that the lake remembers, those that are named here too. What is new is in
    the lake a few seconds later. It ends with Ctrl-C or SIGTERM, after the commit in progress.
    """
    every_ms = parse_span(every)
    lake = work.lake(create=bool(logs))
    if logs:
        lake, _ = _lake_and_logs(work, logs, **how)
    from holdfast import pipeline
    from holdfast.apps.cli.serving import serve as serve_until_told
    from holdfast.pipeline.jobs.follow import step_of

    def tell(report: RunReport) -> None:
        tell_step(work, step_of(report))

    with work.spark_when_needed() as start:
        start()  # here, where a signal ends it at once
        work.progress("")
        return serve_until_told(
            work.session,
            lambda on_event: pipeline.LakeService(
                start, lake, every_ms=every_ms, on_report=tell, on_event=on_event
            ),
            log_level=log_level,
            log_format=log_format,
        )


@job("forget", spark=False, removes=DRY)
@click.argument("log")
def forget(work: Work, log: str) -> None:
    """Stop reading a LOG. What was read of it stays in the lake."""
    lake = work.lake()
    from holdfast.pipeline import forget, forgets, log_source

    meant = next((one for one in (log, log_source(log).location) if forgets(lake, one)), None)
    if meant is None:
        raise UnknownKey(f"the lake does not read {log!r}", hint="see: holdfast pipeline status")
    if not work.session.goes_on(f"stop reading {log}", asks=False, lake=lake.root, log=log):
        return
    forget(lake, meant)
    work.session.talk(f"{log} is no longer read; what was read of it stays")
    work.session.show({"lake": lake.root, "log": log, "forgotten": True}, f"{log}\n")


@job("status", spark=False)
@click.option("--offline", is_flag=True, help="Do not ask the nodes how far they are.")
def status(work: Work, offline: bool) -> None:
    """Show how far each log was read, what is still to come, and what the tables hold."""
    lake = work.lake()
    from holdfast import pipeline

    lake_status = pipeline.status(lake, ask=not offline)
    server = _server_status(lake)
    if work.session.as_json:
        served = None if server is None else documents.plain(server)
        work.session.show({**documents.plain(lake_status), "server": served})
        return
    if server is not None:
        output.talk(f"process {server.pid} serves it{_troubled(server.trouble)}")
    logs = [documents.plain(log) for log in lake_status.logs]
    if not tables.table(logs, ["log", "epoch", "offset", "head", "lag", "location", "trouble"]):
        output.talk("no log was read yet; begin with: holdfast pipeline run LOG...")
    kept = [{**documents.plain(table), "size": size(table.bytes)} for table in lake_status.tables]
    if kept:
        output.out("\n")
    tables.table(kept, ["table", "rows", "files", "size", "version", "changed_at"])


def _server_status(lake: Lake) -> ServerStatus | None:
    from holdfast.pipeline import server_of

    server = server_of(lake)
    with suppress(Unreachable):  # it has ended meanwhile
        return None if server is None else server.status()
    return None


def _troubled(trouble: str | None) -> str:
    return f", but its last round failed: {tables.visible(trouble)}" if trouble else ""


# --- which logs to read --------------------------------------------------------------------------


def _lake_and_logs(work: Work, logs: tuple[str, ...], **how: Any) -> tuple[Lake, list[LogSource]]:
    """The lake, made if logs are named and it is not there, and the logs to read, remembered."""
    words = (*logs, *([work.session.home] if work.session.home else []))
    named = named_sources(words, **how)
    fresh = bool(named) and not work.has_lake()
    lake = work.lake(create=bool(named))
    if fresh:
        work.session.talk(f"made a lake in {tables.visible(lake.root)}")
    from holdfast import pipeline

    chosen = sources_of(lake, named)
    pipeline.remember(lake, chosen)
    return lake, chosen


def named_sources(
    logs: tuple[str, ...],
    *,
    names: tuple[str, ...] = (),
    **reached: str | None,
) -> list[LogSource]:
    """The logs that the command names, with the options of `log_source` to reach them. A log on
    this disk must exist.
    """
    from holdfast.pipeline import log_source, open_log

    called = dict(_name_and_log(text) for text in names)
    if strange := called.keys() - set(logs):
        raise BadInput(f"{min(strange)!r} has a name but is not among the logs to read")
    given = [log_source(text, name=called.get(text), **reached) for text in logs]
    for one in given:
        open_log(one.location, one.options()).close()
    return given


def sources_of(lake: Lake, named: list[LogSource]) -> list[LogSource]:
    """The logs that were named; all that the lake remembers if none was."""
    from holdfast import pipeline

    known = {one.location: one for one in pipeline.remembered(lake)}
    if not named and not known:
        raise BadInput("no log was named, and the lake remembers none", hint="name a LOG")
    # A known log that is named again without options is reached as before.
    return [
        known[one.location] if one.location in known and not one.options() else one for one in named
    ] or list(known.values())


def _name_and_log(text: str) -> tuple[str, str]:
    name, equals, log = text.partition("=")
    if not (name and equals and log):
        raise BadInput(f"{text!r} names no log", hint="write it as --name plant=https://host:7440")
    return log, name


def _note_names(lake: Lake, given: list[LogSource], report: RunReport) -> None:
    """Remembers the names of the logs, so that `status` can show a log whose node is away."""
    from holdfast import pipeline

    failed = {failure.location for failure in report.failures}
    for one in given:
        if one.log is None and one.location not in failed:
            with closing(pipeline.open_log(one.location, one.options())) as log:
                pipeline.remember(lake, [msgspec.structs.replace(one, log=log.place().log)])
