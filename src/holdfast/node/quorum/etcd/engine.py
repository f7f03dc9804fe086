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
from holdfast.protocol.etcd_json import RANGE, TXN, RangeAnswer, TxnAnswer, TxnRequest
from holdfast.rules.errors import (
    AlreadyExists,
    BadAnswer,
    BodyTooLarge,
    EtcdRefused,
    OverLimit,
    UnknownMesh,
    Unreachable,
)
from holdfast.rules.etcd.entry import (
    START,
    HeldKey,
    Kind,
    OrderBase,
    OrderedEntry,
    OrderPoint,
    OrderState,
    StoredBeat,
    StoredEntry,
    StoredEpoch,
    StoredIncarnation,
    newer,
    order_state,
    ordered_entry,
    pack,
    unpack,
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
from holdfast.rules.limits import ETCD_BASES_MAX, ETCD_ENTRY_BYTES_MAX, SECOND_MS
from holdfast.rules.names import check_peer
from holdfast.transport.etcd_gateway import EtcdGateway


class OrderEnd(NamedTuple):
    """Where an order ends at one moment, and what it says of itself."""

    point: OrderPoint
    state: OrderState
    beats: int = 0
    """How often coordinators have said that they are alive; only a look tells."""
    beat: StoredBeat | None = None
    """What they said last."""


class EtcdEngine:
    """The order of one scope, as one node uses it. Belongs to one event loop."""

    def __init__(
        self, gateway: EtcdGateway, scope: str, *, node: str, nonce: Callable[[], bytes]
    ) -> None:
        """`nonce` makes 16 bytes that were never made before."""
        self._gateway, self.keys = gateway, OrderKeys(scope)
        self._node, self._nonce = check_peer(node), nonce
        self._state: OrderState | None = None

    # --- the order as a whole ------------------------------------------------------------------

    async def begin(
        self,
        incarnation: int,
        *,
        epoch_base: int = 0,
        commits: int = 0,
        fence: str = "",
        nonce: bytes | None = None,
        timeout_ms: int,
    ) -> None:
        """Begins the order, behind so many commits of the mesh. AlreadyExists if somebody has begun
        one in this scope; with the same `nonce` it was us.
        """
        nonce = nonce or self._nonce()
        base = OrderBase(incarnation, 0, commits, fence, nonce)
        born = StoredIncarnation(1, incarnation, epoch_base, nonce, (base,))
        answer = await self._txn(transactions.begin(self.keys, born), _until(timeout_ms))
        if answer.succeeded:
            return
        found = transactions.read_answer(answer, transactions.STATE_KEYS)
        # The answer to an earlier try may have been lost.
        if found[0] is None or found[0].value != pack(born):
            if found[0] is not None:
                self._learn(found, None)
            raise AlreadyExists(
                f"the etcd holds an order of {self.keys.scope} already",
                hint="join it, or use another scope",
            )

    async def begin_incarnation(
        self, incarnation: int, *, epoch_min: int, commits: int, fence: str, timeout_ms: int
    ) -> OrderState:
        """Goes on with a new incarnation behind the end of the order as it is now. Epochs go on
        above `epoch_min`.
        """
        until, nonce = _until(timeout_ms), self._nonce()
        end = await self._end(until, trusted=False)
        while True:
            state = end.state
            if len(state.bases) >= ETCD_BASES_MAX:
                raise OverLimit(f"an order has {ETCD_BASES_MAX} incarnations at most")
            if state.incarnation >= incarnation:
                raise AlreadyExists(
                    f"the order of {self.keys.scope} is in incarnation {state.incarnation} already"
                )
            base = OrderBase(incarnation, end.point.position, commits, fence, nonce)
            epoch_base = max(state.epoch_base, epoch_min - state.epoch_version)
            born = StoredIncarnation(1, incarnation, epoch_base, nonce, (*state.bases, base))
            request = transactions.begin_incarnation(self.keys, state, born, end.point.number)
            answer = await self._txn(request, until)
            end = await self._end(until, trusted=False)
            if answer.succeeded or end.state.incarnation_value == pack(born):
                self._state = end.state
                return end.state

    async def end(self, *, timeout_ms: int) -> OrderEnd:
        """Where the order ends now: whoever has seen everything up to there, and reads then, reads
        linearizably.
        """
        return await self._end(_until(timeout_ms))

    async def recovered_end(self, *, timeout_ms: int) -> OrderEnd:
        """The same of an order that is older than it was: it is believed if somebody has begun a
        new incarnation of it.
        """
        end = await self._end(_until(timeout_ms), trusted=False)
        if self._state is not None and end.state.incarnation > self._state.incarnation:
            self._state = end.state
        return end

    async def coordinate(self, *, timeout_ms: int) -> OrderState:
        """Takes a new epoch for this node. Every epoch before it is over then."""
        until = _until(timeout_ms)
        led = StoredEpoch(1, self._node, self._nonce())
        state = (await self._end(until)).state
        while True:
            taken, state = await self._raise(state, led, until)
            if taken:
                return state

    async def take_over(self, seen: OrderState, *, timeout_ms: int) -> OrderState | None:
        """The same, unless somebody else has done it since `seen`."""
        led = StoredEpoch(1, self._node, self._nonce())
        taken, state = await self._raise(seen, led, _until(timeout_ms))
        return state if taken else None

    async def _raise(
        self, state: OrderState, led: StoredEpoch, until: float
    ) -> tuple[bool, OrderState]:
        answer = await self._txn(transactions.raise_epoch(self.keys, state, led), until)
        if answer.succeeded:
            (held,) = transactions.read_answer(answer, 1)
            if held is None:
                raise BadAnswer("the etcd does not read what it has written")
            led_now = msgspec.structs.replace(
                state, coordinator=self._node, epoch_version=held.version
            )
            self._state = newer(self._state, led_now)
            return True, led_now
        found = transactions.read_answer(answer, transactions.STATE_KEYS)
        # By an earlier try, whose answer was lost, if it is what we have written.
        return found[1] is not None and found[1].value == pack(led), self._learn(found, state)

    # --- signs of life -------------------------------------------------------------------------

    async def look(self, *, timeout_ms: int) -> OrderEnd:
        """Where the order ends, and whether its coordinator shows signs of life."""
        was = self._state
        request = transactions.look(self.keys)
        answer = await self._txn(request, _until(timeout_ms), writes=False)
        *found, last, beat = answer.ranges(transactions.STATE_KEYS + 2)
        point = START if last is None else OrderPoint(last.revision, last.version)
        state = self._learn(found, was)
        if beat is None:
            return OrderEnd(point, state)
        return OrderEnd(point, state, beat.version, unpack(StoredBeat, beat))

    async def beat(
        self,
        state: OrderState,
        beats: int,
        *,
        let_go: bool = False,
        to: str = "",
        timeout_ms: int,
    ) -> bool:
        """Says something about who coordinates, under an epoch and behind so many beats. False if
        either is no longer so: look again.
        """
        value = StoredBeat(1, state.epoch_version, let_go, to)
        request = transactions.beat(self.keys, state, beats, value)
        answer = await self._txn(request, _until(timeout_ms))
        if answer.succeeded:
            return True
        *found, held = transactions.read_answer(answer, transactions.STATE_KEYS + 1)
        self._learn(found, state)
        # By an earlier try, whose answer was lost.
        return held is not None and held.version == beats + 1 and held.value == pack(value)

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

    async def number_at(self, position: int, *, timeout_ms: int) -> int:
        """How many entries the order had at a position. Truncated if the etcd has forgotten it."""
        request = transactions.get_at(self.keys.last, position)
        until = _until(timeout_ms)
        found = (await self._gateway.call(RANGE, request, RangeAnswer, until=until)).one
        return 0 if found is None else found.version

    @property
    def known(self) -> OrderState | None:
        """What was last heard of the order."""
        return self._state

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

    async def _end(self, until: float, *, trusted: bool = True) -> OrderEnd:
        was = self._state if trusted else None
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
