"""`holdfast pipeline run`, `stream`, `status`, `forget`: logs into the lake, and how far it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.apps.cli import documents, output, tables
from holdfast.apps.cli.commands.pipeline_job import Work, job, needs_packages, progress, told
from holdfast.apps.cli.commands.pipeline_report import tell_run, tell_step
from holdfast.apps.cli.times import parse_span, size
from holdfast.rules.errors import BadInput, UnknownKey

if TYPE_CHECKING:
    from holdfast.pipeline.jobs.run import RunReport
    from holdfast.pipeline.jobs.sources import LogSource
    from holdfast.pipeline.lake.lake import Lake
    from holdfast.pipeline.logs.log import ReadableLog

FAILED = 1


def reaching(function: Any) -> Any:
    """The options of commands that read logs."""
    for option in reversed(
        [
            click.option("--token-file", metavar="FILE", help="The token for nodes, in a file."),
            click.option(
                "--key-file", metavar="HOME|FILE", help="The key for brokers: a member's home."
            ),
            click.option("--card", metavar="CARD", help="The card of the broker."),
            click.option("--ca", metavar="FILE", help="The authority that vouches for nodes."),
            click.option("--pin", metavar="SHA256|FILE", help="The certificate of the node."),
            click.option(
                "--name", "names", metavar="NAME=LOG", multiple=True, help="Call a log NAME."
            ),
        ]
    ):
        function = option(function)
    return function


@job("run")
@click.argument("logs", nargs=-1, metavar="[LOG]...")
@reaching
@click.option("--max-rows", type=click.IntRange(1), help="Rows that one commit takes in at most.")
@click.option(
    "--allow-gaps", is_flag=True, help="Go on behind what nobody has any more; it is noted."
)
def run(
    work: Work, logs: tuple[str, ...], max_rows: int | None, allow_gaps: bool, **how: Any
) -> int:
    """Read what is new in every LOG, and bring the state up to it.

    A LOG is a node (https://host:port, http://, unix:), a mesh at a broker
    (broker+https://host:port/MESH), a home, a backup or an export. The lake remembers them: the
    next run needs none. A folder that is empty or not there becomes a lake. It may be stopped at
    any point; the next run goes on from there.
    """
    lake, given = _meant(work, logs, **how)
    from holdfast.pipeline.jobs import run as jobs

    with work.spark_when_needed() as start:
        report = jobs.run(
            start,
            lake,
            given,
            max_rows=max_rows,
            allow_gaps=allow_gaps,
            progress=told(work.session),
        )
    _note_names(lake, given, report)
    tell_run(work, lake, report)
    return 0 if report.ok else FAILED


@job("stream")
@click.argument("logs", nargs=-1, metavar="[LOG]...")
@reaching
@click.option("--every", default="5s", show_default=True, metavar="SPAN", help="How often to look.")
@click.option("--once", is_flag=True, help="End when what the logs have now is in.")
@click.option("--max-rows", type=click.IntRange(1), help="Rows that one commit takes in at most.")
def stream(
    work: Work, logs: tuple[str, ...], every: str, once: bool, max_rows: int | None, **how: Any
) -> None:
    """Keep the lake up with every LOG as it grows, until Ctrl-C or SIGTERM.

    What is on its way is finished first. Killed, it loses nothing: the next run or stream goes on.
    """
    every_ms = parse_span(every)
    lake, given = _meant(work, logs, **how)
    from holdfast.pipeline.jobs.stream import stream as keep_up

    with work.spark() as spark:
        progress(work.session, None)
        work.session.talk("reading; end it with Ctrl-C")
        keep_up(
            spark,
            lake,
            given,
            every_ms=every_ms,
            once=once,
            max_rows=max_rows,
            told=lambda step: tell_step(work, step),
        )


@job("forget", spark=False)
@click.argument("log")
def forget(work: Work, log: str) -> None:
    """Read a LOG no more. What was read of it stays in the lake."""
    lake = work.lake()
    from holdfast.pipeline.jobs import sources

    if not sources.forget(lake, log) and not sources.forget(lake, sources.source(log).location):
        raise UnknownKey(f"the lake does not read {log!r}", hint="see: holdfast pipeline status")
    work.session.talk(f"{log} is read no more; what was read of it stays")
    work.session.show({"lake": lake.root, "log": log, "forgotten": True}, f"{log}\n")


@job("status", spark=False)
@click.option("--offline", is_flag=True, help="Do not ask the nodes how far they are.")
def status(work: Work, offline: bool) -> None:
    """Show how far each log was read, what is still to come, and what the tables hold."""
    lake = work.lake()
    from holdfast.pipeline.jobs.status import status as status_of

    found = status_of(lake, ask=not offline)
    if work.session.as_json:
        work.session.show(documents.plain(found))
        return
    logs = [documents.plain(log) for log in found.logs]
    if not tables.table(logs, ["log", "epoch", "offset", "head", "lag", "location", "trouble"]):
        output.talk("no log was read yet; begin with: holdfast pipeline run LOG...")
    kept = [{**documents.plain(table), "size": size(table.bytes)} for table in found.tables]
    if kept:
        output.out("\n")
    tables.table(kept, ["table", "rows", "files", "size", "version", "changed_at"])


# --- which logs are meant ------------------------------------------------------------------------


def _meant(work: Work, logs: tuple[str, ...], **how: Any) -> tuple[Lake, list[LogSource]]:
    """The lake, made if it is to be, and the logs to read, remembered."""
    words = (*logs, *([work.session.home] if work.session.home else []))
    named = named_sources(words, **how)
    fresh = bool(named) and not work.has_lake()
    lake = work.lake(create=bool(named))
    if fresh:
        work.session.talk(f"made a lake in {tables.visible(lake.root)}")
    from holdfast.pipeline.jobs.sources import remember

    found = sources_of(lake, named)
    remember(lake, found)
    return lake, found


def named_sources(
    logs: tuple[str, ...],
    *,
    names: tuple[str, ...] = (),
    **reached: str | None,
) -> list[LogSource]:
    """The logs that were named, reached by these options of `source`. What is on this disk has to
    be there.
    """
    needs_packages()
    from holdfast.pipeline.jobs.sources import source
    from holdfast.pipeline.logs.log import open_log

    called = dict(_called(text) for text in names)
    if strange := called.keys() - set(logs):
        raise BadInput(f"{min(strange)!r} has a name but is not among the logs to read")
    given = [source(text, name=called.get(text), **reached) for text in logs]
    for one in given:
        open_log(one.location, one.options()).close()
    return given


def sources_of(lake: Lake, named: list[LogSource]) -> list[LogSource]:
    """Those that were named, else all that the lake remembers."""
    from holdfast.pipeline.jobs.sources import remembered

    known = {one.location: one for one in remembered(lake)}
    if not named and not known:
        raise BadInput("no log was named, and the lake remembers none", hint="name a LOG")
    # A known log that is named again without a word is read as before.
    return [
        known[one.location] if one.location in known and not one.options() else one for one in named
    ] or list(known.values())


def _called(text: str) -> tuple[str, str]:
    name, equals, log = text.partition("=")
    if not (name and equals and log):
        raise BadInput(f"{text!r} names no log", hint="write it as --name plant=https://host:7440")
    return log, name


def _note_names(lake: Lake, given: list[LogSource], report: RunReport) -> None:
    """What logs are called, so that one which is away later can still be told of."""
    from holdfast.pipeline.jobs import sources
    from holdfast.pipeline.logs.log import open_log

    failed = {failure.location for failure in report.failures}
    for one in given:
        if one.log is None and one.location not in failed:
            with closing(open_log(one.location, one.options())) as log:
                sources.remember(lake, [msgspec.structs.replace(one, log=log.place().log)])


@contextmanager
def opened(given: list[LogSource]) -> Iterator[list[ReadableLog]]:
    from holdfast.pipeline.logs.log import open_log

    with ExitStack() as stack:
        yield [stack.enter_context(closing(open_log(one.location, one.options()))) for one in given]
