"""What each op carries besides the envelope's own fields, and the rules for it.

What only one family needs is imported where it is used: a command that writes one key should not
pay for vectors and audit streams.

A body is a msgpack array, like the envelope. Values that callers supply as JSON are encoded once
and travel as that text: no node parses and encodes them again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from hashlib import sha256
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.rules import limits, names
from holdfast.rules.canonical import UNREADABLE, check_packed_form, check_spelling
from holdfast.rules.envelope import CREATED_VERSION, UNCOUNTED, VERSION, Envelope
from holdfast.rules.errors import (
    BadEnvelope,
    BadId,
    BadInput,
    BadValue,
    BadVector,
    EntryDamaged,
    ForgedOrigin,
    OverLimit,
)
from holdfast.rules.ids import id_text, parse_id

if TYPE_CHECKING:
    from holdfast.rules.audit_chain import AuditRow
    from holdfast.rules.vectors import Model


class Body(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The base of all bodies: the fields of one op."""


class Nothing(Body, frozen=True):
    """The body of ops that say everything by their name and entity."""


class StateSet(Body, frozen=True):
    value: bytes


class MemorySet(Body, frozen=True):
    value: bytes
    tags: tuple[str, ...] = ()
    created_at: int = 0
    """When the first version of a value that is replaced was written; 0 if this is the first."""


class VectorStore(Body, frozen=True):
    provider: str
    model: str
    version: str
    dim: int
    quantization: str
    embedding: bytes
    content: str = ""
    metadata: bytes = b"null"

    def identity(self) -> Model:
        from holdfast.rules.vectors import Model

        return Model(
            provider=self.provider,
            name=self.model,
            version=self.version,
            dim=self.dim,
            quantization=self.quantization,
        )


class VectorDelete(Body, frozen=True):
    model_id: str


class FileShare(Body, frozen=True):
    sha256: bytes
    size: int
    content: bytes | None = None
    """The content itself when it is small; otherwise it travels as a blob, before the envelope."""
    created_at: int = 0
    """When the first version of a file that is replaced was shared; 0 if this is the first."""


class TaskCreate(Body, frozen=True):
    title: str
    description: str = ""


class TaskTurn(Body, frozen=True):
    """A claim or a release, of one claim generation."""

    generation: int


class Fact(Body, frozen=True):
    predicate: str
    object: bytes
    objects: tuple[bytes, ...] = ()
    """Hashes of the blobs that the fact names: the blobs travel before the envelope."""


class AuditAppend(Body, frozen=True):
    """An event of an audit stream; the entity of its envelope is the stream."""

    epoch: int
    """Of its origin's log. A rebuilt envelope has lost it, and the chain needs it."""
    seq: int
    at: int
    previous: bytes
    hash: bytes
    payload: bytes

    def event(self, envelope: Envelope, offset: int = 0) -> AuditRow:
        from holdfast.rules.audit_chain import AuditRow

        return AuditRow(
            mesh=envelope.mesh,
            stream=envelope.entity,
            origin=envelope.origin,
            epoch=self.epoch,
            seq=self.seq,
            id=envelope.id,
            at=self.at,
            payload=self.payload,
            previous=self.previous,
            hash=self.hash,
            lamport=envelope.lamport,
            offset=offset,
        )


class MessageSend(Body, frozen=True):
    """The content of a message; its destination and priority are fields of the envelope."""

    content: bytes
    content_type: str = ""


_encoder: Final = msgspec.msgpack.Encoder()
_json: Final = msgspec.json.Encoder()
_read_json: Final = msgspec.json.Decoder().decode

_BACKSLASH, _BRACKET, _BRACE = b"\\[{"

_JSON_HINT: Final = "use text, numbers, true, false, null, lists and dicts with text keys"

_encode: Final = _encoder.encode


