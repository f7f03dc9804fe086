"""A broker at work: its store, its acceptor, its connections, and what they share."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from holdfast.broker.accept import Acceptor
from holdfast.broker.counters import BrokerCounts
from holdfast.broker.feed import FeedSizes
from holdfast.broker.identity import Identity
from holdfast.broker.processes.crew import Crew
from holdfast.broker.processes.sessions import CrewSessions
from holdfast.broker.session import BrokerInfo, Session
from holdfast.broker.settings import BrokerSettings, retention_of
from holdfast.broker.strangers import Strangers
from holdfast.broker.wakeups import Wakeups
from holdfast.rules import features, limits
from holdfast.rules.broker_rows import Mode
from holdfast.rules.clock_check import ClockCheck, ClockNote
from holdfast.rules.connection_policy import Admission, admission
from holdfast.service.clock import Clock, SystemClock
from holdfast.service.sessions import Sessions
from holdfast.storage.broker.port import BrokerStore

if TYPE_CHECKING:
    from holdfast.broker.connection import Connection

NO_CERTIFICATE = bytes(32)
"""What a hello is bound to on a listener without TLS, which only this machine reaches."""


class Broker:
    """One process of a broker."""

    def __init__(
        self,
        store: BrokerStore,
        identity: Identity,
        settings: BrokerSettings,
        mode: tuple[Mode, int],
        *,
        threads: Executor | None = None,
        source: Clock | None = None,
        crew: Crew | None = None,
    ) -> None:
        """`crew` is what this process knows of others of the same parent."""
        self.store, self.identity, self.settings, self.crew = store, identity, settings, crew
        self.threads = threads
        self.source = source or SystemClock()
        self.mode = mode
        self.me = BrokerInfo(
            name=identity.name,
            seed=identity.seed(),
            supported=features.offered(*self.mode, connections=settings.connection_policy),
        )
        self.retention = retention_of(*self.mode, settings.keep_days)
        self.counts = BrokerCounts()
        self.wakeups = Wakeups(
            alone=settings.dsn is None, wanted=lambda mesh, on: store.wants_news(mesh, on=on)
        )
        self.apart = settings.dsn is not None
        """The store is a process of its own, that may write while this one reads and answers."""
        self.accepting = Acceptor(
            store,
            self.retention,
            clock=self.source.now_ms,
            ticks=monotonic,
            counts=self.counts,
            wakeups=self.wakeups,
            rate_per_s=settings.rate_per_s,
        )
        store.may_hold_up_the_loop(self._has_few)
        self.strangers = Strangers(store, monotonic, self.counts)
        self.sessions: Sessions = Sessions(identity, clock=monotonic, random=os.urandom)
        if crew is not None:
            self._join(crew)
        self.certificate = b""
        """The digest of the certificate that the TLS listener shows."""
        self.connections: set[Connection] = set()
        self.feed_sizes = FeedSizes()
        self._by_key: dict[bytes, set[Connection]] = {}
        """The connections whose member has proved its key."""
        self.clock_check: ClockCheck | None = None
        """Whether this broker believes its clock; None before the first look."""
        self.clock_looked: tuple[int, int] | None = None
        """What the wall clock and the ticks showed at the last look."""
        self.clock_note: ClockNote | None = None
        """What this process noted of its clock at the last look."""
        self.uncounted_ms = 0
        """How much of the wall clock does not count towards any age."""
        self._epoch_at: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def _join(self, crew: Crew) -> None:
        sessions = self.sessions = CrewSessions(
            self.identity,
            clock=monotonic,
            random=os.urandom,
            number=crew.place.number,
            secret=crew.place.secret,
            ask=crew.ask_from_thread,
        )
        # A thread of its own: those of calls may all wait for another process.
        proofs = ThreadPoolExecutor(1, "holdfast-proofs")

        async def prove(body: bytes) -> bytes:
            return await asyncio.get_running_loop().run_in_executor(
                proofs, sessions.prove_for, body
            )

        crew.answers("prove", prove)

    @property
    def leads(self) -> bool:
        """Whether this process does what one does for all that share a folder."""
        return self.crew is None or self.crew.place.leads

    def ticks_ms(self) -> int:
        return ticks_ms()

    def certificate_of(self, listener: str) -> bytes:
        return self.certificate if listener == "tls" else NO_CERTIFICATE

    def session(self, listener: str) -> Session:
        return Session(
            self.store,
            self.me,
            self.certificate_of(listener),
            self.source.now_ms,
            os.urandom,
            new_id=self.source.new_id,
            open_session=self._open_session,
            may_begin_epoch=self._may_begin_epoch,
            accept_s=self._accept_s,
            admit=self._admit,
            strangers=self.strangers,
            feed_sizes=self.feed_sizes,
        )

    def _admit(self, key: bytes) -> bool:
        """Whether one more connection of a member is welcome; closes those that it replaces."""
        others = list(self._by_key.get(key, ()))
        verdict = admission(self.settings.connection_policy, len(others))
        if verdict is Admission.REPLACE:
            for connection in others:
                connection.replaced()
        return verdict is not Admission.REFUSE

    def _open_session(self, name: str, key: bytes) -> tuple[str, int]:
        session = self.sessions.open(name, key)
        return session.token, session.expires_in_ms

    def _accept_s(self) -> float:
        """How long the store took for the last group, if it is a process of its own and one of the
        cores is for it: to write one half while the other is read costs a third more of the
        processor, which other processes of this broker have use for.
        """
        return self.accepting.took_s if self.apart and self.crew is None else inf

    def _has_few(self) -> bool:
        return len(self.connections) <= limits.ACCEPT_AT_ONCE_CONNECTIONS

    def _may_begin_epoch(self, mesh: str) -> bool:
        """May a new epoch begin because a member says that it has seen more? Not again and again:
        the member might be wrong.
        """
        now = monotonic()
        last = self._epoch_at.get(mesh)
        if last is not None and (now - last) * limits.SECOND_MS < limits.EPOCH_BY_WORD_MS:
            return False
        self._epoch_at[mesh] = now
        return True

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Begins work that only the end of the process waits for (`settle`)."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Waits for the work that was begun in the background."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def run(self, work: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.threads, work, *args)

    def subscribed(self, mesh: str, key: bytes, topic: str, *, on: bool) -> None:
        """A member has subscribed to a topic, or ended that: tells its connections."""
        for connection in self._by_key.get(key, ()):
            connection.subscribed(mesh, topic, on=on)

    def proved(self, connection: Connection) -> None:
        """A connection has a member from now on."""
        self._by_key.setdefault(connection.key, set()).add(connection)

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        of_member = self._by_key.get(connection.key)
        if of_member is not None:
            of_member.discard(connection)
            if not of_member:
                del self._by_key[connection.key]


def ticks_ms() -> int:
    """Milliseconds that never go back; where the system can, they count on while it sleeps."""
    kind = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(kind) // 1_000_000
