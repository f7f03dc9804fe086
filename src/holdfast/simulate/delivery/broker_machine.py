"""The broker of a simulated world: the real one, on a machine whose disk and clock fail.

Store, acceptor, connections and sessions are those of a broker process. Only the line and the loop
are played: frames come from and go to a `Wire`, and the loop's clock is the world's. The store
never waits, so whatever was begun has ended when an activity ends; and nothing leaves before that,
so no node gets an answer that was given after the machine's death.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import apsw

from holdfast.broker.accept import Acceptor, RetentionPolicy
from holdfast.broker.broker import NO_CERTIFICATE, Broker
from holdfast.broker.connection import Connection
from holdfast.broker.identity import KEY, NAME, Identity
from holdfast.broker.session import Session
from holdfast.broker.settings import BrokerSettings
from holdfast.broker.strangers import Strangers
from holdfast.broker.upkeep import BrokerUpkeep, sweep_asked
from holdfast.protocol.frames import (
    Acks,
    Push,
    PushAnswer,
    WireError,
    encode_frame,
    read_from_node,
)
from holdfast.rules import close_codes
from holdfast.rules.errors import OutcomeUnknown
from holdfast.rules.keys import card_of, public_key
from holdfast.rules.limits import DAY_MS, HOUR_MS, SECOND_MS
from holdfast.simulate.world.machine import Death, Machine
from holdfast.simulate.world.world import World
from holdfast.storage.broker.sqlite import SqliteBrokerStore
from holdfast.transport.websocket_server import WebSocketConnection

T = TypeVar("T")

HUB: Final = "hub"
URL: Final = "http://127.0.0.1:7421"
SEED: Final = b"B" * 32
CARD: Final = card_of(HUB, public_key(SEED))
ID_DAYS: Final = 3
KEEPING: Final = RetentionPolicy(keep_ms=HOUR_MS // 2, dedupe_ms=ID_DAYS * DAY_MS)
"""Messages go within the storm, although a broker that is often down counts little of its time; ids
only if everybody sleeps for days.
"""
FAR_MS: Final = DAY_MS
POISON: Final = "poison"
"""How the text of a message begins that the broker fails at, in worlds that have such."""
MARK_ROWS: Final = 20


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time is the world's."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def time(self) -> float:
        return self._world.ticks / SECOND_MS

    def settle(self, work: Coroutine[Any, Any, T] | None = None) -> T | None:
        """Runs this, and all that follows from it, to the end."""
        return self.run_until_complete(_until_idle(work))


async def _until_idle(work: Coroutine[Any, Any, T] | None) -> T | None:
    result = None if work is None else await work
    quiet = 0
    while quiet < 5:  # callbacks of the last turns may begin something
        await asyncio.sleep(0)
        quiet = quiet + 1 if len(asyncio.all_tasks()) == 1 else 0
    return result


class WireEnd:
    """The broker's end of a wire, in place of a socket."""

    has_room = True

    def __init__(self, broker_machine: BrokerMachine, wire: Any) -> None:
        self._broker_machine, self.wire = broker_machine, wire
        self.is_open = True
        self.connection: Connection | None = None

    def send(self, frames: Iterable[bytes]) -> None:
        if self.is_open:
            self._broker_machine.leaving.extend((self.wire, raw) for raw in frames)

    def close(self, code: int, reason: str = "") -> None:
        if self.is_open:
            self.is_open = False
            self._broker_machine.leaving.append((self.wire, code))
            assert self.connection is not None
            self.connection.closed(code)

    def proved(self, *, member: bool) -> None:
        """Nodes of this world send nothing large before their hello."""

    def pause(self) -> None:
        """So little is sent in this world that no limit is reached."""

    def resume(self) -> None:
        """Nothing was paused."""


class _InOrder(dict[Any, None]):
    """A set whose order is the same in every run."""

    def add(self, one: Any) -> None:
        self[one] = None

    def discard(self, one: Any) -> None:
        self.pop(one, None)