def encode_body(body: Body) -> bytes:
    if type(body) is Fact and not body.objects:
        # Facts had these bytes before they could name objects: their fingerprints must not change.
        return _encode((body.predicate, body.object))
    # The first version of a memory or a file says when it was written by its envelope.
    if type(body) is MemorySet and not body.created_at:
        return _encode((body.value, body.tags))
    if type(body) is FileShare and not body.created_at:
        return _encode((body.sha256, body.size, body.content))
    return _encode(body)


def version_of_body(body: Body) -> str:
    """Of the envelope that bears such a body. Who knows only an earlier version keeps the fields
    that are new, and does not look at them.
    """
    if isinstance(body, MemorySet | FileShare) and body.created_at:
        return CREATED_VERSION
    return VERSION


NOTHING: Final = encode_body(Nothing())


def encode_value(value: object) -> bytes:
    """A JSON value as the text that is stored, hashed and sent."""
    _check_json(value, 0)
    try:
        raw = _json.encode(value)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise BadValue(f"the value is not JSON: {error}", hint=_JSON_HINT) from None
    if len(raw) > limits.VALUE_BYTES_MAX:
        raise OverLimit(
            f"the value has {len(raw)} bytes as JSON; the most is {limits.VALUE_BYTES_MAX}"
        )
    return raw


def decode_value(raw: bytes) -> Any:
    return msgspec.json.decode(raw)


def check_value(raw: bytes) -> Any:
    """Raises unless a value from outside is valid JSON within the limits; returns it."""
    if len(raw) > limits.VALUE_BYTES_MAX:
        raise OverLimit(f"the value has {len(raw)} bytes; the most is {limits.VALUE_BYTES_MAX}")
    try:
        value = _read_json(raw)
    except UNREADABLE as error:
        raise BadValue(f"the value is not JSON: {error}") from None
    # JSON that could be read holds neither bytes nor NaN, and what remains to be looked for shows
    # in its text: a NUL is written with a backslash, and no value is deeper than it has brackets.
    if _BACKSLASH in raw or _may_be_deep(raw):
        _check_json(value, 0)
    return value


def refused_values(raws: Sequence[bytes]) -> list[int]:
    """Which of these `check_value` refuses, by their places."""
    try:
        # Nearly always all are JSON. Then only those remain that could break another rule.
        deque(map(_read_json, raws), maxlen=0)
    except UNREADABLE:
        return [place for place, raw in enumerate(raws) if not _is_value(raw)]
    if _BACKSLASH not in b"".join(raws) and max(map(len, raws), default=0) < limits.VALUE_DEPTH_MAX:
        return []
    return [
        place
        for place, raw in enumerate(raws)
        if (len(raw) > limits.VALUE_DEPTH_MAX or _BACKSLASH in raw) and not _is_value(raw)
    ]


def _is_value(raw: bytes) -> bool:
    try:
        check_value(raw)
    except BadInput:
        return False
    return True


def _may_be_deep(raw: bytes) -> bool:
    if _BRACKET not in raw and raw.find(_BRACE, 1) < 0:
        return False  # flat: nearly all of them, and looking for one byte costs least
    return raw.count(b"[") + raw.count(b"{") > limits.VALUE_DEPTH_MAX


def _check_json(value: object, depth: int) -> None:
    """Raises BadValue for what JSON cannot express; an encoder would write something else instead
    (NaN as null, bytes as text).
    """
    if isinstance(value, str):
        if "\0" in value:
            raise BadValue(
                "the value contains a NUL character", hint="encode binary content as text"
            )
    elif value is None or isinstance(value, int):
        return
    elif isinstance(value, float):
        if not isfinite(value):
            raise BadValue(f"the number {value!r} is not JSON", hint="store null or text instead")
    elif depth > limits.VALUE_DEPTH_MAX:
        raise OverLimit(f"the value is nested deeper than {limits.VALUE_DEPTH_MAX} levels")
    elif isinstance(value, list | tuple):
        for part in value:
            _check_json(part, depth + 1)
    elif isinstance(value, dict):
        _check_dict(value, depth)
    else:
        raise BadValue(f"a {type(value).__name__} is not JSON", hint=_JSON_HINT)


