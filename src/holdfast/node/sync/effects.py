"""What a node's conversation asks its driver to do: values that the machine returns.

    Send, Close                 on the line to the broker
    StoreWork                   a few transactions of our own store, in a thread: `run(session)`
    BrokerCall                  a call to the broker over HTTP, in a thread: `run(requests)`
    NoteConnected, NoteActive,  for the status that people see
    NoteSilence

The driver gives back what came of each (`Conversation.done`, `Conversation.failed`), whenever that
is. An effect about one mesh bears its slug, so that the machine knows whose it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from holdfast.node.sync.receive import DecodedPage
from holdfast.node.sync.session import SyncSession
from holdfast.protocol.frames import (
    Acks,
    Challenge,
    Entries,
    FromBroker,
    FromNode,
    Hello,
    Push,
    Urgent,
    Welcome,
)
from holdfast.rules.rows import KnownMember

if TYPE_CHECKING:
    from holdfast.node.sync.http_side import BrokerRequests
    from holdfast.node.sync.session import AcksStored, Due, MissingObjects, PageStored

NORMAL: Final = 1000


class Effect(msgspec.Struct, frozen=True):
    """Something to do. `mesh` is the slug of the mesh that it is about; empty: the connection."""

    mesh: str = ""


class Send(Effect, frozen=True, kw_only=True):
    """Frames for the broker, in their order. Done when the line has taken them."""

    frames: Sequence[FromNode]


class Close(Effect, frozen=True, kw_only=True):
    """Hang up. Nothing follows; `error` is why, None if this node stops."""

    code: int = NORMAL
    reason: str = ""
    error: Exception | None = None


class NoteConnected(Effect, frozen=True):
    """The broker has welcomed us."""


class NoteActive(Effect, frozen=True):
    """Something was sent, or came."""


class NoteSilence(Effect, frozen=True, kw_only=True):
    """Time to look how long nothing has happened."""

    waiting: bool
    """Something waits for the broker."""


# --- our own store -------------------------------------------------------------------------------


class StoreWork(Effect, frozen=True):
    """Work on our own store."""

    inline: ClassVar[bool] = False
    """A read so short that a thread would cost more than it."""

    def run(self, session: SyncSession) -> Any:
        raise NotImplementedError


class Greet(StoreWork, frozen=True, kw_only=True):
    """Checks who is there, and proves who we are."""

    challenge: Challenge
    certificate: bytes

    def run(self, session: SyncSession) -> Hello:
        return session.hello(self.challenge, self.certificate)


class OpenMeshes(StoreWork, frozen=True, kw_only=True):
    """Begins every mesh that is shared through this broker."""

    welcome: Welcome

    def run(self, session: SyncSession) -> list[FromNode]:
        return session.welcomed(self.welcome)


class LookAtMeshes(StoreWork, frozen=True):
    """Reads again which meshes are shared, and which are paused."""

    def run(self, session: SyncSession) -> list[FromNode]:
        return session.look()


class NoteSeen(StoreWork, frozen=True):
    """Writes down that the broker is there, and ends what waited for too long."""

    def run(self, session: SyncSession) -> None:
        session.note_seen()
        session.expire()


class LookForDue(StoreWork, frozen=True):
    """Is there something to push, or when will there be?"""

    inline: ClassVar[bool] = True

    def run(self, session: SyncSession) -> Due:
        return session.look_for_due(self.mesh)


class PushDue(StoreWork, frozen=True, kw_only=True):
    """Marks the next rows as in flight. Nothing of them is sent before this is done."""

    room: int

    def run(self, session: SyncSession) -> Push | Due:
        return session.push(self.mesh, self.room) or session.look_for_due(self.mesh)


class StoreAcks(StoreWork, frozen=True, kw_only=True):
    """Makes answers to the state of their rows."""

    acks: Acks

    def run(self, session: SyncSession) -> AcksStored:
        return session.on_acks(self.acks)


class DecodePage(StoreWork, frozen=True, kw_only=True):
    """Reads the envelopes of a page, and cuts it into pieces of one transaction each."""

    entries: Entries

    def run(self, session: SyncSession) -> list[DecodedPage]:
        return session.decode(self.entries)


class StorePage(StoreWork, frozen=True, kw_only=True):
    """Stores one piece of a page, if its objects are here; else says which are not."""

    piece: DecodedPage
    absent: frozenset[str] | None = None
    """Objects that the broker does not have; None: it was not asked."""

    def run(self, session: SyncSession) -> PageStored | MissingObjects:
        return session.store_page(self.piece, self.absent)


class StoreUrgent(StoreWork, frozen=True, kw_only=True):
    """Stores messages that came ahead of their turn."""

    urgent: Urgent

    def run(self, session: SyncSession) -> int:
        return session.on_urgent(self.urgent)


class StoreFrame(StoreWork, frozen=True, kw_only=True):
    """Takes any other frame about a mesh."""

    frame: FromBroker

    def run(self, session: SyncSession) -> list[FromNode]:
        return session.on_frame(self.frame)


class GoOnAfterSnapshot(StoreWork, frozen=True):
    """Reads where the cursor stands after a snapshot was taken."""

    def run(self, session: SyncSession) -> list[FromNode]:
        return session.snapshot_taken(self.mesh)


class KeepMembers(StoreWork, frozen=True, kw_only=True):
    """Keeps the list of members that the broker gave."""

    members: Sequence[KnownMember]

    def run(self, session: SyncSession) -> None:
        session.known_members(self.mesh, self.members)


# --- the broker, over HTTP -----------------------------------------------------------------------


class BrokerCall(Effect, frozen=True):
    """A call to the broker that may take long."""

    def run(self, requests: BrokerRequests) -> Any:
        raise NotImplementedError


class ReadMembers(BrokerCall, frozen=True):
    """Asks who takes part in a mesh."""

    def run(self, requests: BrokerRequests) -> list[KnownMember]:
        return requests.members(self.mesh)


class BringObjects(BrokerCall, frozen=True, kw_only=True):
    """Brings objects that rows wait for to the broker."""

    objects: Sequence[str]

    def run(self, requests: BrokerRequests) -> list[str]:
        return requests.bring(self.mesh, self.objects)


class FetchObjects(BrokerCall, frozen=True, kw_only=True):
    """Fetches objects that a page names; returns those that the broker does not have."""

    objects: Sequence[str]

    def run(self, requests: BrokerRequests) -> set[str]:
        return requests.fetch(self.mesh, self.objects)


class FinishJoin(BrokerCall, frozen=True):
    """Takes the snapshot of a mesh whose joining was cut off before it had."""

    def run(self, requests: BrokerRequests) -> None:
        requests.finish_join(self.mesh)


class KeepSnapshot(BrokerCall, frozen=True):
    """Brings the snapshot that we made again, if the broker has lost it."""

    def run(self, requests: BrokerRequests) -> None:
        requests.keep_snapshot(self.mesh)


class TakeSnapshot(BrokerCall, frozen=True):
    """Takes a snapshot in place of changes that the broker no longer has; False if it has none."""

    def run(self, requests: BrokerRequests) -> bool:
        return requests.take_snapshot(self.mesh)


class CarryCommits(BrokerCall, frozen=True, kw_only=True):
    """Evens out what both sides have of what a quorum has committed."""

    may_bring: bool

    def run(self, requests: BrokerRequests) -> int:
        return requests.carry_commits(self.mesh, may_bring=self.may_bring)


class UploadSnapshot(BrokerCall, frozen=True):
    """Makes a snapshot that the broker asked for, and brings it."""

    def run(self, requests: BrokerRequests) -> None:
        requests.upload_snapshot(self.mesh)
