"""Pages that are run: what a page shows is what a reader gets.

A page is a story. Its blocks run in order, in one empty folder with a home of its own, and share
what they define:

    ```python      is executed. A line `expression  # -> text` must evaluate to what has this repr.
    ```console     each `$ …` line is run, and what stands below it must be what comes out, stdout
                   and stderr as on a terminal. Nothing below it: any output will do.

`…` stands for any text within a line, or, alone on its line, for any lines: ids and times differ.
Two spaces or more stand for any such gap, since columns are as wide as their content.
`ana$ …` is a command on the machine of Ana; blocks with such commands need machines, and are run by
`machine_pages.py`.
A command must succeed unless an `error:` or `[FAIL]` is shown, and then it must fail.

All of it is typed into one plain shell: `echo $?`, `name=$(holdfast …)` and `export name` do what
they do there, and what has a pipe, redirects or asks another command is given to a real one. So a
program that a command starts, and a Python block, sees a variable only if the page has exported it.
"""

from __future__ import annotations

import ast
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.apps.cli.main import main

ANY = "…"
CURL = Path(__file__).with_name("curl.py")
SHOWN = re.compile(r"#\s*->\s*(?P<text>.+?)\s*$")
TAKEN = re.compile(r"(?P<name>[A-Za-z_]\w*)=\$\((?P<command>holdfast .*)\)")
EXPORT = re.compile(r"export(?P<names>( [A-Za-z_]\w*)+)")
VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)\}")
SHELL = re.compile(r"[|<>;&]|\$\(")
PROMPT = re.compile(r"(?P<machine>[a-z]*)\$ (?P<command>.+)")


class Block(NamedTuple):
    """One fenced block of a page."""

    language: str
    line: int
    """Of its first line, counted from 1."""
    text: str


class Step(NamedTuple):
    """One command of a console block, with the lines shown below it."""

    line: int
    command: str
    shown: list[str]
    machine: str = ""
    """Where it is typed, if that is not all the same."""


class Wrong(AssertionError):
    """What a page shows is not what comes out."""


def blocks(page: str) -> Iterator[Block]:
    language, start, lines = None, 0, list[str]()
    for number, line in enumerate(page.splitlines(), 1):
        if language is None:
            if fence := re.fullmatch(r"```(\w*)", line):
                language, start, lines = fence[1], number + 1, []
        elif line == "```":
            yield Block(language, start, "\n".join(lines) + "\n")
            language = None
        else:
            lines.append(line)
    assert language is None, f"the block at line {start} has no end"


def steps(block: Block) -> Iterator[Step]:
    found: list[Step] = []
    for number, line in enumerate(block.text.splitlines(), block.line):
        if prompt := PROMPT.fullmatch(line):
            found.append(Step(number, prompt["command"], [], prompt["machine"]))
        elif found and found[-1].command.endswith("\\"):
            last = found.pop()
            found.append(last._replace(command=last.command[:-1] + line.strip()))
        else:
            assert found, f"line {number} shows output before any command"
            found[-1].shown.append(line)
    yield from found


