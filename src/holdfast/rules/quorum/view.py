"""What the rules read of the committed state, and what they write to it.

`View` is all that a decision may look at. A store implements it inside its transaction, tests by
dictionaries. Every question is about one record, so that no decision costs more because there are
more entities; `tasks_of` alone, for handoff, gives a page.

The writes of a decision are whole rows: whoever applies them decides nothing.

None of these values can be part of a circle, so the garbage collector need not look at them: there
are a few for every write, and millions of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from holdfast.rules.order import Version
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.reconcile import Outcome
from holdfast.rules.tasks import Judged, Task


class EntityRevision(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entity at one revision. The first revision of an entity is 1; a deletion is a revision
    too, and what is written again after it goes on counting.
    """

    type: str
    id: str
    revision: int


class EntityRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An entity as it stands after the last intent that changed it."""

    type: str
    id: str
    revision: int
    fields: bytes
    """JSON with sorted keys; `{}` of a deleted one."""
    parent: str = ""
    """The id of its parent, of the type that stands above its own; empty if it has none."""
    deleted: bool = False
    whole: bool = True
    """The last change replaced or deleted it. After a patch this is false."""
    origin: str
    lamport: int
    """Of the last change, as its origin made it."""
    fence: FenceToken
    committed_at: int


class IntentRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What became of an intent that was committed, or given up before it was."""

    id: bytes
    fingerprint: bytes
    """Empty for an intent that was given up: nobody saw it."""
    void: bool = False
    outcome: Outcome | None
    """None for a void intent, and for one that was refused for good."""
    reason: str = ""
    """The code of the error, where there is one."""
    fence: FenceToken
    committed_at: int
    revisions: tuple[EntityRevision, ...] = ()


class LeaseWaiter(msgspec.Struct, frozen=True, array_like=True):
    """Somebody who asked for a lease that another one held."""

    holder: str
    session: bytes
    ttl_ms: int


class LeaseRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A user's lease as the committed entries make it.

    Invariant: nobody waits for a lease that nobody holds. So a free one says nothing, and a store
    may forget it.
    """

    name: str
    holder: str = ""
    """The peer that holds it; empty if nobody does."""
    session: bytes = b""
    """The id of the intent by which the holder asked for it: one peer may ask more than once."""
    ttl_ms: int = 0
    grant: FenceToken | None = None
    """The fence of the entry that gave it to its holder: what the holder shows to others."""
    renewed: FenceToken | None = None
    """The fence of the last entry by which the holder got or renewed it."""
    since: int = 0
    waiting: tuple[LeaseWaiter, ...] = ()


class NodeRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A node that the quorum has declared lost, or has welcomed back."""

    peer: str
    lost: bool
    fence: FenceToken
    committed_at: int


class View(Protocol):
    """The committed state of one mesh, as far as decisions need it."""

    def last_fence(self) -> FenceToken | None:
        """The fence of the last entry that was folded."""

    def intent(self, id: bytes) -> IntentRecord | None: ...

    def entity(self, type: str, id: str) -> EntityRow | None:
        """Also of one that is deleted; None only if it never was."""

    def children(self, type: str, id: str) -> int:
        """How many live entities have this one as their parent."""

    def lease(self, name: str) -> LeaseRow | None: ...

    def task(self, id: str) -> Task | None:
        """A task that an entry has created or adopted; others are not the quorum's."""

    def tasks_of(self, holder: str, limit: int) -> Sequence[tuple[str, Task]]:
        """Tasks that a peer holds, in the order of their ids."""

    def node(self, peer: str) -> NodeRow | None: ...


class PutEntity(msgspec.Struct, frozen=True, gc=False):
    row: EntityRow
    was: EntityRow | None
    """What stood there before; None if the entity is new."""


class PutLease(msgspec.Struct, frozen=True, gc=False):
    row: LeaseRow


class PutTask(msgspec.Struct, frozen=True, gc=False):
    """A task after one turn, and the turn with its effect, for the task's history."""

    id: str
    task: Task
    judged: Judged


class PutNode(msgspec.Struct, frozen=True, gc=False):
    row: NodeRow


class PutOrder(msgspec.Struct, frozen=True, gc=False):
    """The order ends with this entry; the next incarnation is kept by this engine."""

    engine: Literal["embedded", "etcd"]
    incarnation: int
    tag: bytes


class PutIntent(msgspec.Struct, frozen=True, gc=False):
    record: IntentRecord


Write = PutEntity | PutLease | PutTask | PutNode | PutOrder | PutIntent

ClashKind = Literal["moved", "ahead", "covered"]


class Clash(msgspec.Struct, frozen=True, gc=False):
    """One entity of an intent whose base is not what is committed: for whoever decides."""

    type: str
    id: str
    base: int
    revision: int
    kind: ClashKind
    fields: tuple[str, ...] = ()
    """Fields in which what the intent wants and what is committed differ."""


class Ruling(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the rules of one op say about an entry that is new and has authority."""

    outcome: Outcome
    reason: str = ""
    """The code of an error, where the outcome needs one to be understood."""
    detail: str = ""
    writes: tuple[Write, ...] = ()
    revisions: tuple[EntityRevision, ...] = ()
    clashes: tuple[Clash, ...] = ()


def holder_of(task: Task) -> Version | None:
    """The claim that holds a task now; None if it is open or has ended."""
    return task.holder if task.status == "claimed" else None
