"""The quick path: `state get`, `memory get` and `state list` on a home that is in order.

These stand in loops and prompts, so they must cost little more than starting Python. The full
commands give the same answer, byte for byte; whatever is not plain (an option that is not listed
here, an error other than a missing key, a home that needs attention, a value in a form that the
encoder would write differently, a long list) is left to them.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, nullcontext

from holdfast.apps.cli import output
from holdfast.rules.errors import UnknownKey
from holdfast.rules.limits import (
    KEY_BYTES_MAX,
    NEAREST_KEYS,
    QUICK_LIST_CHARS_MAX,
    QUICK_LIST_ROWS_MAX,
)

TYPE_CHECKING = False  # type checkers know the name; importing typing costs the cold path
if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from apsw import Connection

_FAMILIES = ("state", "memory")


class _Asked:
    """What the words of a command ask for."""

    def __init__(self, family: str, verb: str) -> None:
        self.family, self.verb = family, verb
        self.key = self.home = self.mesh = ""
        self.limit: int | None = None
        self.as_json = self.no_pager = False


def run(argv: list[str]) -> int | None:
    """The exit code, or None where the full command must do the work."""
    asked = _parse(argv)
    if asked is None or not _is_usual(asked):
        return None
    from holdfast.storage.sqlite.quick_read import Unusual

    try:
        if asked.verb == "get":
            output.out(_value(asked))
        else:
            _print_list(asked)
    except UnknownKey as missing:
        output.works_at(asked.home)
        return output.error(missing, asked.as_json)
    except Unusual:
        return None
    return 0


def _parse(argv: list[str]) -> _Asked | None:
    if len(argv) < 2 or argv[0] not in _FAMILIES:
        return None
    if argv[1] != "get" and argv[:2] != ["state", "list"]:
        return None
    asked = _Asked(argv[0], argv[1])
    lists = asked.verb == "list"
    given = {"--home": "", "--mesh": "", **({"--limit": ""} if lists else {})}
    keys: list[str] = []
    rest = iter(argv[2:])
    for word in rest:
        name, equals, value = word.partition("=")
        if word == "--json":
            asked.as_json = True
        elif word == "--no-pager" and lists:
            asked.no_pager = True
        elif name in given:
            given[name] = value if equals else next(rest, "")
            if not given[name]:
                return None
        elif word.startswith("-"):
            return None
        else:
            keys.append(word)
    asked.home = given["--home"] or os.environ.get("HOLDFAST_HOME", "")
    asked.mesh = given["--mesh"] or os.environ.get("HOLDFAST_MESH", "")
    if len(keys) != (not lists) or not _takes_limit(asked, given.get("--limit", "")):
        return None
    asked.key = "".join(keys)
    return asked


def _takes_limit(asked: _Asked, limit: str) -> bool:
    if not limit:
        return True
    if not (limit.isascii() and limit.isdigit() and len(limit) < 10):
        return False
    asked.limit = int(limit)
    return 0 < asked.limit <= QUICK_LIST_ROWS_MAX


def _is_usual(asked: _Asked) -> bool:
    if not asked.home or asked.home.startswith("~") or "_HOLDFAST_COMPLETE" in os.environ:
        return False
    try:
        asked.home.encode()
        if asked.verb == "get" and not 0 < len(asked.key.encode()) <= KEY_BYTES_MAX:
            return False
    except UnicodeEncodeError:
        return False
    return os.environ.get("HOLDFAST_STORE_SYNC", "full") in ("full", "normal")


@contextmanager
def _opened(asked: _Asked) -> Iterator[tuple[Connection, str, str]]:
    """The database, the mesh and the peer."""
    from holdfast.storage.sqlite import quick_read

    with quick_read.open_read_only(asked.home) as connection:
        meshes = quick_read.mesh_names(connection)
        mesh = asked.mesh or (meshes[0] if len(meshes) == 1 else "")
        peer = quick_read.peer_name(connection)
        if mesh not in meshes or peer is None or quick_read.anything_to_tell(connection, mesh):
            raise quick_read.Unusual
        yield connection, mesh, peer


def _value(asked: _Asked) -> str:
    from holdfast.storage.sqlite.quick_read import Unusual

    with _opened(asked) as (connection, mesh, peer):
        if asked.family == "state":
            value, document = _state(connection, mesh, asked.key)
        else:
            value, document = _memory(connection, mesh, peer, asked.key)
    if not _is_plain(value):
        raise Unusual
    return f"{document}\n" if asked.as_json else _text(value)


def _print_list(asked: _Asked) -> None:
    """All rows are read and looked at before the first is printed."""
    from holdfast.storage.sqlite.quick_read import Unusual, state_rows

    most = asked.limit or QUICK_LIST_ROWS_MAX
    rows: list[tuple[str, str, int, str, int]] = []
    chars = 0
    with _opened(asked) as (connection, mesh, _):
        for row in state_rows(connection, mesh, most + 1):
            chars += len(row[1])
            if chars > QUICK_LIST_CHARS_MAX or not _is_plain(row[1]):
                raise Unusual
            rows.append(row)
    more = len(rows) > most
    if more and asked.limit is None:
        raise Unusual
    with _screen(asked):
        if asked.as_json:
            begin = "["
            for row in rows[:most]:
                output.out(f"{begin}{_state_json(mesh, *row)}")
                begin = ","
            output.out("]\n" if rows else "[]\n")
        elif not rows:
            output.talk(output.empty_state(mesh))
        else:
            _print_table(rows[:most], more)


def _screen(asked: _Asked) -> AbstractContextManager[None]:
    if not sys.stdout.isatty():
        return nullcontext()
    from holdfast.apps.cli.lists import pager

    return pager.paged(not asked.no_pager)


def _print_table(rows: list[tuple[str, str, int, str, int]], more: bool) -> None:
    import json

    from holdfast.apps.cli import tables

    fields = output.STATE_FIELDS
    documents = (
        dict(zip(fields, (key, json.loads(value), *rest), strict=True))
        for key, value, *rest in rows
    )
    tables.table(documents, fields, _dumps)
    if more:
        tables.tell_cut(len(rows))


def _state(connection: Connection, mesh: str, key: str) -> tuple[str, str]:
    from holdfast.storage.sqlite.quick_read import keys_near, state_row

    row = state_row(connection, mesh, key)
    if row is None:
        raise output.no_state(mesh, key, keys_near(connection, mesh, key, NEAREST_KEYS))
    return row[0], _state_json(mesh, key, *row)


def _state_json(mesh: str, key: str, value: str, lamport: int, peer: str, updated_at: int) -> str:
    return (
        f'{{"mesh":{output.quote(mesh)},"key":{output.quote(key)},"value":{value},'
        f'"lamport":{lamport},"peer":{output.quote(peer)},"updated_at":{updated_at}}}'
    )


def _memory(connection: Connection, mesh: str, owner: str, key: str) -> tuple[str, str]:
    from holdfast.storage.sqlite.quick_read import memories_near, memory_row

    row = memory_row(connection, mesh, owner, key)
    if row is None:
        near = memories_near(connection, mesh, owner, key, NEAREST_KEYS)
        raise output.no_memory(mesh, key, owner, near)
    value, tags, lamport, updated_at, created_at = row
    return value, (
        f'{{"mesh":{output.quote(mesh)},"peer":{output.quote(owner)},"key":{output.quote(key)},'
        f'"value":{value},"tags":{tags},"lamport":{lamport},"updated_at":{updated_at},'
        f'"created_at":{created_at}}}'
    )


def _text(value: str) -> str:
    if not value.startswith('"'):
        return f"{value}\n"
    if output.is_unescaped(value[1:-1]):
        return output.value_line(value[1:-1])
    import json

    return output.value_line(json.loads(value))


def _is_plain(value: str) -> bool:
    """Would the encoder write this stored JSON in the same way again? Exponents it would not."""
    if value[:1] == value[-1:] == '"' and len(value) > 1 and output.is_unescaped(value[1:-1]):
        return True
    import json

    again = _dumps(json.loads(value))
    return again == value and (value.startswith('"') or ("e+" not in value and "e-0" not in value))


def _dumps(value: object) -> str:
    import json

    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
