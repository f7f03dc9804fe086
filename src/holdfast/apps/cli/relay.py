"""What the library logs while a command runs becomes warnings of that command."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Relay(logging.Handler):
    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(record.getMessage())


@contextmanager
def relaying(tell: Callable[[str], None]) -> Iterator[None]:
    """Tells what is logged meanwhile."""
    relay = _Relay(tell)
    logger = logging.getLogger("holdfast")
    logger.addHandler(relay)
    try:
        yield
    finally:
        logger.removeHandler(relay)
