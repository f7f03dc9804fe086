"""What the disk has, and what follows when it hangs, fills up or fails.

Writes are numbered and reach the disk in order, so the acknowledgement of one covers all before it.
An acknowledgement may be late: meanwhile the log may have been cut and other entries may stand
where its own were. Therefore a cut lowers what the writes under way count for (`RaftTurn.cut`), and
an acknowledgement that names another term than its write did is ignored.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.rules.quorum.raft.events import DiskWrote
from holdfast.rules.quorum.raft.messages import DiskHealth
from holdfast.rules.quorum.raft.state import GroupState, UnsyncedWrite
from holdfast.rules.quorum.raft.turn import RaftTurn


def on_wrote(turn: RaftTurn, wrote: DiskWrote) -> bool:
    """Notes what the disk has; whether that was news."""
    state = turn.state
    write = next((it for it in state.unsynced if it.number == wrote.number), None)
    if write is None or write.term != wrote.term:
        turn.alarm("unknown_write")
        return False
    left = tuple([it for it in state.unsynced if it.number > wrote.number])
    turn.set(unsynced=left, durable=max(state.durable, counted(write, wrote)))
    return True


def counted(write: UnsyncedWrite, wrote: DiskWrote) -> int:
    """How far the log is on the disk: as far as the write still counts, not as far as it went."""
    return write.last


def grow_older(turn: RaftTurn) -> None:
    """One tick more for every write under way."""
    if turn.state.unsynced:
        older = [replace(it, age=it.age + 1) for it in turn.state.unsynced]
        turn.set(unsynced=tuple(older))


def hangs(state: GroupState) -> bool:
    """Whether the oldest write under way is older than one election timeout."""
    return bool(state.unsynced) and state.unsynced[0].age >= state.timing.election


def health(state: GroupState) -> DiskHealth:
    """What this node tells others of its disk. One that may have forgotten a promise says so: no
    leader counts it, not even one of a term that it has forgotten to refuse.
    """
    if state.barred:
        return "forgot"
    return "slow" if state.disk == "fine" and hangs(state) else state.disk
