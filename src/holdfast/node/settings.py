"""The settings of a daemon: from its flags, else from a file, else the defaults.

    # the file that $HOLDFAST_CONFIG names
    listen = "0.0.0.0:7411"
    disk_limit = "20 GiB"
    hook_message = ["/usr/local/bin/on-message"]    # also hook_outbox, hook_link, hook_broker …

    [outbox]
    policy = "park"        # what waits behind an item that the broker refuses: or halt, quarantine
    max_age_hours = 48     # messages that wait for longer are not sent any more

    [outbox.lanes]
    team = "halt"          # by mesh

    [retention]
    facts = "forever"      # also log, tombstones, ids, blobs: a sweep keeps them so long at least

    [retention.meshes.team]
    log = "365d"           # also facts, tombstones

    [bus]
    listen = ["0.0.0.0:7412"]          # where peers reach this node; nowhere if it is not set
    peers = ["bo@192.168.1.7:7412"]    # where trusted peers are, for networks without mDNS

    [quorum]
    minority = "reject"    # what is done with strong writes while there is no quorum; else: queue
    auth_channel = true    # whether keys of providers are exchanged; auth_peers says with whom

A key that is not known is refused: a user would not notice a setting that is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from holdfast.rules.bus.sealing import SealSource
from holdfast.rules.errors import BadInput
from holdfast.rules.keeping import Retention
from holdfast.rules.limits import (
    BUS_PORT,
    KIB,
    MIB,
    QUORUM_COMMIT_MS,
    QUORUM_SNAPSHOT_MS,
    QUORUM_WAIT_MS_MAX,
)
from holdfast.rules.names import check_peer, named_peer
from holdfast.rules.outbox import Policies, Policy
from holdfast.rules.web_access import WebAccess, web_access
from holdfast.service.address import ListenAddress, is_loopback, parse_address, parse_loopback

_UNITS: Final = {
    "": 1,
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "t": 1000**4,
    "ki": KIB,
    "mi": MIB,
    "gi": KIB * MIB,
    "ti": MIB * MIB,
}
HOOK_EVENTS: Final = ("message", "outbox", "link", "broker", "disk")
"""The events for which the operator may set up a command."""
_SIZE: Final = re.compile(r"(\d{1,15})\s*([kmgt]?i?)b?", re.IGNORECASE | re.ASCII)


class OutboxSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of the outbox."""

    policy: Policy = Policy.PARK
    """What waits behind an item that the broker refuses."""
    lanes: dict[str, Policy] = {}
    """The policy of single meshes."""
    max_age_hours: int | None = None
    """How long a message may wait; None: as long as the broker remembers ids, less a margin."""

    @property
    def policies(self) -> Policies:
        return Policies(self.policy, self.lanes)


class BusSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of the peer bus."""

    enabled: bool = True
    """Whether this node has a bus at all: without, nobody is called and nothing waits."""
    listen: list[str] | str = []
    """HOST:PORT of every place where peers reach this node; with none it only calls others."""
    discovery: Literal["auto", "mdns", "off"] = "auto"
    """Whether peers of the LAN find each other: `auto` does it once this node listens on more than
    loopback, `off` says nothing at all on the network."""
    peers: list[str] = []
    """NAME@HOST:PORT: where trusted peers are. An address proves nothing, the peer's key does."""
    batch: bool = True
    """One signature for the messages of a moment; without, each message has its own."""
    seal: str | None = None
    """Where the key is that seals messages at rest: `passphrase-file:PATH`, `key-file:PATH` or
    `keyring`. None: they lie in the clear."""

    @property
    def seal_source(self) -> SealSource | None:
        return None if self.seal is None else SealSource.parse(self.seal)

    @property
    def addresses(self) -> list[str]:
        """Where it listens, each as HOST:PORT."""
        places = self.listen.split(",") if isinstance(self.listen, str) else self.listen
        return [_place(place) for place in places if place.strip()]

    @property
    def static_peers(self) -> dict[str, tuple[str, ...]]:
        """The addresses of `peers`, by name."""
        found: dict[str, tuple[str, ...]] = {}
        for text in self.peers:
            name, at, address = text.rpartition("@")
            if not (at and name):
                raise BadInput(f"{text!r} is no peer", hint="write NAME@HOST:PORT")
            name = named_peer(name)
            found[name] = (*found.get(name, ()), dial_address(address))
        return found

    @property
    def is_discovering(self) -> bool:
        if self.discovery != "auto":
            return self.discovery == "mdns"
        return any(not is_loopback(parse_address(place).host) for place in self.addresses)


class QuorumSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of the quorums that this node takes part in."""

    minority: Literal["queue", "reject"] = "queue"
    """What this node does with strong writes while it reaches no quorum: they wait on its disk, or
    are refused. The settings of a mesh (`mesh_settings`) count more than this."""
    commit_timeout_ms: int = QUORUM_COMMIT_MS
    """How long a strong write waits for its commit, and a read for its confirmation."""
    snapshot_interval_ms: int = QUORUM_SNAPSHOT_MS
    """How often a snapshot of the committed state is recorded, for reads without a quorum."""
    auth_channel: bool = False
    """Whether auth material (keys and tokens of providers) is taken and given at all."""
    auth_peers: list[str] = []
    """Peers that may bring and fetch auth material by their signed hello, or over the bus; this
    node's own user always may."""

    def check(self) -> None:
        for name in ("commit_timeout_ms", "snapshot_interval_ms"):
            value: int = getattr(self, name)
            if not 1 <= value <= QUORUM_WAIT_MS_MAX:
                raise BadInput(
                    f"{name} is {value}", hint=f"write 1 to {QUORUM_WAIT_MS_MAX} milliseconds"
                )
        for peer in self.auth_peers:
            check_peer(peer)


def dial_address(text: str) -> str:
    """HOST:PORT of a peer; without a port, the usual one."""
    place = _place(text)
    if parse_address(place).port == 0:
        raise BadInput(f"nobody can be reached at {text}", hint="write HOST:PORT")
    return place


