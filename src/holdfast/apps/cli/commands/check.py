"""`holdfast check`: one question, one line, one exit code, for monitoring tools.

The exit codes are those that such tools expect, not those of the other commands: 0 ok, 1 warning,
2 critical, 3 unknown (the check could not look).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from holdfast.apps.cli import output, own_daemon, tables, times
from holdfast.apps.cli.declare import noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.node.recovery.backup import JOB
from holdfast.rules.errors import BadInput, HoldfastError
from holdfast.service.clock import SystemClock
from holdfast.storage.files import home as homes
from holdfast.storage.sqlite.integrity import integrity
from holdfast.storage.sqlite.snapshot_copy import open_read_only

F = TypeVar("F", bound=Callable[..., Any])

OK, WARNING, CRITICAL, UNKNOWN = range(4)
_WORDS = ("ok", "warning", "critical", "unknown")

FORMAT = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "nagios", "prometheus"]),
    default="text",
    show_default=True,
)

check_ = noun(
    "check", "Questions for monitoring tools. Exit 0 ok, 1 warning, 2 critical, 3 unknown."
)


def _bounds(
    metavar: str, parse: Callable[[str], int], *, warn: str, critical: str
) -> Callable[[F], F]:
    """Adds --warn and --critical, which the command gets as numbers, and --format."""

    def add(function: F) -> F:
        function = FORMAT(function)
        for name, default in (("--critical", critical), ("--warn", warn)):
            function = click.option(
                name,
                default=default,
                show_default=True,
                metavar=metavar,
                callback=lambda ctx, param, text: parse(text),
            )(function)
        return function

    return add


class CheckFinding(NamedTuple):
    """What a check found: how bad it is, in words, and the number behind it."""

    level: int
    message: str
    value: float | None = None
    unit: str = ""
    warn: float | None = None
    critical: float | None = None


@verb(check_, "lag", mesh=False)
@click.option("--consumer", metavar="NAME", help="Only this reader; else the one that lags most.")
@click.option("--warn", type=int, default=10_000, show_default=True, metavar="ENTRIES")
@click.option("--critical", type=int, default=100_000, show_default=True, metavar="ENTRIES")
@FORMAT
def lag(session: CommandSession, consumer: str | None, warn: int, critical: int, form: str) -> int:
    """How many log entries the readers have not confirmed."""

    def find() -> CheckFinding:
        with session.node() as node:
            readers = [row for row in node.log.consumers() if consumer in (None, row.name)]
        if not readers:
            if consumer is not None:
                return CheckFinding(UNKNOWN, f"there is no consumer {consumer!r}")
            return CheckFinding(OK, "the log has no reader", 0, "", warn, critical)
        slowest = max(readers, key=lambda reader: reader.lag)
        entries = "1 entry" if slowest.lag == 1 else f"{slowest.lag} entries"
        return _above(f"{slowest.name} lags by {entries}", slowest.lag, "", warn, critical)

    return _report(session, "lag", form, find)


@verb(check_, "disk", mesh=False)
@_bounds("SIZE", times.parse_size, warn="1GiB", critical="100MiB")
def disk(session: CommandSession, warn: int, critical: int, form: str) -> int:
    """How much space is left on the disk of the home."""
    if warn < critical:
        raise BadInput("--warn must not be below --critical: both are the least that is enough")

    def find() -> CheckFinding:
        root = homes.require_home(session.check_home()).root
        free = shutil.disk_usage(root).free
        level = CRITICAL if free < critical else WARNING if free < warn else OK
        message = f"{times.size(free)} free for {root}"
        return CheckFinding(level, message, free, "B", warn, critical)

    return _report(session, "disk", form, find)


@verb(check_, "integrity", mesh=False)
@FORMAT
def integrity_(session: CommandSession, form: str) -> int:
    """Does the database hold together? Reads all of it."""

    def find() -> CheckFinding:
        paths = homes.require_home(session.check_home())
        problems = integrity(paths.database, ours=True)
        if problems:
            return CheckFinding(CRITICAL, f"{len(problems)} problems: {problems[0]}", len(problems))
        return CheckFinding(OK, "the database holds together", 0)

    return _report(session, "integrity", form, find)


@verb(check_, "backup", mesh=False)
@_bounds("SPAN", times.parse_span, warn="2d", critical="7d")
def backup(session: CommandSession, warn: int, critical: int, form: str) -> int:
    """How long ago the last backup was made."""

    def find() -> CheckFinding:
        paths = homes.require_home(session.check_home())
        with open_read_only(paths.database) as reader:
            job = reader.job_get(JOB)
        if job is None:
            return CheckFinding(CRITICAL, "no backup was ever made", None)
        age = max(0, SystemClock().now_ms() - job.updated_at)
        message = f"the last backup is {times.span(age)} old"
        return _above(message, age / 1000, "s", warn / 1000, critical / 1000)

    return _report(session, "backup", form, find)


@verb(check_, "outbox", mesh=False)
@_bounds("SPAN", times.parse_span, warn="10m", critical="1d")
def outbox(session: CommandSession, warn: int, critical: int, form: str) -> int:
    """How long the oldest change or message waits for its broker, and whether any was refused."""
    from holdfast.node.sync.terms import stops

    def find() -> CheckFinding:
        with session.node() as node:
            lanes, now = node.outbox.lanes(), SystemClock().now_ms()
            stopped = node._engine.read("sync.terms", stops)
        waits = [lane for lane in lanes if lane.oldest_at is not None]
        slowest = min(waits, key=lambda lane: lane.oldest_at or 0, default=None)
        age = 0 if slowest is None else max(0, now - (slowest.oldest_at or 0))
        waiting = sum(lane.pending + lane.inflight for lane in lanes)
        message = f"{waiting} wait"
        if slowest is not None:
            message += f", in {slowest.lane} for {times.span(age)}"
        found = _above(message, age / 1000, "s", warn / 1000, critical / 1000)
        if stopped:
            url, problem = stopped[0]
            why = f"; nothing is exchanged with {url}: {problem.message}"
            return found._replace(level=CRITICAL, message=found.message + why)
        dead = sum(lane.dead for lane in lanes)
        if dead:
            more = f"; {dead} were refused: holdfast outbox list --failed"
            return found._replace(level=max(found.level, WARNING), message=found.message + more)
        return found

    return _report(session, "outbox", form, find)


@verb(check_, "daemon", mesh=False)
@click.option("--store", metavar="FOLDER", help="The broker in this folder; else of the home.")
@FORMAT
def daemon(session: CommandSession, store: str | None, form: str) -> int:
    """Is the daemon there, and ready for work? Asks it on its Unix socket, as /readyz does."""

    def find() -> CheckFinding:
        folder = session.check_home() if store is None else Path(store).absolute()
        try:
            own_daemon.ask(folder, "GET", "/readyz")
        except HoldfastError as error:
            return CheckFinding(CRITICAL, error.message)
        return CheckFinding(OK, f"{folder} is served")

    return _report(session, "daemon", form, find)


def _above(message: str, value: float, unit: str, warn: float, critical: float) -> CheckFinding:
    level = CRITICAL if value >= critical else WARNING if value >= warn else OK
    return CheckFinding(level, message, value, unit, warn, critical)


def _report(session: CommandSession, name: str, form: str, find: Callable[[], CheckFinding]) -> int:
    try:
        found = find()
    except HoldfastError as error:
        # Not critical: nothing could be found out, and the monitoring tool should say so.
        found = CheckFinding(UNKNOWN, error.message)
    chosen = "json" if session.as_json else form
    output.out(_FORMS[chosen](name, found))
    return found.level


def _as_text(name: str, found: CheckFinding) -> str:
    return f"{_WORDS[found.level]}: {found.message}\n"


def _as_json(name: str, found: CheckFinding) -> str:
    fields = found._asdict()
    document = {"check": name, "status": _WORDS[fields.pop("level")], **fields}
    return f"{tables.encode(document).decode()}\n"


def _as_nagios(name: str, found: CheckFinding) -> str:
    level = _WORDS[found.level].upper()
    line = f"HOLDFAST {name.upper()} {level} - {tables.visible(found.message)}"
    if found.value is None:
        return f"{line}\n"
    bounds = (found.warn, found.critical)
    limits = ";".join("" if bound is None else str(bound) for bound in bounds)
    return f"{line} | {name}={found.value}{found.unit};{limits}\n"


def _as_prometheus(name: str, found: CheckFinding) -> str:
    lines = [
        f"# HELP holdfast_check_{name}_level 0 ok, 1 warning, 2 critical, 3 unknown",
        f"# TYPE holdfast_check_{name}_level gauge",
        f"holdfast_check_{name}_level {found.level}",
    ]
    if found.value is not None:
        lines += [
            f"# TYPE holdfast_check_{name}_value gauge",
            f"holdfast_check_{name}_value {found.value}",
        ]
    return "\n".join(lines) + "\n"


_FORMS: dict[str, Callable[[str, CheckFinding], str]] = {
    "text": _as_text,
    "json": _as_json,
    "nagios": _as_nagios,
    "prometheus": _as_prometheus,
}
