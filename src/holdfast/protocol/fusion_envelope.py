"""Changes of entities as the source document writes them: `fusion.shared-mesh`, version 1.0.

On its routes an envelope is JSON with the field names of its section 6. Inside it is ours. What is
said of a commit (`state`, `leaseEpoch`, `fenceToken`, `committedAt`) comes from the commit record;
before the commit there is none, and these are `intent` and null.

The source writes one whole entity. Ours can do more, and says so in fields that a minor version may
add: `operation` (`put` if absent, `patch` or `delete`), `removed`, `precondition.lease` with
`precondition.fence`, and `further` for the other entities of one intent. Fields that are not known
are kept, and written again. Another major version is refused.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from holdfast.rules.bodies import encode_value
from holdfast.rules.data_classes import ENTITY_TYPES, WriteClass, write_class_of
from holdfast.rules.envelope import Envelope, LeaseEpoch, State
from holdfast.rules.errors import BadEnvelope, BadValue, UnsupportedProtocol
from holdfast.rules.ids import id_text, parse_new_id
from holdfast.rules.limits import LAMPORT_MAX
from holdfast.rules.names import check_peer
from holdfast.rules.quorum.commit_record import CommitRecord, state_of
from holdfast.rules.quorum.entities import check_type, read_fields
from holdfast.rules.quorum.fence import FenceToken, parse_order, parse_token
from holdfast.rules.quorum.intents import (
    NO_FIELDS,
    EntityChange,
    EntityOperation,
    Guard,
    OperationKind,
    check_operation,
    decode_intent,
)
from holdfast.rules.quorum.moments import moment_text, parse_moment

FUSION_PROTOCOL: Final = "fusion.shared-mesh"
FUSION_VERSION: Final = "1.0"


class FusionPrecondition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    base_revision: int | None = None
    expected_epoch: int | None = None
    lease: str | None = None
    fence: str | None = None


class FusionOperation(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What is done to one entity."""

    entity_type: str
    entity_id: str
    payload: dict[str, Any] = {}
    operation: OperationKind = "put"
    removed: tuple[str, ...] = ()
    precondition: FusionPrecondition | None = None


class FusionEnvelope(FusionOperation, frozen=True, rename="camel", kw_only=True):
    """The source's replication envelope, about an entity."""

    protocol: str
    version: str
    record_id: str
    origin_node_id: str
    origin_seq: int
    write_class: str
    lease_epoch: LeaseEpoch | None = None
    fence_token: str | None = None
    intent_id: str
    state: State
    created_at: str
    committed_at: str | None = None
    further: tuple[FusionOperation, ...] = ()


class FusionChange(msgspec.Struct, frozen=True, kw_only=True):
    """What an envelope of the source asks for, in our terms."""

    id: bytes
    body: EntityChange
    origin: str
    origin_seq: int
    state: State
    created_at: int
    committed_at: int | None
    fence: FenceToken | None
    unknown: dict[str, Any]
    """Fields that a later minor version has added."""


_KNOWN: Final = frozenset(FusionEnvelope.__struct_encode_fields__)
_PLAIN: Final = {"".join(name.split("_")).casefold(): name for name in ENTITY_TYPES}
"""The types without regard to how words are joined: the source writes `taskMetadata`."""
_PLAIN_ALIASES: Final = {"agent": "agent_definition", "settings": "project_settings"}


def fusion_json(
    envelope: Envelope, record: CommitRecord | None, unknown: dict[str, Any] | None = None
) -> bytes:
    """An intent that changes entities, and what became of it, as the source writes it."""
    body = decode_intent(envelope)
    if not isinstance(body, EntityChange):
        raise BadEnvelope(f"{envelope.op} has no form in {FUSION_PROTOCOL}")
    first, *others = (_shown(operation) for operation in body.operations)
    made = FusionEnvelope(
        **{name: getattr(first, name) for name in FusionOperation.__struct_fields__},
        protocol=FUSION_PROTOCOL,
        version=FUSION_VERSION,
        record_id=id_text(envelope.id),
        origin_node_id=envelope.origin,
        origin_seq=envelope.seq,
        write_class=envelope.write_class,
        lease_epoch=None if record is None else record.fence.lease_epoch,
        fence_token=None if record is None else str(record.fence),
        intent_id=id_text(envelope.intent or envelope.id),
        state=envelope.state if record is None else state_of(record),
        created_at=moment_text(envelope.created_at),
        committed_at=None if record is None else moment_text(record.committed_at),
        further=tuple(others),
    )
    shown = msgspec.to_builtins(made)
    # The source's own fields are there even where they say nothing.
    shown.setdefault("payload", {})
    for name in ("leaseEpoch", "fenceToken"):
        shown.setdefault(name, None)
    return msgspec.json.encode({**(unknown or {}), **shown})


class FusionEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An append-only envelope of the source: an event of the audit stream that its type names."""

    id: bytes
    stream: str
    payload: dict[str, Any]
    """What the source says of it: its own origin and number stand beside the content."""


def read_fusion_event(raw: bytes) -> FusionEvent:
    """Reads and checks an append-only envelope of the source. Raises a typed error."""
    found = _checked_head(raw)
    try:
        read = msgspec.convert(found, FusionEnvelope)
    except msgspec.ValidationError as error:
        raise BadEnvelope(f"the envelope cannot be read: {error}") from None
    check_peer(read.origin_node_id)
    if "".join(read.entity_type.split("_")).casefold() in _PLAIN:
        raise BadEnvelope(f"{read.entity_type} is decided by a quorum, and not appended")
    if read.operation != "put" or read.precondition is not None or read.further:
        raise BadEnvelope("an event is added, and nothing else")
    kept = {
        "originNodeId": read.origin_node_id,
        "originSeq": read.origin_seq,
        "entityId": read.entity_id,
        "createdAt": read.created_at,
        "payload": read.payload,
    }
    return FusionEvent(id=parse_new_id(read.record_id), stream=read.entity_type, payload=kept)


def read_fusion(raw: bytes) -> FusionChange:
    """Reads and checks an envelope of the source. Raises a typed error."""
    found = _checked_head(raw)
    try:
        read = msgspec.convert(found, FusionEnvelope)
    except msgspec.ValidationError as error:
        raise BadEnvelope(f"the envelope cannot be read: {error}") from None
    check_peer(read.origin_node_id)
    if not 0 <= read.origin_seq <= LAMPORT_MAX:
        raise BadEnvelope(f"originSeq {read.origin_seq} is not possible")
    id = parse_new_id(read.record_id)
    if parse_new_id(read.intent_id) != id:
        raise BadEnvelope("intentId and recordId of an intent are the same")
    operations = tuple(_under(read, _operation(one)) for one in (read, *read.further))
    for operation in operations:
        check_operation(operation)
        wanted = write_class_of(ENTITY_TYPES[operation.type], voters=True)
        if read.write_class != wanted or wanted is not WriteClass.STRONG:
            raise BadEnvelope(
                f"{operation.type} travels as {wanted.value}, not as {read.write_class!r}"
            )
    fence = None if read.fence_token is None else parse_token(read.fence_token)
    if fence is not None and read.lease_epoch != fence.lease_epoch:
        raise BadEnvelope("leaseEpoch and fenceToken say different epochs")
    committed = None if read.committed_at is None else parse_moment(read.committed_at)
    return FusionChange(
        id=id,
        body=EntityChange(operations),
        origin=read.origin_node_id,
        origin_seq=read.origin_seq,
        state=read.state,
        created_at=parse_moment(read.created_at),
        committed_at=committed,
        fence=fence,
        unknown={name: value for name, value in found.items() if name not in _KNOWN},
    )


def _checked_head(raw: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        raise BadEnvelope("the envelope is not JSON") from None
    if not isinstance(found, dict):
        raise BadEnvelope("the envelope is not an object")
    protocol, version = found.get("protocol"), found.get("version")
    if protocol != FUSION_PROTOCOL:
        raise UnsupportedProtocol(f"protocol {protocol!r} is not {FUSION_PROTOCOL!r}")
    major, dot, minor = version.partition(".") if isinstance(version, str) else ("", "", "")
    if major != "1" or not dot or not (minor.isascii() and minor.isdecimal()):
        raise UnsupportedProtocol(f"version {version!r} is not of major version 1")
    return found


def _shown(operation: EntityOperation) -> FusionOperation:
    guard = operation.guard
    condition = FusionPrecondition(
        operation.base,
        operation.expected_epoch,
        None if guard is None else guard.lease,
        None if guard is None else str(guard.order),
    )
    return FusionOperation(
        operation.type,
        operation.id,
        read_fields(operation.fields),
        operation.kind,
        operation.removed,
        None if condition == FusionPrecondition() else condition,
    )


def _operation(read: FusionOperation) -> EntityOperation:
    asked = read.precondition or FusionPrecondition()
    if (asked.lease is None) != (asked.fence is None):
        raise BadEnvelope("a precondition names a lease and its fence, or neither")
    guard = None
    if asked.lease is not None and asked.fence is not None:
        guard = Guard(asked.lease, *parse_order(asked.fence))
    try:
        fields = encode_value(read.payload) if read.payload else NO_FIELDS
    except BadValue as error:
        raise BadEnvelope(f"payload: {error.message}") from None
    return EntityOperation(
        read.operation,
        _type(read.entity_type),
        read.entity_id,
        asked.base_revision,
        fields,
        read.removed,
        asked.expected_epoch,
        guard,
    )


def _under(read: FusionEnvelope, operation: EntityOperation) -> EntityOperation:
    """An intent that names a lease epoch was made under it, and counts under no other. One that
    waited in a queue is fenced anew.
    """
    if read.state != "intent" or read.lease_epoch is None:
        return operation
    if operation.expected_epoch not in (None, read.lease_epoch):
        raise BadEnvelope("leaseEpoch and expectedEpoch say different epochs")
    return msgspec.structs.replace(operation, expected_epoch=read.lease_epoch)


def _type(name: str) -> str:
    plain = name.replace("_", "").replace("-", "").casefold()
    found = _PLAIN.get(plain) or _PLAIN_ALIASES.get(plain) or name
    check_type(found)
    return found
