"""`mesh.batch()` over a connection: changes are kept here, and sent together when the block ends.

The batch has a name, the caller's or one that is made, and each change an id that follows from it.
So a batch whose answer was lost can be sent again under its name, and is written once.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, NoReturn

import msgspec

from holdfast.node.calls.wires import WIRES
from holdfast.node.core.change import Receipt
from holdfast.node.core.files import Content
from holdfast.node.library import batch as here
from holdfast.node.library.batch import (
    AsyncWriteBatch,
    BatchedChange,
    WriteBatch,
    check_batch,
    id_of_batched,
)
from holdfast.node.library.families import AuditTrail, Facts, Files, Memories, State, Tasks, Vectors
from holdfast.node.remote.content import sized
from holdfast.node.remote.faces import AS_JSON, decoded, needs_home, new_id
from holdfast.node.remote.line import Line
from holdfast.rules.audit_chain import check_stream
from holdfast.rules.errors import BadAnswer, OutcomeUnknown, Unreachable
from holdfast.rules.ids import parse_id
from holdfast.rules.names import check_key
from holdfast.rules.paths import check_path
from holdfast.rules.reconcile import Outcome

_ENTITY: Final[Mapping[str, Callable[[Any], str]]] = {
    "key": check_key,
    "subject": check_key,
    "path": check_path,
    "stream": check_stream,
    "task": lambda task: check_key(task, "task"),
}
"""The argument that says what a change is about, and how it is checked."""
_FIELDS: Final = {"payload": "value"}
"""Arguments that have another name in a document."""


class _Receipt(msgspec.Struct):
    id: str
    offset: int
    lamport: int | None
    peer: str
    duplicate: bool
    outcome: Outcome


class _Receipts(msgspec.Struct):
    receipts: list[_Receipt]


_RECEIPTS: Final = msgspec.json.Decoder(_Receipts)


class _Kept:
    """The changes of a batch, until they are sent."""

    def __init__(self, line: Line, mesh: str, id: str | None) -> None:
        self._line, self._mesh = line, mesh
        self._name: str | None = new_id() if id is None else id
        self._documents: list[dict[str, Any]] = []
        self._handles: list[BatchedChange] = []
        self._bytes = 0
        self._over = False
        self.next_id()  # a name that is no good is refused here

    _engine: Any = property(needs_home)
    _writer: Any = property(needs_home)

    def next_id(self) -> str:
        assert self._name is not None
        return id_of_batched(self._name, len(self._documents), self._mesh, self._line.peer())

    def keep(self, op: str, entity: str, document: dict[str, Any]) -> BatchedChange:
        size = len(msgspec.json.encode(document))
        check_batch(len(self._documents) + 1, self._bytes + size)
        self._bytes += size
        if op == "task.create":
            entity = document["id"]
        self._documents.append({"op": op, **document})
        self._handles.append(BatchedChange(document["id"], op, entity))
        return self._handles[-1]

    def send(self, *args: Any, **kwargs: Any) -> NoReturn:
        needs_home(self)

    def _sent(self) -> list[Receipt]:
        body = msgspec.json.encode({"changes": self._documents})
        path = f"/v1/meshes/{self._mesh}/batch"
        try:
            answer = self._line.call("POST", path, body=body, headers=AS_JSON)
        except (Unreachable, BadAnswer) as error:
            if type(error) not in (Unreachable, BadAnswer):
                raise
            raise OutcomeUnknown(
                f"{error.message}; the batch may have been written",
                hint=f"run the block again as batch(id={self._name!r}): it is written once at most",
            ) from error
        return [_read(one) for one in decoded(answer, _RECEIPTS).receipts]


def _read(one: _Receipt) -> Receipt:
    raw = parse_id(one.id)
    return Receipt(raw, one.offset, one.lamport or 0, one.peer, one.duplicate, one.outcome)


class _Files:
    """`BatchFiles`, with content that is small enough for the row of its file."""

    def __init__(self, batch: RemoteBatch | AsyncRemoteBatch) -> None:
        self._batch = batch

    def share(self, path: str, content: Content, *, id: str | None = None) -> BatchedChange:
        self._batch.check_open()
        with sized(content) as body:
            data = b"".join(body.pieces())
        document = {"entity": check_path(path), "data": data}
        return self._batch.keep("file.share", path, document | _named(self._batch, id))

    def delete(self, path: str, *, id: str | None = None) -> BatchedChange:
        return _kept(Files.delete)(self, path, id=id)


def _named(batch: _Kept, id: str | None) -> dict[str, str]:
    return {"id": batch.next_id() if id is None else id}


def _kept(verb: Callable[..., Any]) -> Callable[..., BatchedChange]:
    """A verb that adds its change to the batch as a document."""
    op, signature = vars(verb)["operation"], inspect.signature(verb)

    def call(self: Any, *args: Any, **kwargs: Any) -> BatchedChange:
        batch: RemoteBatch | AsyncRemoteBatch = self._batch
        batch.check_open()
        given = dict(signature.bind(None, *args, **kwargs).arguments)
        del given["self"]
        document, entity = _named(batch, given.pop("id", None)), ""
        for name, value in given.items():
            if name in _ENTITY:
                document["entity"] = entity = _ENTITY[name](value)
            elif value is not None or name in ("value", "payload", "object", "metadata"):
                field = _FIELDS.get(name, name)
                document[field] = WIRES[field].send(value, given)
        return batch.keep(op, entity, document)

    return call


def _faces(batch: RemoteBatch | AsyncRemoteBatch) -> None:
    """Gives a batch the verbs of the families."""
    for name, kind, face in (
        ("state", here.BatchState, State),
        ("memory", here.BatchMemories, Memories),
        ("vectors", here.BatchVectors, Vectors),
        ("tasks", here.BatchTasks, Tasks),
        ("facts", here.BatchFacts, Facts),
        ("audit", here.BatchAudit, AuditTrail),
    ):
        verbs = {one: _kept(getattr(face, one)) for one in vars(kind) if not one.startswith("_")}
        made = type(f"Remote{kind.__name__}", (kind,), verbs)
        setattr(batch, name, made(batch, None))
    batch.files = _Files(batch)  # type: ignore[assignment]


class RemoteBatch(_Kept, WriteBatch):
    """A batch of a caller that waits, over a connection."""

    def __init__(self, line: Line, mesh: str, id: str | None) -> None:
        _Kept.__init__(self, line, mesh, id)
        _faces(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over = True
        if kind is None and self._documents:
            self._written(self._sent())


class AsyncRemoteBatch(_Kept, AsyncWriteBatch):
    """A batch of a coroutine, over a connection."""

    def __init__(self, line: Line, mesh: str, id: str | None) -> None:
        _Kept.__init__(self, line, mesh, id)
        _faces(self)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over = True
        if kind is None and self._documents:
            self._written(await asyncio.to_thread(self._sent))
