"""What a process that serves says: one line per thing, all of one shape.

    {"time": "2026-11-18T19:02:11.042Z", "level": "warning", "event": "log", "message": …}
    {"time": "2026-11-18T19:02:11.050Z", "level": "info", "event": "link", "name": "north", …}

Every line has a time, a level and an event; the rest are the fields of the event. `log` is what
code logs, ours and that of libraries, with warnings of Python and errors of threads. On a terminal
the same is text. No line holds a secret.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click

from holdfast.apps.cli import output, tables
from holdfast.rules.redaction import without_secrets

F = TypeVar("F", bound=Callable[..., Any])

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("json", "text")
_OF_LEVEL: Final = {name: getattr(logging, name.upper()) for name in LEVELS}


def log_options(function: F) -> F:
    """Adds `--log-level` and `--log-format` to a command that serves."""
    for option in (
        click.option(
            "--log-format",
            type=click.Choice(FORMATS),
            envvar="HOLDFAST_LOG_FORMAT",
            help="What stderr gets; text on a terminal, else JSON. Or $HOLDFAST_LOG_FORMAT.",
        ),
        click.option(
            "--log-level",
            type=click.Choice(LEVELS),
            envvar="HOLDFAST_LOG_LEVEL",
            default="info",
            show_default=True,
            help="The least that is logged. Or $HOLDFAST_LOG_LEVEL.",
        ),
    ):
        function = option(function)
    return function


class ServingLog:
    """Where the lines go: stderr, and events to stdout if the caller asked for JSON."""

    def __init__(self, level: str, format: str | None, *, as_json: bool) -> None:
        self._least = _OF_LEVEL[level]
        self._events_are_data = as_json
        self._json = format == "json" or (format is None and (as_json or not sys.stderr.isatty()))

    def event(self, event: str, document: Mapping[str, Any], sentences: list[str]) -> None:
        """Something has happened that programs wait for; `sentences` say it to people."""
        if self._events_are_data:
            output.out(f"{_line(_now(), 'info', event, document)}\n")
            output.flush()
        elif self._least > logging.INFO:
            return
        elif self._json:
            output.talk(_line(_now(), "info", event, document))
        else:
            for sentence in sentences:
                # How it begins is the answer to who has started it; later, the time counts.
                said = sentence if event == "ready" else _text(_now(), "info", sentence)
                output.talk(tables.visible(said))

    @contextmanager
    def logging(self) -> Iterator[None]:
        """Takes what is logged meanwhile: ours, that of libraries, warnings, errors of threads."""
        handler = _Handler(self._least, self._json)
        ours, everything = logging.getLogger("holdfast"), logging.getLogger()
        before, hook = ours.level, threading.excepthook
        everything.addHandler(handler)
        ours.setLevel(self._least)
        logging.captureWarnings(True)
        threading.excepthook = _log_thread_error
        try:
            yield
        finally:
            threading.excepthook = hook
            logging.captureWarnings(False)
            ours.setLevel(before)
            everything.removeHandler(handler)


class _Handler(logging.Handler):
    def __init__(self, level: int, as_json: bool) -> None:
        super().__init__(level)
        self._as_json = as_json
        self._lines = logging.Formatter("%(message)s")

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # nobody reads the output any more: no reason to stop serving
            level = _level(record.levelno)
            try:
                message = self._lines.format(record)
            except Exception as error:  # a library that logs wrongly must not end what serves
                message = f"{record.msg} ({type(error).__name__} in its arguments)"
            message = without_secrets(message)
            if self._as_json:
                fields = {"message": message, "logger": record.name}
                output.talk(_line(record.created, level, "log", fields))
            else:
                output.talk(_text(record.created, level, message))


def _log_thread_error(gone: threading.ExceptHookArgs) -> None:
    if gone.exc_type is SystemExit:
        return
    name = gone.thread.name if gone.thread is not None else "a thread"
    error = gone.exc_value if gone.exc_value is not None else gone.exc_type()
    logging.getLogger("holdfast").error("%s has ended with an error", name, exc_info=error)


def _line(at: float, level: str, event: str, fields: Mapping[str, Any]) -> str:
    # The first three are ours: no field of an event has their names.
    return tables.encode({"time": _time(at), "level": level, "event": event, **fields}).decode()


def _text(at: float, level: str, message: str) -> str:
    return f"{_time(at)} {level}: {message}"


def _level(number: int) -> str:
    return next((name for name in reversed(LEVELS) if number >= _OF_LEVEL[name]), LEVELS[0])


def _now() -> float:
    return datetime.now(UTC).timestamp()


def _time(at: float) -> str:
    text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
