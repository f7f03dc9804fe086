"""How the command prints: data on stdout, messages on stderr, errors in one shape.

Bytes are always UTF-8, whatever the terminal's locale says, so that what a program reads does not
depend on where it runs. This module stands on the cold path: keep its imports few.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

from holdfast.rules.errors import HoldfastError, UnknownKey

TYPE_CHECKING = False  # type checkers know the name; importing typing costs the cold path
if TYPE_CHECKING:
    from typing import Any

    from holdfast.node.core.change import Receipt

Sink = Callable[[bytes], None]

_diverted: Sink | None = None
"""Where data goes instead of stdout."""
typed: list[str] = []
"""The words of this command, for hints that say it anew."""
_places: dict[str, str] = {}
"""The options by which this command was told where to work: `--home` and its like."""


def works_at(
    home: str | None = None,
    store: str | None = None,
    lake: str | None = None,
    context: str | None = None,
) -> None:
    """Notes where this command was told to work; hints name the same place from now on. What the
    environment says needs no word: a pasted command finds it there too.
    """
    told = {"HOLDFAST_HOME": home, "HOLDFAST_BROKER_STORE": store, "HOLDFAST_LAKE": lake}
    told["HOLDFAST_CONTEXT"] = context
    _places.clear()
    for variable, place in told.items():
        if place and place != os.environ.get(variable):
            _places[f"--{variable.rpartition('_')[2].lower()}"] = place


def pasteable(text: str) -> str:
    """A text whose commands work on the place of this one."""
    if not _places or "holdfast " not in text:
        return text
    from holdfast.apps.cli import pasted_hints

    return pasted_hints.pasteable(text, _places)


def out(text: str) -> None:
    """Prints data. Names of files may hold any bytes; they pass through unchanged."""
    data = text.encode("utf-8", "surrogateescape")
    if _diverted is None:
        sys.stdout.buffer.write(data)
    else:
        _diverted(data)


def divert(write: Sink | None) -> Sink | None:
    """Sends data elsewhere from now on, to stdout again with None; returns where it went before."""
    global _diverted
    before, _diverted = _diverted, write
    return before


def talk(text: str) -> None:
    """Prints a line for people, on stderr."""
    _say(pasteable(text))


def _say(text: str) -> None:
    sys.stderr.buffer.write(f"{text}\n".encode("utf-8", "backslashreplace"))
    sys.stderr.buffer.flush()


def warn(as_json: bool, type: str, message: str, **more: object) -> None:
    """Prints what the user should know, on stderr."""
    if as_json:
        import json

        warning = {"type": type, "message": message, **more}
        document = json.dumps({"warning": warning}, ensure_ascii=False, separators=(",", ":"))
        talk(document)
    else:
        talk(f"warning: {message}")


def flush() -> None:
    """Hands over the data that was printed so far, for a reader that follows it."""
    sys.stdout.buffer.flush()


def value_line(text: str) -> str:
    """A text as it is, with a line end added where there is none."""
    return text if text.endswith("\n") else f"{text}\n"


def is_unescaped(text: str) -> bool:
    """Whether a text stands in JSON as it is: most do, and need no import of json."""
    return text.isprintable() and '"' not in text and "\\" not in text


def quote(text: str) -> str:
    """A text as JSON, escaped in the same way as by the encoder of the full commands."""
    if is_unescaped(text):
        return f'"{text}"'
    from json.encoder import encode_basestring

    return encode_basestring(text)


def failure(code: str, message: str, hint: str, as_json: bool, **more: object) -> None:
    """Prints what went wrong and what to do, on stderr."""
    if as_json:
        import json

        document = {"code": code, "message": message, "hint": pasteable(hint), **more}
        # Half a surrogate pair may come in by an argument; JSON must stay UTF-8.
        _say(json.dumps({"error": document}, ensure_ascii=False, separators=(",", ":")))
    else:
        _say(f"error: {message}")
        if hint:
            talk(f"hint: {hint}")


def error(known: HoldfastError, as_json: bool) -> int:
    """Prints one of our errors; returns the exit code."""
    first = getattr(known, "first_available", None)
    more: dict[str, object] = {} if first is None else {"first_available": first}
    message = known.message
    if candidates := getattr(known, "candidates", ()):
        if as_json:
            more["candidates"] = [{"id": id, "what": what} for id, what in candidates]
        else:
            message = "\n".join(
                [f"{message}:", *(f"  {id}  {_shown(what)}" for id, what in candidates)]
            )
    present = getattr(known, "present", None)
    if present is not None:
        more["present"] = str(present)
    failure(known.code, message, known.hint, as_json, **more)
    return known.exit_code


# --- the answer to a write ------------------------------------------------------------------------


def receipt(done: Receipt, mesh: str, **what: object) -> dict[str, Any]:
    """The document; `what` names the op and its subject."""
    return {
        "id": done.id,
        "mesh": mesh,
        **what,
        "lamport": done.lamport,
        "peer": done.peer,
        "offset": done.offset,
        "duplicate": done.duplicate,
        "outcome": done.outcome.value,
    }


def said(document: Mapping[str, Any], sentence: str) -> None:
    """Prints it for people."""
    again = " (the same id had done it before)" if document.get("duplicate") else ""
    talk(f"{sentence}{again}")
    out(f"{document['id']}\n")


def retry_hint(id: str) -> str:
    """For a write of which nobody knows whether it was stored."""
    return f"retry with --id {id}: it is applied once at most"


def _shown(text: str) -> str:
    """What a peer wrote, without anything that a terminal would obey."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


STATE_FIELDS = ("key", "value", "lamport", "peer", "updated_at")
"""What a list of the state shows."""


def empty_state(mesh: str) -> str:
    return f"{mesh} has no state here"


def no_state(mesh: str, key: str, near: list[str]) -> UnknownKey:
    return UnknownKey(
        f"state of {mesh!r} has no key {key!r}",
        hint=_nearest(key, near, "state get", mesh) + f"see: holdfast state list --mesh {mesh}",
    )


def no_memory(mesh: str, key: str, whose: str, near: list[str]) -> UnknownKey:
    return UnknownKey(
        f"{whose} remembers nothing under {key!r} in {mesh!r}",
        hint=_nearest(key, near, "memory get", mesh)
        + f"see: holdfast memory list --scope all --mesh {mesh}",
    )


def _nearest(key: str, near: list[str], verb: str, mesh: str) -> str:
    from holdfast.rules.nearest import nearest

    found = nearest(key, near)
    if found is None:
        return ""
    from shlex import quote

    option = "-- " if found.startswith("-") else ""
    return f"did you mean: holdfast {verb} --mesh {mesh} {option}{quote(found)}; or "
