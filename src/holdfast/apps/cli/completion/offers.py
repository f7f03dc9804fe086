"""What fits where the cursor is: words of the command line, or names from the home.

Nothing here may fail aloud: a shell shows what is printed in the middle of what is being typed. A
home that asks for attention, or that is not there, offers nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

FILES: Final = "file"
FOLDERS: Final = "folder"
_PLACES: Final = ("--home", "--context")


class Offers:
    """The answer to one Tab."""

    def __init__(self, words: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        """`words` is what `words.json` holds."""
        self._words, self._environ = words, environ
        self._given: dict[str, str] = {}

    def of(self, typed: Sequence[str]) -> tuple[str, list[str]]:
        """For the words after the program's name, the last of which is being typed: `file` or
        `folder` where the shell itself knows better, and the offers.
        """
        *before, part = typed
        command, rest = self._command(before)
        options: dict[str, Any] = {**self._words["shared"], **command.get("options", {})}
        awaited, place = self._read(rest, options)
        if awaited is not None:
            return self._values(awaited, part)
        if part.startswith("-") and "--" not in rest:
            option, equals, value = part.partition("=")
            if not equals:
                return "", sorted(name for name in options if name.startswith(part))
            kind, found = self._values(options.get(option, ""), value)
            return kind, [f"{option}={one}" for one in found]
        if "verbs" in command:
            return "", [name for name in command["verbs"] if name.startswith(part)]
        arguments = command.get("arguments", [])
        if not arguments:
            return "", []
        repeats = command.get("repeats", False)
        if place >= len(arguments) and not repeats:
            return "", []
        return self._values(arguments[min(place, len(arguments) - 1)], part)

    def _command(self, before: Sequence[str]) -> tuple[Mapping[str, Any], list[str]]:
        """The command that was named so far, and what was typed behind or between."""
        command: Mapping[str, Any] = self._words
        rest: list[str] = []
        takes_value = False
        for word in before:
            verbs = command.get("verbs", {})
            if takes_value or word.startswith("-") or word not in verbs:
                rest.append(word)
                takes_value = bool(not takes_value and self._words["shared"].get(word))
            else:
                command = verbs[word]
        return command, rest

    def _read(self, rest: Sequence[str], options: Mapping[str, Any]) -> tuple[Any, int]:
        """What the last option waits for (None: nothing), and how many arguments were given."""
        awaited, awaiting, place = None, "", 0
        for word in rest:
            name, equals, value = word.partition("=")
            if awaited is not None:
                self._given[awaiting] = word
                awaited = None
            elif word.startswith("-") and options.get(name):
                if equals:
                    self._given[name] = value
                else:
                    awaited, awaiting = options[name], name
            elif not word.startswith("-"):
                place += 1
        return awaited, place

    def _values(self, kind: Any, part: str) -> tuple[str, list[str]]:
        if isinstance(kind, list):
            return "", [choice for choice in kind if choice.startswith(part)]
        if kind in (FILES, FOLDERS):
            return kind, []
        if kind in ("", "value"):
            return "", []
        return "", [name for name in self._names(kind, part) if name.isprintable()]

    def _names(self, kind: str, part: str) -> Iterator[str]:
        if kind == "context":
            from holdfast.storage.files.contexts import contexts_of

            found = contexts_of(self._environ).names()
            yield from (name for name in found if name.startswith(part))
            return
        home = self._home()
        if home is None:
            return
        from holdfast.storage.sqlite import quick_read

        try:
            with quick_read.open_read_only(home) as connection:
                mesh = self._given.get("--mesh") or self._environ.get("HOLDFAST_MESH", "")
                meshes = quick_read.mesh_names(connection)
                if not mesh and len(meshes) == 1:
                    mesh = meshes[0]
                yield from quick_read.names(connection, kind, mesh, part)
        except quick_read.Unusual:
            return

    def _home(self) -> str | None:
        """The home that the command would work in; None if it is elsewhere, or nowhere."""
        named = self._given.get("--home")
        if named:
            return os.path.expanduser(named)
        context = self._given.get("--context")
        if context is None and self._environ.get("HOLDFAST_HOME"):
            return self._environ["HOLDFAST_HOME"]
        from holdfast.storage.files.contexts import contexts_of, in_force
        from holdfast.storage.files.home import resolve_home

        contexts = contexts_of(self._environ)
        counts = in_force(context, contexts, self._environ)
        if counts is None:
            return str(resolve_home(None, self._environ))
        found = contexts.get(counts.name)
        return found.place if found.kind == "home" else None
