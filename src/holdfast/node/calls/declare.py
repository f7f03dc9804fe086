"""How a verb of the library is declared as a call over HTTP.

    STATE = Calls(State, "/v1/meshes/{mesh}/state")
    STATE.put("/{key:path}", State.set, RECEIPT, errors=(IdReused,), example='-d \'{"value":1}\'')

What of the signature stands in the path is taken from there. The rest stands in the body of a POST
or PUT that has more to say than an `id`, else in the query.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.node.calls.wires import WIRES, ArgumentWire
from holdfast.rules.errors import HoldfastError
from holdfast.rules.limits import CALL_PAGE_ROWS
from holdfast.service.http.route import Param

Form = Literal["one", "list", "page"]
_PATH_PARAM: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
_KEY: Final = Param(
    "idempotency-key",
    "Names the write, so that it may be sent again: a UUID, which is then its id, or any text.",
    where="header",
)
_WARNINGS: Final = Param(
    "warnings",
    "`keep`: leave warnings for who asks for them. Else they come with the answer, once.",
    Literal["keep"],
)

_IF_MATCH: Final = Param(
    "if-match", "The ETag that was read: an `expect` in a header.", where="header"
)
_IF_NONE: Final = Param("if-none-match", "`*`: as `expect=absent`.", where="header")
_IF_CHANGED: Final = Param(
    "if-none-match", "It is wanted only if the ETag is another; else 304.", where="header"
)


@dataclass(frozen=True)
class Shape:
    """A value of the library as a JSON document."""

    type: Any
    """The type of the document."""
    of: Callable[[Any], Any] = lambda value: value
    """Makes the document of a value."""
    read: Callable[[Any], Any] = lambda document: document
    """Makes the value again."""
    warns: bool = False
    """The document has room for warnings."""


@dataclass(frozen=True)
class Call:
    """One verb of the library as a call."""

    method: str
    path: str
    face: type
    """The class that has the verb."""
    verb: Callable[..., Any]
    answer: Shape | None
    """Of one row, where the answer is a list or a page; None: there is nothing to say."""
    form: Form = "one"
    writes: bool = False
    """Only the node's own user may make it."""
    errors: tuple[type[HoldfastError], ...] = ()
    example: str = ""
    summary: str = ""
    wires: Mapping[str, ArgumentWire] = field(default_factory=dict)
    """How arguments travel that do not as their name says."""
    without: tuple[str, ...] = ()
    """Arguments that do not travel."""
    place: Callable[[Any], Any] | None = None
    """Of a page: where its last row stands, as the argument `after` takes it."""
    goes_on: str = "after"
    """Of a page: the argument that gets this place for the next one."""
    absent: type[HoldfastError] | None = None
    """What is answered where the verb returns None."""
    tag: Callable[[Any], str] | None = None
    """What the ETag of the answer says: it is the same as long as the value is."""
    quick: bool = False
    """It takes microseconds: the node reads in its event loop."""
    mesh_of: Callable[[Any], str] | None = None
    """The mesh of a row, for verbs of the whole node: callers get what they may read."""

    trusted: bool = False
    """It tells of every mesh: for the node's own user, and tokens that may read all."""
    looks_again: bool = False
    """It changes with whom this node shares meshes: the daemon has to look again."""

    # What follows from the signature.
    in_path: tuple[str, ...] = ()
    in_query: tuple[str, ...] = ()
    in_body: tuple[str, ...] = ()
    required: frozenset[str] = frozenset()
    body: Any = None
    """The type of the body; None if there is none."""
    document: Any = None
    """The type of the whole answer."""

    @property
    def name(self) -> str:
        """`state.set`, as programs and metrics call it."""
        return f"{self.face.__name__.lower()}.{self.verb.__name__}"

    @property
    def of_mesh(self) -> bool:
        """The path names a mesh."""
        return "{mesh}" in self.path

    @property
    def body_needed(self) -> bool:
        """There is something that a caller has to say."""
        return any(field.required for field in msgspec.structs.fields(self.body))

    @property
    def takes_id(self) -> bool:
        return "id" in self.in_query or "id" in self.in_body

    def wire(self, name: str) -> ArgumentWire:
        return self.wires.get(name) or WIRES[name]

    @property
    def takes_expect(self) -> bool:
        return "expect" in self.in_query or "expect" in self.in_body

    def is_required(self, name: str) -> bool:
        """A caller has to say it."""
        return name in self.required

    def params(self) -> tuple[Param, ...]:
        """Everything in the query and among the headers."""
        found = [self._param(name) for name in self.in_query]
        if self.takes_id:
            found.append(_KEY)
        if self.takes_expect:
            found += [_IF_MATCH, _IF_NONE]
        if self.tag is not None:
            found.append(_IF_CHANGED)
        if self.answer is not None and self.answer.warns:
            found.append(_WARNINGS)
        if self.form == "page":
            said = f"At most this many, up to {CALL_PAGE_ROWS}; all of them as NDJSON."
            found.append(Param("limit", said, int))
        return tuple(found)

    def _param(self, name: str) -> Param:
        wire = self.wire(name)
        return Param(name, wire.said, wire.type, required=self.is_required(name))


