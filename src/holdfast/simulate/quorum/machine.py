"""One computer of a world of voters: a disk that fails, the real Raft log on it, the real driver.

Whatever its process does is a call from the world's calendar, so death comes between any two calls,
or in the middle of a call to the disk. What a process that died had planned does not happen. A
paused process does nothing until it goes on: messages and answers of its disk wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from copy import deepcopy
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import apsw

from holdfast.node.quorum.embedded.group_driver import GroupDriver
from holdfast.node.quorum.embedded.log_disk import LogDisk, past_of
from holdfast.node.quorum.embedded.ports import GroupHooks, SnapshotPorts
from holdfast.rules.errors import HoldfastError
from holdfast.rules.quorum.compaction import LogLimits
from holdfast.rules.quorum.log_rows import TAKES_PART, GroupRow, KnownGroup
from holdfast.rules.quorum.raft.config import GroupConfig, GroupMember, encode_config
from holdfast.rules.quorum.raft.effects import RoleChange
from holdfast.rules.quorum.raft.events import DiskChanged, NodeStalled
from holdfast.rules.quorum.raft.messages import Message
from holdfast.rules.quorum.raft.state import GroupTiming, restarted
from holdfast.simulate.disk.disk import SimulatedDisk
from holdfast.simulate.disk.files import watch_files
from holdfast.simulate.quorum.register_fold import RegisterFold
from holdfast.simulate.quorum.registers import Registers
from holdfast.simulate.quorum.voter_disk import SlowQuorumLog
from holdfast.simulate.world.machine import Death, MachineClock, Weather

if TYPE_CHECKING:
    from holdfast.simulate.quorum.quorum import QuorumWorld

SCOPE: Final = "team"
TICK_MS: Final = 100
LIMITS: Final = LogLimits(
    tail_entries=12,
    tail_bytes=1 << 20,
    held_entries=40,
    held_bytes=1 << 20,
    step_entries=6,
    step_bytes=1 << 20,
)
"""So small that logs are shortened all the time."""


class VoterMachine:
    """A computer that may be a member. `driver` is None while it is down, or is none."""

    def __init__(self, world: QuorumWorld, name: str, folder: Path) -> None:
        self.name = name
        self.key = sha256(f"key of {name}".encode()).digest()
        self.clock = MachineClock(world)
        self.weather = Weather(world.fork(f"weather of {name}"))
        self.disk = SimulatedDisk(self.weather, seed=world.seed)
        self.driver: GroupDriver | None = None
        self.registers = Registers()
        self.voter = 0
        """Its id in the group; 0 before it had one."""
        self.set_back = False
        """Its disk was replaced by an older one: it must not vote under its id."""
        self.life = 0
        self.slow_disk_ms = 0
        self.world = world
        self.rng = world.fork(f"machine of {name}")
        self._backup = Registers()
        self._durable = 0
        self._tag = b""
        self._contacts: Sequence[GroupMember] = ()
        self._paused: list[Callable[[], None]] | None = None
        self._doom: Death = "kill"
        self._log: SlowQuorumLog | None = None
        root = folder / name
        root.mkdir()
        self.home = root / "home"
        self.home.mkdir()
        self._stack = ExitStack()
        self._stack.enter_context(self.disk)
        self._stack.enter_context(watch_files(self.disk, root))

    # --- life -----------------------------------------------------------------------------------

    @property
    def up(self) -> bool:
        return self.driver is not None

    @property
    def is_paused(self) -> bool:
        return self._paused is not None

    @property
    def durable_last(self) -> int:
        """How far its log is on its disk, as its own machine knows, or knew when it died."""
        return self._durable if self.driver is None else self.driver.state.durable

    @property
    def takes_part(self) -> bool:
        """Whether it is to run: it has an id, and a disk that it may vote with."""
        return self.voter > 0 and not self.set_back

    def found(self, tag: bytes, voter: int, config: GroupConfig) -> None:
        """The group begins: what `init` and invites do for real homes."""
        self._tag, self.voter = tag, voter
        log = self._open()
        try:
            log.init(SCOPE, tag=tag, voter=voter, config=encode_config(config))
        finally:
            log.close()

    def join(self, tag: bytes, voter: int, contacts: Sequence[GroupMember]) -> None:
        """It becomes a learner under this id, whatever it was before."""
        if self.up:
            self.crash("kill")
        self.life += 1
        with self.weather.fine():
            log = self._open()
            try:
                for group in log.groups():
                    if group.standing in TAKES_PART:
                        log.set_standing(SCOPE, group.voter, "removed")
                log.join(SCOPE, incarnation=1, tag=tag, voter=voter)
            finally:
                log.close()
        self._tag, self.voter, self._contacts = tag, voter, tuple(contacts)
        self.set_back, self._durable = False, 0
        # It counts the entries anew: those that it knows come again, and change nothing.
        self.registers.applied = 0
        self.world.books.begins_anew(self.name)
        self.start()

    def start(self) -> None:
        """A process begins to live, or its disk says why not."""
        assert self.driver is None, "it runs already"
        self.life += 1
        try:
            self._log = self._open()
            group = self._log.group(SCOPE)
            past = past_of(self._log, SCOPE, self.registers.applied)
            head = self._log.head(SCOPE)
        except (HoldfastError, apsw.Error, OSError) as error:
            self.world.note(f"{self.name} cannot start: {type(error).__name__}: {error}")
            self.crash("kill")
            self.world.start_soon(self)
            return
        if not self._may_take_part(group):
            self.crash("kill")
            return
        state = restarted(
            past,
            me=group.voter,
            group=group.tag,
            incarnation=group.incarnation,
            timing=GroupTiming(),
            next_write=head.written + 1,
        )
        self._drive(GroupDriver, self._log, state)
        self.world.check_config(self)
        self.soon(self.rng.randrange(1, TICK_MS), self._tick, "tick")

    def _may_take_part(self, group: GroupRow) -> bool:
        if group.standing == "must_rejoin" and not self.set_back:
            self.world.broken(f"{self.name} must rejoin: {group.reason}")
        if group.standing != "must_rejoin" and self.set_back:
            self.world.broken(f"{self.name} was set back, and would vote")
        return group.standing in TAKES_PART

    def _drive(self, kind: type[GroupDriver], log: SlowQuorumLog, state: Any) -> None:
        fold = RegisterFold(self)
        self._log_disk = disk = LogDisk(
            log,
            SCOPE,
            state.me,
            post=lambda call: self.soon(0, call, "answer of the disk"),
            on_health=lambda health: self._handle(DiskChanged(health)),
            aside=log.aside,
        )
        self.driver = kind(
            self.name,
            state,
            disk,
            self,
            fold,
            GroupHooks(
                now_ms=self.clock.now_ms,
                post=lambda call: self.soon(0, call, "pump"),
                later=lambda ms, call: self.soon(ms, call, "fold"),
                on_role=self._on_role,
                on_config=lambda config: self.world.check_config(self),
            ),
            self._contacts,
            SnapshotPorts(disk, fold),
            LIMITS,
        )

    def _handle(self, event: DiskChanged) -> None:
        if self.driver is not None:
            self.driver.handle(event)

    def _open(self) -> SlowQuorumLog:
        known = []
        if self.takes_part and self.registers.applied:
            known = [
                KnownGroup(
                    scope=SCOPE,
                    incarnation=1,
                    tag=self._tag,
                    voter=self.voter,
                    applied=self.registers.applied,
                )
            ]
        log = SlowQuorumLog(
            self.home,
            known=known,
            vfs=self.disk.name,
            clock=lambda: 0.0,
            file_number=lambda path: 1,
            random=self.world.fork(f"log of {self.name} {self.life}").randbytes,
            ballast_bytes=4096,
        )
        log.bind(self)
        log.writer._clock = lambda: 0.0
        return log

    def back_up(self) -> None:
        """What it has folded, for later; a backup has no Raft log."""
        self._backup = deepcopy(self.registers)

    def restore(self) -> None:
        """Its home becomes what it was at its last backup: older tables, and no Raft log."""
        if self.up:
            self.crash("kill")
        self.disk.crash(self.rng)
        self.disk.backstage = True
        try:
            for path in self.home.glob("quorum.db*"):
                path.unlink()
        finally:
            self.disk.backstage = False
        self.registers, self.set_back, self._durable = self._backup, True, 0
        self._backup = Registers()
        self.start()

    def crash(self, death: Death) -> None:
        """The machine goes down at once; nothing is tidied up."""
        world = self.world
        outcome = self.disk.crash(self.rng, power_loss=death == "power")
        world.note(f"{self.name} dies ({death}), {outcome.lost} writes lost")
        world.happened[death] += 1
        self.weather.calls_left = None
        log, self._log = self._log, None
        driver, self.driver = self.driver, None
        self._paused = None
        if log is not None:
            with suppress(HoldfastError, apsw.Error, OSError):
                log.abort()
        if driver is not None:
            self._durable = driver.state.durable
            world.process_gone(self.name)

    def doom(self, death: Death, calls: int) -> None:
        """It dies after so many calls to its disk."""
        self._doom, self.weather.calls_left = death, calls

    def pause(self) -> None:
        if self._paused is None and self.up:
            self._paused = []

    def resume(self) -> None:
        """It goes on. First comes what waited on its links, then it notices that it stood still."""
        waiting, self._paused = self._paused or [], None
        for call in waiting:
            if self.driver is None or self._paused is not None:
                return
            self._act(self.life, call)
        if self.driver is not None:
            self._act(self.life, partial(self.driver.handle, NodeStalled()))

    def close(self) -> None:
        """The world ends."""
        self.weather.clear()
        if self._log is not None:
            with suppress(HoldfastError, apsw.Error, OSError):
                self._log.abort()
        self._stack.close()

    # --- calls ----------------------------------------------------------------------------------

    def soon(self, delay: int, call: Callable[[], Any], what: str) -> None:
        life = self.life
        self.world.at(delay, lambda: self._act(life, call), name=f"{what} of {self.name}")

    def _act(self, life: int, call: Callable[[], Any]) -> None:
        """Does something in the process of that life, if it still lives."""
        if life != self.life or self.driver is None:
            return
        if self._paused is not None:
            self._paused.append(call)
            return
        call()
        if self.weather.dead:
            self.crash(self._doom)
            self.world.start_soon(self)

    def _tick(self) -> None:
        assert self.driver is not None
        self.soon(TICK_MS, self._tick, "tick")
        self._log_disk.retry()
        self.driver.tick(self.rng.randrange(1 << 16))

    def _on_role(self, change: RoleChange) -> None:
        if change.role == "leader":
            self.world.happened["elected"] += 1
            self.world.books.leads(self.name, change.term)

    def arrive(self, message: Message, source: VoterMachine) -> None:
        """A message has come, over a link of that machine. Whoever speaks under the id of a member
        that is known must have its key.
        """

        def take() -> None:
            assert self.driver is not None
            if self.driver.key_of(message.sender) in (None, source.key):
                contact = GroupMember(message.sender, source.name, source.key, "learner")
                self.driver.receive(message, contact)

        self._act(self.life, take)

    # --- VoterNet -------------------------------------------------------------------------------

    def send(self, to: GroupMember, message: Message) -> None:
        if not self.weather.dead:
            self.world.carry(self.name, to.peer, message)

    def has_room(self, to: GroupMember) -> bool:
        return True
