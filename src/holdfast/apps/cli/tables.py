"""Documents as people read them: tables and cards; and as programs do: JSON.

A table is built from the same documents as the JSON, by the names of their fields, so the two forms
cannot disagree. On a terminal it is as wide as that; elsewhere nothing is cut. What a peer wrote
may hold anything, so control characters are shown and not sent to the terminal.

This module stands on the cold path of lists: keep its imports few.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from holdfast.apps.cli import output
from holdfast.apps.cli.lists import columns
from holdfast.apps.cli.times import iso

_PAGE_ROWS = 500
"""Columns are fitted to this many rows at a time, so that a long list is not held in memory."""
_CELL_CHARS_MAX = 80
_TITLES = {"event_at": "AT", "number": "NO"}

_encoder: Callable[[Any], bytes] | None = None


def encode(value: Any) -> bytes:
    """Any value as JSON. Its encoder is imported by the first that needs it."""
    global _encoder
    if _encoder is None:
        import msgspec

        _encoder = msgspec.json.Encoder().encode
    return _encoder(value)


def json_text(value: Any) -> str:
    return encode(value).decode()


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


def table(
    documents: Iterable[Mapping[str, Any]],
    fields: Sequence[str],
    to_json: Callable[[Any], str] = json_text,
) -> bool:
    """Prints the table; False if there was nothing to print. `to_json` writes what is neither text
    nor a word of ours.
    """
    rest = iter(documents)
    first = next(rest, None)
    if first is None:
        return False
    pages = _pages(chain([first], rest), fields, to_json)
    if fancy():
        _drawn_table(fields, pages)
    else:
        _plain_table(fields, pages)
    return True


def card(document: Mapping[str, Any], fields: Sequence[str]) -> None:
    """One object, a line per field."""
    width = max(len(name) for name in fields)
    for name in fields:
        shown = cell(name, document.get(name), whole=True)
        output.out(f"{name.replace('_', ' '):<{width}}  {shown}".rstrip() + "\n")


def tell_cut(limit: int) -> None:
    """Tells people that a list has more rows than they asked for."""
    output.flush()
    output.talk(f"the first {limit}; there are more")


def cell(
    name: str, value: Any, *, whole: bool = False, to_json: Callable[[Any], str] = json_text
) -> str:
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
        text = value if isinstance(value, str) else to_json(value)
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
    documents: Iterable[Mapping[str, Any]], fields: Sequence[str], to_json: Callable[[Any], str]
) -> Iterator[list[list[str]]]:
    rest = iter(documents)
    while page := [
        [cell(name, document.get(name), to_json=to_json) for name in fields]
        for document in islice(rest, _PAGE_ROWS)
    ]:
        yield page


def _plain_table(fields: Sequence[str], pages: Iterable[list[list[str]]]) -> None:
    titles = [_title(name) for name in fields]
    widths = [columns.width(title) for title in titles]
    head: list[list[str]] = [titles]
    for page in pages:
        widths = _wider(widths, page)
        for row in head + page:
            output.out(f"{_line(row, dict(enumerate(widths)))}\n")
        head = []


def _drawn_table(fields: Sequence[str], pages: Iterable[list[list[str]]]) -> None:
    """As the plain one, with a bold head, and no line longer than the terminal is wide."""
    titles = [_title(name) for name in fields]
    widths = [columns.width(title) for title in titles]
    head = True
    left_out: set[int] = set()
    for page in pages:
        widths = _wider(widths, page)
        room = columns.room()
        fitted = columns.fit(fields, widths, room)
        if head:
            output.out(f"\x1b[1m{_line(titles, fitted.widths)}\x1b[0m\n")
            head = False
        output.out("".join(f"{_line(row, fitted.widths)}\n" for row in page))
        left_out |= set(fitted.left_out)
    if left_out:
        output.flush()
        names = ", ".join(fields[place] for place in sorted(left_out))
        output.talk(f"not shown, for want of room: {names} (a wider terminal or --json has them)")


def _wider(widths: Sequence[int], page: list[list[str]]) -> list[int]:
    return [
        max(width, *(columns.width(row[place]) for row in page))
        for place, width in enumerate(widths)
    ]


def _line(row: Sequence[str], widths: Mapping[int, int]) -> str:
    shown = [(columns.cut(row[place], width), width) for place, width in widths.items()]
    return "  ".join(text + " " * (width - columns.width(text)) for text, width in shown).rstrip()
