"""A simulated network under the bus: byte streams that are late, stand still and break anywhere.

A machine has hosts, each on one network of the world; it reaches the hosts of others on the same
networks. `MachineNet` is the `Net` of one life of a machine: its process dies, and everything of it
is gone. Streams behave as TCP does: bytes come in order, once, in pieces of any size, until the
connection ends. It may end at any byte. What a network does wrong:

* a **cut** way loses packets. What is under way waits for the way to heal and comes late, or the
  sender gives up. A cut one way leaves a connection that is half open;
* a machine that is **killed** resets its connections; one that **loses power** says nothing, and
  others notice only when they hear no answer, or when the machine is up again and knows of nothing;
* a host that **changes** leaves connections behind that lead nowhere;
* a reader that does not read fills the pipe, and its sender is told to pause.

`taps` see what is written to a stream, whether it arrives or not: that is how the world checks, and
its attacker records, what honest peers say.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from holdfast.rules.errors import PeerUnreachable
from holdfast.simulate.bus.stream_end import StreamEnd, Way
from holdfast.simulate.world.loop import SimulatedLoop
from holdfast.simulate.world.world import World

CONNECT_MS_MAX: Final = 20_000
"""How long a dial into the void takes to fail, at most."""
ANY_HOST: Final = ("0.0.0.0", "::", "")


class StreamTap(Protocol):
    """Sees what travels."""

    def opened(self, dialler: StreamEnd, listener: StreamEnd) -> None: ...
    def written(self, source: StreamEnd, data: bytes) -> None: ...
    def ended(self, source: StreamEnd) -> None: ...


class BusNetwork:
    """All networks of a world, and every connection on them."""

    def __init__(self, world: World, happened: Callable[[str], None] = lambda what: None) -> None:
        self.world = world
        self.rng = world.fork("network of the bus")
        self.happened = happened
        self.delay_ms_max = 8
        self.taps: list[StreamTap] = []
        self.ends: dict[int, StreamEnd] = {}
        """Both ends of every connection that is not over, by number."""
        self._hosts: dict[str, tuple[str, str]] = {}
        """By host: its machine and its network."""
        self._nets: dict[str, MachineNet] = {}
        """By machine: the net of the process that runs there now."""
        self._cut: dict[Way, None] = {}
        self._last_end = 0

    # --- what is where --------------------------------------------------------------------------

    def give_host(self, machine: str, host: str, network: str = "lan") -> None:
        """From now on the machine has this host on a network."""
        assert host not in self._hosts, "every host is one machine's"
        self._hosts[host] = (machine, network)
        self.world.note(f"{machine} is {host} on {network}")

    def take_host(self, host: str) -> None:
        """The machine loses a host. Connections by it lead nowhere."""
        machine, network = self._hosts.pop(host)
        self.world.note(f"{machine} is no longer {host} on {network}")
        for end in list(self.ends.values()):
            if host in (end.host, end.far.host):
                end.lost = end.far.lost = True

    def hosts_of(self, machine: str) -> list[str]:
        return [host for host, (owner, _) in self._hosts.items() if owner == machine]

    def start(self, machine: str, loop: SimulatedLoop, certificate: bytes) -> MachineNet:
        """The net of a process that begins to live on a machine."""
        self._nets[machine] = MachineNet(self, machine, loop, certificate)
        return self._nets[machine]

    def end_process(self, machine: str, *, power_loss: bool) -> None:
        """The process is gone, and so is the machine if the power is."""
        net = self._nets.pop(machine, None)
        if net is None:
            return
        net.over = True
        for end in [end for end in self.ends.values() if end.net is net]:
            if power_loss:
                end.fall_silent()
            else:
                end.reset_by_kill()

    def process_on(self, machine: str) -> MachineNet | None:
        return self._nets.get(machine)

    def find_listener(self, source: str, address: str) -> tuple[MachineNet, str, Dialled] | None:
        """Who answers at an address that a machine dials: its net, the host of the dialler on the
        same network, and what makes the protocol. Raises PeerUnreachable if a machine is there and
        nobody listens; None if nothing answers at all.
        """
        host, _, port = address.rpartition(":")
        found = self._hosts.get(host)
        if found is None:
            return None
        target, network = found
        ours = [h for h, (m, n) in self._hosts.items() if m == source and n == network]
        net = self._nets.get(target)
        if not ours or net is None or self.is_cut(source, target) or self.is_cut(target, source):
            return None
        for place in (host, *ANY_HOST):
            if (place, port) in net.listening:
                return net, ours[0], net.listening[place, port]
        raise PeerUnreachable(f"nobody listens at {address}")

    # --- what goes wrong ------------------------------------------------------------------------

    def cut_off(self, ways: Iterable[Way]) -> None:
        """These ways lose everything, beside those that do already."""
        for way in ways:
            self._cut[way] = None
        self.world.note(f"cut: {sorted(self._cut)}")

    def heal(self) -> None:
        self._cut.clear()
        self.world.note("healed")
        for end in list(self.ends.values()):
            end.try_again()

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut

    def break_some(self, rng: random.Random, machine: str) -> None:
        """Something in between resets a connection of this machine, in the middle of a piece."""
        ends = [end for end in self.ends.values() if end.net.machine == machine and end.open]
        if ends:
            rng.choice(ends).reset_in_between(rng)

    # --- connections ----------------------------------------------------------------------------

    def delay(self) -> int:
        return 1 + self.rng.randrange(self.delay_ms_max)

    def connect(
        self, dialler: MachineNet, listener: MachineNet, hosts: tuple[str, str]
    ) -> tuple[StreamEnd, StreamEnd]:
        near, far = hosts
        one = StreamEnd(self, dialler, self._last_end + 1, (near, far), listener.certificate)
        two = StreamEnd(self, listener, self._last_end + 2, (far, near), listener.certificate)
        self._last_end += 2
        one.far, two.far = two, one
        self.ends[one.number], self.ends[two.number] = one, two
        for tap in self.taps:
            tap.opened(one, two)
        return one, two


Dialled = Callable[[], asyncio.Protocol]


class SimulatedListening:
    """A place where one process listens."""

    def __init__(self, net: MachineNet, host: str, port: str) -> None:
        self.address = f"{host}:{port}"
        self._net, self._place = net, (host, port)

    async def close(self) -> None:
        self._net.listening.pop(self._place, None)


class MachineNet:
    """The `Net` of one process: dials and listens on the hosts of its machine."""

    def __init__(
        self, network: BusNetwork, machine: str, loop: SimulatedLoop, certificate: bytes
    ) -> None:
        self.network, self.machine, self.loop = network, machine, loop
        self.certificate = certificate
        self.listening: dict[tuple[str, str], Dialled] = {}
        self.over = False
        self._next_port = 40_000

    async def listen(self, address: str, protocol: Dialled) -> SimulatedListening:
        host, _, port = address.rpartition(":")
        if port == "0":
            self._next_port += 1
            port = str(self._next_port)
        if host not in ANY_HOST and host not in self.network.hosts_of(self.machine):
            raise PeerUnreachable(f"{self.machine} has no address {host}")
        if (host, port) in self.listening:
            raise PeerUnreachable(f"somebody listens at {address} already")
        self.listening[host, port] = protocol
        return SimulatedListening(self, host, port)

    async def dial(self, address: str, protocol: Dialled) -> None:
        network = self.network
        await asyncio.sleep(network.delay() / 1000)
        found = network.find_listener(self.machine, address)
        if found is None:
            await asyncio.sleep(network.rng.randrange(1_000, CONNECT_MS_MAX) / 1000)
            raise PeerUnreachable(f"nothing answers at {address}")
        listener, host, accept = found
        await asyncio.sleep(network.delay() / 1000)
        if listener.over:
            raise PeerUnreachable(f"{address} ended the connection")
        near, far = network.connect(self, listener, (host, address.rpartition(":")[0]))
        near.begin(protocol())
        # The listener's side is there a little later, or a little before the first bytes.
        network.world.at(
            network.rng.randrange(network.delay_ms_max),
            far.begin_if_open,
            accept,
            name=f"{listener.machine} accepts {self.machine}",
        )
