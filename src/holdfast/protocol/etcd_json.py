"""The shapes of etcd's JSON gateway, as far as an order of entries needs them.

A gateway ignores a field that it does not know, and a comparison whose field is misspelt compares
with 0. So requests are structs: what they may hold is written once, here, and a wrong name does not
pass the type checker. Bytes are standard base64, which is what msgspec makes of `bytes`; 64-bit
numbers travel as text in both directions; and an answer leaves out whatever is 0, false or empty.

Gateways of 3.5 and 3.6 report errors differently: the code is `code` or `grpc_code`, beside the
message or inside `error` (`read_error` takes all of it).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from holdfast.rules.errors import BadAnswer
from holdfast.rules.etcd.entry import HeldKey
from holdfast.rules.limits import LAMPORT_MAX

RANGE: Final = "/v3/kv/range"
TXN: Final = "/v3/kv/txn"
COMPACTION: Final = "/v3/kv/compaction"
WATCH: Final = "/v3/watch"
STATUS: Final = "/v3/maintenance/status"
MEMBERS: Final = "/v3/cluster/member/list"
AUTHENTICATE: Final = "/v3/auth/authenticate"
VERSION: Final = "/version"

_LISTED_MAX: Final = 10_000
"""Things in one list of an answer; no call of ours gets more than a page of keys."""

# --- requests ----------------------------------------------------------------------------------


class _Request(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    pass


class RangeRequest(_Request, frozen=True):
    key: bytes
    range_end: bytes = b""
    revision: str = "0"
    limit: str = "0"
    keys_only: bool = False


class PutRequest(_Request, frozen=True):
    key: bytes
    value: bytes = b""


class DeleteRequest(_Request, frozen=True):
    key: bytes


class VersionIs(_Request, frozen=True):
    """Compares how often a key was written; "0": it is not there."""

    key: bytes
    version: str
    target: Literal["VERSION"] | None = None
    result: Literal["EQUAL"] | None = None


class ValueIs(_Request, frozen=True):
    key: bytes
    value: bytes
    target: Literal["VALUE"] | None = None
    result: Literal["EQUAL"] | None = None


class Operation(_Request, frozen=True):
    """One of the three."""

    request_put: PutRequest | None = None
    request_range: RangeRequest | None = None
    request_delete_range: DeleteRequest | None = None


class TxnRequest(_Request, frozen=True):
    compare: tuple[VersionIs | ValueIs, ...] = ()
    success: tuple[Operation, ...] = ()
    failure: tuple[Operation, ...] = ()


class CompactionRequest(_Request, frozen=True):
    revision: str


class WatchCreate(_Request, frozen=True):
    key: bytes
    range_end: bytes
    start_revision: str
    filters: tuple[Literal["NODELETE"], ...] = ()
    fragment: bool = False


class WatchRequest(_Request, frozen=True):
    create_request: WatchCreate


class MembersRequest(_Request, frozen=True):
    linearizable: bool = False


class StatusRequest(_Request, frozen=True):
    pass


class Credentials(_Request, frozen=True):
    name: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials({self.name!r}, …)"


def version_is(key: bytes, version: int) -> VersionIs:
    return VersionIs(key=key, version=str(version), target="VERSION", result="EQUAL")


def value_is(key: bytes, value: bytes) -> ValueIs:
    return ValueIs(key=key, value=value, target="VALUE", result="EQUAL")


def put(key: bytes, value: bytes = b"") -> Operation:
    return Operation(request_put=PutRequest(key=key, value=value))


def get(key: bytes) -> Operation:
    return Operation(request_range=RangeRequest(key=key))


def delete(key: bytes) -> Operation:
    return Operation(request_delete_range=DeleteRequest(key=key))


# --- answers -----------------------------------------------------------------------------------

Int64 = Annotated[int, Meta(ge=0, le=LAMPORT_MAX)]
Uint64 = Annotated[int, Meta(ge=0)]


class AnswerHeader(msgspec.Struct, frozen=True, gc=False):
    cluster_id: Uint64 = 0
    member_id: Uint64 = 0
    revision: Int64 = 0
    raft_term: Uint64 = 0


class KeyValue(msgspec.Struct, frozen=True, gc=False):
    key: bytes = b""
    value: bytes = b""
    mod_revision: Int64 = 0
    version: Int64 = 0

    @property
    def held(self) -> HeldKey:
        return HeldKey(self.key, self.value, self.mod_revision, self.version)


class RangeAnswer(msgspec.Struct, frozen=True):
    header: AnswerHeader = AnswerHeader()
    kvs: Annotated[tuple[KeyValue, ...], Meta(max_length=_LISTED_MAX)] = ()
    more: bool = False

    @property
    def one(self) -> HeldKey | None:
        return self.kvs[0].held if self.kvs else None


class OperationAnswer(msgspec.Struct, frozen=True):
    response_range: RangeAnswer | None = None


class TxnAnswer(msgspec.Struct, frozen=True):
    header: AnswerHeader = AnswerHeader()
    succeeded: bool = False
    responses: Annotated[tuple[OperationAnswer, ...], Meta(max_length=_LISTED_MAX)] = ()

    def ranges(self, count: int) -> list[HeldKey | None]:
        """What `count` operations have read, each one key. BadAnswer if they are not that many."""
        found = [answer.response_range for answer in self.responses]
        if len(found) != count or any(answer is None for answer in found):
            raise BadAnswer(f"the etcd answers {len(found)} of {count} questions")
        return [answer.one for answer in found if answer is not None]


class CompactionAnswer(msgspec.Struct, frozen=True):
    header: AnswerHeader = AnswerHeader()


class WatchEvent(msgspec.Struct, frozen=True, gc=False):
    type: Literal["PUT", "DELETE"] = "PUT"
    kv: KeyValue = KeyValue()


class WatchAnswer(msgspec.Struct, frozen=True):
    header: AnswerHeader = AnswerHeader()
    created: bool = False
    canceled: bool = False
    cancel_reason: str = ""
    compact_revision: Int64 = 0
    fragment: bool = False
    events: Annotated[tuple[WatchEvent, ...], Meta(max_length=100_000)] = ()


class StatusAnswer(msgspec.Struct, frozen=True):
    header: AnswerHeader = AnswerHeader()
    version: str = ""
    db_size: Int64 = msgspec.field(default=0, name="dbSize")
    leader: Uint64 = 0
    errors: Annotated[tuple[str, ...], Meta(max_length=100)] = ()


class MemberAnswer(msgspec.Struct, frozen=True):
    id: Uint64 = msgspec.field(default=0, name="ID")
    name: str = ""
    is_learner: bool = msgspec.field(default=False, name="isLearner")


class MembersAnswer(msgspec.Struct, frozen=True):
    header: AnswerHeader = AnswerHeader()
    members: Annotated[tuple[MemberAnswer, ...], Meta(max_length=100)] = ()


class TokenAnswer(msgspec.Struct, frozen=True):
    token: str = ""

    def __repr__(self) -> str:
        return "TokenAnswer(…)"


class VersionAnswer(msgspec.Struct, frozen=True):
    etcdserver: str = ""


T = TypeVar("T")
_encoder: Final = msgspec.json.Encoder()


def encode(request: msgspec.Struct) -> bytes:
    return _encoder.encode(request)


def decode(body: bytes, kind: type[T]) -> T:
    """An answer. BadAnswer if it is not of this shape."""
    try:
        # Not strict, because numbers come as text.
        return msgspec.json.decode(body, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # The message of a decoder quotes no more of the body than the name of a field.
        raise BadAnswer(
            f"the answer is not one of etcd: {error}",
            hint="check that the address leads to an etcd",
        ) from None


class _Stream(msgspec.Struct, frozen=True):
    result: WatchAnswer | None = None
    error: dict[str, Any] | None = None


class _Told(msgspec.Struct, frozen=True):
    error: Any = None
    code: Any = None
    grpc_code: Any = None
    message: Any = None


class GatewayError(msgspec.Struct, frozen=True):
    """An error as the gateway tells it. `code` is None where it told none."""

    code: int | None
    message: str


def read_error(body: bytes) -> GatewayError:
    """What the body of a bad answer says; its text, if it is not the gateway's JSON."""
    try:
        told = msgspec.json.decode(body, type=_Told)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return GatewayError(None, body[:500].decode("utf-8", "replace").strip())
    return _error(told)


def read_line(line: bytes) -> WatchAnswer | GatewayError:
    """One line of a watch."""
    told = decode(line, _Stream)
    if told.result is not None:
        return told.result
    if told.error is None:
        raise BadAnswer("a line of the watch says nothing")
    return _error(msgspec.convert(told.error, _Told))


def _error(told: _Told) -> GatewayError:
    inner = told.error if isinstance(told.error, dict) else {}
    codes = (told.code, told.grpc_code, inner.get("grpc_code"), inner.get("code"))
    texts = (told.message, inner.get("message"), told.error)
    code = next((code for code in codes if type(code) is int), None)
    return GatewayError(code, next((text for text in texts if isinstance(text, str)), ""))
