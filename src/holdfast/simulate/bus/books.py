"""What the peers of a world were promised, and what they got.

A **send** that returned `delivered` or `spooled` is a promise: when all is calm, a handler of the
recipient has had the message. No handler gets one twice, unless the process died before it had said
that it is done. Messages of one sender come in the order in which they were put into the outbox,
within each priority.

A store remembers for an **era**: a durable one until it is put back to an older copy, one in memory
until its process ends. What it knew is then forgotten, and so are promises that stood on it alone.

A **request** ends with its reply or with an error of the bus, in time. Each is handled once while
its server lives, always under the id that its asker gave it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from holdfast.rules.bus.mesh_store import (
    ArrivalVerdict,
    OutboxMessage,
    PeerKey,
    SignedArrival,
)
from holdfast.rules.bus.message import MessageKind
from holdfast.rules.ids import id_text

Outcome = Literal["delivered", "spooled", "failed"]
LATE_MS: Final = 2_000
"""A request may end this much after its time, and no later."""


@dataclass(slots=True)
class SentMessage:
    """A message that one peer has for another."""

    id: bytes
    sender: str
    receiver: str
    lane: str
    """Messages of one topic and priority keep their order."""
    at: int
    place: int | None = None
    """Its place in the order of the sender's outbox; None if the outbox gave no answer."""
    is_promised: bool = False
    accepted_at: int | None = None
    handed_out: list[tuple[int, int]] = field(default_factory=list)
    """Era and life of the receiver, for each time."""
    is_finished: int | None = None
    """The era in which the receiver's store learned that a handler has finished with it."""
    excused: str = ""
    """Why it is no longer owed."""


@dataclass(slots=True)
class AskedRequest:
    """A request that somebody waits for."""

    id: bytes
    asker: str
    body: bytes
    until: int
    """The tick at which it must have ended."""
    outcome: str = ""
    handled: dict[tuple[str, int], int] = field(default_factory=dict)
    """By server and life: how many times."""


