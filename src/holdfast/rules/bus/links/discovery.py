"""Finding peers on a local network: what is said, what is listened to, what is believed.

A peer announces itself under an opaque **instance**: 16 digits of a hash of its key. Those who know
the key recognise it, others learn that some node of Holdfast is here and nothing more. The name
stays the same for ever: it works for peers whose clocks are wrong, and costs one look in a table.

Whatever is heard is a hint. Anybody on the network can answer for anybody, send a name elsewhere,
or take it away. So an answer never ends anything and never proves anything: it brings
**candidates** to dial, and the signed hello of a link decides who is there. Names of strangers are
counted and not resolved, so that a thousand of them cost a look in a table each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

import msgspec
from blake3 import blake3

from holdfast.rules.backoff import Allowance
from holdfast.rules.limits import (
    BUS_BROWSE_MS,
    BUS_BROWSE_MS_MAX,
    BUS_CANDIDATES_MAX,
    BUS_NAMES_WAITING_MAX,
    BUS_RECORDS_MAX,
    BUS_RECORDS_MS,
    BUS_RESOLVE_EVERY_MS,
    BUS_RESOLVES_MAX,
)

SERVICE: Final = "_holdfast._tcp.local."
"""The type under which peers announce themselves (RFC 6763)."""
VERSION_TEXT: Final = b"\x03v=1"
"""All that an announcement tells beside name and address: which protocol is spoken there."""

_TAG: Final = b"holdfast bus instance 1\0"
_INSTANCE_BYTES: Final = 8
_DIGITS: Final = frozenset("0123456789abcdef")
_ENDING: Final = f".{SERVICE}"
_ANY_V4: Final = IPv4Address(0)
_ANY_V6: Final = IPv6Address(0)


# --- Names -------------------------------------------------------------------------------------


def instance_of(key: bytes) -> str:
    """The name under which the owner of a key announces itself."""
    return blake3(_TAG + key).hexdigest(length=_INSTANCE_BYTES)


def full_name(instance: str) -> str:
    return instance + _ENDING


def host_name(instance: str) -> str:
    """The name of the machine, as far as announcements tell it: not its own."""
    return f"{instance}.local."


def read_instance(name: str) -> str | None:
    """The instance of a full name; None if the name is not of our form."""
    instance = name.removesuffix(_ENDING)
    if len(instance) != 2 * _INSTANCE_BYTES or instance == name or not _DIGITS.issuperset(instance):
        return None
    return instance


def is_spoken(text: bytes) -> bool:
    """Whether an announcement tells our protocol. Its text is a list of bytes of a stranger, each
    with its length in front; a newer version may say more.
    """
    at = 0
    while at < len(text):
        end = at + 1 + text[at]
        if text[at:end] == VERSION_TEXT:
            return True
        at = end
    return False


# --- Where we are ------------------------------------------------------------------------------


class InterfaceAddress(msgspec.Struct, frozen=True, order=True):
    """One address of one network interface of this machine."""

    index: int
    ip: str
    """Without a scope."""
    prefix: int


class Surroundings(msgspec.Struct, frozen=True):
    """Where a bus speaks about itself, and what it says: discovery speaks where the bus listens."""

    port: int = 0
    addresses: tuple[str, ...] = ()
    """What is announced; empty: nothing is."""
    interfaces: tuple[str | int, ...] = ()
    """Where mDNS is spoken: by IPv4 address, or by the number of an interface for IPv6."""
    networks: tuple[str, ...] = ()
    """The networks that these addresses are in."""
    loopback: bool = False
    """Only this machine is meant."""


def surroundings(
    listening: Sequence[tuple[str, int]], interfaces: Iterable[InterfaceAddress]
) -> Surroundings:
    """What a bus that listens there says of itself, and where.

    An announcement has one port. A listener that other machines can reach goes before one that only
    this machine can.
    """
    here = sorted(interfaces)
    for loopback in (False, True):
        for port in dict.fromkeys(port for _, port in listening):
            hosts = [host for host, its_port in listening if its_port == port]
            found = [
                place
                for place in here
                if ip_address(place.ip).is_loopback is loopback
                and any(_hears(host, place.ip) for host in hosts)
            ]
            if found:
                return _at(port, found, loopback)
    return Surroundings()


def _at(port: int, places: Sequence[InterfaceAddress], loopback: bool) -> Surroundings:
    by_interface = (place.index if ":" in place.ip else place.ip for place in places)
    return Surroundings(
        port,
        tuple(place.ip for place in places[:BUS_CANDIDATES_MAX]),
        tuple(dict.fromkeys(by_interface)),
        tuple(dict.fromkeys(_network(place) for place in places)),
        loopback,
    )


def _network(place: InterfaceAddress) -> str:
    return str(ip_network((place.ip, place.prefix), strict=False))


def _hears(host: str, ip: str) -> bool:
    """Whether a listener at a host is reached by an address of this machine."""
    try:
        bound, address = ip_address(host.partition("%")[0]), ip_address(ip)
    except ValueError:
        return False
    if bound in (_ANY_V4, _ANY_V6):
        return bound.version == address.version and not address.is_loopback
    return bound == address


# --- What is believed --------------------------------------------------------------------------


def candidates(places: Iterable[tuple[str, int]], around: Surroundings) -> tuple[str, ...]:
    """The places of an answer that are worth a dial, as host:port, nearest first.

    An answer comes from a stranger: it must not make us dial ourselves, a group of machines, or a
    machine on the other side of the world.
    """
    near: dict[str, None] = {}
    far: dict[str, None] = {}
    networks = [ip_network(network) for network in around.networks]
    for text, port in places:
        try:
            ip = ip_address(text)
        except ValueError:
            continue
        if not 0 < port < 1 << 16 or not _is_worth_a_dial(ip, around.loopback):
            continue
        is_near = any(ip.version == network.version and ip in network for network in networks)
        if is_near or not ip.is_global:
            (near if is_near else far)[_place(text, port)] = None
    return (*near, *far)[:BUS_CANDIDATES_MAX]


def _is_worth_a_dial(ip: IPv4Address | IPv6Address, loopback: bool) -> bool:
    if ip.is_unspecified or ip.is_multicast or ip.is_loopback is not loopback:
        return False
    if isinstance(ip, IPv4Address):
        return int(ip) != (1 << 32) - 1
    # A link-local address means nothing without the interface that it was heard on.
    return ip.ipv4_mapped is None and (not ip.is_link_local or ip.scope_id is not None)


def _place(text: str, port: int) -> str:
    return f"[{text}]:{port}" if ":" in text else f"{text}:{port}"


# --- When a name is resolved -------------------------------------------------------------------


class SoughtNames:
    """Which of the names that are heard are resolved, and when. Asks no clock: times are handed in.

    Only names of peers that we look for are queued, each at most once, and a name is resolved only
    so often whatever is heard of it. If too many wait, the oldest is dropped: whoever misses the
    peer asks again.
    """

    def __init__(self) -> None:
        self.own = ""
        """The name of this node: nobody looks for himself."""
        self._keys: dict[str, bytes] = {}
        self._wanted: dict[str, int] = {}
        """Names that are waited for beside those of known peers, and by how many."""
        self._sighted: dict[str, None] = {}
        self._allowances: dict[str, Allowance] = {}
        self._due: dict[str, tuple[int, int]] = {}
        """When a name may be resolved, and the number of its place in the order."""
        self._order: list[tuple[int, int, str]] = []
        self._number = 0
        self.foreign = 0
        """Names that are not of our form."""
        self.strangers = 0
        """Names that nobody here looks for; each is counted as often as it is heard."""
        self.dropped = 0

    def seek(self, keys: Iterable[bytes]) -> bool:
        """Looks for these peers from now on, and for no others. True if a new one is among them."""
        before = self._keys
        self._keys = {instance_of(key): key for key in keys}
        self._keys.pop(self.own, None)
        for name in [name for name in self._sighted if not self._is_sought(name)]:
            self._forget(name)
        return any(name not in before for name in self._keys)

    def want(self, instance: str) -> bool:
        """Somebody waits for this name. True if it was not looked for before."""
        is_new = not self._is_sought(instance)
        self._wanted[instance] = self._wanted.get(instance, 0) + 1
        return is_new

    def unwant(self, instance: str) -> None:
        self._wanted[instance] -= 1
        if not self._wanted[instance]:
            del self._wanted[instance]
        if not self._is_sought(instance):
            self._forget(instance)

    def key_of(self, instance: str) -> bytes | None:
        return self._keys.get(instance)

    def is_sighted(self, instance: str) -> bool:
        """Whether a name that we look for was heard on this network."""
        return instance in self._sighted

    def is_one_missing(self) -> bool:
        """Whether nothing was heard yet of one that we look for."""
        return any(name not in self._sighted for name in (*self._keys, *self._wanted))

    def heard(self, name: str, now_ms: int) -> bool:
        """A full name was heard of, as new or as changed. True if it is to be resolved."""
        instance = read_instance(name)
        if instance is None:
            self.foreign += 1
            return False
        if instance == self.own:
            return False
        if not self._is_sought(instance):
            self.strangers += 1
            return False
        self._sighted[instance] = None
        self.queue(instance, now_ms)
        return True

    def queue(self, instance: str, now_ms: int) -> None:
        """A name that we look for shall be resolved as soon as it may."""
        if instance in self._due:
            return
        allowance = self._allowances.get(
            instance, Allowance(BUS_RESOLVES_MAX, BUS_RESOLVE_EVERY_MS)
        )
        spent = allowance.spend(now_ms)
        if spent is None:
            at = allowance.since + allowance.every_ms
            spent = allowance.spend(at)
            assert spent is not None, "one comes back with every interval"
        else:
            at = now_ms
        self._allowances[instance] = spent
        if len(self._due) >= BUS_NAMES_WAITING_MAX:
            del self._due[next(iter(self._due))]
            self.dropped += 1
        self._number += 1
        self._due[instance] = (at, self._number)
        heappush(self._order, (at, self._number, instance))

    def take(self, now_ms: int) -> str | None:
        """The next name to resolve now."""
        at = self.next_at()
        if at is None or at > now_ms:
            return None
        instance = heappop(self._order)[2]
        del self._due[instance]
        return instance

    def next_at(self) -> int | None:
        """When `take` has something again."""
        while self._order and self._due.get(self._order[0][2]) != self._order[0][:2]:
            heappop(self._order)  # it was dropped or forgotten
        return self._order[0][0] if self._order else None

    def _is_sought(self, instance: str) -> bool:
        return instance in self._keys or instance in self._wanted

    def _forget(self, instance: str) -> None:
        self._sighted.pop(instance, None)
        self._due.pop(instance, None)
        self._allowances.pop(instance, None)


def browse_again_ms(questions: int, jitter: float) -> int:
    """How long to wait before the network is asked again, after so many questions in vain; `jitter`
    is a lot from [0, 1). Peers that come announce themselves, but nobody hears that through a
    cable that is cut.
    """
    longest = min(BUS_BROWSE_MS_MAX, BUS_BROWSE_MS << min(questions, 16))
    return longest - int(jitter * longest / 2)


class RecordBudget(msgspec.Struct):
    """How much of strangers' talk is listened to: so many records in a span of time, then none for
    a while.
    """

    count: int = 0
    since: int = 0

    def spend(self, records: int, now_ms: int) -> bool:
        """False if that was too much."""
        if now_ms - self.since >= BUS_RECORDS_MS:
            self.count, self.since = 0, now_ms
        self.count += records
        return self.count <= BUS_RECORDS_MAX
