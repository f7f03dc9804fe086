"""Counts and times of what this process did, for `holdfast doctor`. They are sent nowhere.

They are kept in memory, per operation, and appended to `logs/metrics.jsonl` as one line when the
node closes.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import METRICS_BYTES_MAX
from holdfast.storage.files.durable import disk_errors


class OperationCount:
    """How often an operation ran, and how long it took."""

    __slots__ = ("count", "longest_ns", "total_ns")

    def __init__(self) -> None:
        self.count = self.total_ns = self.longest_ns = 0


class Metrics:
    """The counts of one process."""

    def __init__(self) -> None:
        self.verbs: dict[str, OperationCount] = {}
        self.errors: dict[str, int] = {}

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

    def line(self, now_ms: int, open_ms: float) -> dict[str, Any]:
        return {
            "at": now_ms,
            "pid": os.getpid(),
            "open_ms": round(open_ms, 3),
            "verbs": {
                name: {
                    "count": verb.count,
                    "mean_ms": round(verb.total_ns / verb.count / 1e6, 4),
                    "max_ms": round(verb.longest_ns / 1e6, 4),
                }
                for name, verb in list(self.verbs.items())  # other threads may still be at work
            },
            "errors": self.errors,
        }

    def save(self, path: Path, now_ms: int, open_ms: float) -> None:
        """Appends the line of this process. A full file is renamed first."""
        line = msgspec.json.encode(self.line(now_ms, open_ms)) + b"\n"
        with disk_errors(f"write {path}"):
            _set_aside_if_full(path)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(fd, line)
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
    """Adds up the lines of all processes, for people. A line that was cut off is left out."""
    verbs: dict[str, dict[str, float]] = {}
    errors: dict[str, int] = {}
    opens: list[float] = []
    if path.exists():
        for raw in path.read_bytes().splitlines():
            try:
                line = msgspec.json.decode(raw)
            except msgspec.DecodeError:
                continue
            opens.append(line["open_ms"])
            for name, verb in line["verbs"].items():
                total = verbs.setdefault(name, {"count": 0, "total_ms": 0.0, "max_ms": 0.0})
                total["count"] += verb["count"]
                total["total_ms"] += verb["count"] * verb["mean_ms"]
                total["max_ms"] = max(total["max_ms"], verb["max_ms"])
            for code, count in line["errors"].items():
                errors[code] = errors.get(code, 0) + count
    for total in verbs.values():
        total["mean_ms"] = round(total.pop("total_ms") / total["count"], 4)
    opens.sort()
    median = opens[len(opens) // 2] if opens else None
    return {"launches": len(opens), "open_ms_median": median, "verbs": verbs, "errors": errors}
