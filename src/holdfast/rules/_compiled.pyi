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
REF_CHARS_MAX: Final[int]
TAGS_MAX: Final[int]
TAG_BYTES_MAX: Final[int]

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
def sha256(raw: bytes, /) -> bytes: ...
