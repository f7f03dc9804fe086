"""How each argument of the library's verbs is written in JSON or in an address, and read again.

An argument is known by its name, which means the same in every verb. `send` is what a client makes
of it, `take` what the node makes of that.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from holdfast.node.library.documents import ModelName
from holdfast.rules.bodies import encode_value
from holdfast.rules.errors import BadInput, BadVector
from holdfast.rules.expected import ABSENT, read_expect
from holdfast.rules.names import check_key
from holdfast.rules.vectors import Model, pack, shown_dim

_APART: Final = "\t"
"""Between the two parts of a place: no name of a peer has one."""


def _sent(value: Any, given: Mapping[str, Any]) -> Any:
    return value


def _taken(value: Any, given: Mapping[str, Any]) -> Any:
    return value


@dataclass(frozen=True)
class ArgumentWire:
    """How one argument travels."""

    said: str
    """What it is, for a reader of the documentation."""
    type: Any = str
    send: Callable[[Any, Mapping[str, Any]], Any] = _sent
    """From the argument, and from all that were given."""
    take: Callable[[Any, Mapping[str, Any]], Any] = _taken
    null: bool = False
    """A null is a value like any other; else it stands for what is not given."""

    @property
    def sends_other(self) -> bool:
        """The argument is of another type than what travels."""
        return self.send is not _sent


def _key(value: Any, given: Mapping[str, Any]) -> str:
    return check_key(value)


def _value(value: Any, given: Mapping[str, Any]) -> msgspec.Raw:
    """As it is stored: what cannot be stored is refused before it is sent."""
    return msgspec.Raw(encode_value(value))


def _vector(value: Any, given: Mapping[str, Any]) -> str:
    model = given.get("model")
    if not isinstance(model, Model):
        raise BadInput(f"model is {type(model).__name__}, not a Model")
    return b64encode(pack(value, model.dim, model.quantization)).decode()


def texts(value: Any, given: Mapping[str, Any]) -> list[str]:
    if isinstance(value, str):
        raise BadInput("one text was given, not a list of texts", hint="write ['…']")
    try:
        return list(value)
    except TypeError:
        raise BadInput(f"{type(value).__name__} is not a list of texts") from None


def model_name(value: Any, given: Mapping[str, Any]) -> ModelName:
    if not isinstance(value, Model):
        raise BadInput(f"model is {type(value).__name__}, not a Model")
    return ModelName(
        provider=value.provider,
        name=value.name,
        version=value.version,
        dim=value.dim,
        quantization=value.quantization,
    )


def read_model(named: ModelName, given: Mapping[str, Any]) -> Model:
    """The dim of the model may be left out beside a vector."""
    dim = named.dim
    if dim is None:
        vector = given.get("embedding") or given.get("query") or b""
        dim = shown_dim(vector, named.quantization)
    return Model(
        provider=named.provider,
        name=named.name,
        version=named.version,
        dim=dim,
        quantization=named.quantization,
    )


def model_text(model: Any, given: Mapping[str, Any]) -> str:
    """A model in an address."""
    named = model_name(model, given)
    return ":".join((named.provider, named.name, named.version, str(named.dim), named.quantization))


def read_model_text(text: str, given: Mapping[str, Any]) -> Model:
    """The name may hold colons: it is what stands between the first and the last three."""
    provider, _, rest = text.partition(":")
    parts = rest.rsplit(":", 3)
    if len(parts) != 4 or not (parts[2].isascii() and parts[2].isdecimal() and len(parts[2]) < 9):
        raise BadVector(
            f"{text!r} names no model", hint="write PROVIDER:NAME:VERSION:DIM:QUANTIZATION"
        )
    name, version, dim, quantization = parts
    return Model(
        provider=provider, name=name, version=version, dim=int(dim), quantization=quantization
    )


def _expect(value: Any, given: Mapping[str, Any]) -> str:
    expected = read_expect(value)  # what is no stamp is refused before it is sent
    return ABSENT if expected is None else str(expected)


def _place(value: Any, given: Mapping[str, Any]) -> str:
    owner, key = value
    return f"{owner}{_APART}{key}"


def _read_place(text: str, given: Mapping[str, Any]) -> tuple[str, str]:
    owner, apart, key = text.partition(_APART)
    if not apart:
        raise BadInput(f"{text!r} is no place in this list", hint="give the `next` of a page")
    return owner, key


def text(said: str) -> ArgumentWire:
    return ArgumentWire(said)


def number(said: str) -> ArgumentWire:
    return ArgumentWire(said, int)


def yes(said: str) -> ArgumentWire:
    return ArgumentWire(said, bool)


WIRES: Final[Mapping[str, ArgumentWire]] = {
    "id": text("Names the write, so that it may be sent again: a UUID of version 7 or 8."),
    "mesh": text("The mesh."),
    "key": ArgumentWire("The key.", str, _key),
    "value": ArgumentWire("Any JSON.", Any, _value, null=True),
    "expect": ArgumentWire(
        "Only if this stamp stands there, like `12@ana`; `absent`: only if nothing does.",
        str,
        _expect,
    ),
    "meta": ArgumentWire("An object to keep with the change.", dict[str, Any]),
    "prefix": text("Only what begins with this."),
    "after": text("Only what follows this: the `next` of the last page."),
    "offset": number("As it was when the log of this node had got to this offset."),
    "lamport": number("As it was at this time of the mesh's clock."),
    "at_ms": number("As it was at this time, in milliseconds since 1970."),
    "tags": ArgumentWire("Words to find it by.", list[str], texts),
    "scope": text("Whose: `self`, `all`, or `peer:` and a name."),
    "embedding": ArgumentWire(
        "Numbers, or base64: float32 in little-endian order, int8, or bits, as the model has them.",
        bytes | list[float],
        _vector,
    ),
    "query": ArgumentWire(
        "Numbers, or base64: float32 in little-endian order, int8, or bits, as the model has them.",
        bytes | list[float],
        _vector,
    ),
    "model": ArgumentWire("Which model made the vector.", ModelName, model_name, read_model),
    "content": text("The text that the vector stands for."),
    "metadata": ArgumentWire("Any JSON to keep with it.", Any, _value, null=True),
    "limit": number("At most this many."),
    "exact": yes("Compare with every vector, without the index."),
    "path": text("The path of the file."),
    "peer": text("Of this peer; of this node itself if it is not given."),
    "title": text("What is to be done, in one line."),
    "description": text("What is to be done."),
    "task": text("The id of the task."),
    "status": text("A status."),
    "display_name": text("A name for people; an empty text takes it back."),
    "summary": text("What the peer is at; an empty text takes it back."),
    "subject": text("What the fact is about."),
    "predicate": text("What is said of it."),
    "object": ArgumentWire("Any JSON.", Any, _value, null=True),
    "objects": ArgumentWire("Hashes of objects that were put before.", list[str], texts),
    "slug": text("The name of the mesh in addresses."),
    "name": text("A name for people."),
    "past": number("What is stamped at this or before is written again."),
    "number": number("The number of the entry."),
    "open_only": yes("Leave out what was settled; true if it is not given."),
}
MODEL_TEXT: Final = ArgumentWire(
    "The model, as PROVIDER:NAME:VERSION:DIM:QUANTIZATION.", str, model_text, read_model_text
)
AFTER_NUMBER: Final = number("Only what follows this number: the `next` of the last page.")
PLACE: Final = ArgumentWire(
    "Only what follows this: the `next` of the last page.", str, _place, _read_place
)
