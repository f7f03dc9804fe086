"""Hints that can be pasted as they are, wherever the command was told to work.

Whoever wrote `--home h3` gets `holdfast mesh create --home h3 NAME` as a hint. Hints are written
all over the project, by code that knows nothing of the command line, and all of them leave through
`output`: there each command that a text names gets the option by which this one was told its place.
A command that is meant for another node stands in backquotes, and stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from shlex import quote

ALONE = frozenset(
    {
        *("init", "status", "paths", "up", "reload", "down", "doctor", "send", "sweep"),
        *("backup", "restore", "export", "import", "batch", "bugreport"),
        *("ping", "bench", "console"),
    }
)
"""Commands without verbs. A test compares them with the commands that there are."""
PLACELESS = frozenset({"demo", "completion", "help"})
PLACES = {"broker": "--store", "pipeline": "--lake", "context": ""}
"""The option that says where a noun works, empty if it works nowhere; `--home` for all others."""

_COMMAND = re.compile(r"(?<!`)\bholdfast (?P<noun>[a-z]+)(?: (?P<verb>[a-z]+(?:-[a-z]+)*))?")
_ENDS = re.compile(r"[;,`\n]|\bholdfast ")


def pasteable(text: str, places: Mapping[str, str]) -> str:
    """The text with the place in each command that it names and that has none. `places` are the
    options that this command was given, by name.
    """
    done, at = [], 0
    for found in _COMMAND.finditer(text):
        noun, verb = found["noun"], found["verb"]
        option = PLACES.get(noun, "--context" if "--context" in places else "--home")
        if option not in places or noun in PLACELESS or (noun not in ALONE and verb is None):
            continue
        if option in _rest(text, found.end("noun")):
            continue
        end = found.end("noun") if noun in ALONE else found.end("verb")
        done += [text[at:end], f" {option} {quote(places[option])}"]
        at = end
    return "".join([*done, text[at:]])


def _rest(text: str, start: int) -> str:
    """What belongs to the command whose name ends there."""
    end = _ENDS.search(text, start)
    return text[start : end.start() if end else len(text)]
