"""Write the pages that come from the code: docs/reference, the tables of docs/protocol, those of
the lake, and the man pages.

    python tools/reference.py            write them
    python tools/reference.py --check    say which are out of date, and fail if any is

The pages are committed, so that people can read them without running anything; a tidy test runs the
check.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from holdfast.apps.cli.app import root
from holdfast.apps.cli.commands.help import CHECK_CODES, EXIT_CODES
from holdfast.apps.cli.completion import words as completion_words
from holdfast.node.http.app import node_routes
from holdfast.rules import errors, limits
from holdfast.rules.errors import HoldfastError
from holdfast.service.http.docs_page import curl
from holdfast.service.http.openapi import openapi_path, refusals

DOCS = Path(__file__).resolve().parent.parent / "docs"
MAN = DOCS.parent / "man" / "man1"
NOTE = "<!-- Written by `make docs` from {source}. Edit that file, not this page. -->"

BINARY_UNITS = ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))
TIME_UNITS = ((24 * 3600_000, "d"), (3600_000, "h"), (60_000, "min"), (1000, "s"))


# --- Errors ------------------------------------------------------------------------------------


def errors_page() -> str:
    lines = [
        NOTE.format(source="src/holdfast/rules/errors.py"),
        "# Errors",
        "",
        "Everything that Holdfast raises on purpose is a `HoldfastError`. The three families below",
        "tell a caller what to do next. Programs should look at the code: `error.code` in the",
        "library and in what `--json` prints. The exit code is that of the command line, the",
        "status that of HTTP. A name in brackets is the group to catch for all of its kind.",
    ]
    for family in children_of(HoldfastError):
        lines += ["", f"## {family.__name__}", "", meaning(family), ""]
        lines += [
            "| error | code | exit | status | meaning | what to do |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        # Groups are for catching; only what has no descendants is ever raised.
        lines += [error_row(kind) for kind in descendants_of(family) if not children_of(kind)]
    return "\n".join(lines) + "\n"


def error_row(kind: type[HoldfastError]) -> str:
    group = kind.__bases__[0]
    inside = "" if group in children_of(HoldfastError) else f" ({group.__name__})"
    return (
        f"| `{kind.__name__}`{inside} | `{kind.code}` | {kind.exit_code} | {kind.http_status} "
        f"| {meaning(kind)} | {kind.default_hint or 'the message says it'} |"
    )


def meaning(kind: type[HoldfastError]) -> str:
    """What the tree at the top of the module says beside the name, then the class's own words."""
    assert errors.__doc__ is not None
    beside = re.search(rf"── {kind.__name__} {{2,}}(.+)", errors.__doc__)
    own = kind.__doc__ if "__doc__" in vars(kind) else None
    sentences = [beside[1]] if beside and kind not in children_of(HoldfastError) else []
    sentences += [" ".join(inspect.cleandoc(own).split())] if own else []
    return ". ".join(sentences) or kind.code.replace("_", " ")


def children_of(parent: type[HoldfastError]) -> list[type[HoldfastError]]:
    """In the order of the file, which is the order of the tree."""
    return [
        kind
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, HoldfastError) and kind.__bases__ == (parent,)
    ]


def descendants_of(parent: type[HoldfastError]) -> list[type[HoldfastError]]:
    return [kind for child in children_of(parent) for kind in (child, *descendants_of(child))]


# --- Limits ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limit:
    section: str
    name: str
    value: int
    note: str


def limits_page() -> str:
    lines = [
        NOTE.format(source="src/holdfast/rules/limits.py"),
        "# Limits and defaults",
        "",
        "What is beyond a `_MAX` or `_MIN` is refused unless its line says otherwise. The rest",
        "are defaults and fixed sizes.",
    ]
    section = ""
    for limit in read_limits():
        if limit.section != section:
            section = limit.section
            lines += ["", f"## {section}", "", "| name | value | |", "| --- | --- | --- |"]
        lines.append(f"| `{limit.name}` | {shown(limit.name, limit.value)} | {limit.note} |")
    return "\n".join(lines) + "\n"


def read_limits() -> Iterator[Limit]:
    """Every limit below the first section comment; above it stand the units they are made of."""
    source = Path(limits.__file__).read_text(encoding="utf-8")
    sections = list(re.finditer(r"(?m)^\n# (.+)$", source))
    starts = [(source.count("\n", 0, match.start(1)) + 1, match[1]) for match in sections]
    body = ast.parse(source).body
    for index, node in enumerate(body):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        above = [title for line, title in starts if line < node.lineno]
        if above:
            follower = body[index + 1] if index + 1 < len(body) else None
            name = node.target.id
            yield Limit(above[-1], name, getattr(limits, name), note_of(follower))


def note_of(node: ast.stmt | None) -> str:
    if (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ):
        return " ".join(node.value.value.split())
    return ""


def shown(name: str, value: object) -> str:
    """`64 KiB` for 65536 bytes; the plain number where no unit fits it exactly."""
    if not isinstance(value, int):
        return f"`{value!r}`"
    words = name.split("_")
    if "VERSION" in words:
        return str(value)
    if "BYTES" in words:
        return in_units(value, BINARY_UNITS, "bytes")
    if "MS" in words:
        return in_units(value, TIME_UNITS, "ms")
    if value.bit_length() > 32:
        return (
            f"2^{value.bit_length() - 1}"
            if value & (value - 1) == 0
            else f"2^{value.bit_length()} - 1"
        )
    return f"{value:,}"


def in_units(value: int, units: tuple[tuple[int, str], ...], smallest: str) -> str:
    for size, unit in units:
        if value >= size and value % size == 0:
            return f"{value // size:,} {unit}"
    return f"{value:,} {smallest}"


# --- Commands ----------------------------------------------------------------------------------

