"""Taking up changed settings while the daemon runs: `holdfast reload`, or SIGHUP.

All or nothing: the settings are read and checked as a whole before any of them takes effect, and a
bad file changes nothing. Where the daemon listens cannot change under its callers' feet: those
settings are named in the answer, and wait for the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from holdfast.node.http.context import NodeApi
from holdfast.node.settings import HOOK_EVENTS, Reloaded, Settings
from holdfast.rules.errors import BadInput
from holdfast.service.listeners import renew_certificate
from holdfast.transport.listeners import Listener

NEEDS_RESTART: Final = frozenset({"socket", "tcp", "listen", "allowed_hosts", "allowed_origins"})
"""Settings that take effect at the next start."""


class Reloader:
    """Reads the settings of one daemon again."""

    def __init__(
        self,
        api: NodeApi,
        load: Callable[[], Settings],
        root: Path,
        listeners: Sequence[Listener],
    ) -> None:
        self._api, self._load, self._root, self._listeners = api, load, root, listeners

    def reload(self) -> Reloaded:
        """Must run in the daemon's loop. Raises what is wrong with the settings, and changes
        nothing then.
        """
        before = self._api.settings
        wanted = self._load()
        waiting = sorted(name for name in _differ(before, wanted) if name in NEEDS_RESTART)
        # Of the bus, where others are can change at any time; what it is bound with cannot.
        bus = msgspec.structs.replace(before.bus, peers=wanted.bus.peers)
        waiting += [] if bus == wanted.bus else ["bus"]
        after = msgspec.structs.replace(
            wanted, bus=bus, **{name: getattr(before, name) for name in NEEDS_RESTART}
        ).check()
        changed = _differ(before, after)
        self._check(after)
        renewed = renew_certificate(self._root, after, self._listeners)
        if renewed is not None and renewed != self._api.certificate:
            self._api.certificate = renewed
            changed.add("tls_cert")
        self._take_up(after)
        return Reloaded(sorted(changed), waiting)

    def _check(self, after: Settings) -> None:
        if self._api.sync_manager is not None:
            self._api.sync_manager.check_age(after.outbox.max_age_hours)

    def _take_up(self, after: Settings) -> None:
        api = self._api
        api.settings = after
        if api.disk is not None:
            api.disk.limit_bytes = after.disk_limit_bytes
        if api.sync_manager is not None:
            api.sync_manager.set_outbox(after.outbox.policies, after.outbox.max_age_hours)
        if api.bus is not None:
            api.bus.set_static(after.bus.static_peers)
            api.bus.set_quorum(after.quorum)
        if api.hooks is not None:
            api.hooks.passed_on = tuple(after.hook_environment)
        if api.message_watch is not None:
            api.message_watch.set_hook(after.hook_message)
        if api.event_hooks is not None:
            api.event_hooks.commands = event_hooks(after)


def event_hooks(settings: Settings) -> dict[str, list[str]]:
    """The hooks for events that are in no log."""
    return {event: settings.hook(event) for event in HOOK_EVENTS if event != "message"}


def from_nowhere() -> Settings:
    """The `load` of a daemon whose settings were handed in by a program."""
    raise BadInput(
        "this daemon did not read its settings from flags and a file",
        hint="start it anew with other settings",
    )


def _differ(before: Settings, after: Settings) -> set[str]:
    return {
        name for name in Settings.__struct_fields__ if getattr(before, name) != getattr(after, name)
    }