def _check_dict(value: dict[object, object], depth: int) -> None:
    for key, part in value.items():
        if not isinstance(key, str):
            raise BadValue(f"the value has a key {key!r} that is not text", hint=_JSON_HINT)
        if "\0" in key:
            raise BadValue("a key in the value contains a NUL character")
        if type(part) is not int and not (type(part) is str and "\0" not in part):
            _check_json(part, depth + 1)  # integers and plain text, the most common, need no call


def check_tags(tags: tuple[str, ...]) -> None:
    if len(tags) > limits.TAGS_MAX:
        raise OverLimit(f"{len(tags)} tags; the most is {limits.TAGS_MAX}")
    for tag in tags:
        names.check_key(tag, "tag", limits.TAG_BYTES_MAX)


def check_prose(text: str, what: str, most: int, *, empty: bool = True) -> None:
    if not isinstance(text, str):
        raise BadValue(f"the {what} is {type(text).__name__}, not text")
    if not text and not empty:
        raise BadValue(f"the {what} is empty")
    if text:
        names.check_key(text, what, most)


# --- reading a body that came from outside -------------------------------------------------------


def _check_state(envelope: Envelope, body: StateSet) -> None:
    names.check_key(envelope.entity)
    check_value(body.value)


def _check_memory(envelope: Envelope, body: MemorySet) -> None:
    names.check_key(envelope.entity)
    check_value(body.value)
    check_tags(body.tags)
    _check_created(envelope, body.created_at)


def _check_vector(envelope: Envelope, body: VectorStore) -> None:
    from holdfast.rules.vectors import check_packed

    names.check_key(envelope.entity)
    model = body.identity()
    check_packed(body.embedding, model.dim, model.quantization)
    check_prose(body.content, "content", limits.VECTOR_CONTENT_BYTES_MAX)
    check_value(body.metadata)


def _check_vector_delete(envelope: Envelope, body: VectorDelete) -> None:
    names.check_key(envelope.entity)
    if len(body.model_id) != 16 or set(body.model_id) - set("0123456789abcdef"):
        raise BadVector(f"{body.model_id!r} is not a model fingerprint")


def _check_file(envelope: Envelope, body: FileShare) -> None:
    from holdfast.rules.paths import check_path

    check_path(envelope.entity)
    if len(body.sha256) != 32:
        raise BadEnvelope("the file's hash has not 32 bytes")
    if not 0 <= body.size <= limits.FILE_BYTES_MAX:
        raise OverLimit(f"the file has {body.size} bytes; the most is {limits.FILE_BYTES_MAX}")
    inline = body.content is not None
    if inline != (body.size < limits.INLINE_BYTES_MAX) or (
        body.content is not None and len(body.content) != body.size
    ):
        raise BadEnvelope("the file's content does not fit its size")
    if body.content is not None and sha256(body.content).digest() != body.sha256:
        raise BadEnvelope("the file's content does not hash to its name")
    _check_created(envelope, body.created_at)


def _check_created(envelope: Envelope, created_at: int) -> None:
    if not created_at:
        return
    if envelope.version == VERSION:
        raise BadEnvelope(f"an envelope of version {VERSION} says when its first version was made")
    if not 0 < created_at < limits.SOURCE_TIME_MS_MAX:
        raise BadEnvelope(f"it was first made {created_at} ms after 1970, as no clock can say")


def _check_path_only(envelope: Envelope, body: Nothing) -> None:
    from holdfast.rules.paths import check_path

    check_path(envelope.entity)


def _check_key_only(envelope: Envelope, body: Nothing) -> None:
    names.check_key(envelope.entity)


def _check_task(envelope: Envelope, body: TaskCreate) -> None:
    check_prose(body.title, "title", limits.TITLE_BYTES_MAX, empty=False)
    check_prose(body.description, "description", limits.DESCRIPTION_BYTES_MAX)