SHARED = ("--id", "--mesh", "--home", "--json")
"""Options that are explained once, above all commands."""


def cli_page() -> str:
    ctx = click.Context(root, info_name="holdfast")
    lines = [
        NOTE.format(source="src/holdfast/apps/cli"),
        "# The command line",
        "",
        "`holdfast NOUN VERB`. Data goes to stdout and talk to stderr. The same texts are shown by",
        "`--help` after any command.",
        "",
        "## Options that many commands share",
        "",
        *option_table(shared_options(ctx)),
        "",
        "## Exit codes",
        "",
        "| code | name | meaning |",
        "| --- | --- | --- |",
        *(f"| {code} | {name} | {meaning} |" for code, (name, meaning) in EXIT_CODES.items()),
        "",
        "`holdfast check` has its own, as monitoring tools expect: "
        + ", ".join(f"{code} {word}" for code, word in CHECK_CODES.items())
        + ".",
    ]
    for name in root.list_commands(ctx):
        lines += command_lines(found(root, ctx, name), ctx, depth=2)
    return "\n".join(lines) + "\n"


def found(group: click.Group, ctx: click.Context, name: str) -> click.Command:
    command = group.get_command(ctx, name)
    assert command is not None, f"{name} is listed and cannot be loaded"
    return command


def command_lines(command: click.Command, parent: click.Context, depth: int) -> list[str]:
    ctx = click.Context(command, info_name=command.name, parent=parent)
    lines = ["", f"{'#' * depth} {ctx.command_path}", "", inspect.cleandoc(command.help or "")]
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            lines += command_lines(found(command, ctx, name), ctx, depth + 1)
        return lines
    words = [word for param in command.params for word in param.get_usage_pieces(ctx)]
    lines += ["", "```text", " ".join([ctx.command_path, "[OPTIONS]", *words]), "```"]
    own = [option for option in options_of(command) if not set(option.opts) & set(SHARED)]
    if own:
        lines += ["", *option_table((option, ctx) for option in own)]
    shared = [name for name in SHARED if any(name in o.opts for o in options_of(command))]
    lines += ["", "Also " + ", ".join(f"`{name}`" for name in shared) + "."] if shared else []
    return lines


def options_of(command: click.Command) -> list[click.Option]:
    return [param for param in command.params if isinstance(param, click.Option)]


def shared_options(ctx: click.Context) -> list[tuple[click.Option, click.Context]]:
    """Each as `state set` has it, which takes all of them."""
    group = found(root, ctx, "state")
    assert isinstance(group, click.Group)
    command = found(group, ctx, "set")
    return [(o, ctx) for name in SHARED for o in options_of(command) if name in o.opts]


def option_table(options: Iterable[tuple[click.Option, click.Context]]) -> list[str]:
    rows = [row for option, ctx in options if (row := option.get_help_record(ctx)) is not None]
    return [
        "| option | |",
        "| --- | --- |",
        *(f"| `{name.replace('|', chr(92) + '|')}` | {help} |" for name, help in rows),
    ]


# --- HTTP --------------------------------------------------------------------------------------


def http_page() -> str:
    lines = [
        NOTE.format(source="src/holdfast/node/api"),
        "# HTTP",
        "",
        "What a daemon answers (`holdfast up`). A running one shows the same at `/docs`, with its",
        "schemas at `/openapi.json`. Every error is",
        '`{"error": {"code": …, "message": …, "hint": …}}`, with the codes of [errors](errors.md).',
        "",
        "Who may ask: *any caller*; *readers* are this machine's own user, a zone that was granted",
        "a mesh, or a caller with a token; *own user* is a caller that may open the Unix socket or",
        "has a token for everything.",
    ]
    for route in sorted(node_routes(), key=lambda route: (route.path, route.method)):
        lines += ["", f"## {route.method} {openapi_path(route)}", "", route.summary, ""]
        who = "any caller" if route.public else "own user" if route.local_only else "readers"
        lines += [f"For {who}.", "", "```text", curl(route), "```"]
        if route.params:
            lines += ["", "| parameter | |", "| --- | --- |"]
            lines += [f"| `{param.name}` | {param.summary} |" for param in route.params]
        codes = ", ".join(f"{kind.http_status} `{kind.code}`" for kind in refusals(route))
        lines += ["", f"Refused with {codes}."]
    return "\n".join(lines) + "\n"


# --- All ---------------------------------------------------------------------------------------


def gone(page: Path, pages: dict[str, str]) -> bool:
    """Whether a man page is that of a command which is not there any more."""
    return f"../man/man1/{page.name}" not in pages


def main() -> int:
    from tools import lake_pages
    from tools.man_pages import man_pages
    from tools.protocol_tables import tables_page  # it asks this module for the limits

    pages = {
        "reference/errors.md": errors_page(),
        "reference/limits.md": limits_page(),
        "reference/cli.md": cli_page(),
        "reference/http.md": http_page(),
        "protocol/tables.md": tables_page(),
        "lake-tables.md": lake_pages.tables_page(),
        lake_pages.PICTURE: lake_pages.picture(),
        "../src/holdfast/apps/cli/completion/words.json": completion_words.words(root),
        f"../{lake_pages.SOURCES}": lake_pages.dbt_sources(),
        **{f"../man/man1/{name}": text for name, text in man_pages().items()},
    }
    check = sys.argv[1:] == ["--check"]
    stale = [f"../man/man1/{path.name}" for path in MAN.glob("*") if gone(path, pages)]
    for name in () if check else stale:
        (DOCS / name).unlink()
    for name, text in pages.items():
        path = DOCS / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for name in stale:
        path = (DOCS / name).resolve().relative_to(DOCS.parent)
        print(f"{path}: {'out of date' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.path.insert(0, str(DOCS.parent))
    sys.exit(main())
