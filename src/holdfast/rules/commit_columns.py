"""A run of plain entries of a quorum, in columns: one value for hundreds of them, as a store wants
them.

Nearly all that a quorum commits is alike: one mission is put as a whole, one coordinator has put
all of them into the order, one after another. Written out one by one, each would be an object when
it is read, when it is decided, when it is stored and when it is answered. Here ids, fingerprints,
leaf hashes and stamps lie side by side, and envelopes and fields are spans of what they came in.

They are read by the compiled part only (`rules/_commits.h`). Where there is none, or a run is not
plain, `plain_intents` and `commit` read them one by one, which is the definition.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from holdfast.rules import compiled
from holdfast.rules.ids import ID_BYTES
from holdfast.rules.push_columns import SPAN_BITS, SPAN_MASK, unpacked
from holdfast.rules.quorum.fence import FenceToken

TYPE: Final = "mission"
"""Of every entity in columns."""
_NAME: Final = len(TYPE) + 1


class CommitColumns(NamedTuple):
    """What the entries of a run say; `payload` has all of them, one after another."""

    payload: bytes
    coordinator: str
    ids: bytes
    prints: bytes
    leaves: bytes
    stamps: bytes
    stamp_words: bytes
    """The stamps as decimal numbers of `DIGITS`, for SQL."""
    times: bytes
    """When the coordinator took each of them."""
    time_words: bytes
    bases: bytes | None
    """The revisions that their writers saw, -1 for any; None if nobody named one."""
    spans: bytes
    """Where the envelopes lie in the payload."""
    row_spans: bytes
    names: bytes
    """What each is about, as `mission/ID`, padded with blanks to one width."""
    origins: bytes
    """Padded with blanks to one width."""
    rows: bytes
    """The fields of entities as rows keep them; `row_spans` say where each lies."""

    @property
    def size(self) -> int:
        """How many entries."""
        return len(self.ids) // ID_BYTES

    @property
    def name_width(self) -> int:
        return len(self.names) // self.size

    @property
    def origin_width(self) -> int:
        return len(self.origins) // self.size

    def id_list(self) -> list[bytes]:
        ids = self.ids
        return [ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES)]

    def name_list(self) -> list[str]:
        return _padded(self.names, self.name_width)

    def origin_list(self) -> list[str]:
        return _padded(self.origins, self.origin_width)

    def entity_list(self) -> list[str]:
        """The ids of the entities."""
        return [name[_NAME:] for name in self.name_list()]

    def raw(self, place: int) -> bytes:
        return cut(self.payload, unpacked(self.spans)[place])

    def row(self, place: int) -> bytes:
        """The fields of the entity as its row keeps them."""
        return cut(self.rows, unpacked(self.row_spans)[place])


DIGITS: Final = 19


def read_columns(mesh: str, payloads: list[bytes]) -> CommitColumns | None:
    """The columns of entries of this mesh, as the log has them; None if they are not surely plain,
    or there is no compiled part.
    """
    if compiled.part is None or not payloads:
        return None
    found = compiled.part.read_commits(payloads, mesh)
    return None if found is None else CommitColumns(b"".join(payloads), *found)


def record_columns(
    mesh: str,
    columns: CommitColumns,
    *,
    fence: FenceToken,
    number: int,
    revisions: array[int],
) -> tuple[bytes, bytes]:
    """The commit records of a run that was applied as a whole, from a commit number and a fence on,
    joined; and where each lies.
    """
    assert compiled.part is not None, "it has read the columns"
    made: tuple[bytes, bytes] = compiled.part.make_records(
        *(mesh, fence.coordinator, fence.incarnation, fence.lease_epoch, number, fence.sequence),
        *(columns.ids, columns.prints, columns.names, columns.times, revisions.tobytes()),
    )
    return made


def cut(joined: bytes, span: int) -> bytes:
    """What lies there."""
    begin = span >> SPAN_BITS
    return joined[begin : begin + (span & SPAN_MASK)]


def _padded(column: bytes, width: int) -> list[str]:
    text = column.decode()
    return [text[at : at + width].rstrip(" ") for at in range(0, len(text), width)]
