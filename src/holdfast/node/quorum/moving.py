"""Moving a mesh from one engine to another, in steps that each may be the last for a while.

    noted     what is wanted is on this node's disk, with the tag of the next incarnation
    ended     the old order has committed its last entry (`rules/quorum/order_move.py`): from here
              on nothing else of it counts anywhere, and writes wait
    begun     this node has begun the next order: a group of which it is the only voter, or an
              order in the etcd; writes go on
    joined    the other voters take part; nodes without the etcd ask those that have it

A node that stops between two of them goes on with the next when it is up again. Between `ended`
and `begun` only this node can go on; if it is lost for good, `recover` on another one begins behind
what that has. Every node that folds the end stops the old engine for this mesh, whenever that is:
a node that was away hears of it from the old engine itself, or with the commits that its neighbours
bring.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.quorum.embedded.operators import EmbeddedOperators
from holdfast.node.quorum.etcd.operators import EtcdOperators
from holdfast.node.quorum.etcd.order_fold import Write
from holdfast.node.quorum.etcd.orders import EtcdOrders
from holdfast.node.quorum.ports import MeshOrder
from holdfast.node.quorum.service.making import Intent, IntentMaker
from holdfast.rules.bodies import encode_body
from holdfast.rules.errors import AlreadyExists, BadInput, Conflict, HoldfastError, NoVoters
from holdfast.rules.limits import QUORUM_CHANGE_MS
from holdfast.rules.quorum.intents import MOVE, ORDER, Engine, OrderMove
from holdfast.rules.quorum.log_rows import TAG_BYTES
from holdfast.rules.quorum.order_move import has_not_begun
from holdfast.rules.quorum.state_rows import QuorumRow
from holdfast.rules.rows import JobRow
from holdfast.storage.ports import Reader

log = logging.getLogger("holdfast")

_JOB: Final = "quorum-move:"


class NotedMove(msgspec.Struct, frozen=True, kw_only=True):
    """What this node wants to do, or is doing."""

    incarnation: int
    """The one that is to end."""
    engine: Engine
    tag: bytes
    address: str = ""
    """Of an etcd."""
    voters: tuple[str, ...] = ()
    """Beside this node."""


class EngineMoves:
    """Belongs to one event loop. `start` comes first, `close` last."""

    def __init__(
        self,
        engine: NodeEngine,
        write: Write,
        own_order: Callable[[str], MeshOrder | None],
        embedded: EmbeddedOperators,
        etcd: EtcdOrders,
        etcd_operators: EtcdOperators,
        random: Callable[[int], bytes],
    ) -> None:
        self._engine, self._write, self._own_order = engine, write, own_order
        self._embedded, self._etcd, self._etcd_operators = embedded, etcd, etcd_operators
        self._random = random
        self._turns: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- life ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Goes on with what was cut short."""
        for row in self._engine.read("quorum.list", lambda tx: tx.quorum_list()):
            note = self._noted(row.mesh)
            if note is not None and note.tag == row.tag:
                self._spawn(self._go_on(row.mesh))

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- what an operator asks -----------------------------------------------------------------

    async def move(self, mesh: str, engine: str, voters: Sequence[str]) -> None:
        """Ends the order of a mesh and goes on with another engine; what was cut short goes on. On
        a node that has heard of the move already it takes part in the new order.
        """
        self._engine.require_mesh(mesh)
        row = self._row(mesh)
        wanted: Engine = "embedded" if engine == "embedded" else "etcd"
        note = self._noted(mesh)
        if row.engine == wanted:
            if note is not None and note.tag == row.tag:
                await self._go_on(mesh)
            elif wanted == "etcd" and self._etcd.order(mesh) is None:
                await self._etcd_operators.init(mesh, _joining(engine))
            else:
                raise AlreadyExists(f"the order of {mesh!r} is kept by {wanted} already")
            return
        order = self._own_order(mesh)
        if order is None:
            raise NoVoters(
                f"this node takes no part in the order of {mesh!r}, and so cannot end it",
                hint="move it on a node that does: see holdfast quorum status",
            )
        address = engine if wanted == "etcd" else ""
        await self._check(mesh, address, voters)
        note = await self._note(row, wanted, address, voters)
        await self._end_order(mesh, order, note)
        await self._go_on(mesh)

    async def _check(self, mesh: str, address: str, voters: Sequence[str]) -> None:
        """Raises what would keep the next order from beginning, as far as it can be known, and
        NotAllowed if this node may not vote: it would be told so by the voters, but not by an etcd.
        """
        await self._embedded.check_own(mesh)
        if not address:
            await self._embedded.check_voters(mesh, voters)
        elif voters:
            raise BadInput("an etcd has voters of its own: no node of the mesh is one")
        else:
            await self._etcd_operators.check_free(mesh, address)

    async def _note(
        self, row: QuorumRow, engine: Engine, address: str, voters: Sequence[str]
    ) -> NotedMove:
        known = self._noted(row.mesh)
        # A try whose answer was lost may still end the order: with the tag that is noted.
        again = known is not None and (known.incarnation, known.engine) == (row.incarnation, engine)
        note = NotedMove(
            incarnation=row.incarnation,
            engine=engine,
            tag=known.tag if again and known is not None else self._random(TAG_BYTES),
            address=address,
            voters=tuple(voters),
        )
        now = self._engine.ctx.now_ms()
        job = JobRow(name=_JOB + row.mesh, cursor=msgspec.to_builtins(note), updated_at=now)
        await self._write("quorum.move", lambda tx: tx.job_put(job))
        return note

    async def _end_order(self, mesh: str, order: MeshOrder, note: NotedMove) -> None:
        body = encode_body(OrderMove(note.incarnation, note.engine, note.tag))
        made = IntentMaker(self._engine, mesh).make(MOVE, ORDER, body, None)
        assert isinstance(made, Intent), "its id is new"
        done = await order.propose(made.id, made.raw, timeout_ms=QUORUM_CHANGE_MS)
        if not done.ends_order and self._row(mesh).tag != note.tag:
            raise Conflict(
                f"the order of {mesh!r} was not ended: {done.detail or done.reason}",
                hint="somebody else has moved or recovered it: see holdfast quorum status",
            )
        log.warning("the order of %s ended with commit %s", mesh, done.number)

    # --- what follows ----------------------------------------------------------------------------

    def ended(self, mesh: str) -> None:
        """This node has folded the end of an order."""
        self._spawn(self._go_on(mesh))

    async def _go_on(self, mesh: str) -> None:
        """Stops the old engine here, and begins the next order if that is for this node to do."""
        async with self._turns.setdefault(mesh, asyncio.Lock()):
            row, note = self._row(mesh), self._noted(mesh)
            if row.engine == "embedded" and self._etcd.place(mesh) is not None:
                await self._etcd.end(mesh)
                await self._etcd.forget_place(mesh)
            if note is None or note.tag != row.tag:
                return
            if note.engine == "etcd":
                if self._etcd.order(mesh) is None:
                    await self._etcd.keep_place(mesh, note.address, nonce=note.tag)
                    await self._etcd_operators.begun(await self._etcd.begin(mesh))
            elif await self._embedded.take_over(row, has_not_begun(row)):
                await self._embedded.add_all(mesh, note.voters)
            await self._write("quorum.move", lambda tx: tx.job_drop(_JOB + mesh))

    # --- what is kept ----------------------------------------------------------------------------

    def _row(self, mesh: str) -> QuorumRow:
        row = self._engine.read("quorum.get", lambda tx: tx.quorum_get(mesh))
        if row is None:
            raise NoVoters(
                f"the mesh {mesh!r} has no voters that this node knows",
                hint=f"begin with: holdfast quorum init {mesh}",
            )
        return row

    def _noted(self, mesh: str) -> NotedMove | None:
        def read(tx: Reader) -> JobRow | None:
            return tx.job_get(_JOB + mesh)

        job = self._engine.read("quorum.move", read)
        return None if job is None else msgspec.convert(job.cursor, NotedMove)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._done))

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, HoldfastError):
            log.error("a move to another engine: %s (%s)", error.message, error.hint)
        elif error is not None:
            log.error("a move to another engine met a fault of Holdfast", exc_info=error)


def _joining(address: str) -> str:
    """The same etcd, to take part in the order that is there."""
    if "join=" in address:
        return address
    return f"{address}{'&' if '?' in address else '?'}join=yes"
