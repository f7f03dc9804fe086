"""An Ethernet switch in the test itself, whose cables can be long, lossy, or dead in one direction.

    with Networks() as networks, TapSwitch(seed) as switch:
        switch.plug(ana, "10.77.0.1/24")
        switch.plug(ben, "10.77.0.2/24")
        switch.way(ana, ben).is_cut = True    # ana's frames do not reach ben; ben's reach ana
        switch.way(ben, ana).delay_s = 0.02
        switch.way(ben, ana).loss = 0.2

Each machine has a tap device for a network card, and the switch has the files that are their
cables. A thread carries frames from one to the others when they are due. Many kernels have no
netem, and this needs none.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from selectors import EVENT_READ, DefaultSelector
from threading import Thread
from time import monotonic
from types import TracebackType
from typing import Self

from support.netns import Namespace

FRAME_BYTES_MAX = 65536
_GROUP = 1
"""The bit of a hardware address that says: for several machines."""


@dataclass
class Way:
    """What happens to frames from one machine to another."""

    is_cut: bool = False
    delay_s: float = 0.0
    loss: float = 0.0
    carried: int = 0
    dropped: list[bytes] = field(default_factory=list)
    """The frames that were cut off or lost."""


class TapSwitch:
    def __init__(self, seed: int = 0) -> None:
        self._chance = Random(seed)
        self._ports: dict[int, int] = {}
        """The cable of each machine, by the number of its holder."""
        self._ways: dict[tuple[int, int], Way] = {}
        self._places: dict[bytes, int] = {}
        """Which cable a hardware address was seen on."""
        self._due: list[tuple[float, int, int, bytes]] = []
        self._number = 0
        self._selector = DefaultSelector()
        self._stop_reader, self._stop_writer = os.pipe()
        self._selector.register(self._stop_reader, EVENT_READ)
        self._thread = Thread(target=self._carry, name="tap-switch", daemon=True)
        self._thread.start()

    def plug(self, machine: Namespace, address: str, interface: str = "eth0") -> None:
        cable = machine.tap(interface)
        os.set_blocking(cable, False)
        for pid in self._ports:
            self._ways[pid, machine.pid] = Way()
            self._ways[machine.pid, pid] = Way()
        self._ports[machine.pid] = cable
        self._selector.register(cable, EVENT_READ, machine.pid)
        machine.ask("add_address", interface, address)
        machine.ask("up", interface)

    def way(self, source: Namespace, target: Namespace) -> Way:
        return self._ways[source.pid, target.pid]

    def cut(self, machine: Namespace, is_cut: bool = True) -> None:
        """Cuts a machine from all others, in both directions, or joins it again."""
        for ends, way in self._ways.items():
            if machine.pid in ends:
                way.is_cut = is_cut

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._stop_writer)
        self._thread.join()
        self._selector.close()
        for fd in (self._stop_reader, *self._ports.values()):
            os.close(fd)

    def _carry(self) -> None:
        while True:
            wait = max(0.0, self._due[0][0] - monotonic()) if self._due else None
            for key, _ in self._selector.select(wait):
                if key.fd == self._stop_reader:
                    return
                self._take(key.fd, key.data)
            while self._due and self._due[0][0] <= monotonic():
                _, _, cable, frame = heappop(self._due)
                _write(cable, frame)

    def _take(self, cable: int, source: int) -> None:
        try:
            frame = os.read(cable, FRAME_BYTES_MAX)
        except OSError:
            return  # nothing there, or the card is down
        self._places[frame[6:12]] = source
        place = None if frame[0] & _GROUP else self._places.get(frame[:6])
        for target, out in list(self._ports.items()):
            if target != source and place in (None, target):
                self._forward(self._ways[source, target], out, frame)

    def _forward(self, way: Way, out: int, frame: bytes) -> None:
        if way.is_cut or self._chance.random() < way.loss:
            way.dropped.append(frame)
            return
        way.carried += 1
        if not way.delay_s:
            _write(out, frame)
            return
        self._number += 1
        heappush(self._due, (monotonic() + way.delay_s, self._number, out, frame))


def _write(cable: int, frame: bytes) -> None:
    try:
        os.write(cable, frame)
    except OSError:
        return  # the card is down or full: a switch drops the frame
