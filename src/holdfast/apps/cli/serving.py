"""How `holdfast up` and `holdfast broker serve` run: in the foreground, or detached; and their end.

A process that serves prints its events (`ready`, `stopping`, …): on stdout, if it was started with
`--json`, else on stderr like what it logs (`serving_log.py`).
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.apps.cli import output, tables
from holdfast.apps.cli.serving_log import ServingLog
from holdfast.apps.cli.session import CommandSession
from holdfast.rules.errors import NoDaemon, StoreBusy
from holdfast.rules.limits import SHUTDOWN_MS_MAX
from holdfast.storage.files.home import HomePaths

if TYPE_CHECKING:
    from holdfast.service.lifecycle import OnEvent, Service


def serve(
    session: CommandSession,
    make: Callable[[OnEvent], Service],
    *,
    log_level: str,
    log_format: str | None,
    **limits: int,
) -> int:
    """Runs the service that `make` returns until a signal ends it; returns the exit code."""
    from holdfast.apps.cli.detached import tell_ready
    from holdfast.service.lifecycle import run

    log = ServingLog(log_level, log_format, as_json=session.as_json)

    def report(event: str, document: dict[str, Any]) -> None:
        with suppress(OSError):  # nobody reads the output any more: no reason to stop serving
            log.event(event, document, list(_lines(event, document)))
        if event == "ready":
            tell_ready(document)
            _freeze_what_stays()

    with log.logging():
        return run(lambda: make(report), **limits)


def _freeze_what_stays() -> None:
    """What is there once a service is up stays until its end. A full collection need not look at
    it again: with a million objects that holds the loop up for 0.4 s, in which a voter is silent.
    """
    gc.collect()
    gc.freeze()


def detach(
    session: CommandSession,
    paths: HomePaths,
    words: list[str],
    options: Mapping[str, object],
    *,
    down: str,
    environ: Mapping[str, str] | None = None,
) -> int:
    """Starts `holdfast` with these words and options as a process of its own, and returns when that
    is ready. `down` is the command that ends it.
    """
    from holdfast.apps.cli.detached import start

    words = words + [
        f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value
    ]
    document = start(paths, words, as_json=session.as_json, environ=environ)
    if session.as_json:
        output.out(f"{tables.encode({'event': 'ready', **document}).decode()}\n")
    for line in _lines("ready", document):
        session.talk(tables.visible(line))
    session.talk(f"end it with: {down}")
    if not session.as_json:
        output.out(f"{document['listening'][-1]}\n")
    return 0


_LOOK = {
    "home": "how things stand: holdfast status",
    "store": "how it stands: holdfast broker status",
    "lake": "how it stands: holdfast pipeline status",
}


def end_daemon(session: CommandSession, paths: HomePaths, what: str) -> None:
    """Ends what serves a folder: the `home` of a node, or the `store` of a broker."""
    from holdfast.service.instance_lock import daemon_note, wait_until_free

    note = daemon_note(paths)
    if note is None:
        raise NoDaemon(
            f"no daemon serves {paths.root}", hint=f"nothing is to be ended; {_LOOK[what]}"
        )
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(note.pid, signal.SIGTERM)
    if not wait_until_free(paths, 2 * SHUTDOWN_MS_MAX / 1000):
        raise StoreBusy(f"process {note.pid} has not ended", hint=f"look at it: ps {note.pid}")
    session.talk(f"ended process {note.pid}")
    if session.as_json:
        session.show({what: str(paths.root), "pid": note.pid})


def _lines(event: str, document: dict[str, Any]) -> Iterator[str]:
    if event == "ready":
        broker = f"{document['name']} from {document['store']}" if "store" in document else None
        yield f"serving {broker or document.get('home') or document['lake']}"
        for address in document["listening"]:
            yield f"listening on {address}"
        for address in document.get("bus", ()):
            yield f"bus on {address}"
        if "card" in document:
            yield f"card {document['card']}"
    elif event in ("link", "broker", "peer"):
        yield f"{event} {document['name']} is {document['state']}"
    elif event != "disk":  # the log has a line about the disk, with what to do
        yield event