class _Broker(Broker):
    """A broker process whose time and chance are the world's."""

    def __init__(
        self,
        broker_machine: BrokerMachine,
        store: SqliteBrokerStore,
        identity: Identity,
        rng: random.Random,
    ) -> None:
        mode = ("retention_scoped", ID_DAYS)
        settings = BrokerSettings(store=broker_machine.home)
        super().__init__(store, identity, settings, cast(Any, mode), source=broker_machine.clock)
        self._world = broker_machine.world
        self.retention = KEEPING
        self.connections = cast(Any, _InOrder())
        self._rng = rng
        self.accepting = Acceptor(
            store,
            KEEPING,
            clock=self.source.now_ms,
            ticks=broker_machine.seconds,
            counts=self.counts,
            wakeups=self.wakeups,
            rate_per_s=1000,
        )
        self.strangers = Strangers(store, broker_machine.seconds, self.counts)
        store.on_news(self.wakeups.news)

    def ticks_ms(self) -> int:
        return self._world.ticks

    async def run(self, work: Callable[..., Any], *args: Any) -> Any:
        """Runs at once: another thread would have a time of its own."""
        return work(*args)

    def session(self, listener: str) -> Session:
        return Session(
            self.store,
            self.me,
            NO_CERTIFICATE,
            self.source.now_ms,
            self._rng.randbytes,
            new_id=self.source.new_id,
            may_begin_epoch=lambda mesh: True,
            strangers=self.strangers,
        )


