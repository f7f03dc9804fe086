"""What a broker's session asks its shell to do: values that `session` returns, in their order.

SendFrames      send these frames
Accept     hand this slice of a push in, and give its outcomes back by `Session.accepted`
Listen     from now on exactly these meshes and queues wake this connection
Proved      the other side has proved who it is; a member may send frames of full size
HangUp      hang up, after all that was replied before
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.broker.pushes.decode_push import PushSlice
from holdfast.broker.pushes.push_frame import PackedAcks
from holdfast.protocol.frames import FromBroker


class SendFrames(msgspec.Struct, frozen=True):
    """Frames for the other side."""

    frames: Sequence[FromBroker | PackedAcks]


class Accept(msgspec.Struct, frozen=True):
    """Envelopes for the acceptor. Nobody waits for the outcomes before the next step."""

    slice: PushSlice


class Listen(msgspec.Struct, frozen=True):
    """What wakes this connection."""

    meshes: frozenset[str]
    queues: frozenset[tuple[str, str]]


class Proved(msgspec.Struct, frozen=True):
    """The other side is who it says it is."""

    member: bool
    """Whether it belongs to a mesh here."""


class HangUp(msgspec.Struct, frozen=True):
    """The end of the connection."""

    code: int
    reason: str
    wait_ms: int = 0
    """How long the other side waits for it, while nothing is read from it."""


Effect = SendFrames | Accept | Listen | Proved | HangUp
