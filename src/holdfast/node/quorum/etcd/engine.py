"""An order of entries in an etcd: begin it, coordinate it, append to it, and see where it ends.

A node that coordinates has raised the epoch: every append compares it, so nothing is appended under
an epoch that has passed, however late it arrives. An append is one transaction that happens once at
most. If its answer is lost, the very same is sent again; at its deadline it raises
`OutcomeUnknown`, and then only two things settle it: asking again with the same id, or giving the
id up, which is an entry of its own (`give_up`). Reading that the entry is not there settles
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from holdfast.node.quorum.etcd import transactions
from holdfast.protocol.etcd_json import TXN, TxnAnswer, TxnRequest
from holdfast.rules.errors import (
    AlreadyExists,
    BadAnswer,
    BodyTooLarge,
    EtcdRefused,
    UnknownMesh,
    Unreachable,
)
from holdfast.rules.etcd.entry import (
    START,
    HeldKey,
    Kind,
    OrderedEntry,
    OrderPoint,
    OrderState,
    StoredEntry,
    StoredEpoch,
    StoredIncarnation,
    newer,
    order_state,
    ordered_entry,
    pack,
)
from holdfast.rules.etcd.keys import OrderKeys
from holdfast.rules.etcd.outcome import (
    AppendOutcome,
    EntryAbandoned,
    EntryAppended,
    EntryFenced,
    FloorMoved,
    appended,
    check_age,
    not_appended,
)
from holdfast.rules.ids import check_id
from holdfast.rules.limits import ETCD_ENTRY_BYTES_MAX, SECOND_MS
from holdfast.rules.names import check_peer
from holdfast.transport.etcd_gateway import EtcdGateway


class OrderEnd(NamedTuple):
    """Where an order ends at one moment, and what it says of itself."""

    point: OrderPoint
    state: OrderState


class EtcdOrder:
    """The order of one scope, as one node uses it. Belongs to one event loop."""

    def __init__(
        self, gateway: EtcdGateway, scope: str, *, node: str, nonce: Callable[[], bytes]
    ) -> None:
        """`nonce` makes 16 bytes that were never made before."""
        self._gateway, self.keys = gateway, OrderKeys(scope)
        self._node, self._nonce = check_peer(node), nonce
        self._state: OrderState | None = None

    # --- the order as a whole ------------------------------------------------------------------

    async def begin(self, incarnation: int, *, epoch_base: int = 0, timeout_ms: int) -> None:
        """Begins the order. AlreadyExists if somebody has begun one in this scope."""
        born = StoredIncarnation(1, incarnation, epoch_base, self._nonce())
        answer = await self._txn(transactions.begin(self.keys, born), _until(timeout_ms))
        if answer.succeeded:
            return
        found, *_ = transactions.read_answer(answer, transactions.STATE_KEYS)
        # The answer to an earlier try may have been lost.
        if found is None or found.value != pack(born):
            raise AlreadyExists(
                f"the etcd holds an order of {self.keys.scope} already",
                hint="join it, or use another scope",
            )

    async def end(self, *, timeout_ms: int) -> OrderEnd:
        """Where the order ends now: whoever has seen everything up to there, and reads then, reads
        linearizably.
        """
        return await self._end(_until(timeout_ms))

    async def coordinate(self, *, timeout_ms: int) -> OrderState:
        """Takes a new epoch for this node. Every epoch before it is over then."""
        until = _until(timeout_ms)
        led = StoredEpoch(1, self._node, self._nonce())
        state = (await self._end(until)).state
        while True:
            answer = await self._txn(transactions.raise_epoch(self.keys, state, led), until)
            if answer.succeeded:
                (held,) = transactions.read_answer(answer, 1)
                if held is None:
                    raise BadAnswer("the etcd does not read what it has written")
                led_now = msgspec.structs.replace(
                    state, coordinator=self._node, epoch_version=held.version
                )
                self._state = newer(self._state, led_now)
                return led_now
            found = transactions.read_answer(answer, transactions.STATE_KEYS)
            state = self._learn(found, state)
            if found[1] is not None and found[1].value == pack(led):
                return state  # by an earlier try, whose answer was lost

    # --- entries -------------------------------------------------------------------------------

    async def append(
        self,
        id: bytes,
        fingerprint: bytes,
        body: bytes,
        *,
        timeout_ms: int,
        under: OrderState | None = None,
    ) -> EntryAppended | EntryAbandoned | EntryFenced:
        """Puts an entry at the end of the order. With `under` only while that epoch lasts, as a
        coordinator must; without it under whichever epoch there is.

        IdReused if the id belongs to other content; OutcomeUnknown if time ran out.
        """
        if len(body) > ETCD_ENTRY_BYTES_MAX:
            raise BodyTooLarge(f"an entry has {ETCD_ENTRY_BYTES_MAX} bytes at most")
        return await self._append(id, "entry", fingerprint, body, _until(timeout_ms), under)

    async def give_up(self, id: bytes, *, timeout_ms: int) -> EntryAppended | EntryAbandoned:
        """Decides that an id is void, unless its entry is in the order already."""
        got = await self._append(id, "abandoned", b"", b"", _until(timeout_ms), None)
        assert not isinstance(got, EntryFenced), "without a given epoch the current one is taken"
        return got

    async def find(self, id: bytes, *, timeout_ms: int) -> OrderedEntry | None:
        """What has this id; its number in the order is not known (0)."""
        wanted = transactions.get_keys([self.keys.entry(check_id(id))])
        answer = await self._txn(wanted, _until(timeout_ms), writes=False)
        (held,) = answer.ranges(1)
        return None if held is None else ordered_entry(id, held, 0)

    async def _append(
        self,
        id: bytes,
        kind: Kind,
        fingerprint: bytes,
        body: bytes,
        until: float,
        under: OrderState | None,
    ) -> EntryAppended | EntryAbandoned | EntryFenced:
        check_id(id)
        while True:
            state = under or self._state or (await self._end(until)).state
            _check_led(state)
            check_age(id, state)
            entry = StoredEntry(
                1, state.incarnation, state.epoch, state.coordinator, kind, fingerprint, body
            )
            got = await self._once(id, entry, state, until)
            if isinstance(got, FloorMoved) and under is not None:
                # The epoch is the same; only what was forgotten has changed.
                under = got.state
            elif not isinstance(got, FloorMoved) and (
                under is not None or not isinstance(got, EntryFenced)
            ):
                return got

    async def _once(
        self, id: bytes, entry: StoredEntry, state: OrderState, until: float
    ) -> AppendOutcome:
        answer = await self._txn(transactions.append(self.keys, id, entry, state), until)
        if answer.succeeded:
            return appended(entry, answer.header.revision)
        found, *rest = transactions.read_answer(answer, 1 + transactions.STATE_KEYS)
        return not_appended(id, entry, found, state, self._learn(rest, state))

    # --- what is known -------------------------------------------------------------------------

    async def _end(self, until: float) -> OrderEnd:
        was = self._state
        answer = await self._txn(transactions.read_state(self.keys), until, writes=False)
        *found, last = answer.ranges(transactions.STATE_KEYS + 1)
        point = START if last is None else OrderPoint(last.revision, last.version)
        return OrderEnd(point, self._learn(found, was))

    def _learn(self, found: Sequence[HeldKey | None], was: OrderState | None) -> OrderState:
        """What three keys say. `was` is what was known when they were asked for: other calls may
        have learned newer things meanwhile.
        """
        incarnation, epoch, floor = found
        state = order_state(incarnation, epoch, floor, was=was)
        if state is None:
            raise UnknownMesh(
                f"the etcd holds no order of {self.keys.scope}", hint="begin one: quorum init"
            )
        self._state = newer(self._state, state)
        return state

    async def _txn(self, request: TxnRequest, until: float, *, writes: bool = True) -> TxnAnswer:
        if asyncio.get_running_loop().time() >= until:
            raise Unreachable("the time is over, and nothing was asked of the etcd")
        return await self._gateway.call(TXN, request, TxnAnswer, until=until, writes=writes)


def _until(timeout_ms: int) -> float:
    return asyncio.get_running_loop().time() + timeout_ms / SECOND_MS


def _check_led(state: OrderState) -> None:
    if not state.epoch_version:
        raise EtcdRefused(
            "nobody coordinates this order yet", hint="a node of the mesh has to coordinate first"
        )
