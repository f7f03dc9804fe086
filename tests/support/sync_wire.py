"""A node and a broker that talk without a network: `SyncSession` and `Session`, frame by frame.

    store = Brokerage(folder)                      a broker's store, and the broker itself
    ana = Laptop(node, store); ana.share()         a node with a mesh that it shares there
    ana.connect(); ana.settle()                   says hello, then all that there is to say
    ana.drop()                                    the line breaks

Nothing happens but what a test asks for, so it can be cut between any two frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from holdfast.broker.effects import Accept, Effect, HangUp, SendFrames
from holdfast.broker.pushes.push_frame import PackedAcks
from holdfast.broker.session import BrokerInfo, Session
from holdfast.broker.verdicts import Outcome
from holdfast.node.library.node import Node
from holdfast.node.sync.session import BrokerAddress, SyncSession
from holdfast.node.trust.trust import Trust
from holdfast.protocol.frames import (
    Acks,
    Entries,
    FromBroker,
    FromNode,
    Urgent,
    Welcome,
    encode_frame,
    read_from_broker,
    read_from_node,
)
from holdfast.rules import features
from holdfast.rules.broker_rows import MEMBER_GRANTS, BrokerMesh, DestinationRow, MemberRow
from holdfast.rules.errors import HoldfastError
from holdfast.rules.keys import card_of, public_key
from holdfast.rules.limits import DAY_MS
from holdfast.rules.outbox import Policies, Policy
from holdfast.rules.rows import MeshRow, OutboxRow
from holdfast.storage.broker.sqlite import SqliteBrokerStore
from holdfast.storage.files.home import HomePaths
from support.envelopes import MESH
from support.source import HandClock

T = TypeVar("T")

URL = "http://127.0.0.1:7421"
SEED = b"B" * 32
CARD = card_of("hub", public_key(SEED))
KEEP_MS = 30 * DAY_MS


def now(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine that never waits comes to."""
    try:
        work.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise AssertionError("it waits for something")


class Brokerage:
    """A broker on SQLite, whose clock stands until it is moved."""

    def __init__(self, folder: Path, clock: HandClock) -> None:
        self.folder = folder
        self.clock = clock
        self.supported = features.offered("retention_scoped", 30)
        self.store = SqliteBrokerStore(folder, sync="off")
        now(self.store.open(clock.now_ms()))

    def reopen(self) -> None:
        now(self.store.close())
        self.store = SqliteBrokerStore(self.folder, sync="off")
        now(self.store.open(self.clock.now_ms()))

    def close(self) -> None:
        now(self.store.close())

    def talk(self, seed: bytes = SEED, name: str = "hub") -> BrokerEnd:
        return BrokerEnd(self, BrokerInfo(name=name, seed=seed, supported=self.supported))

    def mesh(self) -> BrokerMesh:
        found = now(self.store.mesh_get(MESH))
        assert found is not None
        return found

    def topic(self, ref: str, *keys: bytes) -> None:
        row = DestinationRow(kind="topic", ref=ref, made_at=self.clock.now_ms())
        now(self.store.destination_put(MESH, row))
        for key in keys:
            now(self.store.subscribe(MESH, key, ref))


class BrokerEnd:
    """A broker's session, whose effects are carried out at once: one push, one transaction."""

    def __init__(self, broker: Brokerage, me: BrokerInfo) -> None:
        self._broker = broker
        self.session = Session(
            broker.store,
            me,
            bytes(32),
            broker.clock.now_ms,
            lambda size: b"n" * size,
            new_id=broker.clock.new_id,
        )
        self.opening = self.session.opening
        self.closed: tuple[int, str] | None = None

    def on_frame(self, frame: FromNode) -> list[FromBroker]:
        """What the broker answers to a frame."""
        replies = self._carry_out(self.session.receive(encode_frame(frame)))
        while self.session.has_work(may_page=False):
            replies += self._carry_out(now(self.session.step()))
        return replies

    def pages(self) -> list[FromBroker]:
        """What the broker sends unasked."""
        self.session.feeds.look()
        replies: list[FromBroker] = []
        if self.session.has_work(may_page=True):
            replies = self._carry_out(now(self.session.step()))
        return replies + self.session.feeds.passed_over()

    def _carry_out(self, effects: Sequence[Effect]) -> list[FromBroker]:
        replies: list[FromBroker] = []
        for effect in effects:
            match effect:
                case SendFrames():
                    replies += [
                        one.opened() if isinstance(one, PackedAcks) else one
                        for one in effect.frames
                    ]
                case Accept():
                    replies += self._carry_out(self.session.accepted(effect, self._accept(effect)))
                case HangUp():
                    self.closed = (effect.code, effect.reason)
        return replies

    def _accept(self, accept: Accept) -> Sequence[Outcome]:
        batch = accept.slice.good
        try:
            return now(
                self._broker.store.accept(
                    batch, self._broker.clock.now_ms(), keep_ms=KEEP_MS, dedupe_ms=KEEP_MS
                )
            )
        except HoldfastError as error:
            return [error] * len(batch)


