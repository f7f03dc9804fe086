"""The man pages, made from the commands: `holdfast.1`, and one for each noun with all its verbs.

They are committed like the reference, so that building a wheel needs nothing but its files, and
the wheel puts them where `man` looks: `share/man/man1` of the environment. `make docs` writes them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator

import click

from holdfast import __version__
from holdfast.apps.cli.app import PROGRAM, root
from holdfast.apps.cli.commands.help import CHECK_CODES, EXIT_CODES
from tools.reference import found

SECTION = "1"
_ENVIRONMENT = (
    ("HOLDFAST_HOME", "The home, where --home is not given."),
    ("HOLDFAST_MESH", "The mesh, where --mesh is not given."),
    ("HOLDFAST_CONTEXT", "The context, where --context is not given and no home is named."),
    ("HOLDFAST_CONFIG", "A file with settings."),
    ("HOLDFAST_STORE_SYNC", "`full` or `normal`: whether a write waits for the disk."),
    ("HOLDFAST_BROKER_TOKEN", "What a broker asks for before it makes a mesh."),
    ("HOLDFAST_LAKE", "The folder or address of the lake of holdfast pipeline."),
    ("HOLDFAST_PAGER, PAGER", "What shows lists that are longer than the screen."),
    ("VISUAL, EDITOR", "What the verbs edit open."),
    ("NO_COLOR", "Set to anything: no colours."),
)


def man_pages() -> dict[str, str]:
    """The text of each page by the name of its file."""
    ctx = click.Context(root, info_name=PROGRAM)
    commands = [(name, found(root, ctx, name)) for name in root.list_commands(ctx)]
    pages = {_file(PROGRAM): _root_page(ctx, commands)}
    for name, command in commands:
        pages[_file(f"{PROGRAM}-{name}")] = _command_page(ctx, name, command)
    return pages


def _file(page: str) -> str:
    return f"{page}.{SECTION}"


# --- pages ---------------------------------------------------------------------------------------


def _root_page(ctx: click.Context, commands: list[tuple[str, click.Command]]) -> str:
    lines = [*_head(PROGRAM, root.help or ""), ".SH SYNOPSIS"]
    lines += [f".B {PROGRAM}", *_plain("[OPTIONS] COMMAND [ARGUMENTS]..."), ".SH DESCRIPTION"]
    lines += [*_paragraphs(root.help or ""), ".SH OPTIONS", *_options(root, ctx), ".SH COMMANDS"]
    for name, command in commands:
        lines += [".TP", f".BR {_bare(f'{PROGRAM}-{name}')} ({SECTION})"]
        lines += _plain(_first(command.help or ""))
    lines += [".SH EXIT STATUS"]
    for code, (_, meaning) in EXIT_CODES.items():
        lines += [".TP", f".B {code}", *_plain(f"{meaning}.")]
    checks = ", ".join(f"{code} {word}" for code, word in CHECK_CODES.items())
    lines += [".PP", *_plain(f"The verbs of {PROGRAM} check have their own: {checks}.")]
    lines += [".SH ENVIRONMENT"]
    for name, said in _ENVIRONMENT:
        lines += [".TP", f".B {_bare(name)}", *_plain(said)]
    lines += [".SH FILES"]
    lines += _plain(f"{PROGRAM} paths says where everything of a home is.")
    return _text(lines)


def _command_page(ctx: click.Context, name: str, command: click.Command) -> str:
    inner = click.Context(command, info_name=name, parent=ctx)
    lines = [*_head(f"{PROGRAM}-{name}", command.help or ""), ".SH SYNOPSIS"]
    leaves = list(_leaves(command, inner))
    for number, (leaf, where) in enumerate(leaves):
        lines += [".br"] if number else []
        lines += _usage(leaf, where)
    lines += [".SH DESCRIPTION", *_paragraphs(command.help or "")]
    if not isinstance(command, click.Group):
        lines += [".SH OPTIONS", *_options(command, inner)]
    else:
        lines += [".SH VERBS"]
        for leaf, where in leaves:
            lines += [f".SS {_bare(where.command_path.removeprefix(f'{PROGRAM} '))}"]
            lines += [*_usage(leaf, where), *_paragraphs(leaf.help or ""), *_options(leaf, where)]
    lines += [".SH SEE ALSO", f".BR {PROGRAM} ({SECTION})"]
    return _text(lines)


def _leaves(
    command: click.Command, ctx: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    if not isinstance(command, click.Group):
        yield command, ctx
        return
    for name in command.list_commands(ctx):
        inner = found(command, ctx, name)
        yield from _leaves(inner, click.Context(inner, info_name=name, parent=ctx))


# --- parts of a page -----------------------------------------------------------------------------


def _head(page: str, help: str) -> list[str]:
    # No date: a page is the same whenever it is made.
    title = f'.TH {_bare(page.upper())} {SECTION} "" "{PROGRAM} {__version__}" "{PROGRAM}"'
    about = _first(help).removesuffix(".")
    return [title, ".SH NAME", f"{_bare(page)} \\- {_escaped(about)}"]


def _usage(command: click.Command, ctx: click.Context) -> list[str]:
    words = [word for param in command.params for word in param.get_usage_pieces(ctx)]
    return [f".B {_bare(ctx.command_path)}", *_plain(" ".join(["[OPTIONS]", *words]))]


def _options(command: click.Command, ctx: click.Context) -> list[str]:
    lines: list[str] = []
    for param in command.params:
        record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
        if record is not None:
            names, said = record
            lines += [".TP", f".B {_bare(names)}", *(_plain(said) or ["\\&"])]
    return lines


def _paragraphs(help: str) -> list[str]:
    lines: list[str] = []
    for paragraph in inspect.cleandoc(help).split("\n\n"):
        lines += [".PP", *_plain(" ".join(paragraph.split()))]
    return lines


def _first(help: str) -> str:
    """The first sentence of a help."""
    paragraph = " ".join(inspect.cleandoc(help).partition("\n\n")[0].split())
    head, dot, _ = paragraph.partition(". ")
    return head + dot.strip()


def _plain(text: str) -> list[str]:
    return [_escaped(text)] if text else []


def _bare(text: str) -> str:
    """Words in bold: hyphens stay what they are, so that options can be copied."""
    return _escaped(text).replace("-", "\\-")


def _escaped(text: str) -> str:
    safe = text.replace("\\", "\\e").replace("`", "")
    return f"\\&{safe}" if safe.startswith((".", "'")) else safe


def _text(lines: Iterable[str]) -> str:
    written = [
        f'.\\" Written by `make docs` from src/{PROGRAM}/apps/cli. Edit that, not this page.'
    ]
    for line in lines:
        if line == ".PP" and written[-1].startswith((".SH", ".SS")):
            continue  # a heading begins a paragraph by itself
        written.append(line)
    return "\n".join(written) + "\n"