def _check_turn(envelope: Envelope, body: TaskTurn) -> None:
    if not 0 <= body.generation < limits.LAMPORT_MAX:
        raise BadEnvelope(f"claim generation {body.generation} is not possible")


def _check_fact(envelope: Envelope, body: Fact) -> None:
    names.check_key(envelope.entity, "subject", limits.SUBJECT_BYTES_MAX)
    names.check_key(body.predicate, "predicate", limits.PREDICATE_BYTES_MAX)
    check_value(body.object)
    if body.objects:
        check_objects(body.objects)


def check_objects(objects: tuple[bytes, ...]) -> None:
    """Raises unless these can be the hashes of the blobs that a fact names."""
    if len(objects) > limits.FACT_OBJECTS_MAX:
        raise OverLimit(f"{len(objects)} objects; the most is {limits.FACT_OBJECTS_MAX}")
    if any(len(digest) != 32 for digest in objects):
        raise BadEnvelope("the hash of an object has not 32 bytes")
    if len(set(objects)) != len(objects):
        raise BadEnvelope("an object is named twice")


def _check_audit(envelope: Envelope, body: AuditAppend) -> None:
    from holdfast.rules.audit_chain import check_event

    if envelope.epoch not in (body.epoch, UNCOUNTED):
        raise BadEnvelope("an audit event is of another epoch than its envelope")
    check_event(body.event(envelope))
    check_value(body.payload)


def _check_message(envelope: Envelope, body: MessageSend) -> None:
    from holdfast.rules.destinations import check_destination, entity_of

    if envelope.to is None:
        raise BadEnvelope("a message names no destination")
    if envelope.entity != entity_of(*check_destination(*envelope.to)):
        raise BadEnvelope("a message is about its destination")
    if len(body.content) > limits.MESSAGE_BYTES_MAX:
        raise OverLimit(
            f"the message has {len(body.content)} bytes; the most is {limits.MESSAGE_BYTES_MAX}"
        )
    if body.content_type:
        names.check_key(body.content_type, "content type")


OWNED: Final = frozenset({"memory", "vector", "file"})
"""Families that keep one row per owner."""

_BODIES: Final[dict[str, tuple[type[Body], Callable[[Envelope, Any], None]]]] = {
    "state.set": (StateSet, _check_state),
    "state.delete": (Nothing, _check_key_only),
    "memory.set": (MemorySet, _check_memory),
    "memory.forget": (Nothing, _check_key_only),
    "vector.store": (VectorStore, _check_vector),
    "vector.delete": (VectorDelete, _check_vector_delete),
    "file.share": (FileShare, _check_file),
    "file.delete": (Nothing, _check_path_only),
    "task.create": (TaskCreate, _check_task),
    "task.claim": (TaskTurn, _check_turn),
    "task.release": (TaskTurn, _check_turn),
    "task.complete": (Nothing, _check_key_only),
    "task.cancel": (Nothing, _check_key_only),
    "fact.append": (Fact, _check_fact),
    "message.send": (MessageSend, _check_message),
    "audit.append": (AuditAppend, _check_audit),
}
OPS: Final = frozenset(_BODIES)
_DECODERS: Final = {op: msgspec.msgpack.Decoder(kind) for op, (kind, _) in _BODIES.items()}
_RULES: Final = {
    op: (_DECODERS[op].decode, check, op.partition(".")[0] in OWNED)
    for op, (_, check) in _BODIES.items()
}
"""By op: how its body is read and checked, and whether its rows have an owner."""


def family_of(op: str) -> str:
    return op.partition(".")[0]


