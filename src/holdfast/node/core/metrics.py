"""Counts and times of what this process did, for `holdfast doctor`. They are sent nowhere.

They are kept in memory, per operation, and `logs/metrics.jsonl` is written while the process runs:

- a line `start` when it has opened the home, with the command that it runs, if any;
- a line `running` every METRICS_LINE_MS, with what was added since the line before; a daemon adds
  how far it is behind its brokers and the sources of its links;
- a line `end` when it closes the home, with the rest.

So the sum of all lines is what all processes did, and one that is killed loses the last minute.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from threading import Lock
from time import monotonic_ns, process_time
from typing import Any, Final

import msgspec

from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import METRICS_BYTES_MAX, METRICS_LINE_MS
from holdfast.storage.files.durable import disk_errors

log = logging.getLogger("holdfast")

COMMAND: Final[ContextVar[str | None]] = ContextVar("COMMAND", default=None)
"""Which command of the command line runs, as `state set`; None in other programs."""
_OPERATIONS_PER_LOOK: Final = 1024
"""So often an operation looks whether a line is due: a program without a daemon has no thread for
it, and a look at the clock costs what a tenth of a read does."""


class OperationCount:
    """How often an operation ran, and how long it took."""

    __slots__ = ("count", "longest_ns", "total_ns")

    def __init__(self) -> None:
        self.count = self.total_ns = self.longest_ns = 0
        """`longest_ns` is that since the last line, the others are never reset."""


class Metrics:
    """The counts of one process."""

    def __init__(self) -> None:
        self.verbs: dict[str, OperationCount] = {}
        self.errors: dict[str, int] = {}
        self._book: tuple[Path, Callable[[], int]] | None = None
        self._told: dict[str, tuple[int, int]] = {}
        self._errors_told: dict[str, int] = {}
        self._next_ns = 0
        self._telling = Lock()

    def failed(self, error: HoldfastError) -> None:
        self.errors[error.code] = self.errors.get(error.code, 0) + 1

    def add(self, name: str, ns: int) -> None:
        verb = self.verbs.get(name)
        if verb is None:
            verb = self.verbs[name] = OperationCount()
        verb.count += 1
        verb.total_ns += ns
        if ns > verb.longest_ns:
            verb.longest_ns = ns
        if verb.count % _OPERATIONS_PER_LOOK == 0 and monotonic_ns() > self._next_ns:
            self.tell()

    # --- the file ----------------------------------------------------------------------------

    def begin(self, path: Path, now_ms: Callable[[], int], open_ms: float) -> None:
        """Writes that this process has opened the home, and from now on a line every
        METRICS_LINE_MS.
        """
        self._book = path, now_ms
        self._next_ns = monotonic_ns() + METRICS_LINE_MS * 1_000_000
        command = COMMAND.get()
        started: dict[str, Any] = {"open_ms": round(open_ms, 3)}
        if command is not None:
            # All that the process has computed so far: what the command's start has cost.
            started |= {"command": command, "cpu_ms": round(process_time() * 1000, 1)}
        self._append_or_log("start", started)

    def tell(self, **more: Any) -> None:
        """Writes what was added since the last line, and what else the caller knows. A disk that
        refuses costs nothing but counts.
        """
        if self._book is None or not self._telling.acquire(blocking=False):
            return  # another thread is at it
        try:
            self._next_ns = monotonic_ns() + METRICS_LINE_MS * 1_000_000
            self._append_or_log("running", self._added() | more)
        finally:
            self._telling.release()

    def end(self) -> None:
        """Writes the rest."""
        if self._book is not None:
            with self._telling:
                self._append("end", self._added())

    def _added(self) -> dict[str, Any]:
        """What was counted since this was asked last. Other threads may still be at work: what they
        add meanwhile is in the next answer.
        """
        verbs: dict[str, dict[str, float]] = {}
        for name, verb in list(self.verbs.items()):
            count_before, total_before = self._told.get(name, (0, 0))
            count, total, longest = verb.count, verb.total_ns, verb.longest_ns
            if count > count_before:
                self._told[name] = count, total
                verb.longest_ns = 0
                mean_ns = (total - total_before) / (count - count_before)
                verbs[name] = {
                    "count": count - count_before,
                    "mean_ms": round(mean_ns / 1e6, 4),
                    "max_ms": round(longest / 1e6, 4),
                }
        now = dict(self.errors)
        before, self._errors_told = self._errors_told, now
        errors = {code: n - before.get(code, 0) for code, n in now.items()}
        return {"verbs": verbs, "errors": {code: n for code, n in errors.items() if n}}

    def line(self, name: str, now_ms: int, document: dict[str, Any]) -> dict[str, Any]:
        return {"line": name, "at": now_ms, "pid": os.getpid(), **document}

    def _append_or_log(self, line: str, document: dict[str, Any]) -> None:
        try:
            self._append(line, document)
        except HoldfastError as error:
            log.info("no line of metrics: %s", error.message)

    def _append(self, line: str, document: dict[str, Any]) -> None:
        """Appends a line. A full file is renamed first."""
        assert self._book is not None, "this process keeps no file"
        path, now_ms = self._book
        encoded = msgspec.json.encode(self.line(line, now_ms(), document)) + b"\n"
        with disk_errors(f"write {path}"):
            _set_aside_if_full(path)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(fd, encoded)
            finally:
                os.close(fd)


def _set_aside_if_full(path: Path) -> None:
    """Renames a full file; there is one such. Two processes that do it at once do no harm."""
    with suppress(FileNotFoundError, FileExistsError):
        if path.stat().st_size > METRICS_BYTES_MAX:
            full = path.with_suffix(".jsonl.full")
            full.unlink(missing_ok=True)
            os.link(path, full)
            path.unlink()


def summarise(path: Path) -> dict[str, Any]:
    """Adds up the lines of all processes, for people. A line that was cut off is left out.

    A launch is a `start`, or a line without a name: until 0.1 a process wrote one line, at its end.
    """
    found = _Summary()
    if path.exists():
        for raw in path.read_bytes().splitlines():
            try:
                line = msgspec.json.decode(raw)
            except msgspec.DecodeError:
                continue
            found.add(line)
    return found.document()


class _Summary:
    """The sum of some lines."""

    def __init__(self) -> None:
        self.verbs: dict[str, dict[str, float]] = {}
        self.errors: dict[str, int] = {}
        self.opens: list[float] = []
        self.starts: dict[str, list[float]] = {}
        self.lags: dict[str, Any] = {}
        """How far the node was behind when a daemon wrote last."""

    def add(self, line: dict[str, Any]) -> None:
        if line.get("line", "start") == "start":
            self.opens.append(line["open_ms"])
        if "command" in line:
            self.starts.setdefault(line["command"], []).append(line["cpu_ms"])
        for name, verb in line.get("verbs", {}).items():
            total = self.verbs.setdefault(name, {"count": 0, "total_ms": 0.0, "max_ms": 0.0})
            total["count"] += verb["count"]
            total["total_ms"] += verb["count"] * verb["mean_ms"]
            total["max_ms"] = max(total["max_ms"], verb["max_ms"])
        for code, count in line.get("errors", {}).items():
            self.errors[code] = self.errors.get(code, 0) + count
        if "sync" in line:
            self.lags = {key: line[key] for key in ("at", "sync", "links")}

    def document(self) -> dict[str, Any]:
        for total in self.verbs.values():
            total["mean_ms"] = round(total.pop("total_ms") / total["count"], 4)
        return {
            "launches": len(self.opens),
            "open_ms_median": _median(self.opens),
            "commands": {
                command: {"count": len(costs), "cpu_ms_median": _median(costs)}
                for command, costs in sorted(self.starts.items())
            },
            "lags": self.lags,
            "verbs": self.verbs,
            "errors": self.errors,
        }


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