class BusBooks:
    """The books of a world."""

    def __init__(self, ticks: Callable[[], int], broken: Callable[[str], None]) -> None:
        self.sent: dict[tuple[bytes, str], SentMessage] = {}
        """By id and receiver."""
        self.asked: dict[bytes, AskedRequest] = {}
        self._ticks, self._broken = ticks, broken
        self._places = 0
        self._last_place: dict[tuple[str, str, str], tuple[int, int, int]] = {}
        """By sender, receiver and lane: both eras and the place of the last one."""
        self._new: dict[tuple[str, int, bytes], int] = {}
        """By receiver, era and id: how often a store took it for new."""
        self._marks: dict[tuple[str, int, PeerKey], int] = {}
        """By receiver, era and key: the highest number that was taken."""
        self._eras: dict[str, int] = {}

    def era(self, machine: str) -> int:
        return self._eras.get(machine, 0)

    # --- messages -------------------------------------------------------------------------------

    def trying(self, sender: str, item: OutboxMessage) -> None:
        """A message is about to be put into the outbox of its sender."""
        message = item.message
        if message.kind in (MessageKind.SEND, MessageKind.PUBLISH):
            self.sent.setdefault(
                (message.id, item.peer),
                SentMessage(
                    message.id,
                    sender,
                    item.peer,
                    f"{message.topic} {message.priority}",
                    self._ticks(),
                ),
            )

    def placed(self, item: OutboxMessage) -> None:
        """It stands there, behind all that were put there before."""
        sent = self.sent.get((item.message.id, item.peer))
        if sent is not None and sent.place is None:
            self._places += 1
            sent.place = self._places

    def answered(self, sender: str, receiver: str, id: bytes, outcome: Outcome) -> None:
        """A send has returned. After an error nobody knows whether the message will come."""
        sent = self.sent.get((id, receiver))
        if outcome == "failed":
            return
        if sent is None:
            self._broken(f"{sender} was promised {id_text(id)}, which is in no outbox")
            return
        sent.is_promised = True
        if outcome == "delivered" and sent.accepted_at is None and not sent.excused:
            self._broken(f"{sender} heard that {receiver} has {id_text(id)}, which has not")

    def accepted(
        self, receiver: str, key: PeerKey, arrival: SignedArrival, verdict: ArrivalVerdict
    ) -> None:
        """A store has judged an arrival, and what it says is durable."""
        if verdict is ArrivalVerdict.REPLAY:
            return
        era, id = self.era(receiver), arrival.message.id
        mark = (receiver, era, key)
        if arrival.sequence <= self._marks.get(mark, 0):
            self._broken(f"{receiver} took number {arrival.sequence}, which it has had")
        self._marks[mark] = arrival.sequence
        if verdict is ArrivalVerdict.NEW and arrival.keep:
            new = self._new[receiver, era, id] = self._new.get((receiver, era, id), 0) + 1
            if new > 1:
                self._broken(f"{receiver} took {id_text(id)} for new twice")
        sent = self.sent.get((id, receiver))
        if sent is not None and sent.accepted_at is None:
            sent.accepted_at = self._ticks()

    def handed_out(self, receiver: str, life: int, sender: str, id: bytes) -> None:
        """A handler of the receiver has got a message."""
        sent = self.sent.get((id, receiver))
        if sent is None or sent.sender != sender:
            self._broken(f"{receiver} got {id_text(id)} from {sender}, who has not sent it")
            return
        era = self.era(receiver)
        if (era, life) in sent.handed_out:
            self._broken(f"{receiver} handled {id_text(id)} twice in one life")
        if sent.is_finished == era:
            self._broken(f"{receiver} got {id_text(id)} again after it was finished with it")
        is_first = not sent.handed_out
        sent.handed_out.append((era, life))
        if is_first:
            self._check_order(sent, era)

    def _check_order(self, sent: SentMessage, era: int) -> None:
        if sent.place is None or sent.excused:
            return
        lane = (sent.sender, sent.receiver, sent.lane)
        eras = (self.era(sent.sender), era)
        last = self._last_place.get(lane)
        if last is not None and last[:2] == eras and sent.place < last[2]:
            self._broken(
                f"{sent.receiver} got {id_text(sent.id)} of {sent.sender} after a later one"
            )
        self._last_place[lane] = (*eras, sent.place)

    def finished(self, receiver: str, ids: list[bytes]) -> None:
        """The receiver's store has learned that handlers are done with these."""
        for id in ids:
            sent = self.sent.get((id, receiver))
            if sent is not None:
                sent.is_finished = self.era(receiver)

    def published(self, sender: str, id: bytes, kept: int) -> None:
        """A publish has returned: so many durable subscribers are promised the message."""
        mine = [sent for (found, _), sent in self.sent.items() if found == id]
        if len(mine) < kept:
            self._broken(f"{sender} was promised {kept} copies of {id_text(id)}, not {len(mine)}")
        for sent in mine:
            sent.is_promised = True

    # --- what is forgotten ----------------------------------------------------------------------

    def went_back(self, machine: str, to: int) -> None:
        """The store of a machine is as it was at a tick: later memories are gone."""
        self._eras[machine] = self.era(machine) + 1
        for sent in self.sent.values():
            if sent.sender == machine and sent.at >= to:
                sent.excused = sent.excused or "its sender forgot it"
            if sent.receiver == machine and (sent.accepted_at or 0) >= to:
                sent.excused = sent.excused or "its receiver forgot it"

    def leapt(self, machine: str) -> None:
        """The clock of a machine has leapt by more than messages wait for an absent peer."""
        for sent in self.sent.values():
            if sent.sender == machine and sent.accepted_at is None:
                sent.excused = sent.excused or "its time was over by the clock of its sender"

    def excuse(self, id: bytes, receiver: str, why: str) -> None:
        sent = self.sent.get((id, receiver))
        if sent is not None:
            sent.excused = sent.excused or why

    # --- requests -------------------------------------------------------------------------------

    def asks(self, asker: str, id: bytes, body: bytes, timeout_ms: int) -> None:
        until = self._ticks() + timeout_ms + LATE_MS
        self.asked[id] = AskedRequest(id, asker, body, until)

    def asks_again(self, id: bytes, remaining_ms: int) -> None:
        """A later life of the asker waits for the reply."""
        asked = self.asked.get(id)
        if asked is None:
            self._broken(f"request {id_text(id)} is outstanding, and nobody has asked it")
        else:
            asked.until = self._ticks() + remaining_ms + LATE_MS

    def handles(self, server: str, life: int, id: bytes, body: bytes) -> None:
        asked = self.asked.get(id)
        if asked is None:
            self._broken(f"{server} handles request {id_text(id)}, which nobody has asked")
            return
        if asked.body != body:
            self._broken(f"{server} got request {id_text(id)} with another body")
        times = asked.handled[server, life] = asked.handled.get((server, life), 0) + 1
        if times > 1:
            self._broken(f"{server} handles request {id_text(id)} for the second time")

    def gave_up(self, server: str, life: int, id: bytes) -> None:
        """The handler was cancelled: if it is asked again, it is done again."""
        asked = self.asked.get(id)
        if asked is not None:
            asked.handled.pop((server, life), None)

    def ended(self, id: bytes, outcome: str) -> None:
        asked = self.asked.get(id)
        if asked is None:
            return
        asked.outcome = outcome
        if self._ticks() > asked.until:
            late = self._ticks() - asked.until + LATE_MS
            self._broken(f"request {id_text(id)} ended {late} ms after its time")

    # --- at calm --------------------------------------------------------------------------------

    def owed(self) -> Iterator[str]:
        """What was promised and has not come, as sentences."""
        for sent in self.sent.values():
            if sent.is_promised and not sent.excused and not sent.handed_out:
                where = "is stored there" if sent.accepted_at is not None else "never came"
                yield f"{id_text(sent.id)} of {sent.sender} for {sent.receiver} {where}, unhandled"