class Laptop:
    """A node with its end of a line to the broker."""

    def __init__(
        self, node: Node, broker: Brokerage, folder: Path, *, policy: Policy = Policy.PARK
    ) -> None:
        self.node = node
        self.broker = broker
        self.engine = node._engine
        paths = HomePaths(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if not paths.identity.exists():
            paths.identity.write_bytes(node.peer.encode().ljust(32, b"."))
        self.trust = Trust(self.engine, paths)
        self.key = public_key(self.trust.seed())
        self.sync = SyncSession(
            self.engine,
            self.trust,
            BrokerAddress(URL, CARD),
            policies=Policies(policy),
            entropy=lambda size: b"e" * size,
            chance=lambda: 0.0,
            on_dead=lambda row: self.died.append(row),
        )
        self.died: list[OutboxRow] = []
        self.talk: BrokerEnd | None = None
        self.to_broker: deque[FromNode] = deque()
        self.to_node: deque[FromBroker] = deque()
        self.heard: list[FromBroker] = []
        self.said: list[FromNode] = []
        self.lose: Callable[[FromBroker], bool] = lambda frame: False

    # --- a mesh ------------------------------------------------------------------------------

    def share(self) -> None:
        """The mesh is shared, as publishing does it; what was written before stays here."""
        made = now(
            self.broker.store.mesh_register(
                MESH, "Team", self.key, self.node.peer, "server-1", self.broker.clock.now_ms()
            )
        )
        self.change(
            kind="shared_owner",
            broker_url=URL,
            broker_card=CARD,
            server_id=made.server_id,
            broker_epoch=made.epoch,
        )

    def join(self, *grants: str) -> None:
        row = MemberRow(
            key=self.key,
            name=self.node.peer,
            grants=frozenset(grants) or MEMBER_GRANTS,
            added_at=self.broker.clock.now_ms(),
        )
        now(self.broker.store.member_put(MESH, row))
        mesh = self.broker.mesh()
        self.change(
            kind="shared_guest",
            broker_url=URL,
            broker_card=CARD,
            server_id=mesh.server_id,
            broker_epoch=mesh.epoch,
        )

    @property
    def row(self) -> MeshRow:
        found = self.engine.read("test", lambda tx: tx.mesh_get(MESH))
        assert found is not None
        return found

    def change(self, **fields: Any) -> None:
        row = msgspec.structs.replace(self.row, **fields)
        self.engine.write("test", lambda tx: tx.mesh_change(row))

    # --- the line ----------------------------------------------------------------------------

    def connect(self, talk: BrokerEnd | None = None) -> None:
        self.talk = talk or self.broker.talk()
        hello = self.sync.hello(self.talk.opening())
        (welcome,) = self.talk.on_frame(hello)
        assert isinstance(welcome, Welcome)
        self.to_broker.extend(self.sync.welcomed(welcome))

    def drop(self) -> None:
        self.talk = None
        self.to_broker.clear()
        self.to_node.clear()
        self.sync.dropped()

    def push(self) -> bool:
        push = self.sync.push(MESH)
        if push is not None:
            self.to_broker.append(push)
        return push is not None

    def speak(self) -> bool:
        """One frame reaches the broker; its answers are on their way."""
        if not self.to_broker:
            return False
        frame = read_from_node(encode_frame(self.to_broker.popleft()))
        self.said.append(frame)
        assert self.talk is not None
        self.to_node.extend(self.talk.on_frame(frame))
        return True

    def fetch(self) -> bool:
        """The broker sends what it has."""
        assert self.talk is not None
        frames = self.talk.pages()
        self.to_node.extend(frames)
        return bool(frames)

    def listen(self) -> bool:
        """One frame reaches the node; what it says to it is on its way."""
        if not self.to_node:
            return False
        frame = read_from_broker(encode_frame(self.to_node.popleft()))
        if self.lose(frame):
            return True
        self.heard.append(frame)
        self.to_broker.extend(self.take(frame))
        return True

    def take(self, frame: FromBroker) -> list[FromNode]:
        """The node stores a frame by itself; returns what it says to it."""
        if isinstance(frame, Acks):
            return self.sync.on_acks(frame).frames
        if isinstance(frame, Urgent):
            self.sync.on_urgent(frame)
            return []
        if not isinstance(frame, Entries):
            return self.sync.on_frame(frame)
        frames: list[FromNode] = []
        for piece in self.sync.decode(frame):
            frames = self.sync.on_entries(piece).frames
        return frames

    def settle(self) -> None:
        """Until nobody has anything to say."""
        for _ in range(10_000):
            moved = self.push()
            while self.speak() or self.listen():
                moved = True
            if not (self.fetch() or moved):
                return
        raise AssertionError("they never end")


def settle(*laptops: Laptop) -> None:
    """All of them, until all have everything."""
    for _ in range(3):
        for laptop in laptops:
            laptop.broker.clock.advance(2_000)
            laptop.settle()