class BrokerMachine(Machine):
    """The broker's machine. `store` is None while it is down."""

    def __init__(self, world: World, folder: Path, *, poison: str = "") -> None:
        """`poison` is what it does at some messages; see `traits`."""
        super().__init__(world, HUB, folder)
        self.home = self.home.parent / "store"
        self._poison = poison
        self.store: SqliteBrokerStore | None = None
        self.broker: _Broker | None = None
        self.loop: Loop | None = None
        self.leaving: list[tuple[Any, bytes | int]] = []
        """What leaves when the activity has ended: frames, and codes of wires that are closed."""
        self.ends: dict[int, WireEnd] = {}
        self.clean = True
        """The last process ended well, and had room to say so."""
        self.world = world
        self._identity = _identity(folder)
        self._chance = world.fork("chance of the hub")

    @property
    def up(self) -> bool:
        return self.store is not None

    @property
    def is_well(self) -> bool:
        """It runs, and its disk has not failed since it was started."""
        return self.store is not None and self.store.failed is None

    def seconds(self) -> float:
        return self._world.ticks / SECOND_MS

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> Any:
        assert self.store is None, "it runs already"
        store = SqliteBrokerStore(
            self.home, vfs=self.disk.name, mark_rows=MARK_ROWS, tell_copies=False
        )
        loop = Loop(self._world)
        try:
            with self.activity():
                loop.settle(self._open(store))
        except BaseException:
            loop.close()
            raise
        self.store, self.loop, self.clean = store, loop, False
        self.ends, self.leaving = {}, []
        self.since_start.clear()

    async def _open(self, store: SqliteBrokerStore) -> None:
        """Opens the store and starts the broker, in the order of the daemon."""
        await store.open(self.clock.now_ms())
        await store.set_mode("retention_scoped", ID_DAYS)
        self.broker = _Broker(self, store, self._identity, self._chance)
        await BrokerUpkeep(self.broker).look_at_clock()

    def stop(self) -> None:
        assert self.store is not None
        assert self.loop is not None
        try:
            with self.activity():
                self.loop.settle(self.store.close())
        except Exception:
            if self.store is not None:
                self.crash("kill")
            raise
        self.clean = self.store.ended_well
        if self.disk.handles:
            self.crash("kill")
        self._forget()

    def crash(self, death: Death) -> None:
        con = None if self.store is None else self.store._con
        super().crash(death)
        if con is not None:
            con.close(True)
        self._forget()

    def _forget(self) -> None:
        if self.loop is not None:
            self.loop.close()
        self.store = self.broker = self.loop = None
        self.ends, self.leaving = {}, []

    def close(self) -> None:
        self.weather.clear()
        if self.store is not None:
            self.crash("kill")
        super().close()

    # --- work ---------------------------------------------------------------------------------

    def work(self, begin: Callable[[SqliteBrokerStore], Coroutine[Any, Any, T]]) -> T:
        """One call of the store and what follows; raises `Died`, or what the call raises."""
        store, loop = self.store, self.loop
        assert store is not None
        assert loop is not None
        with self.activity():
            result = loop.settle(begin(store))
        return cast(T, result)

    def peek(self, begin: Callable[..., Coroutine[Any, Any, T]], *args: object) -> T:
        """A look behind the scenes, past the weather."""
        assert self.store is not None
        with self.weather.fine():
            try:
                begin(self.store, *args).send(None)
            except StopIteration as done:
                return cast(T, done.value)
        raise AssertionError("a store on SQLite never waits")

    def open_wire(self, wire: Any) -> None:
        assert self.broker is not None
        end = self.ends[wire.number] = WireEnd(self, wire)
        connection = end.connection = Connection(self.broker, "tcp")
        self._in_loop(lambda: connection.opened(cast(WebSocketConnection, end)))

    def hear(self, wire: Any, raw: bytes) -> None:
        """A frame comes in, and is answered."""
        end = self.ends.get(wire.number)
        if end is not None and end.is_open and end.connection is not None:
            connection = end.connection
            if self.is_poison(raw):
                self._meet_poison(end, raw)
            else:
                self._in_loop(lambda: connection.message(raw))

    def is_poison(self, raw: bytes) -> bool:
        return bool(self._poison) and POISON.encode() in raw

    def _meet_poison(self, end: WireEnd, raw: bytes) -> None:
        """Does to all that came together what a fault of the broker does that one of them meets."""
        if self._poison == "hangs up":
            self._in_loop(lambda: end.close(close_codes.INTERNAL))
        elif self._poison == "fails":
            push = read_from_node(raw)
            assert isinstance(push, Push)
            problem = WireError(OutcomeUnknown.code, "something went wrong in this broker")
            answers = [
                PushAnswer(item.number, OutcomeUnknown.http_status, problem=problem)
                for item in push.items
            ]
            end.send([encode_frame(Acks(push.mesh, 0, answers))])

    def hung_up(self, wire: Any) -> None:
        end = self.ends.pop(wire.number, None)
        if end is not None and end.is_open and end.connection is not None:
            end.is_open = False
            connection = end.connection
            self._in_loop(lambda: connection.closed(1006))

    def tick(self) -> None:
        """What a broker process does about once a second."""
        assert self.broker is not None
        assert self.loop is not None
        connections = list(self.broker.connections)
        self._in_loop(lambda: _tick_all(connections))
        upkeep = BrokerUpkeep(self.broker)
        if upkeep.has_leapt():
            with self.activity():
                self.loop.settle(upkeep.look_at_clock())

    def sweep(self) -> None:
        assert self.broker is not None
        assert self.loop is not None
        with self.activity():
            upkeep = BrokerUpkeep(self.broker)
            self.loop.settle(upkeep.sweep())
            self.loop.settle(upkeep.collect())

    def sweep_asked(self) -> None:
        """Sweeps because an operator asks for it."""
        self.work(lambda store: sweep_asked(store, self.clock.now_ms()))

    @property
    def is_far_ahead(self) -> bool:
        """Is its clock so wrong that nothing may be swept by it?"""
        return self.clock.now_ms() - self._world.now_ms > FAR_MS

    @property
    def is_far_off(self) -> bool:
        """Is its clock wrong by days, in either direction?"""
        return abs(self.clock.now_ms() - self._world.now_ms) > FAR_MS

    def _in_loop(self, act: Callable[[], object]) -> None:
        loop = self.loop
        assert loop is not None

        async def work() -> None:
            act()

        with self.activity():
            loop.settle(work())

    # --- copies -------------------------------------------------------------------------------

    def copy_to(self, target: Path) -> None:
        """Copies the running database, as a backup does."""
        assert self.store is not None
        target.mkdir()
        with self.weather.fine():
            copy = apsw.Connection(str(target / "broker.db"))
            with copy.backup("main", self.store.connection, "main") as job:
                while not job.done:
                    job.step(1000)
            copy.close()
            mark = self.home / "broker.mark"
            if mark.exists():
                shutil.copy(mark, target / "broker.mark")


def _tick_all(connections: Iterable[Connection]) -> None:
    for connection in connections:
        connection.tick()


def _identity(folder: Path) -> Identity:
    """The broker's key and name, beside the disk that fails: they are never written again."""
    place = folder / "hub-identity"
    place.mkdir(mode=0o700)
    for name, content in ((KEY, SEED), (NAME, HUB.encode())):
        (place / name).write_bytes(content)
        (place / name).chmod(0o600)
    return Identity(place)
