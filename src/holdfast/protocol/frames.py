"""What a node and its broker say to each other on a WebSocket, one msgpack array to a frame.

    broker                                   node
    Challenge(nonce, name, key, features) ─▶
                                          ◀─ Hello(name, key, nonce, proof, needs)
    Welcome(proof, session, meshes)       ─▶
                                          ◀─ Follow(mesh, epoch, after)     Push(mesh, epoch, items)
    Entries(mesh, epoch, after, to, rows) ─▶
                                          ◀─ Got(mesh, epoch, seq)
    Acks(mesh, epoch, answers)            ─▶

Both prove themselves as two zones do (`rules.keys`): each signs both names, keys and nonces and the
certificate of the connection. Close codes say why a side hung up; see `rules.features`.

The first element of a frame is its kind. Envelopes travel as their canonical bytes. Fields may be
added at the end: who does not know them skips them.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from holdfast.rules.broker_rows import FeedRow
from holdfast.rules.errors import BadAnswer


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False, tag_field="kind"):
    """One of them."""


class MeshPosition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a mesh stands at its broker."""

    mesh: str
    server_id: str
    epoch: int
    base: int
    first: int
    seq: int
    grants: tuple[str, ...]
    epochs: tuple[tuple[int, int], ...] = ()
    """Every epoch with its base, from the first on."""


class WireError(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An error, as everywhere: code, message, hint."""

    code: str
    message: str
    hint: str = ""


class Item(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One envelope that is pushed; the number is the pusher's and comes back with the answer."""

    number: int
    raw: bytes


class PushAnswer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What became of one."""

    number: int
    status: int
    """201, 200, 409 or another status of HTTP; 503: try again later."""
    message_epoch: int = 0
    seq: int = 0
    broker_id: bytes = b""
    history_available: bool = True
    first_seen_at: int = 0
    problem: WireError | None = None


# --- from the broker -----------------------------------------------------------------------------


class Challenge(Frame, frozen=True, tag=1):
    nonce: bytes
    name: str
    key: bytes
    supported: dict[str, dict[str, Any]]
    """By feature: its parameters, `version` among them."""


class Welcome(Frame, frozen=True, tag=2):
    proof: bytes
    session: str
    """A bearer token for calls over HTTP while it lasts."""
    expires_in_ms: int
    meshes: list[MeshPosition]


class MeshMoved(Frame, frozen=True, tag=3):
    """A mesh stands elsewhere than the other side thinks: a new epoch, or an answer to Follow."""

    place: MeshPosition


class Entries(Frame, frozen=True, tag=4):
    """All that the receiver may see of after < seq <= to."""

    mesh: str
    epoch: int
    after: int
    to: int
    rows: list[FeedRow]
    last: int


class Urgent(Frame, frozen=True, tag=5):
    """Urgent messages ahead of their turn; they come again in `Entries`."""

    mesh: str
    rows: list[FeedRow]


class Acks(Frame, frozen=True, tag=6):
    mesh: str
    epoch: int
    answers: list[PushAnswer]


class SnapshotNeeded(Frame, frozen=True, tag=7):
    """What was asked for is gone; a snapshot holds it (its id), or nothing does (empty)."""

    mesh: str
    first: int
    snapshot: str
    snapshot_seq: int


class QueueMessage(Frame, frozen=True, tag=8):
    """A message of a queue."""

    mesh: str
    queue: str
    seq: int
    lease: bytes
    deliveries: int
    until_ms: int
    """How long it stays hidden from others, from now."""
    broker_id: bytes
    raw: bytes


class Refusal(Frame, frozen=True, tag=9):
    """Something that was asked is refused; `about` is the mesh."""

    about: str
    problem: WireError


class SnapshotWanted(Frame, frozen=True, tag=10):
    """The broker would like a new snapshot of this mesh."""

    mesh: str


# --- from the node -------------------------------------------------------------------------------


class Hello(Frame, frozen=True, tag=20):
    name: str
    key: bytes
    nonce: bytes
    proof: bytes
    needs: dict[str, int]
    """Features that it cannot do without, by version."""


class Follow(Frame, frozen=True, tag=21):
    mesh: str
    epoch: int
    after: int
    own: bool = False
    """Also what this member handed in itself: for one that may have lost it."""


class Unfollow(Frame, frozen=True, tag=22):
    mesh: str


class Confirmed(Frame, frozen=True, tag=23):
    """Everything up to here is on the receiver's disk."""

    mesh: str
    epoch: int
    seq: int


class Push(Frame, frozen=True, tag=24):
    mesh: str
    epoch: int
    """The epoch that the pusher believes in; 0: any."""
    items: list[Item]


class Take(Frame, frozen=True, tag=25):
    """Up to so many messages of a queue may be in the taker's hands at a time; 0 ends it."""

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