def _place(text: str) -> str:
    """HOST:PORT in one spelling; the usual port of the bus if none is given."""
    text = text.strip()
    bare = text.count(":") != 1 if not text.startswith("[") else text.endswith("]")
    if bare:
        text = f"{text if text.startswith('[') or ':' not in text else f'[{text}]'}:{BUS_PORT}"
    host, port = parse_address(text)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a daemon."""

    socket: bool = True
    """Listen on the Unix socket in the home."""
    tcp: str | None = None
    """HOST:PORT on loopback, without TLS, for programs of this machine that bring a token."""
    listen: str | None = None
    """HOST:PORT for other machines, with TLS."""
    tls_cert: str | None = None
    tls_key: str | None = None
    """With `tls_cert`: a certificate of your own; without them the daemon makes one, which zones
    pin by their hello."""
    allowed_hosts: list[str] | str = []
    """Names, besides those of loopback, by which callers may call the listener of `tcp`."""
    allowed_origins: list[str] | str = []
    """Origins of web pages that may talk to this daemon, as `https://board.example`."""
    disk_limit: str | int | None = None
    """How much the home may use; None: all of the disk."""
    copied_home: Literal["refuse", "allow"] = "refuse"
    """Whether a home is served that was last served on another machine or as other files; `allow`
    is for places where homes are moved by machines, and gives the log a new epoch each time.
    """
    outbox: OutboxSettings = OutboxSettings()
    retention: Retention = Retention()
    bus: BusSettings = BusSettings()
    quorum: QuorumSettings = QuorumSettings()
    hook_message: list[str] = []
    """A command that the daemon runs for each message, with the message as JSON on its stdin."""
    hook_outbox: list[str] = []
    """A command that the daemon runs when the broker refuses an item of the outbox."""
    hook_link: list[str] = []
    """A command that the daemon runs when a link gets another state."""
    hook_broker: list[str] = []
    """A command that the daemon runs when a connection to a broker gets another state."""
    hook_disk: list[str] = []
    """A command that the daemon runs when the disk gets fuller or emptier than a limit."""
    hook_environment: list[str] = []
    """Names of environment variables that hooks get besides the usual ones."""

    def check(self) -> Settings:
        if not (self.socket or self.tcp or self.listen):
            raise BadInput(
                "this daemon would listen nowhere", hint="give --tcp or --listen, or the socket"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise BadInput("a certificate and its key go together", hint="give both, or neither")
        if self.tls_cert is not None and self.listen is None:
            raise BadInput("a certificate is for other machines", hint="give --listen HOST:PORT")
        for event in HOOK_EVENTS:
            if self.hook(event) and not self.hook(event)[0]:
                raise BadInput(
                    f"the hook for {event} has no command",
                    hint=f'write hook_{event} = ["COMMAND", …]',
                )
        age = self.outbox.max_age_hours
        if age is not None and age < 1:
            raise BadInput(f"an outbox age of {age} hours would send nothing")
        self.retention.check(age)
        self.quorum.check()
        _ = self.tcp_address, self.listen_address, self.disk_limit_bytes, self.web
        _ = self.bus.addresses, self.bus.static_peers, self.bus.is_discovering, self.bus.seal_source
        return self

    def hook(self, event: str) -> list[str]:
        """The command for an event; empty if there is none."""
        command: list[str] = getattr(self, f"hook_{event}")
        return command

    @property
    def tcp_address(self) -> ListenAddress | None:
        return None if self.tcp is None else parse_loopback(self.tcp)

    @property
    def listen_address(self) -> ListenAddress | None:
        return None if self.listen is None else parse_address(self.listen)

    @property
    def web(self) -> WebAccess:
        return web_access(self.allowed_hosts, self.allowed_origins)

    @property
    def disk_limit_bytes(self) -> int | None:
        return None if self.disk_limit is None else parse_size(self.disk_limit)


class Reloaded(msgspec.Struct, frozen=True):
    """What a reload has done."""

    changed: list[str]
    """The settings that have another value from now on; `tls_cert` also when only the file is
    another one.
    """
    restart: list[str]
    """The settings whose new value takes effect at the next start."""

    @property
    def sentence(self) -> str:
        said = f"reloaded: {', '.join(self.changed)}" if self.changed else "no setting has changed"
        return said + (f"; at the next start: {', '.join(self.restart)}" if self.restart else "")


def load(environ: Mapping[str, str], flags: Mapping[str, Any]) -> Settings:
    """The settings from flags and file; a flag that is None was not given. The flag `bus_listen` is
    `listen` in the table `bus`, and so on.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    path = environ.get("HOLDFAST_CONFIG", "")
    from_file = _from_file(Path(path)) if path else {}
    bus = {name.removeprefix("bus_"): given.pop(name) for name in list(given) if name[:4] == "bus_"}
    if bus:
        given["bus"] = {**from_file.get("bus", {}), **bus}
    try:
        return msgspec.convert({**from_file, **given}, Settings).check()
    except msgspec.ValidationError as error:  # of a flag: the file was checked before
        raise BadInput(f"that cannot be used: {error}") from None


def _from_file(path: Path) -> dict[str, Any]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise BadInput(
            f"the settings in {path} cannot be read: {error.strerror}",
            hint="correct or unset HOLDFAST_CONFIG",
        ) from None
    try:
        settings = msgspec.toml.decode(raw, type=dict[str, Any])
        msgspec.convert(settings, Settings)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        known = ", ".join(Settings.__struct_fields__)
        raise BadInput(
            f"the settings in {path} cannot be used: {error}", hint=f"what can be set: {known}"
        ) from None
    return settings


def parse_size(text: str | int) -> int:
    """The bytes of a text such as `20 GiB` or `500M`, or of a plain number."""
    parts = _SIZE.fullmatch(str(text).strip())
    unit = None if parts is None else _UNITS.get(parts[2].lower())
    if parts is None or unit is None or int(parts[1]) == 0:
        raise BadInput(f"{text!r} is no size", hint="write it like 500M or 20GiB")
    return int(parts[1]) * unit
