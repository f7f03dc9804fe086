"""Verbs that ask a daemon, made of the declarations in `node/calls`.

A class that `asks` fills has every declared verb of the class that it extends: with the same
signature, and asking the daemon. Verbs that are made of others, such as `State.get`, come by
inheritance. What needs the home itself raises `NeedsHome`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, Final, NoReturn, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from holdfast.node.calls.all import CALLS
from holdfast.node.calls.declare import Call
from holdfast.node.remote.line import Line
from holdfast.protocol.log_wire import JSON
from holdfast.rules.errors import BadAnswer, BadInput, NeedsHome
from holdfast.rules.ids import id_text
from holdfast.rules.limits import CALL_PAGE_ROWS
from holdfast.rules.listed import Listed, ListedRows
from holdfast.service.clock import SystemClock
from holdfast.transport.remote_errors import HttpAnswer

F = TypeVar("F")

_PLAIN: Final = (str, int, bool)
AS_JSON: Final = {"Content-Type": JSON}
_new_id: Final = SystemClock().new_id


def asks(kind: type[F]) -> type[F]:
    """Fills a class with the declared verbs of the one that it extends, which it names last."""
    face = kind.__bases__[-1]
    for call in CALLS:
        name = call.verb.__name__
        if call.face is face and name not in vars(kind):
            setattr(kind, name, _asked(call))
    for name in ("_engine", "_opened"):
        setattr(kind, name, property(needs_home))
    return kind


def asked(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The declared verb, for a class that does something more with it."""
    return _asked(next(call for call in CALLS if call.verb is verb))


def needs_home(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise NeedsHome(
        "that is not done over a connection to a daemon",
        hint="open the home on its own machine: holdfast.open",
    )


def new_id(given: str | None = None) -> str:
    """The id that a write bears: it may be sent again with it."""
    return id_text(_new_id()) if given is None else given


def quoted(text: Any) -> str:
    """A text in a path; BadInput if it is none."""
    if not isinstance(text, str):
        raise BadInput(f"{type(text).__name__} {text!r} is no text")
    try:
        return quote(text)
    except UnicodeEncodeError:
        raise BadInput("half of a surrogate pair is not text") from None


def query(asked: Mapping[str, Any]) -> str:
    """A query, of what is given."""
    told = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in asked.items()
        if value is not None
    }
    return f"?{urlencode(told, doseq=True)}" if told else ""


def decoded(answer: HttpAnswer, decoder: msgspec.json.Decoder[Any]) -> Any:
    answer.expect(JSON)
    try:
        return decoder.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadAnswer(f"the answer is not the JSON that belongs there: {error}") from None


class RemoteFace:
    """What every class here is made of."""

    def __init__(self, line: Line, mesh: str = "") -> None:
        self._line = line
        self._slug = mesh


def _asked(call: Call) -> Callable[..., Any]:
    """The verb of a declared call."""
    bind, request = _binding(call), _Asking(call)
    kind, rows_of = (getattr(call.verb, name, None) for name in ("listed", "rows_of"))

    @wraps(call.verb)
    def verb(self: RemoteFace, /, *args: Any, **kwargs: Any) -> Any:
        found = request(self._line, self._slug, bind(args, kwargs))
        if rows_of is not None:
            return ListedRows(found, rows_of)
        return found if kind is None else Listed(found, kind)

    return verb


def _binding(call: Call) -> Callable[[tuple[Any, ...], dict[str, Any]], dict[str, Any]]:
    """Arguments by their names, as Python would bind them."""
    signature = inspect.signature(call.verb)
    parameters = list(signature.parameters.values())[1:]
    names = [one.name for one in parameters]
    places = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]

    def bind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        given = dict(zip(places, args, strict=False))
        fits = len(args) <= len(places) and not given.keys() & kwargs.keys()
        given |= kwargs
        if not fits or not call.required <= given.keys() <= set(names):
            signature.bind(None, *args, **kwargs)  # raises, as the verb itself would
            raise AssertionError("Python takes these arguments")
        return given

    return bind


class _Asking:
    """The request of one declared call, and what its answer means."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._path = call.path.replace(":path}", "}")
        self._decoder = None if call.document is None else msgspec.json.Decoder(call.document)
        self._keep = "keep" if call.answer is not None and call.answer.warns else None

    def __call__(self, line: Line, mesh: str, given: dict[str, Any]) -> Any:
        call = self._call
        for name, value in given.items():
            _check(call, name, value)
        if call.takes_id and given.get("id") is None:
            given["id"] = new_id()
        path = self._path.format_map({"mesh": mesh} | self._in_path(given))
        asked = self._told(call.in_query, given)
        if call.form == "page":
            return self._pages(line, path, asked)
        if self._keep is not None:
            asked["warnings"] = self._keep
        answer = self._answer(line, path + query(asked), given)
        return None if answer is None else self._read(decoded(answer, self._require()))

    def _in_path(self, given: Mapping[str, Any]) -> dict[str, str]:
        told = self._told(self._call.in_path, given)
        return {
            name: quoted(str(value) if self._call.wire(name).type is int else value)
            for name, value in told.items()
        }

    def _told(self, names: tuple[str, ...], given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as they travel; what is None is not given, where None is no value."""
        told = {}
        for name in names:
            wire = self._call.wire(name)
            in_path = name in self._call.in_path
            if name in given and (given[name] is not None or wire.null or in_path):
                told[name] = wire.send(given[name], given)
        return told

    def _answer(self, line: Line, path: str, given: Mapping[str, Any]) -> HttpAnswer | None:
        call = self._call
        body = None
        if call.in_body:
            body = msgspec.json.encode(self._told(call.in_body, given))
        headers = {} if body is None else AS_JSON
        try:
            if call.takes_id:
                id = given["id"]
                answer = line.write(call.method, path, id=id, body=body, headers=headers)
            else:
                answer = line.call(call.method, path, body=body, headers=headers)
        except Exception as error:
            if call.absent is not None and type(error) is call.absent:
                return None
            raise
        return None if call.answer is None else answer

    def _read(self, document: Any) -> Any:
        assert self._call.answer is not None
        read = self._call.answer.read
        return read(document) if self._call.form == "one" else [*map(read, document.items)]

    def _pages(self, line: Line, path: str, asked: dict[str, Any]) -> Iterator[Any]:
        """All rows. The first page is asked for at once, so that errors come with the call."""
        asked["limit"] = CALL_PAGE_ROWS
        first = decoded(line.call("GET", path + query(asked)), self._require())
        return self._rows(line, path, asked, first)

    def _rows(self, line: Line, path: str, asked: dict[str, Any], page: Any) -> Iterator[Any]:
        assert self._call.answer is not None
        while True:
            yield from map(self._call.answer.read, page.items)
            if page.next is None:
                return
            asked[self._call.goes_on] = page.next
            page = decoded(line.call("GET", path + query(asked)), self._require())

    def _require(self) -> msgspec.json.Decoder[Any]:
        assert self._decoder is not None
        return self._decoder


def _check(call: Call, name: str, value: Any) -> None:
    """Arguments that are plain are of their type: a text in an address would be taken for any."""
    if name in call.without:
        raise NeedsHome(f"{name} is for who has the home open", hint="leave it out")
    kind = call.wire(name).type
    if value is None or kind not in _PLAIN or call.wire(name).sends_other:
        return
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise BadInput(f"{name} is {type(value).__name__} {value!r:.40}, not {kind.__name__}")
