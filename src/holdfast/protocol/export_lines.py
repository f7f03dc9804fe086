"""The lines of an export: one JSON object each, of a kind that `kind` names.

    {"holdfast": "export", "version": 1, …}      the first line: whose, when, up to where
    {"kind": "state", …}                         rows, each one complete in itself
    {"kind": "blob", "sha256", "part", …}        content, in parts, before the first file of it
    {"kind": "commit", "number", "record", …}    what a quorum has committed, in its order, with the
                                                 envelopes; before the log
    {"kind": "log", "offset", "raw", …}          log entries: the envelope itself, and its fields
                                                 for people
    {"holdfast": "end", "sha256", …}             the last line: a file that was cut off has none,
                                                 and a file that was changed another hash

Bytes are base64. Fields that have their default value are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import BinaryIO, Final, Protocol, TypeAlias

import msgspec

from holdfast.rules.errors import BadValue, UnsupportedProtocol
from holdfast.rules.limits import EXPORT_LINE_BYTES_MAX
from holdfast.rules.quorum.intents import Engine

VERSION: Final = 1
_FLUSH_BYTES: Final = 256 * 1024


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: whose rows these are, and how far the log was when they were read."""

    holdfast: str = "export"
    version: int = VERSION
    peer: str
    epoch: int
    first: int
    head: int
    created_at: int


class Trailer(msgspec.Struct, frozen=True, kw_only=True):
    """The last line: how many lines came before and their hash, so that a file shows that it is
    whole.
    """

    holdfast: str = "end"
    lines: int
    counts: dict[str, int]
    sha256: str


class ExportLine(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", gc=False
):
    """Any line between the first and the last."""


class Stamped(ExportLine, frozen=True, kw_only=True):
    """A row with the version of the change that made it. Only its content is imported."""

    mesh: str
    lamport: int = 0
    peer: str = ""
    id: str = ""
    updated_at: int = 0
    deleted: bool = False


class MeshLine(ExportLine, frozen=True, kw_only=True, tag="mesh"):
    slug: str
    name: str
    type: str = "personal"
    created_at: int = 0
    lamport: int = 0


class StateLine(Stamped, frozen=True, kw_only=True, tag="state"):
    key: str
    value: msgspec.Raw


class MemoryLine(Stamped, frozen=True, kw_only=True, tag="memory"):
    owner: str
    key: str
    value: msgspec.Raw
    tags: tuple[str, ...] = ()
    created_at: int = 0
    """When the first version was written; 0 if this one is the first."""


class ModelLine(ExportLine, frozen=True, kw_only=True, tag="model"):
    """A model as it is registered. Vectors bring their own description of it."""

    id: str
    provider: str
    name: str
    version: str
    dim: int
    quantization: str
    created_at: int = 0
    deprecated_at: int | None = None


class ModelFields(msgspec.Struct, frozen=True, gc=False):
    """Which model made a vector."""

    provider: str
    name: str
    version: str
    dim: int
    quantization: str


class VectorLine(Stamped, frozen=True, kw_only=True, tag="vector"):
    owner: str
    key: str
    model: ModelFields | None = None
    model_id: str = ""
    content: str = ""
    metadata: msgspec.Raw = msgspec.Raw(b"null")
    embedding: bytes = b""


class BlobLine(ExportLine, frozen=True, kw_only=True, tag="blob"):
    """A part of a blob; the parts of one follow each other."""

    sha256: str
    size: int
    part: int
    last: bool = False
    data: bytes


class FileLine(Stamped, frozen=True, kw_only=True, tag="file"):
    owner: str
    path: str
    sha256: str = ""
    size: int = 0
    content: bytes | None = None
    """None: a blob holds the content. Its lines came before, if the exporting node had it."""
    created_at: int = 0
    """When the first version was shared; 0 if this one is the first."""


