"""Rendering the templates of our Helm chart without Helm: the part of Go's templates that they use.

    rendered(chart_folder, {"voters": {"enabled": True}})     # the manifests, as documents

What it does not know it refuses, so a template cannot lean on something that nobody has tried. What
it made was compared with what Go's own text/template and the sprig functions make.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

ACTION: Final = re.compile(
    r"(\s*\{\{-|\{\{)\s*(/\*.*?\*/|(?:\"[^\"]*\"|[^\"}])*?)\s*(-\}\}\s*|\}\})", re.DOTALL
)
TOKEN: Final = re.compile(
    r'\s*("(?:[^"\\]|\\.)*"|\(|\)\.[\w.]+|\)|\||:=|,|\$?[\w.]*[\w.$]|\d+)', re.DOTALL
)
OPENS: Final = ("if", "with", "range", "define")


class TemplateProblem(Exception):
    """What a template asks for and cannot have."""


@dataclass
class Part:
    """Text, or an action with what stands inside it."""

    text: str = ""
    words: list[str] = field(default_factory=list)
    inner: list[Part] = field(default_factory=list)
    otherwise: list[Part] = field(default_factory=list)


def rendered(chart: Path, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The documents of all manifests of a chart, with these values over its own."""
    texts = {path.name: path.read_text("utf-8") for path in sorted((chart / "templates").iterdir())}
    about = yaml.safe_load((chart / "Chart.yaml").read_bytes())
    own = yaml.safe_load((chart / "values.yaml").read_bytes())
    root = {
        "Values": _over(own, values),
        "Chart": {name[:1].upper() + name[1:]: value for name, value in about.items()},
        "Release": {"Name": "holdfast", "Namespace": "default"},
    }
    engine = Engine()
    parsed = {name: engine.parse(text) for name, text in texts.items()}
    found: list[dict[str, Any]] = []
    for name, parts in parsed.items():
        if not name.startswith("_"):
            text = engine.run(parts, root, {"$": root})
            found += [] if name == "NOTES.txt" else [one for one in yaml.safe_load_all(text) if one]
    return found


def _over(below: Any, above: Any) -> Any:
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    names = {**below, **above}
    return {
        name: _over(below[name], above[name])
        if name in below and name in above
        else above.get(name, below.get(name))
        for name in names
    }