class Calls:
    """Collects the calls of one class of the library."""

    def __init__(self, face: type, path: str, errors: tuple[type[HoldfastError], ...] = ()) -> None:
        self._face, self._path, self._errors = face, path, errors
        self._calls: list[Call] = []

    def __call__(self) -> list[Call]:
        return list(self._calls)

    def get(self, path: str, verb: Any, answer: Shape, form: Form = "one", **more: Any) -> None:
        self._add("GET", path, verb, answer, form, more)

    def post(
        self, path: str, verb: Any, answer: Shape | None, form: Form = "one", **more: Any
    ) -> None:
        self._add("POST", path, verb, answer, form, more)

    def put(self, path: str, verb: Any, answer: Shape, **more: Any) -> None:
        self._add("PUT", path, verb, answer, "one", more)

    def delete(self, path: str, verb: Any, answer: Shape | None, **more: Any) -> None:
        self._add("DELETE", path, verb, answer, "one", more)

    def _add(
        self,
        method: str,
        path: str,
        verb: Any,
        answer: Shape | None,
        form: Form,
        more: dict[str, Any],
    ) -> None:
        more.setdefault("writes", method != "GET")
        more.setdefault("summary", _summary(verb))
        more["errors"] = (*self._errors, *more.get("errors", ()))
        call = Call(method, self._path + path, self._face, verb, answer, form, **more)
        self._calls.append(_completed(call))


def _completed(call: Call) -> Call:
    """The call with what follows from its verb's signature."""
    in_path = tuple(_PATH_PARAM.findall(call.path))
    arguments = _arguments(call.verb)
    rest = tuple(name for name in arguments if name not in in_path and name not in call.without)
    told = tuple(name for name in rest if name != "id")
    in_body = rest if call.method in ("POST", "PUT") and told else ()
    known = {
        **vars(call),
        "in_path": tuple(name for name in in_path if name in arguments),
        "in_query": tuple(name for name in rest if name not in in_body),
        "in_body": in_body,
        "required": frozenset(
            name for name, one in arguments.items() if one.default is inspect.Parameter.empty
        ),
    }
    found = Call(**known)
    title = _title(call)
    body = _body(found, title) if in_body else None
    return Call(**{**known, "body": body, "document": _document(call, title)})


def _body(call: Call, title: str) -> Any:
    fields: list[Any] = []
    for name in call.in_body:
        kind = call.wire(name).type
        if call.is_required(name):
            fields.append((name, kind))
        else:
            fields.append((name, kind | None | UnsetType if kind is not Any else Any, UNSET))
    made = msgspec.defstruct(
        f"{title}Asked", fields, frozen=True, kw_only=True, forbid_unknown_fields=True
    )
    made.__doc__ = call.summary
    return made


def _document(call: Call, title: str) -> Any:
    if call.answer is None:
        return None
    row = call.answer.type
    if call.form == "one":
        return row
    fields: list[Any] = [("items", list.__class_getitem__(row))]
    if call.form == "page":
        fields.append(("next", str | None, None))
    return msgspec.defstruct(f"{title}Answer", fields, frozen=True, kw_only=True)


def _arguments(verb: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    found = dict(inspect.signature(verb).parameters)
    found.pop("self")
    return found


def _title(call: Call) -> str:
    words = "".join(word.title() for word in call.verb.__name__.split("_"))
    return f"{call.face.__name__}{words}"


def _summary(verb: Callable[..., Any]) -> str:
    """The first paragraph of what the library says of it."""
    text = inspect.cleandoc(verb.__doc__ or "").partition("\n\n")[0]
    assert text, f"{verb.__qualname__} needs a docstring: it is the summary of the call"
    return " ".join(text.split())
