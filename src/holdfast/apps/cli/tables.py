"""Documents as people read them: tables and cards; and as programs do: JSON.

A table is built from the same documents as the JSON, by the names of their fields, so the two forms
cannot disagree. On a terminal rich draws it; elsewhere it is aligned plain text. What a peer wrote
may hold anything, so control characters are shown and not sent to the terminal.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import msgspec

from holdfast.apps.cli import output
from holdfast.apps.cli.times import iso

_PAGE_ROWS = 500
"""Columns are fitted to this many rows at a time, so that a long list is not held in memory."""
_CELL_CHARS_MAX = 80
_COPIED = frozenset({"id", "task"})
_ID_CHARS = 36
_TITLES = {"event_at": "AT", "number": "NO"}

encode = msgspec.json.Encoder().encode


def json_array(documents: Iterable[Mapping[str, Any]]) -> None:
    rest = iter(documents)
    first = next(rest, None)
    if first is None:
        output.out("[]\n")
        return
    output.out(f"[{encode(first).decode()}")
    for document in rest:
        output.out(f",{encode(document).decode()}")
    output.out("]\n")


def json_lines(documents: Iterable[Mapping[str, Any]]) -> None:
    for document in documents:
        output.out(f"{encode(document).decode()}\n")


def table(documents: Iterable[Mapping[str, Any]], fields: Sequence[str]) -> bool:
    """Prints the table; False if there was nothing to print."""
    rest = iter(documents)
    first = next(rest, None)
    if first is None:
        return False
    pages = _pages(chain([first], rest), fields)
    if fancy():
        _rich_table(fields, pages)
    else:
        _plain_table(fields, pages)
    return True


def card(document: Mapping[str, Any], fields: Sequence[str]) -> None:
    """One object, a line per field."""
    width = max(len(name) for name in fields)
    for name in fields:
        shown = cell(name, document.get(name), whole=True)
        output.out(f"{name.replace('_', ' '):<{width}}  {shown}".rstrip() + "\n")


def cell(name: str, value: Any, *, whole: bool = False) -> str:
    """A field as one line of text."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_at") and isinstance(value, int):
        return iso(value)
    if isinstance(value, Mapping) and {"lamport", "peer"} <= value.keys():
        return f"{value['lamport']}@{visible(value['peer'])}"
    if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
        text = ",".join(value)
    else:
        text = value if isinstance(value, str) else encode(value).decode()
    shown = visible(text)
    if not whole and len(shown) > _CELL_CHARS_MAX:
        return f"{shown[: _CELL_CHARS_MAX - 1]}…"
    return shown


def visible(text: str) -> str:
    """Without anything that a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def fancy() -> bool:
    """True at a terminal that can do more than print plain text, unless $NO_COLOR forbids it."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return sys.stdout.isatty() and not plain


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()


def _title(name: str) -> str:
    return _TITLES.get(name, name.removesuffix("_at").replace("_", " ").upper())


def _pages(
    documents: Iterable[Mapping[str, Any]], fields: Sequence[str]
) -> Iterator[list[list[str]]]:
    rest = iter(documents)
    while page := [
        [cell(name, document.get(name)) for name in fields] for document in islice(rest, _PAGE_ROWS)
    ]:
        yield page


def _plain_table(fields: Sequence[str], pages: Iterable[list[list[str]]]) -> None:
    titles = [_title(name) for name in fields]
    widths = [_width(title) for title in titles]
    head: list[list[str]] = [titles]
    for page in pages:
        for row in page:
            widths = [max(width, _width(text)) for width, text in zip(widths, row, strict=True)]
        for row in head + page:
            line = "  ".join(
                text + " " * (width - _width(text)) for text, width in zip(row, widths, strict=True)
            )
            output.out(f"{line.rstrip()}\n")
        head = []


def _width(text: str) -> int:
    """Columns on a screen: east Asian wide characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


def _rich_table(fields: Sequence[str], pages: Iterable[list[list[str]]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    sys.stdout.buffer.flush()
    console = Console(file=sys.stdout, highlight=False)
    for number, page in enumerate(pages):
        grid = Table(box=None, pad_edge=False, show_header=number == 0, header_style="bold")
        for name in fields:
            # What people copy from a table is whole; the other columns give way.
            if name in _COPIED:
                grid.add_column(_title(name), no_wrap=True, overflow="ignore", min_width=_ID_CHARS)
            else:
                grid.add_column(_title(name), no_wrap=True, overflow="ellipsis")
        for row in page:
            # As Text, so that square brackets in what a peer wrote are not taken for markup.
            grid.add_row(*(Text(text) for text in row))
        console.print(grid)
