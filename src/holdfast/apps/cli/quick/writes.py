"""The quick path of `state set` and `memory set`: one plain value for one key of a home that is in
order.

It stands in scripts and loops, where most of its time would go into loading what it does not use.
The home is opened as ever, and the same operation goes to the same engine; only the command line
for a hundred commands and the library's other families stay out.

As with the other quick commands, what is not plain is left to the full command, and so is every
error that comes before the write, for then nothing has happened. Once the engine has it, its error
is told here: the full command would write a second time.
"""

from __future__ import annotations

import os
import sys
from contextlib import closing

from holdfast.apps.cli import output
from holdfast.apps.cli.main import closed_at_sigterm, end_quickly

TYPE_CHECKING = False  # type checkers know the name; importing typing costs the cold path
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from holdfast.node.core.change import Change
    from holdfast.node.core.engine import NodeEngine
    from holdfast.node.home.opening import Opened
    from holdfast.rules.rows import WarningRow

SENTENCES = {"state": "set", "memory": "remembered"}
"""What the command has done with a key, by its family."""


class _Asked:
    """What the words of a command ask for."""

    def __init__(self, family: str, key: str, value: str) -> None:
        self.family, self.key, self.value = family, key, value
        self.home = self.mesh = self.id = ""
        self.as_json = False

    @property
    def op(self) -> str:
        return f"{self.family}.set"


def run(argv: list[str]) -> int | None:
    """The exit code, or None where the full command must do the work."""
    asked = _parse(argv)
    if asked is None:
        return None
    end_quickly()
    _load_msgspec()
    # Here and below, because most words do not come this far.
    from holdfast.apps.cli.relay import relaying
    from holdfast.node.core import keyed_writes
    from holdfast.node.core.metrics import COMMAND
    from holdfast.node.home.opening import open_home
    from holdfast.storage.sqlite.quick_read import undisturbed

    if not undisturbed(asked.home):
        return None
    COMMAND.set(f"{asked.family} set")
    output.works_at(asked.home)
    prepare = keyed_writes.state_set if asked.family == "state" else keyed_writes.memory_set
    with relaying(lambda text: output.warn(asked.as_json, "home", text)), closed_at_sigterm():
        try:
            opened = open_home(asked.home)
        except Exception:
            return None  # whatever it was, nothing is written: the full command tells it
        try:
            with closing(opened):
                return _write(asked, opened, prepare)
        except Exception as error:
            # Here, because it brings the whole command line.
            from holdfast.apps.cli.app import failed

            return failed(error, asked.as_json)


def _load_msgspec() -> None:
    """msgspec takes one function from typing_extensions where that is installed, and from typing
    where it is not. The first brings inspect, ast and tokenize, a tenth of what a lone write costs,
    for annotations that we have none of. So it is not there while msgspec is imported.
    """
    if "msgspec" in sys.modules or "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # so Python refuses it
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules["typing_extensions"]


def _parse(argv: list[str]) -> _Asked | None:
    if len(argv) < 4 or argv[0] not in SENTENCES or argv[1] != "set":
        return None
    given = {"--home": os.environ.get("HOLDFAST_HOME", "")}
    given["--mesh"] = os.environ.get("HOLDFAST_MESH", "")
    as_json, plain = False, []
    rest = iter(argv[2:])
    for word in rest:
        name, equals, value = word.partition("=")
        if word == "--json":
            as_json = True
        elif name in given:
            given[name] = value if equals else next(rest, "")
            if not given[name]:
                return None
        elif word.startswith("-"):
            return None
        else:
            plain.append(word)
    home = given["--home"]
    if len(plain) != 2 or not home or home.startswith("~") or not _is_text(home, *plain):
        return None
    asked = _Asked(argv[0], *plain)
    asked.home, asked.mesh, asked.as_json = home, given["--mesh"], as_json
    return asked


def _is_text(*words: str) -> bool:
    """Whether they are UTF-8: arguments may be any bytes."""
    try:
        return all(word.encode() is not None for word in words)
    except UnicodeEncodeError:
        return False


def _write(asked: _Asked, opened: Opened, prepare: Callable[..., Change]) -> int | None:
    from holdfast.rules.errors import HoldfastError, Unknown
    from holdfast.rules.ids import id_text

    engine = opened.engine
    mesh = _mesh_of(asked, engine)
    if mesh is None:
        return None
    id = id_text(engine.ctx.new_id())
    try:
        change = prepare(engine.ctx, mesh, asked.key, asked.value, id=id)
    except HoldfastError:
        return None
    try:
        done = engine.write(asked.op, change)
    except Unknown as error:
        error.hint = output.retry_hint(id)
        raise
    document = output.receipt(done, mesh, op=asked.op, key=asked.key)
    warnings = [_told(row) for row in engine.take_warnings(mesh)]
    if asked.as_json:
        import msgspec

        more = {"warnings": warnings} if warnings else {}
        output.out(f"{msgspec.json.encode({**document, **more}).decode()}\n")
        return 0
    what = f"{SENTENCES[asked.family]} {asked.key!r} in {mesh} at {done.stamp}"
    output.said(document, what)
    for warning in warnings:
        output.warn(False, **warning)
    return 0


def _mesh_of(asked: _Asked, engine: NodeEngine) -> str | None:
    """The mesh that is meant; None if it must be asked for, or is not there."""
    slugs = [row.slug for row in engine.read("mesh.list", lambda tx: tx.mesh_list())]
    mesh = asked.mesh or (slugs[0] if len(slugs) == 1 else "")
    return mesh if mesh in slugs else None


def _told(row: WarningRow) -> dict[str, Any]:
    # Here, because nearly no write has something to tell.
    from holdfast.rules.warnings_told import warning_document

    return warning_document(row)