class TurnFields(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One turn on a task, for people: who made it and what its effect was."""

    kind: str
    event: str
    generation: int
    lamport: int
    peer: str
    id: str
    at: int


class TaskLine(ExportLine, frozen=True, kw_only=True, tag="task"):
    mesh: str
    task: str
    title: str
    description: str = ""
    status: str
    created_by: str = ""
    created_at: int = 0
    claimed_by: str | None = None
    ended_by: str | None = None
    generation: int = 0
    turns: tuple[TurnFields, ...] = ()


class FactLine(ExportLine, frozen=True, kw_only=True, tag="fact"):
    mesh: str
    subject: str
    predicate: str
    object: msgspec.Raw
    objects: tuple[str, ...] = ()
    """Hashes of the blobs that it names. Their lines came before, if the exporting node had
    them.
    """
    meta: msgspec.Raw = msgspec.Raw(b"null")
    id: str
    lamport: int = 0
    peer: str = ""
    created_at: int = 0


class AuditLine(ExportLine, frozen=True, kw_only=True, tag="audit"):
    """An event of an audit stream, with what binds it to the one before it."""

    mesh: str
    stream: str
    origin: str
    epoch: int
    seq: int
    id: str
    at: int
    payload: msgspec.Raw
    previous: bytes
    hash: bytes
    lamport: int


class ConflictLine(ExportLine, frozen=True, kw_only=True, tag="conflict"):
    number: int
    mesh: str
    family: str
    owner: str
    entity: str
    reason: str
    winner: tuple[int, str, str]
    loser: tuple[int, str, str]
    loser_op: str
    loser_body: bytes
    found_at: int
    resolution: str | None = None


class ConsumerLine(ExportLine, frozen=True, kw_only=True, tag="consumer"):
    name: str
    frontier: str


class PeerLine(ExportLine, frozen=True, kw_only=True, tag="peer"):
    mesh: str
    peer: str
    last_seen_at: int
    last_lamport: int


class EnvelopeFields(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The fields of an envelope, for people."""

    id: str
    mesh: str
    op: str
    entity: str
    owner: str
    origin: str
    epoch: int
    seq: int
    lamport: int
    created_at: int


class LogLine(ExportLine, frozen=True, kw_only=True, tag="log"):
    offset: int
    recorded_at: int
    says: EnvelopeFields
    raw: bytes


class QuorumLine(ExportLine, frozen=True, kw_only=True, tag="quorum"):
    """A mesh has voters: which group they are, and how far the exporting node was."""

    mesh: str
    engine: Engine
    incarnation: int
    group: bytes
    number: int


class CommittedLine(ExportLine, frozen=True, kw_only=True, tag="commit"):
    """One commit, with everything that a node without a vote needs of it."""

    mesh: str
    number: int
    record: bytes
    raw: bytes


AnyLine: TypeAlias = (
    MeshLine
    | StateLine
    | MemoryLine
    | ModelLine
    | VectorLine
    | BlobLine
    | FileLine
    | TaskLine
    | AuditLine
    | FactLine
    | ConflictLine
    | ConsumerLine
    | PeerLine
    | QuorumLine
    | CommittedLine
    | LogLine
)

_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(AnyLine)


class Out(Protocol):
    """Anything that bytes can be written to: an open file, a socket, a draft."""

    def write(self, data: bytes, /) -> object: ...


class LineWriter:
    """Writes the first line, the lines of rows, and the last line with their hash."""

    def __init__(self, out: Out) -> None:
        self._out = out
        self._buffer = bytearray()
        self._hash = sha256()
        self.lines = 0
        self.counts: dict[str, int] = {}

    def header(self, header: Header) -> None:
        self._add(header)

    def line(self, line: AnyLine) -> None:
        self._add(line)
        kind = line.__struct_config__.tag
        assert isinstance(kind, str), "every line has its kind as tag"
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def end(self) -> None:
        self._flush()
        digest = self._hash.hexdigest()
        self._add(Trailer(lines=self.lines, counts=self.counts, sha256=digest))
        self._flush()

    def _add(self, line: msgspec.Struct) -> None:
        self._buffer += _encoder.encode(line)
        self._buffer += b"\n"
        self.lines += 1
        if len(self._buffer) >= _FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._hash.update(self._buffer)
        self._out.write(bytes(self._buffer))
        self._buffer.clear()


class Checked(msgspec.Struct, frozen=True):
    """A file that is whole: its first line, and the hash by which it is known again."""

    header: Header
    digest: str
    lines: int
    """The number of lines between the first and the last."""
    bytes: int


def check_file(source: BinaryIO) -> Checked:
    """Reads an export from beginning to end and checks its hash; raises BadValue if it is not
    whole.
    """
    header: Header | None = None
    hashing = sha256()
    last = b""
    lines = size = 0
    for raw in _raw_lines(source):
        if header is None:
            header = _read_header(raw)
        if last:
            hashing.update(last)
        last = raw
        lines += 1
        size += len(raw)
    if header is None:
        raise BadValue("the file is empty: it is not an export")
    trailer = _read_trailer(last)
    if trailer is None:
        raise BadValue(
            "the file does not end as an export does: it was cut off",
            hint="export again; nothing was imported",
        )
    if trailer.lines != lines - 1 or trailer.sha256 != hashing.hexdigest():
        raise BadValue(
            "the file is not what its last line says: it was changed or damaged",
            hint="export again; nothing was imported",
        )
    return Checked(header, trailer.sha256, lines - 2, size)


class NumberedLines:
    """The lines between the first and the last, with the numbers that an editor shows."""

    def __init__(self, source: BinaryIO, checked: Checked) -> None:
        source.seek(0)
        self._lines = enumerate(_raw_lines(source), 1)
        self._last = checked.lines + 1
        self._unread: list[tuple[int, bytes]] = []

    def __iter__(self) -> NumberedLines:
        return self

    def __next__(self) -> tuple[int, bytes]:
        if self._unread:
            return self._unread.pop()
        for number, raw in self._lines:
            if 1 < number <= self._last:
                return number, raw
        raise StopIteration

    def unread(self, number: int, raw: bytes) -> None:
        """Gives a line back: the next call returns it again."""
        self._unread.append((number, raw))


def decode_line(raw: bytes) -> AnyLine:
    try:
        line: AnyLine = _decoder.decode(raw)
        return line
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadValue(f"not a line of an export: {error}") from None


def _raw_lines(source: BinaryIO) -> Iterator[bytes]:
    while raw := source.readline(EXPORT_LINE_BYTES_MAX + 1):
        if len(raw) > EXPORT_LINE_BYTES_MAX:
            raise BadValue(f"a line is longer than {EXPORT_LINE_BYTES_MAX} bytes: not an export")
        yield raw


def _read_header(raw: bytes) -> Header:
    try:
        head = msgspec.json.decode(raw, type=_Head)
        if head.holdfast != "export":
            raise BadValue("the file is not an export of Holdfast")
        if head.version != VERSION:
            raise UnsupportedProtocol(
                f"the file is an export of format {head.version}; this Holdfast reads {VERSION}",
                hint="import it with the version of Holdfast that made it, or a newer one",
            )
        return msgspec.json.decode(raw, type=Header)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BadValue("the file is not an export of Holdfast") from None


def _read_trailer(raw: bytes) -> Trailer | None:
    try:
        trailer = msgspec.json.decode(raw, type=Trailer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return trailer if trailer.holdfast == "end" and raw.endswith(b"\n") else None


class _Head(msgspec.Struct):
    holdfast: str
    version: int
