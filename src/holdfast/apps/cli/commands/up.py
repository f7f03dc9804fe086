"""`holdfast up` and `down`: serve a home, and end that."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import click

from holdfast.apps.cli import output, tables
from holdfast.apps.cli.declare import command_of
from holdfast.apps.cli.session import CommandSession
from holdfast.rules.errors import NoDaemon, StoreBusy
from holdfast.rules.limits import SHUTDOWN_MS_MAX
from holdfast.storage.files.home import HomePaths, require_home


@command_of("up")
@click.option("--tcp", metavar="HOST:PORT", help="Also on loopback, for callers with a token.")
@click.option("--listen", metavar="HOST:PORT", help="Also for other machines, with TLS.")
@click.option("--no-socket", is_flag=True, help="Not on the Unix socket in the home.")
@click.option("--tls-cert", metavar="FILE", help="A certificate of your own, with --tls-key.")
@click.option("--tls-key", metavar="FILE", help="Its key.")
@click.option("--disk-limit", metavar="SIZE", help="How much the home may hold, as 20GiB.")
@click.option("--detach", is_flag=True, help="Return when it is ready; print where it listens.")
def up_(session: CommandSession, no_socket: bool, detach: bool, **flags: str | None) -> int:
    """Serve the home: its API, its links, its upkeep. Port 0 takes a free one.

    Settings that are not given here are taken from the TOML file that $HOLDFAST_CONFIG names. Ends
    with SIGTERM or Ctrl-C; what is on its way is finished first.
    """
    from holdfast.node.settings import load

    settings = load(os.environ, {**flags, "socket": False if no_socket else None})
    paths = require_home(session.check_home())
    if detach:
        from holdfast.apps.cli.detached import start

        words = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items() if value]
        words += ["--no-socket"] if no_socket else []
        document = start(paths, ["up", f"--home={paths.root}", *words], as_json=session.as_json)
        _tell(session, "ready", document)
        session.talk("end it with: holdfast down")
        if not session.as_json:
            output.out(f"{document['listening'][-1]}\n")
        return 0
    from holdfast.apps.cli.detached import tell_ready
    from holdfast.node.daemon.daemon import Daemon
    from holdfast.service.lifecycle import run

    def on_event(event: str, document: dict[str, Any]) -> None:
        with suppress(OSError):  # nobody reads what we say any more: no reason to stop working
            _tell(session, event, document)
        if event == "ready":
            tell_ready(document)

    with logging_to(session):
        return run(lambda: Daemon(paths.root, settings, on_event=on_event))


@command_of("down")
def down_(session: CommandSession) -> None:
    """End the daemon of the home, and wait until it has ended."""
    end_daemon(session, require_home(session.check_home()), "home")


def end_daemon(session: CommandSession, paths: HomePaths, what: str) -> None:
    """Ends what serves a folder: the `home` of a node, or the `store` of a broker."""
    from holdfast.service.instance_lock import daemon_note, wait_until_free

    note = daemon_note(paths)
    if note is None:
        raise NoDaemon(f"no daemon serves {paths.root}", hint="")
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(note.pid, signal.SIGTERM)
    if not wait_until_free(paths, 2 * SHUTDOWN_MS_MAX / 1000):
        raise StoreBusy(f"process {note.pid} has not ended", hint=f"look at it: ps {note.pid}")
    session.talk(f"ended process {note.pid}")
    if session.as_json:
        session.show({what: str(paths.root), "pid": note.pid})


def _tell(session: CommandSession, event: str, document: dict[str, Any]) -> None:
    if session.as_json:
        output.out(f"{tables.encode({'event': event, **document}).decode()}\n")
        output.flush()
        return
    for line in _lines(event, document):
        output.talk(line)


def _lines(event: str, document: dict[str, Any]) -> Iterator[str]:
    if event == "ready":
        yield f"serving {tables.visible(document['home'])}"
        for address in document["listening"]:
            yield f"listening on {tables.visible(address)}"
        yield f"card {tables.visible(document['card'])}"
    elif event == "link":
        yield f"link {tables.visible(document['name'])} is {document['state']}"
    elif event == "broker":
        yield f"broker {tables.visible(document['name'])} is {document['state']}"
    elif event != "disk":  # of which the log tells people, with what to do about it
        yield event


@contextmanager
def logging_to(session: CommandSession) -> Iterator[None]:
    """What the daemon logs, with its time and, for a fault of ours, its trace."""
    handler = _Log(session.as_json)
    loggers = [logging.getLogger(name) for name in ("holdfast", "uvicorn.error", "asyncio")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


class _Log(logging.Handler):
    def __init__(self, as_json: bool) -> None:
        super().__init__(logging.WARNING)
        self._as_json = as_json
        self._lines = logging.Formatter("%(message)s")

    def emit(self, record: logging.LogRecord) -> None:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        level = record.levelname.lower()
        try:
            if self._as_json:
                said = {"at": at, "level": level, "message": self._lines.format(record)}
                output.talk(tables.encode({"log": said}).decode())
            else:
                output.talk(f"{at} {level}: {self._lines.format(record)}")
        except OSError:
            return  # nobody reads what we say any more; that is no reason to stop working
