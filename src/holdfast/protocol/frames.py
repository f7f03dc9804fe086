"""The frames that a node and its broker send each other on a WebSocket, one msgpack array each.

    broker                                   node
    Challenge(nonce, name, key, features) ─▶
                                          ◀─ Hello(name, key, nonce, proof, needs)
    Welcome(proof, session, meshes)       ─▶
                                          ◀─ Follow(mesh, epoch, after)     Push(mesh, epoch, items)
    Entries(mesh, epoch, after, to, rows) ─▶
                                          ◀─ Confirmed(mesh, epoch, seq)
    Acks(mesh, epoch, answers)            ─▶

Both prove themselves as two zones do (`rules.keys`): each signs both names, keys and nonces and the
certificate of the connection. Close codes say why a side closed; see `rules.close_codes`.

The first element of a frame is its kind. Envelopes travel as their canonical bytes. A later version
may add fields at the end: an older side skips them.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec

from holdfast.rules.broker_rows import FeedRow
from holdfast.rules.errors import BadAnswer
from holdfast.rules.limits import LAMPORT_MAX, SEQ_MAX

Whole = Annotated[int, msgspec.Meta(ge=0, le=LAMPORT_MAX)]
"""An epoch, a time or a number as every store can hold it: a frame with another is refused."""
Seq = Annotated[int, msgspec.Meta(ge=0, le=SEQ_MAX)]


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="kind"):
    """The base of all frames."""


class MeshPosition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a mesh stands at its broker."""

    mesh: str
    server_id: str
    epoch: Whole
    base: Seq
    first: Whole
    seq: Seq
    grants: tuple[str, ...]
    epochs: tuple[tuple[Whole, Seq], ...] = ()
    """Every epoch of the mesh with its base, from the first on."""


class WireError(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An error in a frame: its code, message and hint."""

    code: str
    message: str
    hint: str = ""


class Item(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One envelope of a push. The node chooses the number; the broker's answer carries it."""

    number: int
    raw: bytes


class PushAnswer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the broker did with one envelope of a push."""

    number: Whole
    status: Whole
    """An HTTP status: 201 created, 200 known already, 409 and others refused, 503 try again
    later.
    """
    message_epoch: Whole = 0
    seq: Seq = 0
    broker_id: bytes = b""
    history_available: bool = True
    first_seen_at: Whole = 0
    problem: WireError | None = None


# --- from the broker -----------------------------------------------------------------------------


class Challenge(Frame, frozen=True, tag=1):
    nonce: bytes
    name: str
    key: bytes
    supported: dict[str, dict[str, Any]]
    """The parameters of each feature, `version` among them."""


class Welcome(Frame, frozen=True, tag=2):
    proof: bytes
    session: str
    """A bearer token for HTTP calls, until it expires."""
    expires_in_ms: Whole
    meshes: list[MeshPosition]


class MeshMoved(Frame, frozen=True, tag=3):
    """The position of a mesh, if it is not where the node thinks: in a new epoch, or after
    Follow.
    """

    place: MeshPosition


class Entries(Frame, frozen=True, tag=4):
    """All envelopes with after < seq <= to that the node may see."""

    mesh: str
    epoch: Whole
    after: Seq
    to: Seq
    rows: list[FeedRow]
    last: Seq


class Urgent(Frame, frozen=True, tag=5):
    """Urgent messages ahead of their turn; they come again in `Entries`."""

    mesh: str
    rows: list[FeedRow]


class Acks(Frame, frozen=True, tag=6):
    mesh: str
    epoch: Whole
    answers: list[PushAnswer]


class SnapshotNeeded(Frame, frozen=True, tag=7):
    """The broker no longer holds what the node follows. `snapshot` is the id of a snapshot that
    does; empty if there is none.
    """

    mesh: str
    first: Whole
    snapshot: str
    snapshot_seq: Seq


class QueueMessage(Frame, frozen=True, tag=8):
    """A message of a queue for the node, which holds it until it settles it or the time is over."""

    mesh: str
    queue: str
    seq: Seq
    lease: bytes
    deliveries: Whole
    until_ms: Whole
    """For how long other takers do not get it, from now."""
    broker_id: bytes
    raw: bytes


class Refusal(Frame, frozen=True, tag=9):
    """The broker refuses a frame of the node; `about` is the mesh."""

    about: str
    problem: WireError


class SnapshotWanted(Frame, frozen=True, tag=10):
    """The broker asks the node for a new snapshot of this mesh."""

    mesh: str


class CommitsAt(Frame, frozen=True, tag=11):
    """How far the broker is in what the quorum of a mesh has committed: after a Follow that asks
    for it, and whenever it has grown. The commits themselves are fetched over HTTP.
    """

    mesh: str
    number: Whole


# --- from the node -------------------------------------------------------------------------------


class Hello(Frame, frozen=True, tag=20):
    name: str
    key: bytes
    nonce: bytes
    proof: bytes
    needs: dict[str, int]
    """The versions of the features that the node needs."""


class Follow(Frame, frozen=True, tag=21):
    mesh: str
    epoch: int
    after: int
    own: bool = False
    """Also send what this member pushed itself: for a node that may have lost it."""
    commits: bool = False
    """The node understands `CommitsAt`."""


class Unfollow(Frame, frozen=True, tag=22):
    mesh: str


class Confirmed(Frame, frozen=True, tag=23):
    """Everything up to this seq is on the node's disk."""

    mesh: str
    epoch: int
    seq: int


class Push(Frame, frozen=True, tag=24):
    mesh: str
    epoch: int
    """The epoch that the node believes the mesh is in; 0: any."""
    items: list[Item]


class Take(Frame, frozen=True, tag=25):
    """The node takes from a queue and holds up to `most` messages at a time; 0 ends it."""

    mesh: str
    queue: str
    most: int


class Settle(Frame, frozen=True, tag=26):
    mesh: str
    queue: str
    seq: int
    lease: bytes
    how: str
    """`done`, `again`, `dead` or `extend`."""
    reason: str = ""


FromBroker = (
    Challenge
    | Welcome
    | MeshMoved
    | Entries
    | Urgent
    | Acks
    | SnapshotNeeded
    | QueueMessage
    | Refusal
    | SnapshotWanted
    | CommitsAt
)
FromNode = Hello | Follow | Unfollow | Confirmed | Push | Take | Settle

_T = TypeVar("_T")
_encoder: Final = msgspec.msgpack.Encoder()
_from_broker: Final[msgspec.msgpack.Decoder[FromBroker]] = msgspec.msgpack.Decoder(FromBroker)
_from_node: Final[msgspec.msgpack.Decoder[FromNode]] = msgspec.msgpack.Decoder(FromNode)

encode_frame: Final = _encoder.encode


def read_from_broker(raw: bytes) -> FromBroker:
    return _read(_from_broker, raw)


def read_from_node(raw: bytes) -> FromNode:
    return _read(_from_node, raw)


def _read(decoder: msgspec.msgpack.Decoder[_T], raw: bytes) -> _T:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadAnswer(f"a frame cannot be read: {error}") from None
