"""The quick path: `state get` and `memory get` on a home that is in order.

These two stand in loops and prompts, so they must cost little more than starting Python. The full
commands give the same answer, byte for byte; whatever is not plain (an option that is not listed
here, an error other than a missing key, a home that needs attention, a value in a form that the
encoder would write differently) is left to them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.apps.cli import output
from holdfast.rules.errors import UnknownKey
from holdfast.rules.limits import KEY_BYTES_MAX

if TYPE_CHECKING:
    from apsw import Connection

_FAMILIES = ("state", "memory")


def run(argv: list[str]) -> int | None:
    """The exit code, or None where the full command must do the work."""
    request = _parse(argv)
    if request is None:
        return None
    family, key, home, mesh, as_json = request
    from holdfast.storage.sqlite.quick_read import Unusual

    try:
        answer = _answer(family, key, home, mesh, as_json)
    except UnknownKey as missing:
        output.works_at(home)
        return output.error(missing, as_json)
    except Unusual:
        return None
    if answer is None:
        return None
    output.out(answer)
    return 0


def _parse(argv: list[str]) -> tuple[str, str, str, str, bool] | None:
    if len(argv) < 3 or argv[0] not in _FAMILIES or argv[1] != "get":
        return None
    given = {"--home": "", "--mesh": ""}
    keys: list[str] = []
    as_json = False
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
            keys.append(word)
    home = given["--home"] or os.environ.get("HOLDFAST_HOME", "")
    mesh = given["--mesh"] or os.environ.get("HOLDFAST_MESH", "")
    if len(keys) != 1 or not home or home.startswith("~") or "_HOLDFAST_COMPLETE" in os.environ:
        return None
    return argv[0], keys[0], home, mesh, as_json


def _answer(family: str, key: str, home: str, mesh: str, as_json: bool) -> str | None:
    try:
        home.encode()
        if not 0 < len(key.encode()) <= KEY_BYTES_MAX:
            return None
    except UnicodeEncodeError:
        return None
    if os.environ.get("HOLDFAST_STORE_SYNC", "full") not in ("full", "normal"):
        return None
    from holdfast.storage.sqlite import quick_read

    with quick_read.open_read_only(home) as connection:
        meshes = quick_read.mesh_names(connection)
        slug = mesh or (meshes[0] if len(meshes) == 1 else "")
        peer = quick_read.peer_name(connection)
        if slug not in meshes or peer is None or quick_read.anything_to_tell(connection, slug):
            raise quick_read.Unusual
        if family == "state":
            value, document = _state(connection, slug, key)
        else:
            value, document = _memory(connection, slug, peer, key)
    if not _is_plain(value):
        return None
    return f"{document}\n" if as_json else _text(value)


def _state(connection: Connection, mesh: str, key: str) -> tuple[str, str]:
    from holdfast.storage.sqlite.quick_read import state_row

    row = state_row(connection, mesh, key)
    if row is None:
        raise output.no_state(mesh, key)
    value, lamport, peer, updated_at = row
    return value, (
        f'{{"mesh":{output.quote(mesh)},"key":{output.quote(key)},"value":{value},'
        f'"lamport":{lamport},"peer":{output.quote(peer)},"updated_at":{updated_at}}}'
    )


def _memory(connection: Connection, mesh: str, owner: str, key: str) -> tuple[str, str]:
    from holdfast.storage.sqlite.quick_read import memory_row

    row = memory_row(connection, mesh, owner, key)
    if row is None:
        raise output.no_memory(mesh, key, owner)
    value, tags, lamport, updated_at = row
    return value, (
        f'{{"mesh":{output.quote(mesh)},"peer":{output.quote(owner)},"key":{output.quote(key)},'
        f'"value":{value},"tags":{tags},"lamport":{lamport},"updated_at":{updated_at}}}'
    )


def _text(value: str) -> str:
    if not value.startswith('"'):
        return f"{value}\n"
    import json

    return output.value_line(json.loads(value))


def _is_plain(value: str) -> bool:
    """Would the encoder write this stored JSON in the same way again? Exponents it would not."""
    import json

    again = json.dumps(json.loads(value), ensure_ascii=False, separators=(",", ":"))
    return again == value and (value.startswith('"') or ("e+" not in value and "e-0" not in value))
