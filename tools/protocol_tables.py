"""The tables of the protocol, from the code: docs/protocol/tables.md (see `reference`)."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Iterator
from typing import Any, Final, get_args

import msgspec
from msgspec import inspect as shapes

from holdfast.protocol import bus_frames, bus_mesh, commit_page, frames, log_wire
from holdfast.rules import bodies, broker_rows, close_codes, envelope, limits
from holdfast.rules.bus import capability, message
from holdfast.rules.quorum import commit_record, fence, view
from tools.reference import NOTE, read_limits, shown

LIMITS: Final = (
    *("PEER_ID_BYTES_MAX", "MESH_SLUG_CHARS_MAX", "KEY_BYTES_MAX", "VALUE_BYTES_MAX"),
    *("VALUE_DEPTH_MAX", "TAGS_MAX", "TAG_BYTES_MAX", "META_BYTES_MAX", "META_DEPTH_MAX"),
    *("TITLE_BYTES_MAX", "DESCRIPTION_BYTES_MAX", "SUBJECT_BYTES_MAX", "PREDICATE_BYTES_MAX"),
    *("FACT_OBJECTS_MAX", "PATH_BYTES_MAX", "INLINE_BYTES_MAX", "FILE_BYTES_MAX"),
    *("VECTOR_DIM_MAX", "VECTOR_CONTENT_BYTES_MAX", "MESSAGE_BYTES_MAX", "ENVELOPE_BYTES_MAX"),
    *("IDEMPOTENCY_KEY_BYTES_MAX", "LAMPORT_MAX", "LAMPORT_LEAP_MAX"),
    *("FRAME_BYTES_MAX", "PUSH_ITEMS_MAX", "FOLLOWS_MAX", "TAKE_MAX", "HELLO_MS_MAX"),
    *("CONSUMER_NAME_BYTES_MAX", "FETCH_ROWS_MAX", "FETCH_BYTES_MAX", "LONG_POLL_MS_MAX"),
    *("BODY_BYTES_MAX", "HEAD_BYTES_MAX", "SESSION_MS"),
    *("BUS_PAYLOAD_BYTES_MAX", "BUS_PARCEL_BYTES_MAX", "BUS_PARCEL_MESSAGES_MAX"),
    *("BUS_NAME_BYTES_MAX", "BUS_TTL_MS_MAX", "BUS_LEAP_MAX", "BUS_WINDOW"),
    *("BUS_CAPABILITY_DEPTH_MAX", "BUS_CAPABILITY_SCOPES_MAX", "BUS_CAPABILITY_BYTES_MAX"),
    *("BUS_CAPABILITY_MS_MAX", "BUS_CLOCK_SKEW_MS"),
)
"""What a client meets; all limits are in the reference."""
PLAIN_WORDS: Final = {
    shapes.StrType: "text",
    shapes.BoolType: "true or false",
    shapes.AnyType: "anything",
}


def tables_page() -> str:
    lines = [
        NOTE.format(source="src/holdfast/rules and src/holdfast/protocol"),
        "# Tables of the protocol",
        "",
        "Fields stand in the order in which they are sent. `text` is a msgpack `str`, `bytes` a",
        "`bin`, `x?` may be nil. What has a default may be left out at the end of a frame; an",
        "envelope and a body have all their fields.",
        *section("Envelope", "An array of these.", [envelope.Envelope]),
        *section("Bodies", "By op; `value`, `object` and `metadata` are JSON.", _bodies()),
        *section("Frames", "The first element is the kind.", _frames()),
        *section("Parts of frames", "Arrays inside frames.", _parts()),
        *section("Messages of the bus", "An array of these.", [message.BusMessage]),
        *section(
            "Frames of the bus",
            "The bodies of frames; `PARCEL` and `MESH` have other forms.",
            _bus_frames(),
        ),
        *section(
            "Words of a mesh",
            "The bodies of `MESH` frames; the first element is the kind.",
            [*get_args(bus_mesh.MeshWord), bus_mesh.StreamTold, bus_mesh.StreamNamed],
        ),
        *section(
            "A page of commits",
            "What a quorum has committed, with the records; arrays.",
            [
                *(commit_page.CommitPage, commit_page.CommitLine),
                *(commit_record.CommitRecord, fence.FenceToken, view.EntityRevision),
            ],
        ),
        *section("Capabilities", "Arrays.", [capability.Capability, capability.CapabilityStep]),
        *section("The log", "What a fetch gives as msgpack.", [log_wire.Batch]),
        *_close_codes(),
        *_limits(),
    ]
    return "\n".join(lines) + "\n"


def section(title: str, about: str, kinds: list[type[msgspec.Struct]]) -> Iterator[str]:
    yield from ("", f"## {title}", "", about)
    for kind in kinds:
        yield from ("", f"### {_title(kind)}", "")
        doc = inspect.cleandoc(kind.__doc__ or "").replace("\n", " ")
        if doc and doc != inspect.cleandoc(kind.__base__.__doc__ or ""):
            yield from (doc, "")
        yield from _table(kind)


def _title(kind: type[msgspec.Struct]) -> str:
    ops = [op for op, (body, _) in bodies._BODIES.items() if body is kind]
    if ops:
        return ", ".join(f"`{op}`" for op in ops)
    numbers = [one for one, shape in bus_frames._TYPES.items() if shape is kind]
    if numbers:
        return ", ".join(f"{number:d}: {number.name}" for number in numbers)
    tag = shapes.type_info(kind).tag  # type: ignore[attr-defined]
    return kind.__name__ if tag is None else f"{tag}: {kind.__name__}"


def _table(kind: type[msgspec.Struct]) -> Iterator[str]:
    info = shapes.type_info(kind)
    assert isinstance(info, shapes.StructType)
    if not info.fields:
        yield "No fields: the empty array."
        return
    notes = _notes(kind)
    yield "| field | type | default | |"
    yield "| --- | --- | --- | --- |"
    for field in info.fields:
        default = "" if field.required else f"`{_plain(field.default)}`"
        yield f"| `{field.name}` | {_type(field.type)} | {default} | {notes.get(field.name, '')} |"


def _notes(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The docstrings below the fields of a class."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    notes = {}
    for before, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name):
            said = after.value if isinstance(after, ast.Expr) else None
            if isinstance(said, ast.Constant) and isinstance(said.value, str):
                text = inspect.cleandoc(said.value).replace("\n", " ")
                notes[before.target.id] = text.replace("|", "\\|")
    return notes


def _type(info: shapes.Type) -> str:
    match info:
        case shapes.UnionType():
            known = [_type(one) for one in info.types if not isinstance(one, shapes.NoneType)]
            return " or ".join(known) + ("?" if len(known) < len(info.types) else "")
        case shapes.ListType() | shapes.VarTupleType():
            return f"array of {_type(info.item_type)}"
        case shapes.TupleType():
            return f"[{', '.join(_type(one) for one in info.item_types)}]"
        case shapes.DictType():
            return f"map of {_type(info.key_type)} to {_type(info.value_type)}"
        case shapes.LiteralType():
            return " or ".join(f"`{value}`" for value in info.values)
        case shapes.StructType():
            return info.cls.__name__
        case shapes.EnumType():
            return " or ".join(f"{one.value} {one.name.lower()}" for one in info.cls)
        case shapes.IntType():
            return "integer" + (f" from {info.ge}" if info.ge is not None else "")
        case shapes.BytesType():
            return "bytes" if info.max_length is None else f"{info.max_length} bytes"
    return PLAIN_WORDS[type(info)]


def _plain(value: Any) -> str:
    if value is None:
        return "nil"
    if isinstance(value, bytes):
        return "empty" if not value else value.decode()
    if isinstance(value, tuple | list) or value is msgspec.NODEFAULT:
        return "[]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "empty" if value == "" else str(value)


def _bodies() -> list[type[msgspec.Struct]]:
    return list(dict.fromkeys(body for body, _ in bodies._BODIES.values()))


def _frames() -> list[type[msgspec.Struct]]:
    kinds = [*get_args(frames.FromBroker), *get_args(frames.FromNode)]
    return sorted(kinds, key=lambda kind: shapes.type_info(kind).tag)  # type: ignore[attr-defined]


def _bus_frames() -> list[type[msgspec.Struct]]:
    return list(dict.fromkeys(bus_frames._TYPES.values()))


def _parts() -> list[type[msgspec.Struct]]:
    return [
        frames.MeshPosition,
        frames.Item,
        frames.PushAnswer,
        frames.WireError,
        broker_rows.FeedRow,
        envelope.Base,
        envelope.Fence,
    ]


def _close_codes() -> Iterator[str]:
    yield from ("", "## Close codes", "", "| code | name | |", "| --- | --- | --- |")
    source = ast.parse(inspect.getsource(close_codes)).body
    found = {code: (kind.code, inspect.cleandoc(kind.__doc__ or "")) for kind, code in
             close_codes.CLOSE_CODES.items()}  # fmt: skip
    for index, node in enumerate(source):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            value = getattr(close_codes, node.target.id)
            if isinstance(value, int):
                after = source[index + 1] if index + 1 < len(source) else None
                said = after.value if isinstance(after, ast.Expr) else None
                note = said.value if isinstance(said, ast.Constant) else ""
                found[value] = (node.target.id.lower(), inspect.cleandoc(str(note)))
    for code, (name, note) in sorted(found.items()):
        yield f"| {code} | `{name}` | {' '.join(note.split())} |"


def _limits() -> Iterator[str]:
    yield from ("", "## Limits", "", "| name | value | |", "| --- | --- | --- |")
    known = {limit.name: limit for limit in read_limits()}
    for name in LIMITS:
        assert isinstance(limits, types.ModuleType)
        limit = known[name]
        yield f"| `{name}` | {shown(name, limit.value)} | {limit.note} |"
