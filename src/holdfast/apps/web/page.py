"""How a page of the console is declared, and an action on it.

    PAGES = (
        ConsolePage(
            path="/meshes/{mesh}/state",
            title="State",
            template="state.html",
            load=state,                      # async: PageView in, what the template is given out
            live=("rows",),                  # blocks of the template that are sent anew
            tab="State",                     # in the tabs of a mesh; `nav=` for the side
            actions=(DELETE,),
        ),
    )

In the template a live block stands in an element whose id is `live-` and its name:

    <div id="live-rows">{% block rows %}…{% endblock %}</div>

An action is a call with what a form says, and the command that does the same:

    DELETE = Action(
        "state.delete",
        label="Delete",
        call="DELETE /v1/meshes/{mesh}/state/{key}",
        command="holdfast state delete {key} --mesh {mesh}",
        done="{key} is deleted",
        asks="Delete {key} for every member of {mesh}?",
    )

and in the template `{{ ui.act("state.delete", mesh=mesh, key=row.key) }}`: a button where the
caller may write, and nothing where it may not.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec

from holdfast.rules.errors import BadInput

if TYPE_CHECKING:
    from holdfast.apps.web.view import PageView

Load = Callable[["PageView"], Awaitable[Mapping[str, Any]]]
Makes = Callable[[Mapping[str, str]], Awaitable[Mapping[str, Any]]]
Take = Callable[[str], Any]
"""Makes of a field of a form what the call gets; raises ValueError if it cannot."""
_NAMED: Final = re.compile(r"\{(\w+)\}")
_DIGITS: Final = 18
"""So many digits of a number fit into every call."""
EVERYTHING: Final = ("log", "store", "link", "broker", "peer", "disk", "counts")
"""What may change. `log`: an entry came; `store`: this daemon has written anything at all."""


async def nothing(view: PageView) -> Mapping[str, Any]:
    """For a page that asks nothing."""
    return {}


@dataclass(frozen=True, kw_only=True)
class ConsolePage:
    """One page."""

    path: str
    """As Starlette writes it; `{key:path}` for what may have slashes."""
    title: str
    """May name what stands in the path: `Task {task}`."""
    template: str
    load: Load = nothing
    live: tuple[str, ...] = ()
    """Blocks of the template that are sent anew when something changes."""
    wakes: tuple[str, ...] = ("log", "store")
    """What changes them."""
    nav: str = ""
    """Its name at the side; a page without one is reached from others."""
    group: str = "node"
    """Where at the side."""
    tab: str = ""
    """Its name among the tabs of a mesh."""
    under: str = ""
    """The path of the page that is marked at the side or among the tabs while this one is shown."""
    key: str = ""
    """After `g`, the key that leads to it."""
    actions: tuple[Action, ...] = ()


def no_more(answer: Any) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field of a form, as an action passes it on."""

    take: Take = str
    where: str = "body"
    """`body`, or `query` of the call."""
    name: str = ""
    """As the call names it, if that is not the name in the form."""
    needed: bool = False
    """Nothing is asked without it; else a field that is left empty is not passed on."""


