"""How rows and receipts show themselves to a person, in a REPL and in a notebook.

A struct that is `Shown` tells its times as dates, its ids as text and content by its size, and is
cut where it would be long. Programs read the fields, which stay what they are.

This module stands on the CLI's cold path: what only a notebook needs is imported where it is used.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from holdfast.rules.limits import SHOWN_CHARS_MAX, SHOWN_ROWS_MAX


class Shown:
    """Mix it into a struct, before `msgspec.Struct`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _struct(self, str)

    def _repr_html_(self) -> str:
        rows = (
            f"<tr><th>{escaped(name)}</th><td>{escaped(told(name, value))}</td></tr>"
            for name, value in fields(self)
        )
        return f"<table><caption>{type(self).__name__}</caption>{''.join(rows)}</table>"


class ShownFace:
    """Mix it into what has verbs: it says what it is, and a notebook shows what is in it."""

    def _shown(self) -> str:
        """Who it is, in a few words. It asks nobody."""
        mesh = getattr(self, "_slug", None) or getattr(self, "_mesh", None)
        return f"of mesh {mesh}" if mesh else "of all meshes"

    def _shown_rows(self) -> Iterable[Any]:
        """What a notebook shows below that. Only the first rows are taken."""
        return ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__.removeprefix('Remote')} {self._shown()}>"

    def _repr_html_(self) -> str:
        head = f"<p><code>{escaped(repr(self))}</code></p>"
        try:
            return head + rows_html(self._shown_rows())
        except Exception as error:
            # It may be closed, or the daemon gone. A notebook must show that, and not a trace.
            return f"{head}<p>{escaped(cut(f'{type(error).__name__}: {error}'))}</p>"


def fields(struct: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a struct or named tuple by the names that people read."""
    names: Sequence[str] = getattr(struct, "__struct_fields__", None) or struct._fields
    return ((name.removeprefix("raw_"), getattr(struct, name)) for name in names)


def is_time(name: str) -> bool:
    """Whether a field is a moment, in milliseconds since 1970."""
    return name.endswith("_at") or name in ("at", "event_time", "since")


def told(name: str, value: Any) -> str:
    """The value of a field, for a person."""
    if type(value) is int and is_time(name):
        return moment(value)
    if isinstance(value, bytes):
        return _bytes(name, value)
    if isinstance(value, Shown):
        return repr(value)
    if hasattr(type(value), "_fields") or hasattr(type(value), "__struct_fields__"):
        return _struct(value, cut)
    if isinstance(value, str) and type(value) is not str:
        return str(value)  # a member of an enumeration
    return cut(repr(_head(value)))


def _head(value: Any) -> Any:
    """Enough of a long value to fill what is shown: the rest need not be written out."""
    if isinstance(value, str):
        return value[: SHOWN_CHARS_MAX + 1]
    if type(value) in (list, tuple):
        return value[: SHOWN_CHARS_MAX + 1]
    if type(value) is dict:
        return dict(itertools.islice(value.items(), SHOWN_CHARS_MAX + 1))
    return value


def moment(ms: int) -> str:
    """A time as a date, or the number itself where no calendar reaches."""
    from datetime import UTC, datetime, timedelta

    try:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    except OverflowError:
        return str(ms)
    return at.isoformat(" ", "milliseconds")


def id_shown(raw: bytes) -> str:
    from holdfast.rules.ids import id_text

    return id_text(raw)


def is_id(name: str, value: bytes) -> bool:
    return len(value) == 16 and (name in ("id", "replaces") or name.endswith("_id"))


def cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"


def escaped(text: str) -> str:
    from html import escape

    return escape(text)


def rows_html(rows: Iterable[Any]) -> str:
    """A table of the first rows, and a word if there are more."""
    first = list(itertools.islice(rows, SHOWN_ROWS_MAX + 1))
    if not first:
        return "<p>empty</p>"
    names = [name for name, _ in fields(first[0])]
    head = "".join(f"<th>{escaped(name)}</th>" for name in names)
    lines = (
        "".join(f"<td>{escaped(told(name, value))}</td>" for name, value in fields(row))
        for row in first[:SHOWN_ROWS_MAX]
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    more = "<p>…and more</p>" if len(first) > SHOWN_ROWS_MAX else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _bytes(name: str, value: bytes) -> str:
    return id_shown(value) if is_id(name, value) else f"<{len(value)} bytes>"


def _struct(struct: Any, shorten: Callable[[str], str]) -> str:
    inside = ", ".join(f"{name}={told(name, value)}" for name, value in fields(struct))
    return shorten(f"{type(struct).__name__}({inside})")
