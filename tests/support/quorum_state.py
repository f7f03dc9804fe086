"""The committed state of a mesh in dictionaries, as a store would keep it, and intents for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from holdfast.rules.bodies import Body, Nothing, encode_body, encode_value
from holdfast.rules.envelope import UNCOUNTED, Envelope
from holdfast.rules.fingerprint import fingerprint
from holdfast.rules.quorum.commit_record import encode_record
from holdfast.rules.quorum.decide import Decision, commit_record, decide
from holdfast.rules.quorum.entities import parent_type, read_fields
from holdfast.rules.quorum.fence import FenceToken
from holdfast.rules.quorum.intents import (
    EntityChange,
    EntityOperation,
    Guard,
    OperationKind,
    entity_name,
)
from holdfast.rules.quorum.view import (
    EntityRow,
    IntentRecord,
    LeaseRow,
    NodeRow,
    PutEntity,
    PutIntent,
    PutLease,
    PutNode,
    PutTask,
    Write,
)
from holdfast.rules.tasks import Judged, Task
from support.envelopes import MESH, make_id
from support.source import START_MS

_numbers = count(1_000_000)


def fence(
    sequence: int, epoch: int = 1, coordinator: str = "ana", incarnation: int = 1
) -> FenceToken:
    return FenceToken(incarnation, epoch, coordinator, sequence)


def intent(
    op: str,
    entity: str,
    body: Body | None = None,
    *,
    origin: str = "bob",
    lamport: int = 1,
    id: bytes | None = None,
    **fields: Any,
) -> Envelope:
    """An intent as its origin makes it."""
    encoded = encode_body(Nothing() if body is None else body)
    id = make_id(next(_numbers)) if id is None else id
    given = {
        "write_class": "strong",
        "state": "intent",
        "intent": id,
        "epoch": UNCOUNTED,
        "fingerprint": fingerprint(kind=op, ref=entity, body=encoded),
        **fields,
    }
    return Envelope(
        id=id,
        mesh=MESH,
        op=op,
        entity=entity,
        origin=origin,
        seq=lamport,
        lamport=lamport,
        created_at=START_MS + lamport,
        body=encoded,
        **given,
    )


def operation(
    kind: OperationKind,
    type: str,
    id: str,
    fields: dict[str, Any] | None = None,
    *,
    base: int | None = None,
    removed: tuple[str, ...] = (),
    epoch: int | None = None,
    guard: Guard | None = None,
) -> EntityOperation:
    encoded = encode_value(fields or {})
    return EntityOperation(kind, type, id, base, encoded, removed, epoch, guard)


def change(*operations: EntityOperation, **fields: Any) -> Envelope:
    first = operations[0]
    return intent(
        "entity.change", entity_name(first.type, first.id), EntityChange(operations), **fields
    )


class QuorumState:
    """A `View` that also folds, and checks after every entry what must always hold."""

    def __init__(self) -> None:
        self.entities: dict[tuple[str, str], EntityRow] = {}
        self.intents: dict[bytes, IntentRecord] = {}
        self.leases: dict[str, LeaseRow] = {}
        self.tasks: dict[str, Task] = {}
        self.history: dict[str, list[Judged]] = {}
        self.nodes: dict[str, NodeRow] = {}
        self.records: list[bytes] = []
        self.fence: FenceToken | None = None

    # --- View ---

    def last_fence(self) -> FenceToken | None:
        return self.fence

    def intent(self, id: bytes) -> IntentRecord | None:
        return self.intents.get(id)

    def entity(self, type: str, id: str) -> EntityRow | None:
        return self.entities.get((type, id))

    def children(self, type: str, id: str) -> int:
        return sum(
            1
            for row in self.entities.values()
            if not row.deleted and (parent_type(row.type), row.parent) == (type, id)
        )

    def lease(self, name: str) -> LeaseRow | None:
        return self.leases.get(name)

    def task(self, id: str) -> Task | None:
        return self.tasks.get(id)

    def tasks_of(self, holder: str, limit: int) -> Sequence[tuple[str, Task]]:
        held = [
            (id, task)
            for id, task in sorted(self.tasks.items())
            if task.status == "claimed" and task.holder and task.holder.peer == holder
        ]
        return held[:limit]

    def node(self, peer: str) -> NodeRow | None:
        return self.nodes.get(peer)

    # --- folding ---

    def fold(
        self, envelope: Envelope, token: FenceToken | None = None, committed_at: int = START_MS
    ) -> Decision:
        """Decides and applies one entry; without a token it gets the next one of ana's."""
        if token is None:
            token = fence(1 if self.fence is None else self.fence.sequence + 1)
        decision = decide(self, envelope, token, committed_at)
        for write in decision.writes:
            self._put(write)
        if decision.counts:
            self.fence = token
            number = len(self.records) + 1
            record = commit_record(envelope, token, committed_at, number, decision)
            self.records.append(encode_record(record))
        self.check()
        return decision

    def _put(self, write: Write) -> None:
        if isinstance(write, PutEntity):
            key = (write.row.type, write.row.id)
            assert write.was == self.entities.get(key)
            self.entities[key] = write.row
        elif isinstance(write, PutLease):
            self.leases[write.row.name] = write.row
            if not write.row.holder:
                del self.leases[write.row.name]
        elif isinstance(write, PutTask):
            self.tasks[write.id] = write.task
            self.history.setdefault(write.id, []).append(write.judged)
        elif isinstance(write, PutNode):
            self.nodes[write.row.peer] = write.row
        else:
            assert isinstance(write, PutIntent)
            self.intents[write.record.id] = write.record

    def check(self) -> None:
        """The shape of all entities, and of all leases, as the contract words it."""
        live = {key for key, row in self.entities.items() if not row.deleted}
        above = {"milestone": ("mission", "missionId"), "slice": ("milestone", "milestoneId")}
        above["feature"] = ("slice", "sliceId")
        for type, id in live:
            fields = read_fields(self.entities[type, id].fields)
            if type in above:
                parent, name = above[type]
                assert (parent, fields[name]) in live, f"{type} {id} is an orphan"
            if type == "task_metadata":
                assert ("task", id) in live or id in self.tasks
        self._check_circles(live)
        for row in self.leases.values():
            assert row.holder
            sessions = [row.session, *(waiter.session for waiter in row.waiting)]
            assert len(set(sessions)) == len(sessions)

    def _check_circles(self, live: set[tuple[str, str]]) -> None:
        needs = {
            id: set(read_fields(self.entities[type, id].fields).get("dependencies", ()))
            for type, id in live
            if type == "task"
        }
        # Whatever needs nothing that remains is taken away; a circle is what cannot be.
        while True:
            free = [id for id, others in needs.items() if not others & needs.keys()]
            if not free:
                break
            for id in free:
                del needs[id]
        assert not needs, f"tasks in a circle: {sorted(needs)}"
