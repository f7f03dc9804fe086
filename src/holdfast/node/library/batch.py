"""`mesh.batch()`: several changes of any family in one transaction, all of them or none.

    with team.batch() as b:
        b.state.set("build", "green")
        task = b.tasks.create("Ship it")
        b.tasks.claim(task.id)
    task.receipt.offset

In the block the changes are checked and kept; the end of the block writes them. An exception in the
block writes nothing. Each family has its verbs that write, with the same parameters; what they
return has the id of the change at once, and its receipt after the block.

With an `id` the batch has a name: a change that is given none gets one that is computed from the
name and its place, so that the same block run again with the same name is written once.

Each change is the same as alone, with its own id, stamp, envelope and receipt. What voters decide
cannot be part of a batch: their order is another one than that of this node's transactions, so
nothing could hold both together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar

import msgspec

from holdfast.node.core.change import DECIDED, Change, Receipt
from holdfast.node.core.engine import NEEDS_ROOM, NodeEngine
from holdfast.node.core.files import Content, FileToShare
from holdfast.node.core.operations import BlobGone
from holdfast.node.core.runs.plain_changes import PlainChange
from holdfast.node.library.documents import BatchDocument, ChangeDocument, prepare
from holdfast.node.library.families import AuditTrail, Facts, Files, Memories, State, Tasks, Vectors
from holdfast.node.messages import send as messages
from holdfast.rules.errors import BadInput, HasVoters, HoldfastError, OverLimit
from holdfast.rules.idempotency import id_of_key
from holdfast.rules.ids import id_text
from holdfast.rules.limits import BATCH_BYTES_MAX, BATCH_CHANGES_MAX
from holdfast.storage.ports import Transaction

if TYPE_CHECKING:
    from holdfast.node.core.loop_writer import LoopWriter

P = ParamSpec("P")
S = TypeVar("S")

WRITING: Final = "batch"
REMOVING: Final = "batch.remove"
"""The name of a batch that only removes: it may run on a disk that is nearly full."""


class BatchedChange:
    """One change of a batch. Its id, which is the name of a task that it creates, is there at once;
    its receipt when the batch is written.
    """

    def __init__(self, id: str, op: str, entity: str) -> None:
        self.id = id
        self.op = op
        self.entity = entity
        self._receipt: Receipt | None = None

    @property
    def receipt(self) -> Receipt:
        """Its receipt, once the batch is written.

        >>> with team.batch() as b:
        ...     change = b.state.set("build", "green")
        >>> change.receipt.duplicate
        False
        """
        if self._receipt is None:
            raise BadInput(
                "the batch is not written, so its changes have no receipts",
                hint="ask for them after its block",
            )
        return self._receipt

    def __repr__(self) -> str:
        return f"BatchedChange({self.op} {self.entity!r}, id={self.id!r})"


class _Face(Generic[S]):
    """The verbs of a family that write, in a batch."""

    def __init__(self, batch: Collected, family: S) -> None:
        self._batch = batch
        self._family = family


def _batched(
    verb: Callable[Concatenate[S, P], object],
) -> Callable[Concatenate[_Face[S], P], BatchedChange]:
    """A verb that `verbs.writes` or `verbs.turns` has made: it adds the change to the batch."""
    prepare = vars(verb)["__wrapped__"]

    @wraps(verb)
    def call(self: _Face[S], /, *args: P.args, **kwargs: P.kwargs) -> BatchedChange:
        batch = self._batch
        batch.check_open()
        if kwargs.get("id") is None:
            kwargs["id"] = batch.next_id()
        return batch.add(prepare(self._family, *args, **kwargs))

    vars(call)["__annotations__"] = {**verb.__annotations__, "return": "BatchedChange"}
    return call


class BatchState(_Face[State]):
    """`State`, in a batch."""

    set = _batched(State.set)
    delete = _batched(State.delete)


class BatchMemories(_Face[Memories]):
    """`Memories`, in a batch."""

    set = _batched(Memories.set)
    forget = _batched(Memories.forget)


class BatchVectors(_Face[Vectors]):
    """`Vectors`, in a batch."""

    store = _batched(Vectors.store)
    delete = _batched(Vectors.delete)


class BatchFiles(_Face[Files]):
    """`Files`, in a batch."""

    def share(self, path: str, content: Content, *, id: str | None = None) -> BatchedChange:
        """Shares content under a path. The content is read when the block ends.

        >>> with team.batch() as b:
        ...     b.files.share("docs/plan.md", b"# Plan")
        """
        return self._batch.add_file(path, content, id)

    delete = _batched(Files.delete)


class BatchTasks(_Face[Tasks]):
    """`Tasks`, in a batch. A task that is created in it is named by the `id` of that change."""

    create = _batched(Tasks.create)
    claim = _batched(Tasks.claim)
    release = _batched(Tasks.release)
    complete = _batched(Tasks.complete)
    cancel = _batched(Tasks.cancel)


class BatchFacts(_Face[Facts]):
    """`Facts`, in a batch."""

    append = _batched(Facts.append)


class BatchAudit(_Face[AuditTrail]):
    """`AuditTrail`, in a batch."""

    append = _batched(AuditTrail.append)


class Collected:
    """The changes of a batch, until they are written."""

    def __init__(self, engine: NodeEngine, mesh: str, id: str | None = None) -> None:
        self._engine, self._mesh, self._name = engine, mesh, id
        self._changes: list[Change | FileToShare] = []
        self._handles: list[BatchedChange] = []
        self._bytes = 0
        self._over = False
        self.state = BatchState(self, State(engine, mesh))
        self.memory = BatchMemories(self, Memories(engine, mesh))
        self.vectors = BatchVectors(self, Vectors(engine, mesh))
        self.files = BatchFiles(self, Files(engine, mesh))
        self.tasks = BatchTasks(self, Tasks(engine, mesh))
        self.facts = BatchFacts(self, Facts(engine, mesh))
        self.audit = BatchAudit(self, AuditTrail(engine, mesh))
        if id is not None:
            self.next_id()  # a name that is no good is refused here

    @property
    def receipts(self) -> list[Receipt]:
        """One receipt for each change, in their order, once the batch is written.

        >>> with team.batch() as b:
        ...     b.state.set("build", "green")
        ...     b.facts.append("build", "is", "green")
        >>> len(b.receipts)
        2
        """
        return [handle.receipt for handle in self._handles]

    def send(
        self,
        content: bytes | str,
        *,
        topic: str | None = None,
        dm: str | None = None,
        queue: str | None = None,
        content_type: str | None = None,
        meta: Mapping[str, Any] | None = None,
        priority: str = "next",
        reply_to: str | None = None,
        id: str | None = None,
    ) -> BatchedChange:
        """Sends a message, if the batch is written; see `Mesh.send`.

        >>> with fleet.batch() as b:
        ...     b.state.set("release", "1.4")
        ...     b.send("1.4 is out", topic="news")
        """
        self.check_open()
        return self.add(
            messages.prepare(
                self._engine,
                self._mesh,
                *messages.one_destination(topic, dm, queue),
                content,
                content_type=content_type,
                meta=meta,
                priority=priority,
                reply_to=reply_to,
                id=self.next_id() if id is None else id,
            )
        )

    # --- for the verbs of the families ---------------------------------------------------------

    def check_open(self) -> None:
        if self._over:
            raise BadInput("the batch has ended", hint="begin another: with mesh.batch() as b")

    def next_id(self) -> str:
        """The id of the next change, of a caller that gives none."""
        ctx = self._engine.ctx
        if self._name is None:
            return id_text(ctx.new_id())
        return id_of_batched(self._name, len(self._changes), self._mesh, ctx.peer)

    def add(self, work: Any) -> BatchedChange:
        """Adds what a verb has prepared."""
        change: Change = work if isinstance(work, Change) else work.change
        return self._add(change, id_text(change.id), change.op, change.entity, len(change.encoded))

    def add_document(self, value: object) -> BatchedChange:
        """Adds a change that comes as decoded JSON.

        >>> with team.batch() as b:
        ...     b.add_document({"op": "state.set", "entity": "build", "value": "green"})
        """
        try:
            doc = msgspec.convert(value, BatchDocument)
        except msgspec.ValidationError as error:
            raise BadInput(f"it does not fit: {error}") from None
        if doc.mesh not in (None, self._mesh):
            raise BadInput(
                f"it is for the mesh {doc.mesh!r}, and the batch for {self._mesh!r}",
                hint="a batch is of one mesh",
            )
        fields = msgspec.structs.asdict(doc)
        fields |= {"id": self.next_id() if doc.id is None else doc.id, "mesh": self._mesh}
        return self.add(prepare(self._engine.ctx, ChangeDocument(**fields)))

    def add_file(self, path: str, content: Content, id: str | None) -> BatchedChange:
        self.check_open()
        id = self.next_id() if id is None else id
        sharing = FileToShare(self._engine, self._mesh, path, content, id)
        return self._add(sharing, id, "file.share", path, 0)

    def _add(
        self, change: Change | FileToShare, id: str, op: str, entity: str, size: int
    ) -> BatchedChange:
        check_batch(len(self._changes) + 1, self._bytes + size)
        self._bytes += size
        handle = BatchedChange(id, op, entity)
        self._changes.append(change)
        self._handles.append(handle)
        return handle

    # --- the end of the block ------------------------------------------------------------------

    def _ready(self) -> BatchWork:
        """All changes, with the content of files on the disk."""
        changes = [one.change() if isinstance(one, FileToShare) else one for one in self._changes]
        return BatchWork(changes)

    def _ended(self, kind: type[BaseException] | None) -> bool:
        """Whether there is something to write now."""
        self._over = True
        return kind is None and bool(self._changes)

    def _written(self, receipts: list[Receipt]) -> None:
        for handle, receipt in zip(self._handles, receipts, strict=True):
            handle._receipt = receipt


class WriteBatch(Collected):
    """A batch of a caller that waits: enter it with `with`."""

    def __enter__(self) -> WriteBatch:
        self.check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._ended(kind):
            return
        while True:
            work = self._ready()
            try:
                self._written(self._engine.write(work.name, work))
                return
            except BlobGone:
                continue  # a sweep came between: the content is put there again


class AsyncWriteBatch(Collected):
    """A batch of a coroutine: enter it with `async with`. Its verbs need no `await`: they only add
    to it.
    """

    def __init__(
        self, writer: LoopWriter, engine: NodeEngine, mesh: str, id: str | None = None
    ) -> None:
        super().__init__(engine, mesh, id)
        self._writer = writer

    async def __aenter__(self) -> AsyncWriteBatch:
        self.check_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._ended(kind):
            return
        import asyncio  # it runs: this costs nothing

        has_files = any(isinstance(one, FileToShare) for one in self._changes)
        while True:
            work = await asyncio.to_thread(self._ready) if has_files else self._ready()
            try:
                self._written(await self._writer.write(work.name, work))
                return
            except BlobGone:
                continue


def id_of_batched(name: str, number: int, mesh: str, peer: str) -> str:
    """The id of a change without one, in a batch with a name."""
    return id_text(id_of_key(f"{name} #{number}", mesh, peer))


# --- one transaction ---------------------------------------------------------------------------


class BatchWork:
    """The changes of a batch, carried out in their order. Returns their receipts."""

    repeatable = True
    __slots__ = ("_changes",)

    def __init__(self, changes: Sequence[Change]) -> None:
        self._changes = changes

    @property
    def name(self) -> str:
        """What the metrics and `NEEDS_ROOM` call it."""
        return WRITING if any(one.op in NEEDS_ROOM for one in self._changes) else REMOVING

    def __call__(self, tx: Transaction) -> list[Receipt]:
        for number, change in enumerate(self._changes, 1):
            if change.op in DECIDED and tx.quorum_get(change.mesh) is not None:
                raise HasVoters(
                    f"{_place(number, change)} cannot be part of a batch: in the mesh "
                    f"{change.mesh!r} voters decide about tasks",
                    hint="write it by itself, before the batch or after it",
                )
        receipts: list[Receipt] = []
        while len(receipts) < len(self._changes):
            receipts += self._carry_out_next(tx, len(receipts))
        return receipts

    def _carry_out_next(self, tx: Transaction, start: int) -> list[Receipt]:
        """The changes from `start` on that can be carried out together, or the first of them."""
        receipts: list[Receipt] = []
        for number, answer in enumerate(PlainChange.together(tx, self._plain_from(start)), start):
            if not isinstance(answer, Receipt):
                raise self._placed(number, answer)
            receipts.append(answer)
        if receipts:
            return receipts
        try:
            return [self._changes[start](tx)]
        except HoldfastError as error:
            self._placed(start, error)
            raise

    def _plain_from(self, start: int) -> Iterator[PlainChange]:
        for change in islice(self._changes, start, None):
            if not isinstance(change, PlainChange):
                return
            yield change

    def _placed(self, at: int, error: HoldfastError) -> HoldfastError:
        """The error, saying which of the changes it is about."""
        error.message = f"{_place(at + 1, self._changes[at])}: {error.message}; nothing was written"
        error.args = (error.message,)
        return error


def check_batch(count: int, size: int) -> None:
    """Raises OverLimit for a batch that would hold the store for too long."""
    if count > BATCH_CHANGES_MAX:
        raise OverLimit(
            f"the batch has more than {BATCH_CHANGES_MAX} changes", hint="make two of it"
        )
    if size > BATCH_BYTES_MAX:
        raise OverLimit(
            f"the changes of the batch have more than {BATCH_BYTES_MAX} bytes",
            hint="make two of it",
        )


def _place(number: int, change: Change) -> str:
    return f"change {number} of the batch ({change.op} {change.entity!r})"


# --- from documents ----------------------------------------------------------------------------


def add_documents(batch: Collected, values: Iterable[object]) -> None:
    """Adds changes that come as decoded JSON; an error says which of them it is about."""
    for number, value in enumerate(values, 1):
        try:
            batch.add_document(value)
        except HoldfastError as error:
            error.message = f"change {number} of the batch: {error.message}; nothing was written"
            error.args = (error.message,)
            raise
