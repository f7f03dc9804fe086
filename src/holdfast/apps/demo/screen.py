"""What the demo shows: one line for what happens, one for what was checked, at 80 columns.

On a terminal it is in colour, and with a moment to read; in a pipe it is plain. A recording hears
each line with its colours and its time.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from threading import Event
from time import monotonic
from typing import Final, NamedTuple

COLUMNS: Final = 80
READING_S: Final = 0.35
"""How long a line stands before the next one, on a terminal."""
_BOLD, _GREEN, _RED, _DIM, _PLAIN = "\x1b[1m", "\x1b[32m", "\x1b[31m", "\x1b[2m", "\x1b[0m"


class ShownLine(NamedTuple):
    at_s: float
    """Since the beginning."""
    chapter: str
    """Its name; empty before the first and after the last."""
    coloured: str


class DemoScreen:
    def __init__(self, write: Callable[[str], None], *, in_colour: bool, reading_s: float) -> None:
        """`write` prints and flushes."""
        self._write, self._in_colour, self._reading_s = write, in_colour, reading_s
        self._never = Event()
        self._began = monotonic()
        self.chapter = ""
        self.lines: list[ShownLine] = []

    def title(self, text: str, name: str = "") -> None:
        """The heading of a chapter; its name is what one types to see it alone."""
        room = COLUMNS - len(name)
        self.blank()
        self._line(f"{_BOLD}{text[: room - 1].ljust(room)}{_PLAIN}{_DIM}{name}{_PLAIN}")

    def tell(self, text: str) -> None:
        """What happens."""
        self._marked("·", text, _DIM, "")
        self._never.wait(self._reading_s)

    def proved(self, text: str) -> None:
        """What was checked, and holds."""
        self._marked("✓", text, _GREEN, "")
        self._never.wait(2 * self._reading_s)

    def failed(self, text: str) -> None:
        self._marked("✗", text, _RED, _RED)

    def left_out(self, text: str) -> None:
        self._marked("-", text, _DIM, _DIM)

    def command(self, text: str) -> None:
        """A line that can be pasted, whatever its length."""
        self._line(f"    {text}")

    def said(self, text: str) -> None:
        for line in textwrap.wrap(text, COLUMNS):
            self._line(line)

    def blank(self) -> None:
        self._line("")

    def _marked(self, mark: str, text: str, colour: str, text_colour: str) -> None:
        first, *more = textwrap.wrap(text, COLUMNS - 4, break_on_hyphens=False)
        self._line(f"  {colour}{mark}{_PLAIN} {_painted(first, text_colour)}")
        for line in more:
            self._line(f"    {_painted(line, text_colour)}")

    def _line(self, coloured: str) -> None:
        self.lines.append(ShownLine(monotonic() - self._began, self.chapter, coloured))
        self._write((coloured if self._in_colour else plain(coloured)) + "\n")


def plain(coloured: str) -> str:
    for code in (_BOLD, _GREEN, _RED, _DIM, _PLAIN):
        coloured = coloured.replace(code, "")
    return coloured.rstrip()


def _painted(text: str, colour: str) -> str:
    return f"{colour}{text}{_PLAIN}" if colour else text
