"""A page of what a quorum has committed, as it travels to whoever has no vote.

Strong envelopes count in no stream of their origin; what counts them is the number of their commit
(docs/decisions, 0075). So whoever follows a mesh with voters asks from a number on, and gets pages:
envelopes as their origins made them, and beside each the record of its commit. The same page goes
over the bus, between zones and into a file.

    source: commits_page ─► encode_page ──▶ decode_page ─► node/core/committed_intake.py

A page is read as a whole or refused as a whole. What can be known without a store is checked here:
each record is about the envelope beside it, numbers are dense, fences grow and incarnations do not
fall. Whether the quorum has really decided so, a page cannot prove: that is for the trust in
whoever brings it.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from holdfast.rules.envelope import Envelope, Moment, Positive, decode
from holdfast.rules.errors import BadCommitPage, HoldfastError
from holdfast.rules.limits import (
    COMMIT_PAGE_ROWS,
    COMMIT_RECORD_BYTES_MAX,
    ENVELOPE_BYTES_MAX,
    MESH_SLUG_CHARS_MAX,
)
from holdfast.rules.quorum.commit_record import CommitRecord, decode_record
from holdfast.rules.quorum.fence import Incarnation, check_newer
from holdfast.rules.quorum.intents import Engine
from holdfast.rules.quorum.log_rows import TAG_BYTES
from holdfast.rules.reconcile import Outcome

PAGE_VERSION: Final = 1


class CommitLine(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One commit: the record and the envelope that it is about, both as they are stored."""

    record: Annotated[bytes, Meta(max_length=COMMIT_RECORD_BYTES_MAX)]
    raw: Annotated[bytes, Meta(max_length=ENVELOPE_BYTES_MAX)]


class CommitPage(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Commits of one mesh, in commit order."""

    version: int = PAGE_VERSION
    mesh: Annotated[str, Meta(max_length=MESH_SLUG_CHARS_MAX)]
    engine: Engine
    incarnation: Incarnation
    """Of the voters as the source knows them now. Rows may be of earlier ones."""
    tag: Annotated[bytes, Meta(max_length=TAG_BYTES)]
    """Tells this incarnation from any other group of the same name."""
    first: Positive
    """The number of the first row, or of the next one that there will be."""
    rows: Annotated[tuple[CommitLine, ...], Meta(max_length=COMMIT_PAGE_ROWS)]
    end: Moment
    """The number of the last commit that the source has."""


class CommitsHeld(msgspec.Struct, frozen=True):
    """How far a node is in the orders of meshes with voters."""

    commits: dict[str, int]
    """By mesh: the number of the last commit that it has."""


class StateObject(msgspec.Struct, frozen=True):
    """All that a quorum has committed up to a number, as an object that can be fetched by its hash.
    Its content is a snapshot (`quorum_snapshot.py`).
    """

    mesh: str
    number: int
    engine: Engine
    sha256: str
    size: int


class CheckedLine(msgspec.Struct, frozen=True, gc=False):
    """A row of a page that was read and checked."""

    record: CommitRecord
    record_bytes: bytes
    envelope: Envelope
    raw: bytes


class CheckedPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page whose rows are what they say, as far as a page can tell."""

    mesh: str
    engine: Engine
    incarnation: int
    tag: bytes
    first: int
    end: int
    lines: tuple[CheckedLine, ...]


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(CommitPage)
_line_decoder: Final = msgspec.msgpack.Decoder(CommitLine)
_REFUSED: Final = (None, Outcome.CONFLICT_REQUIRES_MERGE, Outcome.REJECTED_FENCED)


def encode_page(page: CommitPage) -> bytes:
    return _encode(page)


def decode_page(body: bytes) -> CheckedPage:
    """Reads and checks a page from outside. Raises BadCommitPage."""
    try:
        page = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadCommitPage(f"a page of commits cannot be read: {error}") from None
    return check_page(page)


def encode_line(line: CommitLine) -> bytes:
    """One commit by itself, as a snapshot of the lake has it."""
    return _encode(line)


def decode_line(raw: bytes) -> CommitLine:
    """Reads one commit, or raises BadCommitPage. What it says is checked with its page."""
    try:
        return _line_decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadCommitPage(f"a commit cannot be read: {error}") from None


def check_page(page: CommitPage) -> CheckedPage:
    """Checks a page that is decoded. Raises BadCommitPage."""
    if page.version != PAGE_VERSION:
        raise BadCommitPage(
            f"a page of commits is of version {page.version}",
            hint="upgrade Holdfast on this machine",
        )
    last = page.first + len(page.rows) - 1
    if last > page.end:
        raise BadCommitPage(f"a page has commits up to {last}, and says that {page.end} is the end")
    lines: list[CheckedLine] = []
    ids: set[bytes] = set()
    for number, row in enumerate(page.rows, page.first):
        line = _check_line(page, row, number)
        if lines:
            _check_follows(lines[-1].record, line.record)
        if line.record.id in ids:
            raise BadCommitPage(f"one intent is commit {number} of {page.mesh} and another one")
        ids.add(line.record.id)
        lines.append(line)
    if lines and lines[-1].record.fence.incarnation > page.incarnation:
        raise BadCommitPage("a page has a commit of a later incarnation than its source knows")
    return CheckedPage(
        mesh=page.mesh,
        engine=page.engine,
        incarnation=page.incarnation,
        tag=page.tag,
        first=page.first,
        end=page.end,
        lines=tuple(lines),
    )


def _check_line(page: CommitPage, row: CommitLine, number: int) -> CheckedLine:
    try:
        record, envelope = decode_record(row.record), decode(row.raw)
    except HoldfastError as error:
        raise BadCommitPage(f"commit {number} of {page.mesh}: {error.message}") from None
    what = f"commit {number} of {page.mesh}"
    if record.number != number:
        raise BadCommitPage(f"where {what} should be, the page has number {record.number}")
    if not record.mesh == envelope.mesh == page.mesh:
        raise BadCommitPage(f"{what} is of another mesh")
    if (record.id, record.fingerprint) != (envelope.id, envelope.fingerprint):
        raise BadCommitPage(f"the record of {what} is about another envelope")
    if record.outcome in _REFUSED and record.revisions:
        raise BadCommitPage(f"{what} was refused, and says that it changed something")
    if record.outcome is not None and envelope.write_class != "strong":
        raise BadCommitPage(f"{what} is not a strong write, and no quorum decides others")
    return CheckedLine(record, row.record, envelope, row.raw)


def _check_follows(earlier: CommitRecord, later: CommitRecord) -> None:
    try:
        check_newer(earlier.fence, later.fence, f"commit {later.number} of {later.mesh}")
    except HoldfastError as error:
        raise BadCommitPage(error.message) from None
    if (
        earlier.fence.incarnation == later.fence.incarnation
        and later.fence.sequence <= earlier.fence.sequence
    ):
        raise BadCommitPage(
            f"commit {later.number} of {later.mesh} has the sequence {later.fence.sequence} after "
            f"{earlier.fence.sequence}: no engine counts so"
        )
