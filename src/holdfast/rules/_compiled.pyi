from typing import Final

from holdfast.rules.envelope import Priority

ENVELOPE_BYTES_MAX: Final[int]
MESSAGE_BYTES_MAX: Final[int]
VALUE_BYTES_MAX: Final[int]
KEY_BYTES_MAX: Final[int]
PATH_BYTES_MAX: Final[int]
SUBJECT_BYTES_MAX: Final[int]
PREDICATE_BYTES_MAX: Final[int]
PEER_ID_BYTES_MAX: Final[int]
MESH_SLUG_CHARS_MAX: Final[int]
REF_CHARS_MAX: Final[int]
TAGS_MAX: Final[int]
TAG_BYTES_MAX: Final[int]

INTENT_BYTES_MAX: Final[int]
ENTITY_BYTES_MAX: Final[int]
ENTITY_ID_BYTES_MAX: Final[int]
TITLE_BYTES_MAX: Final[int]

def make_intent(
    id: bytes,
    mesh: str,
    entity: str,
    origin: str,
    lamport: int,
    created_at: int,
    print: bytes,
    body: bytes,
    /,
) -> bytes | None: ...
def read_commits(
    payloads: list[bytes], mesh: str, /
) -> (
    tuple[
        str,
        bytes,
        bytes,
        bytes,
        bytes,
        bytes,
        bytes,
        bytes,
        bytes | None,
        bytes,
        bytes,
        bytes,
        bytes,
        bytes,
    ]
    | None
): ...
def make_records(
    mesh: str,
    coordinator: str,
    incarnation: int,
    epoch: int,
    number: int,
    sequence: int,
    ids: bytes,
    prints: bytes,
    names: bytes,
    times: bytes,
    revisions: bytes,
    /,
) -> tuple[bytes, bytes]: ...
def scan_push(raw: bytes, /) -> tuple[str, int, bytes, bytes] | None: ...
def read_envelopes(
    payload: bytes, spans: bytes, begin: int, end: int, mesh: str, member: str, /
) -> tuple[
    tuple[bytes, ...], bytes, bytes, list[tuple[str, str, str, Priority, int]], int, int
]: ...
def created_answers(
    numbers: bytes, tickets: bytes, epoch: int, seq: int, first_seen_at: int, /
) -> bytes: ...
def fingerprint(
    formula: int,
    kind: str,
    ref: str,
    reply_to: str,
    priority: str,
    meta: bytes,
    content_type: str,
    body: bytes,
    /,
) -> bytes | None: ...
def leaves(joined: bytes, ends: bytes, /) -> bytes: ...
def read_facts(
    batch: tuple[bytes, ...], origin: str, /
) -> tuple[
    bytes, bytes, bytes, bytes, bytes, bytes, bytes, list[tuple[str, str, int, int, int]]
]: ...
def sha256(raw: bytes, /) -> bytes: ...
