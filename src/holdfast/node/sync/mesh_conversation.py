"""What is said about one mesh on one connection, and in which order it is done.

    out        due rows ─► Push                     after commits, answers, objects
    answers    Acks ─► states of rows
    in         Entries, MeshMoved, … ─► log, inbox, cursor ─► Confirmed
    objects    what rows wait for ─► broker
    commits    what a quorum has committed, both ways, over HTTP
    urgent, members, upload

Each of these lines does one thing at a time; they run side by side, so a push does not wait for a
snapshot. What waits together is stored together: answers, and pages that follow each other, share a
transaction. Nothing is reordered within a line.

An error ends the connection, but for a snapshot that is no good: that is a trouble of its mesh, and
the others go on.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final

import msgspec

from holdfast.node.sync.effects import (
    BringObjects,
    CarryCommits,
    DecodePage,
    Effect,
    FetchObjects,
    FinishJoin,
    GoOnAfterSnapshot,
    KeepMembers,
    KeepSnapshot,
    LookForDue,
    NoteActive,
    PushDue,
    ReadMembers,
    Send,
    StoreAcks,
    StoreFrame,
    StorePage,
    StoreUrgent,
    TakeSnapshot,
    UploadSnapshot,
)
from holdfast.node.sync.mesh_state import MeshState
from holdfast.node.sync.receive import DecodedPage
from holdfast.node.sync.session import AcksStored, Due, MissingObjects, SyncSession
from holdfast.node.sync.waiting import WaitingBytes, WaitingFrames
from holdfast.protocol.frames import (
    Acks,
    CommitsAt,
    Entries,
    FromBroker,
    FromNode,
    Push,
    SnapshotWanted,
    Urgent,
)
from holdfast.rules.backoff import Allowance
from holdfast.rules.errors import (
    BadAnswer,
    BadInput,
    Conflict,
    DiskFull,
    HoldfastError,
    NotAllowed,
    NotFound,
    Refused,
    StoreBusy,
    StoreClosed,
    Unreachable,
)
from holdfast.rules.limits import (
    FEED_FRAMES_MAX,
    LINK_BATCH_BYTES,
    LINK_BATCH_ROWS,
    SYNC_ANSWER_MS_MAX,
    SYNC_SNAPSHOT_MS,
    SYNC_TURN_MS,
    SYNC_TURNS_MAX,
    SYNC_WINDOW_ITEMS,
)

log = logging.getLogger("holdfast")

FRAMES_MAX: Final = 16 * FEED_FRAMES_MAX
"""Frames about one mesh that were read and are not stored. A broker waits for our word after a few,
so an honest one never sends as many."""

_NO_GOOD: Final = (BadAnswer, BadInput, Conflict, NotAllowed, NotFound)
"""What is wrong with a snapshot, and not with the connection that it came by."""


class MeshConversation:
    """One mesh. Every method returns what is to be done next; what raises ends the connection."""

    def __init__(
        self,
        session: SyncSession,
        slug: str,
        ticks_ms: Callable[[], int],
        *,
        look_ms: int,
        push_items: int,
        waiting: WaitingBytes,
    ) -> None:
        """`waiting` counts what was read and is not stored, for all meshes of the connection."""
        self._session, self.slug, self._ticks_ms = session, slug, ticks_ms
        self._look_ms, self._push_items = look_ms, push_items
        self.closing = False
        """Nothing more is pushed; what is under way may end."""
        # out
        self._due = True
        self._pushing = False
        self._look_at = 0
        self._owed_since: int | None = None
        """Since when the broker owes us an answer; None if nothing was pushed."""
        self.progressed = False
        """Something was brought, or taken in: the broker is good for something."""
        self._waiting = waiting
        # answers
        self._acks: WaitingFrames[Acks] = WaitingFrames(waiting, SYNC_WINDOW_ITEMS)
        self._settling = False
        # in
        self._frames: WaitingFrames[FromBroker] = WaitingFrames(waiting, FRAMES_MAX)
        self._turns = Allowance(SYNC_TURNS_MAX, SYNC_TURN_MS)
        self._pieces: deque[DecodedPage] = deque()
        self._taking = False
        self._joining = self._try_join = True
        self._try_snapshot = False
        # objects, urgent, members, upload
        self._bringing = False
        self._urgent: WaitingFrames[Urgent] = WaitingFrames(waiting, FRAMES_MAX)
        self._carrying = self._carry_again = self._commits_refused = False
        self._storing_urgent = self._reading_members = self._uploading = False

    @property
    def _mesh(self) -> MeshState | None:
        return self._session.meshes.get(self.slug)

    # --- events --------------------------------------------------------------------------------

    def begin(self) -> list[Effect]:
        return [*self._push(), *self._take(), *self.read_members()]

    def wake(self) -> list[Effect]:
        """Something may be due."""
        self._due = True
        return self._push()

    def read_members(self) -> list[Effect]:
        if self._reading_members:
            return []
        self._reading_members = True
        return [ReadMembers(self.slug)]

    def on_frame(self, frame: FromBroker, size: int) -> list[Effect]:
        """A frame about this mesh, of `size` bytes."""
        if isinstance(frame, Acks):
            self._acks.add(frame, size)
            return self._settle()
        if isinstance(frame, SnapshotWanted):
            return self._upload()
        if isinstance(frame, CommitsAt):
            return self._commits_told(frame.number)
        if isinstance(frame, Urgent):
            if self._urgent.has_room:  # else it comes with its page, in its turn
                self._urgent.add(frame, size)
            return self._store_urgent()
        if not isinstance(frame, Entries):
            self._spend_turn()
        self._frames.add(frame, size)
        return self._take()

    def _spend_turn(self) -> None:
        """A broker that says again and again that a mesh stands elsewhere, or cannot be followed,
        would keep this node at work for nothing.
        """
        left = self._turns.spend(self._ticks_ms())
        if left is None:
            raise BadAnswer(f"the broker says over and over how {self.slug!r} stands")
        self._turns = left

    def reads_on(self) -> None:
        """Frames are read again, after a time in which too much waited: an answer may be among
        those that were not read.
        """
        if self._owed_since is not None:
            self._owed_since = self._ticks_ms()

    def on_time(self) -> list[Effect]:
        """The deadline is over."""
        now = self._ticks_ms()
        late_at = self._late_at
        if late_at is not None and now >= late_at:
            raise Unreachable("the broker does not answer what it was sent")
        return self.wake() if now >= self._look_at else []

    @property
    def deadline(self) -> int | None:
        """When `on_time` should be called, in ticks."""
        look_at = None if self._pushing or self.closing else self._look_at
        return min((at for at in (self._late_at, look_at) if at is not None), default=None)

    @property
    def _late_at(self) -> int | None:
        """When the answer is late that the broker owes us; None if it owes none, or while we store
        one. That rows are in flight is not enough: a thread may have marked them a moment ago, and
        they are not sent yet.
        """
        if self._owed_since is None or self._settling or not self._in_flight():
            return None
        if self._waiting.is_full:
            return None  # it may have come, and was not read
        return self._owed_since + SYNC_ANSWER_MS_MAX

    @property
    def is_quiet(self) -> bool:
        """Nothing is in flight, and nothing waits to be stored."""
        return not (self._in_flight() or self._acks or self._frames)

    def _in_flight(self) -> int:
        mesh = self._mesh
        return 0 if mesh is None else len(mesh.inflight)

    def done(self, effect: Effect, result: Any) -> list[Effect]:
        """An effect has come to its end."""
        match effect:
            case LookForDue():
                push = PushDue(self.slug, room=self._push_items)
                carry = self._carry() if result.commits else []
                return [*carry, push] if result.now else [*carry, *self._rest(result)]
            case PushDue():
                return self._pushed(result) if isinstance(result, Push) else self._rest(result)
            case Send():
                self._pushing, self._due = False, True
                return self._push()
            case StoreAcks():
                return self._settled(result)
            case BringObjects():
                self._session.brought(self.slug, result)
                self._bringing = False
                return [NoteActive(), *self._bring(), *self.wake()]
            case StoreUrgent():
                self._storing_urgent = False
                self._urgent.released()
                return self._store_urgent()
            case ReadMembers():
                return [KeepMembers(self.slug, members=result)]
            case KeepMembers():
                self._reading_members = False
                return []
            case UploadSnapshot():
                self._uploading = False
                return []
            case CarryCommits():
                return self._carried(result)
        return self._taken(effect, result)

    def failed(self, effect: Effect, error: Exception) -> list[Effect]:
        """An effect has failed; raises if that ends the connection."""
        if isinstance(effect, ReadMembers | KeepMembers) and isinstance(error, HoldfastError):
            # It is a cache: that it fails is no reason to stop.
            log.info("the members of %s could not be read: %s", self.slug, error.message)
            self._reading_members = False
            return []
        if isinstance(effect, UploadSnapshot) and isinstance(error, HoldfastError):
            # Others may bring one; the broker asks again.
            log.warning("a snapshot of %s could not be brought: %s", self.slug, error.message)
            self._uploading = False
            return []
        if (
            isinstance(effect, CarryCommits)
            and isinstance(error, HoldfastError)
            and _is_about_order(error)
        ):
            # Of this mesh's order only; it is tried again when the broker has more.
            log.warning("commits of %s are not carried: %s", self.slug, error.message)
            self._carrying, self._commits_refused = False, True
            return []
        if not isinstance(error, _NO_GOOD):
            raise error
        if isinstance(effect, KeepSnapshot):
            log.warning("no snapshot of %s was made again: %s", self.slug, error.message)
        elif isinstance(effect, FinishJoin | TakeSnapshot):
            log.warning("the snapshot of %s could not be taken: %s", self.slug, error.message)
            self._session.refuse(self.slug, error)
        else:
            raise error
        self._taking = False
        return self._take()

    # --- out -----------------------------------------------------------------------------------

    def _push(self) -> list[Effect]:
        """Looks for something to push, unless a push is on its way: then that looks again."""
        if self._pushing or self.closing or not self._due:
            return []
        # Before the look: what is written after it makes something due again.
        self._due, self._pushing = False, True
        return [LookForDue(self.slug)]

    def _pushed(self, push: Push) -> list[Effect]:
        if self._owed_since is None or self._in_flight() <= len(push.items):
            self._owed_since = self._ticks_ms()
        return [NoteActive(), Send(self.slug, frames=[push])]

    def _rest(self, due: Due) -> list[Effect]:
        """Nothing can be pushed now."""
        self._pushing = False
        wait_ms = self._look_ms if due.wait_ms is None else min(self._look_ms, due.wait_ms)
        self._look_at = self._ticks_ms() + wait_ms
        return [*self._bring(), *self._push()]

    def _bring(self) -> list[Effect]:
        """One object at a time, so that what needs only the first need not wait for the rest."""
        wanted = self._session.objects_to_bring(self.slug)[:1]
        if self._bringing or not wanted:
            return []
        self._bringing = True
        return [BringObjects(self.slug, objects=wanted)]

    def _upload(self) -> list[Effect]:
        """Makes a snapshot that was asked for. It costs a look at all that the mesh holds, so it is
        not made as often as a broker likes.
        """
        now, asked = self._ticks_ms(), self._session.snapshot_asked
        again = self.slug in asked and now - asked[self.slug] < SYNC_SNAPSHOT_MS
        if self._uploading or again:
            return []
        asked[self.slug] = now
        self._uploading = True
        return [UploadSnapshot(self.slug)]

    # --- commits -----------------------------------------------------------------------------

    def _commits_told(self, number: int) -> list[Effect]:
        """The broker says how far it is. Less than before: it has gone back in time."""
        mesh = self._mesh
        if mesh is None:
            return []
        mesh.commits_at = number
        self._commits_refused = False
        return self._carry()

    def _carry(self) -> list[Effect]:
        """One exchange at a time; what grows meanwhile shares the next one."""
        mesh = self._mesh
        if self._carrying:
            self._carry_again = True
            return []
        if mesh is None or self.closing or self._commits_refused:
            return []
        self._carrying, self._carry_again = True, False
        may_bring = mesh.may_send and "relay" in mesh.grants
        return [CarryCommits(self.slug, may_bring=may_bring)]

    def _carried(self, number: int) -> list[Effect]:
        self._carrying, self.progressed = False, True
        if (mesh := self._mesh) is not None:
            mesh.commits_at = number
        return self._carry() if self._carry_again else []

    # --- answers -------------------------------------------------------------------------------

    def _settle(self) -> list[Effect]:
        """Stores the answers that wait, together if they are of one epoch."""
        if self._settling or not self._acks:
            return []
        self._settling = True
        together = [self._acks.take()]
        while (more := self._acks.first) is not None and more.epoch == together[0].epoch:
            together.append(self._acks.take())
        answers = list(chain.from_iterable(acks.answers for acks in together))
        return [StoreAcks(self.slug, acks=msgspec.structs.replace(together[0], answers=answers))]

    def _settled(self, stored: AcksStored) -> list[Effect]:
        self._settling = False
        self._acks.released()
        self.progressed = self.progressed or stored.passed > 0
        if not self._in_flight():
            self._owed_since = None
        elif stored.rows:  # an answer about other rows is none
            self._owed_since = self._ticks_ms()
        return [*self._send(stored.frames), *self._settle(), *self.wake()]

    # --- in ------------------------------------------------------------------------------------

    def _take(self) -> list[Effect]:
        """Begins the next thing that came, unless one is being stored."""
        if self._taking:
            return []
        effect = self._next_in()
        self._taking = effect is not None
        return [] if effect is None else [effect]

    def _next_in(self) -> Effect | None:
        mesh = self._mesh
        if self._pieces:
            return StorePage(self.slug, piece=self._pieces[0])
        if self._try_join:
            self._try_join = False
            return FinishJoin(self.slug)
        if mesh is not None and mesh.went_back:
            mesh.went_back = False
            return KeepSnapshot(self.slug)
        if self._try_snapshot:
            self._try_snapshot = False
            if mesh is not None and mesh.snapshot:
                return TakeSnapshot(self.slug)
        if not self._frames:
            return None
        frame = self._frames.take()
        if isinstance(frame, Entries):
            return DecodePage(self.slug, entries=self._together(frame))
        return StoreFrame(self.slug, frame=frame)

    def _together(self, first: Entries) -> Entries:
        """Pages that wait and follow each other, as one."""
        rows = first.rows
        size = sum(len(row.raw) for row in rows)
        while len(rows) < LINK_BATCH_ROWS and size < LINK_BATCH_BYTES:
            more = self._frames.first
            if not isinstance(more, Entries) or (more.epoch, more.after) != (first.epoch, first.to):
                break
            self._frames.take()
            rows = [*rows, *more.rows]
            size += sum(len(row.raw) for row in more.rows)
            first = msgspec.structs.replace(first, to=more.to, rows=rows, last=more.last)
        return first

    def _taken(self, effect: Effect, result: Any) -> list[Effect]:
        """A step of the way in is over: what follows from it, and the next one."""
        out: list[Effect] = []
        match effect:
            case DecodePage():
                self._pieces.extend(result)
                if not self._pieces:
                    self._frames.released()
            case StorePage() if isinstance(result, MissingObjects):
                return [FetchObjects(self.slug, objects=result.objects)]
            case FetchObjects():
                return [StorePage(self.slug, piece=self._pieces[0], absent=frozenset(result))]
            case StorePage():
                # Only now: what is confirmed is stored.
                self._pieces.popleft()
                if not self._pieces:
                    self._frames.released()
                self.progressed = self.progressed or result.rows > 0
                out = [*self._send(result.frames), NoteActive()]
            case StoreFrame():
                self._frames.released()
                # A join or a snapshot that could not be taken is tried again after every such one.
                self._try_join, self._try_snapshot = self._joining, True
                out = [*self._send(result), *self.wake()]
            case FinishJoin():
                self._joining = False
            case TakeSnapshot() if result:
                return [GoOnAfterSnapshot(self.slug)]
            case GoOnAfterSnapshot():
                out = self._send(result)
        self._taking = False
        return [*out, *self._take()]

    def _store_urgent(self) -> list[Effect]:
        if self._storing_urgent or not self._urgent:
            return []
        self._storing_urgent = True
        return [StoreUrgent(self.slug, urgent=self._urgent.take())]

    def _send(self, frames: Sequence[FromNode]) -> list[Effect]:
        """Frames that nothing of this mesh waits for."""
        return [Send(frames=frames)] if frames else []


def _is_about_order(error: HoldfastError) -> bool:
    """Whether an error is about what was committed, and not about the line or our disk."""
    others = (Unreachable, DiskFull, StoreBusy, StoreClosed)
    return isinstance(error, Refused | BadAnswer) and not isinstance(error, others)