def decode_body(envelope: Envelope) -> Body | None:
    """Reads and checks the body of an envelope; None for an op that this version does not know."""
    body = decode_stored_body(envelope)
    try:
        _check_form(envelope, body)
    except BadInput as error:
        raise _about(envelope, error) from None
    if body is not None and envelope.owner and envelope.owner != envelope.origin:
        raise ForgedOrigin(
            f"{envelope.op} {envelope.entity!r}: {envelope.origin!r} writes in the name of "
            f"{envelope.owner!r}",
            hint="everybody writes their own memory, files and vectors, and nobody else's",
        )
    return body


def decode_stored_body(envelope: Envelope) -> Body | None:
    """Reads and checks the body of an envelope from a log of another process. Earlier code let in
    more forms of one body than `decode_body` does, and wrote under the names of other owners.
    """
    rules = _RULES.get(envelope.op)
    if rules is None:
        return None
    read, check, owned = rules
    try:
        body = read(envelope.body)
    except (
        msgspec.ValidationError,
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
    ) as error:
        raise BadEnvelope(f"the body of {envelope.op} cannot be read: {error}") from None
    if owned != bool(envelope.owner):
        raise BadEnvelope(f"{envelope.op} {'lacks' if not envelope.owner else 'has'} an owner")
    try:
        check(envelope, body)
    except BadInput as error:
        raise _about(envelope, error) from None
    return body


def _about(envelope: Envelope, error: BadInput) -> BadInput:
    return type(error)(f"{envelope.op} {envelope.entity!r}: {error.message}", hint=error.hint)


# --- the form of what arrives --------------------------------------------------------------------


def _check_form(envelope: Envelope, body: Body | None) -> None:
    """Raises unless an envelope has the form in which our own writers write it."""
    if body is None or isinstance(body, MessageSend):
        if envelope.to is not None:
            from holdfast.rules.destinations import check_destination

            check_destination(*envelope.to)
        if envelope.reply_to:
            _check_id(envelope.reply_to, "message")
    elif envelope.to is not None:
        raise BadEnvelope(f"{envelope.op} is no message, but has a destination")
    elif envelope.reply_to:
        raise BadEnvelope(f"{envelope.op} is no message, but answers one")
    if body is None:
        return
    if isinstance(body, MessageSend) and body.content_type:
        check_content_type(body.content_type)
    if isinstance(body, TaskCreate):
        if envelope.entity != id_text(envelope.id):
            raise BadEnvelope("a new task is not named by the id of its creation")
    elif envelope.op.startswith("task."):
        _check_id(envelope.entity, "task")
    for value in _json_of(body):
        check_spelling(value, _read_json(value))
    again = encode_body(body)
    check_packed_form(envelope.body, again, "its body", newer=envelope.version != VERSION)


def check_content_type(text: str) -> None:
    """Raises unless this can stand in a header: printable, on one line."""
    names.check_key(text, "content type")
    if not text.isprintable():
        raise BadValue("the content type holds characters that cannot be shown")


def _check_id(text: str, what: str) -> None:
    if id_text(parse_id(text)) != text:
        raise BadId(f"{text!r} is not how the id of a {what} is written")


def _json_of(body: Body) -> tuple[bytes, ...]:
    """The values in a body that are JSON."""
    if isinstance(body, StateSet | MemorySet):
        return (body.value,)
    if isinstance(body, Fact):
        return (body.object,)
    if isinstance(body, AuditAppend):
        return (body.payload,)
    return (body.metadata,) if isinstance(body, VectorStore) else ()


def decode_trusted_body(envelope: Envelope) -> Body | None:
    """Reads the body of an envelope from this node's log, which was checked before. EntryDamaged if
    it has changed since.
    """
    decoder = _DECODERS.get(envelope.op)
    if decoder is None:
        return None
    try:
        body: Body = decoder.decode(envelope.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what = f"the stored body of {envelope.op} {envelope.entity!r} cannot be read: {error}"
        raise EntryDamaged(what) from None
    return body


def decode_loose(op: str, raw: bytes) -> Body:
    """Reads a body that is kept without its envelope, as the conflict ledger does."""
    body: Body = _DECODERS[op].decode(raw)
    return body
