"""One mesh with voters, where its order is: a strong write, from the request to its receipt.

    made      checked, stamped; or known from before, and answered from its record
    in line   a write overtakes no earlier one of this node that still waits
    proposed  the order has it committed and folded here, or says that it cannot be had in time
    kept      without a quorum it is in the queue, on the disk, before the caller is told `queued`

Where the mesh's policy for a minority is `reject`, and for intents that are about this moment only
(`can_wait`), the last step is left out: the caller gets the error. A write whose outcome is unknown
is then given up, which is an entry of its own: once that is committed, the write can no longer be.
If that cannot be had either, the caller is told that the outcome is unknown.

A caller that is cancelled, or whose process ends before it has an answer, may find its write
committed: it was on its way. Under an id of its own it can ask again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from holdfast.node.core.commit import Committed, notable
from holdfast.node.core.engine import NodeEngine
from holdfast.node.quorum.api import StrongReceipt
from holdfast.node.quorum.ports import MeshOrder
from holdfast.node.quorum.service.lane import LoopWrite, WriteLane
from holdfast.node.quorum.service.making import Intent, IntentMaker, KnownIntent
from holdfast.node.quorum.service.news import FoldNews
from holdfast.node.quorum.service.receipts import (
    failure_of,
    receipt_of_commit,
    receipt_of_record,
    receipt_of_row,
    was_decided,
)
from holdfast.node.quorum.service.replay import WriteReplay
from holdfast.rules.bodies import encode_body
from holdfast.rules.envelope import Envelope
from holdfast.rules.errors import HoldfastError, NoQuorum, OutcomeUnknown, Unknown
from holdfast.rules.ids import id_text
from holdfast.rules.limits import QUORUM_ABANDON_MS, SECOND_MS
from holdfast.rules.quorum.entities import MESH_SETTINGS_ID, MINORITY_POLICIES, read_fields
from holdfast.rules.quorum.intents import IntentAbandon
from holdfast.rules.quorum.view import IntentRecord
from holdfast.rules.quorum.write_queue import QueuedWrite, can_wait, is_retryable
from holdfast.storage.ports import Reader

log = logging.getLogger("holdfast.quorum")

QUEUE: Final = MINORITY_POLICIES[0]


class StrongWrites:
    """The strong writes of one mesh. Belongs to one event loop."""

    def __init__(
        self,
        engine: NodeEngine,
        write: LoopWrite,
        order: MeshOrder,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.order, self.mesh = order, order.mesh
        self._engine = engine
        self._maker = IntentMaker(engine, order.mesh)
        self.lane = WriteLane(engine, write, order.mesh)
        self.replay = WriteReplay(order, self.lane, engine.ctx.now_ms, chance)
        self.news = FoldNews()
        self.usual_policy: Callable[[], str] = lambda: QUEUE
        """What this node does with writes without a quorum where the mesh has no setting."""
        self.on_late: Callable[[], None] = lambda: None
        """Hears of a write that is queued after the order of this mesh has become another one."""
        self._closed = False
        self._keeping: set[asyncio.Task[QueuedWrite | IntentRecord]] = set()

    # --- what the order tells ----------------------------------------------------------------

    def changed(self) -> None:
        """The order may be able to do now what it could not do before."""
        self.replay.wake()

    def folded(self, results: Sequence[Committed]) -> None:
        for result in notable(results):
            if result.op.startswith("lease."):
                self.news.tell(result.entity)

    # --- a strong write ----------------------------------------------------------------------

    async def intend(
        self, op: str, entity: str, body: bytes, id: str | None, timeout_ms: int
    ) -> StrongReceipt:
        made = self._maker.make(op, entity, body, id)
        if isinstance(made, KnownIntent):
            return receipt_of_record(self.mesh, made.record, made.number)
        if made.waits:
            return await self._follow(made.id, timeout_ms)
        until = monotonic() + timeout_ms / SECOND_MS
        if self.replay.waiting and can_wait(op) and not await self._in_line(timeout_ms):
            return await self._without(made, NoQuorum("earlier writes of this node still wait"))
        self._maker.opened(made)
        try:
            return await self._propose(made, max(1, int((until - monotonic()) * SECOND_MS)))
        finally:
            self._maker.closed(made)

    async def _in_line(self, timeout_ms: int) -> bool:
        """Waits for earlier writes. If an operator has paused them, they are passed by."""
        return self.lane.is_paused or await self.replay.drained(timeout_ms)

    async def _follow(self, id: bytes, timeout_ms: int) -> StrongReceipt:
        """A write that is in the queue is asked for again: it has its turn there."""
        await self._in_line(timeout_ms)
        known, row = self._record(id), self.lane.get(id)
        if known is not None:
            return receipt_of_record(self.mesh, known.record, known.number)
        assert row is not None, "rows of the queue stay"
        return receipt_of_row(row)

    async def _propose(self, intent: Intent, timeout_ms: int) -> StrongReceipt:
        try:
            committed = await self.order.propose(intent.id, intent.raw, timeout_ms=timeout_ms)
            if not was_decided(committed):
                raise NoQuorum(committed.detail)
        except HoldfastError as error:
            if not is_retryable(failure_of(error)):
                raise
            return await self._without(intent, error)
        if committed.number is None:
            known = self._record(intent.id)
            if known is not None:
                return receipt_of_record(self.mesh, known.record, known.number)
        return receipt_of_commit(self.mesh, intent.id, committed)

    async def _without(self, intent: Intent, error: HoldfastError) -> StrongReceipt:
        """What follows for a write that found no quorum in time."""
        envelope = intent.envelope
        if can_wait(envelope.op) and self.minority_policy() == QUEUE:
            keeping = asyncio.create_task(self._keep(envelope, error))
            self._keeping.add(keeping)
            keeping.add_done_callback(self._keeping.discard)
            # A caller that is cancelled meanwhile must not leave a row that nobody looks at.
            kept = await asyncio.shield(keeping)
            if isinstance(kept, IntentRecord):
                return self._from_record(envelope.id, error)
            return receipt_of_row(kept)
        if not isinstance(error, Unknown) or not can_wait(envelope.op):
            raise error
        return await self._give_up(envelope.id, error)

    async def _keep(self, envelope: Envelope, error: HoldfastError) -> QueuedWrite | IntentRecord:
        kept = await self.lane.add(envelope, failure_of(error))
        if isinstance(kept, QueuedWrite):
            if self._closed:
                self.on_late()
            else:
                self.replay.added()
        return kept

    async def _give_up(self, id: bytes, error: HoldfastError) -> StrongReceipt:
        """Makes sure that a write of unknown outcome is void, or finds out what it came to."""
        made = self._maker.make("intent.abandon", id_text(id), encode_body(IntentAbandon(id)), None)
        assert isinstance(made, Intent), "its id is new"
        try:
            given_up = await self.order.propose(made.id, made.raw, timeout_ms=QUORUM_ABANDON_MS)
        except HoldfastError:
            log.info("%s of %s could not be given up: it may be committed", id_text(id), self.mesh)
            raise _unknown(id, error) from error
        if not was_decided(given_up):
            raise _unknown(id, error) from error
        known = self._record(id)
        if known is None or known.record.void:
            raise NoQuorum(f"{id_text(id)} found no quorum in time, and was given up") from error
        return receipt_of_record(self.mesh, known.record, known.number)

    def _from_record(self, id: bytes, error: HoldfastError) -> StrongReceipt:
        known = self._record(id)
        if known is None:
            raise error
        return receipt_of_record(self.mesh, known.record, known.number)

    def _record(self, id: bytes) -> KnownIntent | None:
        def read(tx: Reader) -> KnownIntent | None:
            record = tx.intents_known(self.mesh, [id]).get(id)
            commit = tx.commit_of(self.mesh, id)
            number = None if commit is None else commit.number
            return None if record is None else KnownIntent(record, number)

        return self._engine.read("quorum.intent", read)

    def minority_policy(self) -> str:
        """What this mesh does with writes that find no quorum: `queue` or `reject`."""
        return str(self.setting("minority", self.usual_policy()))

    def setting(self, name: str, default: object) -> object:
        row = self._engine.read(
            "quorum.settings",
            lambda tx: tx.entity_get(self.mesh, "mesh_settings", MESH_SETTINGS_ID),
        )
        return default if row is None else read_fields(row.fields).get(name, default)

    async def close(self, *, stopping: bool = False) -> None:
        """`stopping`: the node stops, and not only the order of this mesh."""
        self._closed = True
        if stopping:
            for keeping in self._keeping:
                keeping.cancel()  # what was handed to the writer happens all the same
        # Callers of a mesh that moves wait for them, and have nothing else to wait for.
        await asyncio.gather(*self._keeping, return_exceptions=True)
        await self.replay.close()
        self.news.tell_all()


def _unknown(id: bytes, error: HoldfastError) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{id_text(id)} may be committed, now or later: {error.message}",
        hint="ask again with the same id, or give it up with an intent.abandon",
    )
