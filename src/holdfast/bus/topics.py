"""Topics: who listens to what, here and elsewhere, and which message goes to which subscription.

Each side of a link tells the other what it listens to (its interest). A message of a topic goes to
the peers that listen when it is published. For a durable subscriber it is put into the outbox, and
waits there if the subscriber is away; who is a durable subscriber is remembered by the store, on
both sides, until the subscription is forgotten.

On the receiving side messages that are kept come from the inbox, in the order of their numbers:
also those that came in an earlier life of the bus, or when nobody listened.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from holdfast.bus.context import BusContext
from holdfast.bus.credit import Credit
from holdfast.bus.guard import guarded
from holdfast.bus.ports import Link
from holdfast.bus.received import ReceivedMessage
from holdfast.bus.subscription import BusSubscription
from holdfast.protocol.bus_frames import InterestFrame
from holdfast.rules.bus.mesh_store import InboxMessage, PeerKey
from holdfast.rules.bus.message import BusMessage, MessageKind
from holdfast.rules.bus.signed_envelope import check_bus_name
from holdfast.rules.bus.topic_pattern import check_pattern, takes
from holdfast.rules.errors import BadAnswer, BadInput, BusClosed, BusError, OverLimit
from holdfast.rules.limits import BUS_FINISHED_KEPT, BUS_INBOX_PAGE_BYTES, BUS_INTERESTS_MAX

OURS = ""
"""Under this name the store keeps our own durable subscriptions."""
_PAGE = 256


class _Holding:
    """A message of the inbox that subscriptions here want and have not finished."""

    __slots__ = ("credit", "finished", "late", "wanted_by")

    def __init__(
        self,
        wanted_by: dict[BusSubscription, None],
        late: dict[BusSubscription, None] | None = None,
        credit: Credit | None = None,
    ) -> None:
        self.wanted_by = wanted_by
        self.late = late
        """Those of them that have had no room for it yet: so long the sender gets no credit."""
        self.credit = credit
        self.finished = False

    def taken(self, subscription: BusSubscription) -> None:
        if self.late is not None:
            self.late.pop(subscription, None)
        if not self.late and self.credit is not None:
            self.credit.release()
            self.credit = None


class Topics:
    """All subscriptions of one bus, and what its peers listen to."""

    def __init__(
        self,
        context: BusContext,
        announce: Callable[[], None],
        on_reply: Callable[[str, InboxMessage], None],
    ) -> None:
        """`announce` tells all peers what we listen to now; `on_reply` gets the replies that stand
        in the inbox.
        """
        self._context, self._announce, self._on_reply = context, announce, on_reply
        self._subscriptions: list[BusSubscription] = []
        self._own_durable: list[str] = []
        self._interests: dict[str, InterestFrame] = {}
        """What connected peers told of themselves, by name."""
        self._durable: dict[str, list[str]] = {}
        """Who has durable subscriptions, connected or not."""
        self._held: dict[int, _Holding] = {}
        self._done: OrderedDict[int, None] = OrderedDict()
        """The messages of the inbox that were finished last: a page that was read before the store
        knew it may still hold them.
        """
        self._credits: dict[tuple[PeerKey, bytes], Credit] = {}
        self._names: dict[PeerKey, str] = {}
        self._cursor = 0
        """Messages of the inbox up to this number were handed out, or wait for a subscription."""
        self._reading = False
        self._read_again = False

    async def load(self) -> None:
        """Reads what an earlier life of the bus left behind."""
        interests = await guarded(self._context.store.interests())
        self._own_durable = list(interests.pop(OURS, ()))
        self._durable = {name: list(patterns) for name, patterns in interests.items()}

    # --- our subscriptions -----------------------------------------------------------------------

    @property
    def patterns(self) -> list[str]:
        return list(
            dict.fromkeys([*(one.pattern for one in self._subscriptions), *self._own_durable])
        )

    @property
    def durable_patterns(self) -> list[str]:
        return list(self._own_durable)

    async def opened(self, subscription: BusSubscription) -> None:
        if self._context.is_closed:
            raise BusClosed("the bus is closed")
        if len(self._subscriptions) >= BUS_INTERESTS_MAX:
            raise OverLimit(f"a bus has {BUS_INTERESTS_MAX} subscriptions at most")
        pattern = subscription.pattern
        if subscription.durable and pattern not in self._own_durable:
            await guarded(self._context.store.keep_interest(OURS, [*self._own_durable, pattern]))
            self._own_durable.append(pattern)
        self._subscriptions.append(subscription)
        self._announce()

    async def forget(self, pattern: str) -> None:
        """Peers keep no messages for this durable subscription any more."""
        if pattern not in self._own_durable:
            raise BadInput(f"there is no durable subscription to {pattern!r}")
        left = [one for one in self._own_durable if one != pattern]
        await guarded(self._context.store.keep_interest(OURS, left))
        self._own_durable = left
        self._announce()

    def closed(self, subscription: BusSubscription) -> None:
        self._subscriptions.remove(subscription)
        for number, holding in list(self._held.items()):
            if subscription in holding.wanted_by:
                self._let_go(number, holding, subscription)
        self._announce()

    def end(self) -> None:
        for subscription in self._subscriptions:
            subscription.end()

    # --- what peers listen to --------------------------------------------------------------------

    async def keep(self, link: Link, interest: InterestFrame) -> None:
        """Checks what a peer says that it listens to, and keeps what of it is durable. `heard` is
        called next, if the link is still up. Raises BadAnswer if what it says cannot be.
        """
        told = (
            interest.topics,
            interest.durable,
            interest.services,
            interest.relays,
            interest.takes,
        )
        if max(map(len, told)) > BUS_INTERESTS_MAX:
            raise BadAnswer(f"{link.name} listens to more than {BUS_INTERESTS_MAX} topics")
        try:
            for pattern in (
                *interest.topics,
                *interest.durable,
                *interest.relays,
                *interest.takes,
            ):
                check_pattern(pattern)
            for service in interest.services:
                check_bus_name(service, "service")
        except BadInput as error:
            raise BadAnswer(f"{link.name} listens to something else: {error.message}") from None
        if self._durable.get(link.name, []) != interest.durable:
            await guarded(self._context.store.keep_interest(link.name, interest.durable))
            if interest.durable:
                self._durable[link.name] = list(interest.durable)
            else:
                self._durable.pop(link.name, None)

    def heard(self, name: str, interest: InterestFrame) -> None:
        """What a connected peer listens to is known from now on. The store has what of it is
        durable: whoever publishes sees all of an interest or nothing of it.
        """
        before = self._interests.get(name)
        self._interests[name] = interest
        if interest.takes != ([] if before is None else before.takes):
            self._announce()  # we pass on what somebody takes

    def link_down(self, name: str) -> None:
        gone = self._interests.pop(name, None)
        if gone is not None and gone.takes:
            self._announce()

    def taken_by_others(self, name: str) -> list[str]:
        """Topics that peers other than this one take from us although others published there."""
        told = [one.takes for other, one in self._interests.items() if other != name]
        return list(dict.fromkeys(pattern for takes in told for pattern in takes))

    def is_heard(self, topic: str) -> bool:
        """Whether somebody here listens to a topic now."""
        return any(takes(one.pattern, topic) for one in self._subscriptions)

    def interest_of(self, name: str) -> InterestFrame | None:
        """What a connected peer told of itself."""
        return self._interests.get(name)

    def serving(self, service: str) -> list[str]:
        """Connected peers that serve something."""
        return [name for name, one in self._interests.items() if service in one.services]

    def services_of(self, name: str) -> list[str]:
        interest = self._interests.get(name)
        return list(interest.services) if interest is not None else []

    def topics_of(self, name: str) -> list[str]:
        interest = self._interests.get(name)
        return list(interest.topics) if interest is not None else []

    @property
    def durable_names(self) -> list[str]:
        """Peers for which something is kept, connected or not."""
        return list(self._durable)

    def durable_of(self, name: str) -> list[str]:
        return list(self._durable.get(name, ()))

    def listening(self, topic: str) -> list[str]:
        """Connected peers that listen to a topic, and have no durable subscription to it."""
        durable = self.durably_listening(topic)
        return [
            name
            for name, one in self._interests.items()
            if name not in durable and any(takes(pattern, topic) for pattern in one.topics)
        ]

    def durably_listening(self, topic: str) -> list[str]:
        return [
            name
            for name, patterns in self._durable.items()
            if any(takes(pattern, topic) for pattern in patterns)
        ]

    # --- arrivals ----------------------------------------------------------------------------

    def deliver_passing(
        self, sender: str, key: PeerKey, message: BusMessage, credit: Credit
    ) -> None:
        """A message that is not kept: whoever listens now gets it."""
        wanted = [one for one in self._subscriptions if takes(one.pattern, message.topic)]
        now = self._context.clock.now_ms()
        if not wanted:
            self._context.counts["unheard"] += 1
        for subscription in wanted:
            received = ReceivedMessage(message, sender, key, now)
            if not subscription.add_passing(received, credit):
                self._context.counts["passing_dropped"] += 1
        credit.release()

    def are_kept(
        self, link: Link, came: list[tuple[BusMessage, Credit]], rows: list[InboxMessage] | None
    ) -> None:
        """Messages of a peer stand in the inbox. If they are what comes next there, they are handed
        out at once, otherwise read with those before them.
        """
        self._names[link.peer] = link.name
        if rows and not self._reading and rows[0].number == self._cursor + 1:
            self._hand_out_all(rows, came)
            return
        for message, credit in came:
            self._credits[link.peer, message.id] = credit
        self.take_in()

    def take_in(self) -> None:
        """Reads what is new in the inbox, and hands it out."""
        if self._reading:
            self._read_again = True
        elif not self._context.is_closed:
            self._reading = True
            self._context.spawn(self._take_in(), "inbox")

    async def _take_in(self) -> None:
        try:
            while True:
                self._read_again = False
                rows = await guarded(self._context.store.pending_inbox(self._cursor, _PAGE))
                await self._know(rows)
                for row in rows:
                    self._hand_out(row, self._credits.pop((row.sender, row.message.id), None))
                    self._cursor = row.number
                if _is_last(rows) and not self._read_again:
                    return
        finally:
            self._reading = False

    def _hand_out_all(
        self, rows: Sequence[InboxMessage], came: Sequence[tuple[BusMessage, Credit]]
    ) -> None:
        """As `_hand_out` for each. Most often one subscription wants them and has room: then it is
        woken once, and the sender gets its credit back in one piece.
        """
        taken: list[Credit] = []
        topic: str | None = None
        only: BusSubscription | None = None
        for row, (message, credit) in zip(rows, came, strict=True):
            number = row.number
            if message.topic != topic:
                topic = message.topic
                only = self._only_reader(topic)
            if (
                only is None
                or message.kind is MessageKind.REPLY
                or not only.is_caught_up
                or only.room <= 0
            ):
                self._hand_out(row, credit)
            else:
                self._held[number] = _Holding({only: None})
                only.add(self._received(row, only))
                only.cursor = number
                taken.append(credit)
            self._cursor = number
        Credit.release_all(taken)

    def _only_reader(self, topic: str) -> BusSubscription | None:
        """The one subscription that wants messages of a topic; None if there are more, or none."""
        found: BusSubscription | None = None
        for one in self._subscriptions:
            if takes(one.pattern, topic):
                if found is not None:
                    return None
                found = one
        return found

    def _hand_out(self, row: InboxMessage, credit: Credit | None) -> None:
        if row.message.kind is MessageKind.REPLY:
            self._on_reply(self._names[row.sender], row)
            wanted = []
        else:
            wanted = [one for one in self._subscriptions if takes(one.pattern, row.message.topic)]
        if not wanted:
            if credit is not None:
                credit.release()
            return
        wanted_by = dict.fromkeys(wanted)
        holding = self._held[row.number] = _Holding(wanted_by, dict(wanted_by), credit)
        for subscription in wanted:
            if subscription.is_caught_up and subscription.room > 0:
                subscription.add(self._received(row, subscription))
                subscription.cursor = row.number
                holding.taken(subscription)
            else:
                subscription.is_caught_up = False
                self.fill(subscription)

    def _received(self, row: InboxMessage, subscription: BusSubscription) -> ReceivedMessage:
        sender = row.sender
        name = self._names.get(sender, "")
        return ReceivedMessage(
            row.message, name, sender, row.received_at, row.number, subscription.finished
        )

    # --- subscriptions that are behind -----------------------------------------------------------

    def fill(self, subscription: BusSubscription) -> None:
        """Reads messages of the inbox for a subscription that has room and has not seen all."""
        if (
            not subscription.is_filling
            and not subscription.is_caught_up
            and subscription.room > 0
            and not self._context.is_closed
        ):
            subscription.is_filling = True
            self._context.spawn(self._fill(subscription), "fill")

    async def _fill(self, subscription: BusSubscription) -> None:
        try:
            while subscription.room > 0 and subscription in self._subscriptions:
                upto = self._cursor
                page = await guarded(self._context.store.pending_inbox(subscription.cursor, _PAGE))
                await self._know(page)
                for row in page:
                    # What is newer is handed out, or left for us, by `take_in`.
                    if row.number > upto or subscription.room <= 0:
                        break
                    self._offer(row, subscription)
                    subscription.cursor = row.number
                else:
                    if _is_last(page):
                        subscription.cursor = max(subscription.cursor, upto)
                if page and page[-1].number > upto and subscription.room > 0:
                    subscription.cursor = max(subscription.cursor, upto)
                if subscription.cursor >= self._cursor:
                    subscription.is_caught_up = True
                    return
        except BusError as error:
            subscription.fail(error)
        finally:
            subscription.is_filling = False

    async def _know(self, rows: Sequence[InboxMessage]) -> None:
        """Finds out who the senders are that have had no link since the bus was bound."""
        for row in rows:
            if row.sender not in self._names:
                peer = await guarded(self._context.peers.of_key(row.sender))
                self._names[row.sender] = "" if peer is None else peer.name

    def _offer(self, row: InboxMessage, subscription: BusSubscription) -> None:
        if row.message.kind is MessageKind.REPLY or subscription not in self._subscriptions:
            return
        if row.number in self._done or self._context.is_finished(row.number):
            return
        holding = self._held.get(row.number)
        if holding is None:
            if not takes(subscription.pattern, row.message.topic):
                return
            self._held[row.number] = _Holding({subscription: None})
        elif subscription not in holding.wanted_by:
            return
        else:
            holding.taken(subscription)
        subscription.add(self._received(row, subscription))

    def finished(self, number: int, subscription: BusSubscription) -> None:
        """A reader has done what was to be done with a message of the inbox."""
        holding = self._held.get(number)
        if holding is not None:
            holding.finished = True
            self._let_go(number, holding, subscription)

    def _let_go(self, number: int, holding: _Holding, subscription: BusSubscription) -> None:
        holding.wanted_by.pop(subscription, None)
        if holding.credit is not None:
            holding.taken(subscription)
        if holding.wanted_by:
            return
        del self._held[number]
        if holding.finished:
            self._done[number] = None
            if len(self._done) > BUS_FINISHED_KEPT:
                self._done.popitem(last=False)
            self._context.finish_inbox(number)


def _is_last(page: Sequence[InboxMessage]) -> bool:
    """Whether nothing followed a page of the inbox when it was read."""
    size = sum(len(row.message.body) for row in page)
    return len(page) < _PAGE and size < BUS_INBOX_PAGE_BYTES