@dataclass(frozen=True)
class Action:
    """Something that changes: a call, and the command that does the same."""

    name: str
    """`state.delete`: the only one of this name."""
    label: str = field(kw_only=True)
    """On the button."""
    call: str = field(kw_only=True)
    """Method and path; `{name}` is a field of the form."""
    command: str = field(kw_only=True)
    """The command; `{name}` is a field, quoted for a shell. `[ --title {title}]` is left out where
    the field is empty; `{--reads reads}` is the option once for each word of the field."""
    done: str = field(default="Done.", kw_only=True)
    """What is said afterwards."""
    fields: Mapping[str, Field] = field(default_factory=dict, kw_only=True)
    """What else the form says."""
    fixed: Mapping[str, Any] | None = field(default=None, kw_only=True)
    """What the body says besides. An empty one is a body too, of a call that asks for one."""
    asks: str = field(default="", kw_only=True)
    """What is asked before it is done: for what cannot be undone."""
    undone: str = field(default="", kw_only=True)
    """How it is taken back, for what asks nothing: the name of an action, or where that is done."""
    makes: Makes | None = field(default=None, kw_only=True)
    """Makes of the form what the body says besides and takes a while, as a vector of a text."""
    takes_file: bool = field(default=False, kw_only=True)
    """The body of the form is the content of a file, and its fields stand in the address: a script
    sends it (`uploading`)."""
    each: str = field(default="", kw_only=True)
    """A field that may name several: the call is made for each of them. What is refused of them is
    told, and stops nobody else's."""
    shows: str = field(default="", kw_only=True)
    """The template that shows the answer, as `answer`: for what is shown once."""
    shown: Callable[[Any], Mapping[str, Any]] = field(default=no_more, kw_only=True)
    """Makes of the answer what else that template is given."""
    tone: str = field(default="", kw_only=True)
    """`main` or `danger`; else a plain button."""

    def address(self, form: Mapping[str, str]) -> tuple[str, str]:
        """Method and path, with what the form says."""
        method, _, path = self.call.partition(" ")
        return method, filled(path, form)

    def body(self, form: Mapping[str, str]) -> dict[str, Any]:
        return {**(self.fixed or {}), **self._given(form, "body")}

    @property
    def has_body(self) -> bool:
        """A document is sent with it, which may be empty."""
        fields = any(one.where == "body" for one in self.fields.values())
        return fields or self.fixed is not None or self.makes is not None

    def query(self, form: Mapping[str, str]) -> dict[str, str]:
        return {name: str(value) for name, value in self._given(form, "query").items()}

    def _given(self, form: Mapping[str, str], where: str) -> dict[str, Any]:
        given: dict[str, Any] = {}
        for name, one in self.fields.items():
            text = form.get(name, "")
            if one.where != where or not (text or one.needed):
                continue
            if not text:
                raise BadInput(f"{name} is missing", hint=f"fill in: {name}")
            try:
                given[one.name or name] = one.take(text)
            except ValueError as error:
                raise BadInput(f"{name} cannot be {text[:60]!r}", hint=str(error)) from None
        return given


def filled(text: str, values: Mapping[str, Any]) -> str:
    """The text with `{name}` replaced; BadInput if a value is missing."""

    def value(found: re.Match[str]) -> str:
        name = found.group(1)
        if name not in values:
            raise BadInput(f"{name} is missing", hint="go back, and begin again")
        return str(values[name])

    return _NAMED.sub(value, text)


def as_command(text: str, values: Mapping[str, Any]) -> str:
    """The command with its values, quoted for a shell."""
    whole = _OPTIONAL.sub(
        lambda found: found.group(1) if _all_there(found.group(1), values) else "", text
    )
    quoted = {name: shlex.quote(str(value)) for name, value in values.items()}
    whole = _REPEATED.sub(
        lambda found: " ".join(
            f"{found.group(1)} {shlex.quote(word)}"
            for word in words(str(values.get(found.group(2), "")))
        ),
        whole,
    ).rstrip()
    return _NAMED.sub(lambda found: quoted.get(found.group(1), found.group(1).upper()), whole)


_OPTIONAL: Final = re.compile(r"\[([^\]]*)\]")
_REPEATED: Final = re.compile(r"\{(--[a-z-]+) (\w+)\}")


def _all_there(text: str, values: Mapping[str, Any]) -> bool:
    return all(values.get(name) for name in _NAMED.findall(text))


def url(path: str, /, **query: Any) -> str:
    """An address of the console, with what of the query is given. `path` is not encoded yet."""
    told = "&".join(
        f"{quote(name, safe='')}={quote(str(value), safe='')}"
        for name, value in query.items()
        if value not in (None, "")
    )
    encoded = quote(path, safe="/:@!$&'()*+,;=-._~")
    return f"{encoded}?{told}" if told else encoded


# --- fields of forms ---------------------------------------------------------------------------


def number(text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdecimal()):
        raise ValueError("give a whole number")
    if len(text) > _DIGITS:
        raise ValueError("give a smaller number")
    return int(text)


def words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def json_value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"this is no JSON: {error}") from None
