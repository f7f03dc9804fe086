"""What a broker's store refuses, and in which words. Both stores ask here before they change
anything, so that members hear the same from either.

Functions that begin with `check_` raise; the others make the error for the caller to raise.
"""

from __future__ import annotations

from holdfast.rules.broker_rows import SnapshotRow
from holdfast.rules.errors import (
    AlreadyExists,
    BadInput,
    BadValue,
    EpochChanged,
    EpochMismatch,
    InviteEnded,
    NotAMember,
    NotGranted,
    OverLimit,
    PastEnd,
    Truncated,
    UnknownConsumer,
    UnknownDestination,
    UnknownMesh,
    UnknownObject,
)
from holdfast.rules.limits import BROKER_PART_BYTES_MAX, BROKER_PIECE_BYTES


def no_mesh(slug: str) -> UnknownMesh:
    return UnknownMesh(f"this broker has no mesh {slug!r}", hint="see: holdfast mesh list")


# --- members and invites -----------------------------------------------------------------------


def slug_taken(slug: str) -> AlreadyExists:
    return AlreadyExists(
        f"another owner has a mesh {slug!r} at this broker", hint="choose another name for the mesh"
    )


def name_taken(name: str) -> AlreadyExists:
    return AlreadyExists(
        f"another member of the mesh is called {name!r}",
        hint="choose another peer name, or have the other one removed",
    )


def no_invite() -> InviteEnded:
    return InviteEnded("this broker knows no such invite, or it was taken back")


def check_invite(
    uses_left: int, expires_at: int, made_at: int, removed_at: int | None, now_ms: int
) -> None:
    """Of a key that is no member now; `removed_at`: when it was removed, if it ever was."""
    if expires_at <= now_ms:
        raise InviteEnded("the invite is over")
    if uses_left < 1:
        raise InviteEnded("the invite was used up")
    if removed_at is not None and made_at <= removed_at:
        raise InviteEnded("this key has left the mesh since the invite was made")


def check_reader(mesh: str, *, member: bool, reads: bool) -> None:
    if not member:
        raise NotAMember(f"this key is no member of {mesh!r}")
    if not reads:
        raise NotGranted(f"this member may not read {mesh!r}", hint="ask the owner of the mesh")


# --- destinations and queues -------------------------------------------------------------------


def queue_in_use(queue: str) -> BadInput:
    return BadInput(
        f"the queue {queue!r} holds messages", hint="take and settle them first, dead letters too"
    )


def check_subscriber(mesh: str, topic: str, *, member: bool, declared: bool) -> None:
    if not member:
        raise NotAMember(f"this key is no member of {mesh!r}")
    if not declared:
        raise UnknownDestination(f"the mesh {mesh!r} has no topic {topic!r}")


def no_queue(queue: str) -> UnknownDestination:
    return UnknownDestination(f"there is no queue {queue!r}")


def no_settling(how: str) -> BadInput:
    return BadInput(
        f"a message cannot be settled by {how!r}", hint="use one of: done, again, dead, extend"
    )


# --- the log and its consumers -----------------------------------------------------------------


def check_held(mesh: str, after: int, first: int) -> None:
    """A member that has everything up to `after` can go on from there."""
    if after + 1 < first:
        raise Truncated(
            f"what is behind {after} in {mesh!r} is gone; {first} is the first",
            first_available=first,
            hint="load the snapshot of the mesh, then follow from there",
        )


def check_new_consumer(mesh: str, after: int, first: int, last: int) -> None:
    if after > last:
        raise PastEnd(f"seq {after} is past the end of {mesh!r} at {last}")
    if after + 1 < first:
        raise Truncated(f"the log of {mesh!r} begins at {first}", first_available=first)


def no_consumer(mesh: str, name: str) -> UnknownConsumer:
    return UnknownConsumer(f"nobody reads {mesh!r} as {name!r}", hint="register first")


def check_confirmed(mesh: str, epoch: int, seq: int, *, current: int, last: int) -> None:
    if epoch != current:
        raise EpochChanged(f"{mesh!r} counts in epoch {current}, not {epoch}", epoch=current)
    if seq > last:
        raise PastEnd(f"seq {seq} is past the end of {mesh!r} at {last}")


# --- objects and snapshots ---------------------------------------------------------------------


def check_piece(piece: bytes) -> None:
    if len(piece) > BROKER_PIECE_BYTES:
        raise OverLimit(f"a piece has {len(piece)} bytes; {BROKER_PIECE_BYTES} is the limit")


def no_object(sha256: str) -> UnknownObject:
    return UnknownObject(f"this broker has no object {sha256}")


def not_the_object(sha256: str) -> BadValue:
    return BadValue(
        f"what has come is not the object {sha256}", hint="send it again from the first piece"
    )


def check_part(part: bytes) -> None:
    if len(part) > BROKER_PART_BYTES_MAX:
        raise OverLimit(f"a part has {len(part)} bytes; {BROKER_PART_BYTES_MAX} is the limit")


def check_snapshot(mesh: str, row: SnapshotRow, epoch: int, seq: int) -> None:
    """A mesh that is at (epoch, seq) can have this snapshot."""
    if row.epoch != epoch:
        raise EpochMismatch(f"the mesh {mesh!r} counts in epoch {epoch} now")
    if row.seq > seq:
        raise BadInput(f"the mesh {mesh!r} is at {seq}, not at {row.seq}")


def no_upload(id: str) -> UnknownObject:
    return UnknownObject(
        f"this broker has no upload {id}", hint="begin the upload of the snapshot anew"
    )


def not_the_snapshot(id: str) -> BadValue:
    return BadValue(f"the snapshot {id} has another digest than its parts", hint="upload it again")
