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

A key that is not known is refused: a user would not notice a setting that is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from holdfast.rules.errors import BadInput
from holdfast.rules.limits import KIB, MIB
from holdfast.rules.outbox import Policies, Policy
from holdfast.rules.web_access import WebAccess, web_access
from holdfast.service.address import ListenAddress, parse_address, parse_loopback

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
        _ = self.tcp_address, self.listen_address, self.disk_limit_bytes, self.web
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
    """The settings from flags and file; a flag that is None was not given."""
    given = {name: value for name, value in flags.items() if value is not None}
    path = environ.get("HOLDFAST_CONFIG", "")
    from_file = _from_file(Path(path)) if path else {}
    return msgspec.convert({**from_file, **given}, Settings).check()


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
