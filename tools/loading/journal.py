"""A file of lines that only grows, and outlives its writer: a kill takes no line back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_TAIL_BYTES = 4096


class Journal:
    """Lines in the order they came. `reached` is the number that the last one begins with."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self.reached = self._last()

    def add(self, line: str) -> None:
        self.add_all([line])

    def add_all(self, lines: Iterable[str]) -> None:
        """With one write: all of them, or none."""
        block = "".join(f"{line}\n" for line in lines).encode()
        os.write(self._file, block)
        number = block.rstrip(b"\n").rpartition(b"\n")[2].partition(b" ")[0]
        if number.isdigit():
            self.reached = int(number)

    def _last(self) -> int:
        size = os.fstat(self._file).st_size
        tail = os.pread(self._file, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        number = tail.rstrip(b"\n").rpartition(b"\n")[2].partition(b" ")[0]
        return int(number) if number.isdigit() else 0


def lines_of(path: Path) -> Iterator[list[str]]:
    """Each line in its words."""
    if path.exists():
        with open(path, encoding="utf-8") as source:
            for line in source:
                yield line.split()