class Engine:
    """Reads templates, keeps what they define, and runs them."""

    def __init__(self) -> None:
        self._defined: dict[str, list[Part]] = {}
        self._functions: dict[str, Callable[..., Any]] = {
            "include": lambda name, scope: self.run(self._named(name), scope, {"$": scope}),
            "toYaml": lambda value: yaml.safe_dump(value, sort_keys=True).rstrip("\n"),
            "nindent": lambda count, text: "\n" + re.sub(r"(?m)^", " " * count, text),
            "quote": lambda value: json.dumps(_shown(value)),
            "default": lambda other, value: value or other,
            "required": _required,
            "printf": lambda form, *given: form % given,
            "dict": lambda *pairs: dict(zip(pairs[::2], pairs[1::2], strict=True)),
            "eq": lambda one, other: one == other,
            "ne": lambda one, other: one != other,
            "or": lambda *given: next((one for one in given if one), given[-1]),
        }

    def parse(self, text: str) -> list[Part]:
        """The parts of a template, without what it defines."""
        stack: list[Part] = [Part()]
        lists = [stack[0].inner]
        place = 0
        for hit in ACTION.finditer(text):
            lists[-1].append(Part(text[place : hit.start()]))
            place = hit.end()
            if hit[2].startswith("/*"):
                continue
            words = _words(hit[2])
            if words[0] in OPENS:
                part = Part(words=words)
                lists[-1].append(part)
                stack.append(part)
                lists.append(part.inner)
            elif words[0] == "else":
                if len(words) > 1:
                    raise TemplateProblem("else if")
                lists[-1] = stack[-1].otherwise
            elif words[0] == "end":
                ended = stack.pop()
                lists.pop()
                if ended.words[0] == "define":
                    self._defined[json.loads(ended.words[1])] = ended.inner
                    lists[-1].remove(ended)
            else:
                lists[-1].append(Part(words=words))
        lists[-1].append(Part(text[place:]))
        if len(stack) != 1:
            raise TemplateProblem(f"{stack[-1].words} has no end")
        return stack[0].inner

    def run(self, parts: list[Part], dot: Any, names: dict[str, Any]) -> str:
        return "".join(self._part(part, dot, names) for part in parts)

    def _part(self, part: Part, dot: Any, names: dict[str, Any]) -> str:
        words = part.words
        if not words:
            return part.text
        if words[0] == "if":
            chosen = part.inner if self._value(words[1:], dot, names) else part.otherwise
            return self.run(chosen, dot, dict(names))
        if words[0] == "with":
            value = self._value(words[1:], dot, names)
            return self.run(part.inner, value, dict(names)) if value else ""
        if words[0] == "range":
            return "".join(self._each(part, dot, names))
        if words[1:2] == [":="]:
            names[words[0]] = self._value(words[2:], dot, names)
            return ""
        return _shown(self._value(words, dot, names))

    def _each(self, part: Part, dot: Any, names: dict[str, Any]) -> Iterator[str]:
        words, key, value = part.words[1:], "", ""
        if ":=" in words:
            key, _, value, _, *words = words
        found = self._value(words, dot, names) or []
        for one in sorted(found) if isinstance(found, dict) else found:
            each = found[one] if isinstance(found, dict) else one
            yield self.run(part.inner, each, {**names, **({key: one, value: each} if key else {})})

    def _value(self, words: list[str], dot: Any, names: dict[str, Any]) -> Any:
        """The value of a pipeline."""
        value, words = self._pipe(list(words), dot, names)
        if words:
            raise TemplateProblem(" ".join(words))
        return value

    def _pipe(self, words: list[str], dot: Any, names: dict[str, Any]) -> tuple[Any, list[str]]:
        handed: list[Any] = []
        while True:
            function, given = None, []
            while words and words[0] != "|" and words[0][0] != ")":
                word = words.pop(0)
                if word == "(":
                    value, words = self._pipe(words, dot, names)
                    given.append(_field(value, words.pop(0)[2:]))
                elif function is None and not given and re.fullmatch(r"[a-zA-Z]+", word):
                    if word not in self._functions:
                        raise TemplateProblem(f"the function {word} was never tried")
                    function = self._functions[word]
                else:
                    given.append(_operand(word, dot, names))
            given += handed
            handed = [function(*given) if function else given[0]]
            if not words or words[0] != "|":
                return handed[0], words
            words.pop(0)

    def _named(self, name: str) -> list[Part]:
        if name not in self._defined:
            raise TemplateProblem(f"no template is called {name}")
        return self._defined[name]


def _words(text: str) -> list[str]:
    words, place = [], 0
    while place < len(text.rstrip()):
        hit = TOKEN.match(text, place)
        if hit is None:
            raise TemplateProblem(text)
        words.append(hit[1])
        place = hit.end()
    return words


def _operand(word: str, dot: Any, names: dict[str, Any]) -> Any:
    if word[0] == '"':
        return json.loads(word)
    if word.isdecimal():
        return int(word)
    name, _, path = word.partition(".")
    if not name:
        return _field(dot, path)
    if name not in names:
        raise TemplateProblem(f"{word} is nothing")
    return _field(names[name], path)


def _field(value: Any, path: str) -> Any:
    """Helm gives nothing for a value that is not there; here that is a slip in a template."""
    for name in filter(None, path.split(".")):
        if name not in value:
            raise TemplateProblem(f"there is no {path}")
        value = value[name]
    return value


def _required(message: str, value: Any) -> Any:
    if value in (None, ""):
        raise TemplateProblem(message)
    return value


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
