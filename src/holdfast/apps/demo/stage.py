"""Where the demo plays: its folder, the laptops and the broker in it, and what is said and checked.

A chapter gets the stage and takes what it needs; what an earlier chapter has set up is there. All
laptops are daemons on this machine, whose buses are on loopback.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from time import monotonic
from types import TracebackType
from typing import Final, Self

from holdfast.apps.demo.processes import PATIENCE_S, BrokerProcess, LaptopProcess, ProcessGroup
from holdfast.apps.demo.screen import DemoScreen
from holdfast.node.library.node import Node, open_node
from holdfast.node.trust.trust import Trust
from holdfast.rules.errors import DemoFailed
from holdfast.storage.files.home import HomePaths

_LOOK_AGAIN_S: Final = 0.02
HERE: Final = "127.0.0.1:0"


class DemoStage:
    def __init__(
        self, folder: Path, screen: DemoScreen, *, is_ours: bool, has_console: bool = False
    ) -> None:
        """`is_ours`: the folder goes if the demo is broken off. `has_console`: laptops have a port
        for browsers.
        """
        self._has_console = has_console
        self.beats = 0
        """How often the laptops have written while all of it stays."""
        self.folder, self.screen = folder, screen
        self._is_ours = is_ours
        self.processes = ProcessGroup(folder, removes=is_ours)
        self.laptops: dict[str, LaptopProcess] = {}
        self.peers: dict[str, None] = {}
        """Who has a home, in the order in which they came."""
        self.broker: BrokerProcess | None = None
        self.lake: Path | None = None
        """The lake, once there is one."""
        self.open = ExitStack()
        """What stays open until the demo ends."""
        self.checks = 0
        self._is_broken_off = False
        self._never = threading.Event()

    # --- what is said ----------------------------------------------------------------------------

    def tell(self, text: str) -> None:
        self._go_on()
        self.screen.tell(text)

    def prove(self, holds: object, text: str, otherwise: str = "") -> None:
        """Says what holds, if it does; else the demo has failed, with `otherwise` as the reason."""
        self._go_on()
        if not holds:
            raise DemoFailed(f"this does not hold: {text}" + (f" ({otherwise})" * bool(otherwise)))
        self.checks += 1
        self.screen.proved(text)

    def until(self, holds: Callable[[], object], what: str) -> float:
        """Waits until it is so, and returns how many seconds that took."""
        began = monotonic()
        while not holds():
            if monotonic() - began > PATIENCE_S:
                raise DemoFailed(f"after {PATIENCE_S} s still not: {what}")
            self._never.wait(_LOOK_AGAIN_S)
        return monotonic() - began

    # --- who is there ----------------------------------------------------------------------------

    def home(self, peer: str) -> Path:
        """The folder of a peer's home."""
        return self.folder / peer

    @contextmanager
    def node(self, peer: str) -> Iterator[Node]:
        """The node of a peer for its user, whether or not its daemon runs; made if it is new."""
        self.peers[peer] = None
        with open_node(self.home(peer), peer=peer, create=True) as node:
            yield node

    def laptop(self, peer: str, *words: str) -> LaptopProcess:
        """The daemon of a peer. `words` count for a peer that had none before."""
        if peer not in self.laptops:
            with self.node(peer):
                pass
            page = (f"--tcp={HERE}",) if self._has_console else ()
            listens = (f"--bus-listen={HERE}", *page, *words)
            self.laptops[peer] = LaptopProcess(self.processes, self.home(peer), *listens)
        return self.laptops[peer]

    def switch_on(self, *peers: str) -> None:
        """Starts the daemons of those whose laptops are off, side by side."""
        starting = [laptop for laptop in map(self.laptop, peers) if not laptop.is_up]
        for laptop in starting:
            laptop.begin()
        for laptop in starting:
            laptop.ready()

    def switch_off(self, *peers: str) -> None:
        """With kill -9."""
        for peer in peers:
            self.laptop(peer).kill()

    # --- the end ---------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Raises KeyboardInterrupt if there was one: Python drops it where nobody can catch it, as
        Spark's start has such places.
        """
        if self._is_broken_off:
            raise KeyboardInterrupt

    def _break_off(self, number: int, frame: object) -> None:
        self._is_broken_off = True
        raise KeyboardInterrupt

    def __enter__(self) -> Self:
        is_listening = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if is_listening and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._break_off)
            self.open.callback(signal.signal, signal.SIGINT, signal.default_int_handler)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.open.close()
        finally:
            for laptop in self.laptops.values():
                laptop.kill()
            if self.broker is not None:
                self.broker.kill()
            self.processes.end()
            # What failed is kept, for whoever looks into it; what was broken off is not.
            if self._is_ours and kind is not None and _is_breaking_off(kind):
                with suppress(OSError):
                    rmtree(self.folder)


def trust_of(node: Node) -> Trust:
    return Trust(node._engine, HomePaths(node.home))


def _is_breaking_off(kind: type[BaseException]) -> bool:
    """Whether somebody ended the demo; or went away who was reading it."""
    return issubclass(kind, BrokenPipeError) or not issubclass(kind, Exception)
