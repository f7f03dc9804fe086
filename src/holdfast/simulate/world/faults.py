"""Faults of our own that the code under test logs and survives."""

from __future__ import annotations

import logging


class Faults(logging.Handler):
    """Collects what the code itself logs as a fault of ours: with the exception that it had not
    expected. What it says of disks and networks has none.
    """

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info is not None:
            self.heard.append(f"{record.getMessage()}: {record.exc_info[1]!r}")