class Story:
    """Runs the blocks of one page."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "page"}
        self.variables: dict[str, str] = {}
        """Of the shell, and not exported."""
        self.code = 0

    def tell(self, page: str) -> int:
        """Runs everything; returns how many lines were compared or run."""
        return sum(self.run(block) for block in blocks(page))

    def run(self, block: Block) -> int:
        if block.language == "python":
            self._python(block)
            return 1
        if block.language != "console":
            return 0
        told = [step for step in steps(block) if self.is_for_me(step)]
        for step in told:
            self._command(step)
        return len(told)

    def is_for_me(self, step: Step) -> bool:
        return not step.machine

    # --- Python ------------------------------------------------------------------------------

    def _python(self, block: Block) -> None:
        source = "\n" * (block.line - 1) + block.text
        checked = _Checked(source.splitlines())
        tree = ast.fix_missing_locations(checked.visit(ast.parse(source, self.name)))
        shown = sum(SHOWN.search(line) is not None for line in source.splitlines())
        assert checked.count == shown, f"{self.name}:{block.line} shows a value of no expression"
        self.names["__shown__"] = self._compare_value
        exec(compile(tree, self.name, "exec"), self.names)

    def _compare_value(self, value: object, shown: str, line: int) -> None:
        if not matches([shown], [repr(value)]):
            raise Wrong(f"{self.name}:{line} shows {shown}\nand it is {value!r}")

    # --- Console -----------------------------------------------------------------------------

    def _command(self, step: Step) -> None:
        if step.command == "echo $?":
            printed, failed = f"{self.code}\n", False
        else:
            printed = self._run(step)
            failed = self.code != 0
        where = f"{self.name}:{step.line} $ {step.command}"
        fails = any(line.startswith(("error:", "[FAIL]")) for line in step.shown)
        if failed != fails and not _leaves_a_code(step.command):
            raise Wrong(f"{where}\nended with exit code {self.code} and said\n{printed}")
        if step.shown and not matches(step.shown, printed.splitlines()):
            shown = "\n".join(step.shown)
            raise Wrong(f"{where}\nshows\n{shown}\nand said\n{printed}")

    def _run(self, step: Step) -> str:
        return self.type(step.command)

    def type(self, command: str) -> str:
        """Does what a terminal does with a line, and returns what it shows."""
        if taken := TAKEN.fullmatch(command):
            out, err = self._holdfast(taken["command"])
            kept = os.environ if taken["name"] in os.environ else self.variables
            kept[taken["name"]] = out.rstrip("\n")
            return err
        if exported := EXPORT.fullmatch(command):
            for name in exported["names"].split():
                os.environ[name] = self.variables.pop(name)
            self.code = 0
            return ""
        if SHELL.search(command) or not command.startswith("holdfast "):
            return self._shell(command)
        both = io.BytesIO()
        self._holdfast(command, both)
        return both.getvalue().decode()

    def _holdfast(self, command: str, both: io.BytesIO | None = None) -> tuple[str, str]:
        """In this process, because starting a Python for each command takes most of the time."""
        words = [VARIABLE.sub(self._value, word) for word in shlex.split(command)[1:]]
        raw_out, raw_err = both or io.BytesIO(), both or io.BytesIO()
        out, err = _text(raw_out), _text(raw_err)
        with redirect_stdout(out), redirect_stderr(err):
            self.code = main(words)
        # Let go of the bytes before the wrappers go, which would close them.
        out.detach()
        err.detach()
        return raw_out.getvalue().decode(), raw_err.getvalue().decode()

    def _value(self, found: re.Match[str]) -> str:
        return {**os.environ, **self.variables}.get(found[1] or found[2], "")

    def _shell(self, command: str) -> str:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        if shutil.which("curl", path=path) is None:
            command = re.sub(r"\bcurl\b", f"{sys.executable} {CURL}", command)
        known = "".join(f"{name}={shlex.quote(text)}\n" for name, text in self.variables.items())
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", f"{known}{command}"],
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        self.code = done.returncode
        return done.stdout.decode()


def matches(shown: list[str], printed: list[str]) -> bool:
    """Are these the printed lines, `…` standing for whatever it stands for?"""
    pattern = "".join(r"(?:.*\n)*" if line.strip() == ANY else f"{_line(line)}\n" for line in shown)
    return re.fullmatch(pattern, "".join(f"{line.rstrip()}\n" for line in printed)) is not None


def _line(line: str) -> str:
    """Columns of a table are as wide as their content, so a gap stands for any gap."""
    cells = re.split(r" {2,}", line.rstrip())
    return " {2,}".join(".*".join(map(re.escape, cell.split(ANY))) for cell in cells)


def _leaves_a_code(command: str) -> bool:
    """`holdfast check` answers by its exit code: a warning is no failure of the command."""
    return command.startswith("holdfast check ")


def _text(raw: io.BytesIO) -> io.TextIOWrapper:
    return io.TextIOWrapper(raw, encoding="utf-8", write_through=True)


class _Checked(ast.NodeTransformer):
    """Turns `expression  # -> text` into a comparison, at any depth of the block."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self.count = 0

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        assert node.end_lineno is not None
        rest = self._lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode()
        shown = SHOWN.search(rest)
        if shown is None:
            return node
        self.count += 1
        arguments: list[ast.expr] = [
            node.value,
            ast.Constant(shown["text"]),
            ast.Constant(node.end_lineno),
        ]
        call = ast.Call(ast.Name("__shown__", ast.Load()), arguments, [])
        return ast.copy_location(ast.Expr(ast.copy_location(call, node)), node)
