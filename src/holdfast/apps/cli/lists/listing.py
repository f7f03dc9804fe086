"""How a list is asked for: which rows of it, which fields, and in which form.

    holdfast state list --limit 20 --since 2h --fields key,value.status -o csv

Every command that prints a list takes these options, and `CommandSession.rows` obeys them. Rows
pass one by one; no list is held in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final, Literal

import click

from holdfast.apps.cli import output, tables
from holdfast.apps.cli.lists import pager
from holdfast.apps.cli.times import iso, parse_moment
from holdfast.rules.errors import BadInput

Form = Literal["table", "json", "jsonl", "csv"]
Document = Mapping[str, Any]
FORMS: Final = ("table", "json", "jsonl", "csv")
OPTIONS: Final = ("output", "fields", "limit", "since", "until", "no_pager")


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What was asked of one list."""

    form: Form = "table"
    fields: tuple[str, ...] = ()
    """Names or paths (`value.status`); empty for those that the command shows."""
    limit: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    time: str = ""
    """The field by which rows are chosen by time."""
    pages: bool = True

    @classmethod
    def of(cls, given: Mapping[str, Any], *, as_json: bool, time: str) -> Listing:
        """From the options of a command. BadInput if they contradict each other."""
        form: Form = given.get("output") or ("json" if as_json else "table")
        fields = tuple(name.strip() for name in (given.get("fields") or "").split(","))
        if given.get("fields") is not None and not all(fields):
            raise BadInput("--fields names nothing", hint="write it as --fields key,updated_at")
        since, until = (_moment(given.get(name)) for name in ("since", "until"))
        if since is not None and until is not None and since > until:
            raise BadInput("--since is later than --until: no row can be in between")
        return cls(
            form=form,
            fields=tuple(filter(None, fields)),
            limit=given.get("limit"),
            since_ms=since,
            until_ms=until,
            time=time,
            pages=not given.get("no_pager"),
        )

    def print(self, documents: Iterable[Document], shown: Sequence[str], *, empty: str) -> None:
        """Prints the list; a table has the fields that the command shows, or those asked for."""
        rows = _Cut(self._known(filter(self._is_meant, documents), shown), self.limit)
        fields = self.fields or tuple(shown)
        with pager.paged(self.pages):
            match self.form:
                case "json":
                    tables.json_array(self._projected(rows))
                case "jsonl":
                    tables.json_lines(self._projected(rows))
                case "csv":
                    _print_csv(rows, fields)
                case "table":
                    asked = self._projected(rows) if self.fields else rows
                    if not tables.table(asked, fields):
                        output.talk("nothing of that time" if self._by_time else empty)
                    elif rows.more and self.limit is not None:
                        tables.tell_cut(self.limit)

    @property
    def _by_time(self) -> bool:
        return self.since_ms is not None or self.until_ms is not None

    def _is_meant(self, document: Document) -> bool:
        if not self._by_time:
            return True
        at = document.get(self.time)
        if not isinstance(at, int):
            return False
        return (self.since_ms is None or at >= self.since_ms) and (
            self.until_ms is None or at < self.until_ms
        )

    def _known(self, rows: Iterable[Document], shown: Sequence[str]) -> Iterator[Document]:
        """The rows. BadInput if a field was asked for that they do not have."""
        rest = iter(rows)
        first = next(rest, None)
        known = [*dict.fromkeys([*(first or {}), *shown])]
        for name in self.fields:
            if first is not None and name not in known and name.partition(".")[0] not in known:
                raise BadInput(
                    f"these rows have no field {name!r}", hint=f"they have: {', '.join(known)}"
                )
        return iter(()) if first is None else chain([first], rest)

    def _projected(self, rows: Iterable[Document]) -> Iterator[Document]:
        if not self.fields:
            return iter(rows)
        return ({name: at_path(row, name) for name in self.fields} for row in rows)


class _Cut:
    """The first rows of a list, and whether there were more."""

    def __init__(self, rows: Iterable[Document], limit: int | None) -> None:
        self._rows, self._limit = iter(rows), limit
        self.more = False

    def __iter__(self) -> Iterator[Document]:
        yield from islice(self._rows, self._limit)
        if self._limit is not None:
            self.more = next(self._rows, None) is not None


def at_path(document: Any, path: str) -> Any:
    """What stands at `a.b.0`: fields by name, items of a list by number; None if it is missing. A
    field whose name has a dot in it is found as well.
    """
    if isinstance(document, Mapping) and path in document:
        return document[path]
    name, dot, rest = path.partition(".")
    if isinstance(document, Mapping):
        inner = document.get(name)
    elif isinstance(document, list | tuple) and name.isdecimal() and int(name) < len(document):
        inner = document[int(name)]
    else:
        return None
    return at_path(inner, rest) if dot else inner


def options(time: str, has: Iterable[str]) -> list[click.Option]:
    """The options of a list whose rows have this time; without those that a command `has`."""
    declared = [
        click.Option(
            ["-o", "--output"], type=click.Choice(FORMS), help="The form; --json is -o json."
        ),
        click.Option(
            ["--fields"], metavar="A,B.C", help="These fields only; B.C is the field C within B."
        ),
        click.Option(["--limit"], type=click.IntRange(min=1), help="At most so many rows."),
        click.Option(["--no-pager"], is_flag=True, help="Print a long list without $PAGER."),
    ]
    if time:
        about = f"({time.removesuffix('_at').replace('_', ' ')}; 2h, yesterday or a time)"
        declared += [
            click.Option(["--since"], metavar="TIME", help=f"Only what is not older {about}."),
            click.Option(["--until"], metavar="TIME", help=f"Only what is older {about}."),
        ]
    taken = set(has)
    return [option for option in declared if option.name not in taken]


def _moment(text: str | None) -> int | None:
    return None if text is None else parse_moment(text)


def _print_csv(rows: Iterable[Document], fields: Sequence[str]) -> None:
    """As spreadsheets read it (RFC 4180): a head, texts as they are, times in ISO 8601, and
    whatever has a structure as JSON.
    """
    import csv
    import io

    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(fields)
    for row in rows:
        writer.writerow(_csv_cell(name, at_path(row, name)) for name in fields)
        output.out(buffer.getvalue())
        buffer.seek(0)
        buffer.truncate()
    output.out(buffer.getvalue())


def _csv_cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if name.endswith("_at") and isinstance(value, int) and not isinstance(value, bool):
        return iso(value)
    return tables.encode(value).decode()
