"""One instance of zeroconf: all that the bus uses of that library, and the only place to know it.

It costs memory and time to load, so it is imported when discovery begins and not before.

A name is not resolved by the library's own call. That one returns the newest record of each kind,
and whoever lies last is the newest. Here all that was said of a name in the last two minutes is a
candidate, and one can ask again as if nothing had been said.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

from zeroconf import (  # type: ignore[attr-defined]  # some of them are not in its __all__
    DNSAddress,
    DNSOutgoing,
    DNSQuestion,
    DNSRecord,
    DNSService,
    DNSText,
    IPVersion,
    RecordUpdate,
    RecordUpdateListener,
    ServiceStateChange,
    Zeroconf,
    current_time_millis,
)
from zeroconf import Error as ZeroconfError
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from holdfast.rules.bus.links.discovery import (
    SERVICE,
    VERSION_TEXT,
    Surroundings,
    full_name,
    host_name,
    is_spoken,
)
from holdfast.rules.errors import DiscoveryFailed
from holdfast.rules.limits import BUS_CANDIDATES_MAX, BUS_RESOLVING_MS, SECOND_MS

_QUERY: Final = 0
_IN: Final = 1
_A: Final = 1
_TXT: Final = 16
_AAAA: Final = 28
_SRV: Final = 33
"""Numbers of RFC 1035, 2782 and 3596."""
_ASK_AGAIN_S: Final = 1.1
"""A record that was sent to all is not sent again for a second."""


class MdnsPlace(NamedTuple):
    """Where a peer is, as the network says. Nothing of it is true because it is said."""

    ip: str
    port: int


class MdnsResponder:
    """Speaks mDNS on some interfaces, until it is closed."""

    def __init__(
        self,
        instance: str,
        around: Surroundings,
        heard: Callable[[str], None],
        counted: Callable[[int], None],
    ) -> None:
        """`heard` gets every full name of our service that is new or changed, `counted` how many
        records came, whatever they are about. Raises DiscoveryFailed.
        """
        self._instance, self._heard = instance, heard
        self._announced: AsyncServiceInfo | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._records = _Records(counted)
        self._zeroconf = _open(around)
        self._zeroconf.zeroconf.async_add_listener(self._records, None)

    async def begin(self, around: Surroundings) -> None:
        """Asks who is there, and says where we are."""
        await self.browse()
        await self._announce(around)

    async def follow(self, around: Surroundings) -> None:
        """The addresses or interfaces of this machine are others now."""
        await self._announce(around)
        try:
            await self._zeroconf.async_update_interfaces(list(around.interfaces))
        except (OSError, RuntimeError, ZeroconfError) as error:
            raise _failed(error) from error
        await self.browse()

    async def browse(self) -> None:
        """Asks who is there; names that were heard before are told again."""
        if self._browser is not None:
            await self._browser.async_cancel()
        zeroconf = self._zeroconf.zeroconf
        self._browser = AsyncServiceBrowser(zeroconf, SERVICE, handlers=[self._changed])

    async def resolve(self, instance: str, *, ask: bool) -> list[MdnsPlace]:
        """Where a peer is by all that was said of it, newest first. `ask`: what was said before is
        not enough. Empty: nobody says anything.
        """
        if not ask and (places := self._places(instance)):
            return places
        name = full_name(instance)
        came = self._records.awaited[name] = asyncio.Event()
        try:
            async with asyncio.timeout(BUS_RESOLVING_MS / SECOND_MS):
                while True:
                    self._ask(instance)
                    if await _within(_ASK_AGAIN_S, came) and (places := self._places(instance)):
                        return places
                    came.clear()
        except TimeoutError:
            return []
        finally:
            del self._records.awaited[name]

    async def close(self) -> None:
        """Takes back what was announced, and stops listening."""
        if self._browser is not None:
            await self._browser.async_cancel()
        await self._zeroconf.async_close()

    def _changed(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        # That a name went is no news: anybody can say so, and a link knows better.
        if state_change is not ServiceStateChange.Removed:
            self._heard(name)

    # --- what was said of a peer -----------------------------------------------------------------

    def _ask(self, instance: str) -> None:
        """Asks as if nothing were known: a question that names what is known gets no answer."""
        name, host = full_name(instance), host_name(instance)
        out = DNSOutgoing(_QUERY)
        for owner, kind in ((name, _SRV), (name, _TXT), (host, _A), (host, _AAAA)):
            out.add_question(DNSQuestion(owner, kind, _IN))
        self._zeroconf.zeroconf.async_send(out)

    def _places(self, instance: str) -> list[MdnsPlace]:
        said = self._said(full_name(instance))
        if not any(isinstance(record, DNSText) and is_spoken(record.text) for record in said):
            return []
        services = [record for record in said if isinstance(record, DNSService)]
        return [
            MdnsPlace(ip, service.port)
            for service in services[:BUS_CANDIDATES_MAX]
            for record in self._said(service.server_key)
            if isinstance(record, DNSAddress) and (ip := _ip(record))
        ]

    def _said(self, name: str) -> list[DNSRecord]:
        now = current_time_millis()
        cache = self._zeroconf.zeroconf.cache
        fresh = [record for record in cache.entries_with_name(name) if not record.is_expired(now)]
        return sorted(fresh, key=lambda record: -record.created)

    # --- what we say -----------------------------------------------------------------------------

    async def _announce(self, around: Surroundings) -> None:
        info, before = self._info(around), self._announced
        self._announced = info
        zeroconf = self._zeroconf
        try:
            if info is not None and before is None:
                # Nobody but us can have this name, so nobody is asked whether it is free: an answer
                # to that question would be a way to silence us.
                sent = await zeroconf.async_register_service(info, cooperating_responders=True)
            elif info is not None:
                sent = await zeroconf.async_update_service(info)
            elif before is not None:
                sent = await zeroconf.async_unregister_service(before)
            else:
                return
            await sent
        except (TimeoutError, OSError, ZeroconfError) as error:
            raise _failed(error) from error

    def _info(self, around: Surroundings) -> AsyncServiceInfo | None:
        if not around.addresses:
            return None
        return AsyncServiceInfo(
            SERVICE,
            full_name(self._instance),
            port=around.port,
            properties=VERSION_TEXT,
            server=host_name(self._instance),
            parsed_addresses=list(around.addresses),
        )


class _Records(RecordUpdateListener):
    """Counts all that comes, so that it can be too much, and tells who waits for a name."""

    def __init__(self, counted: Callable[[int], None]) -> None:
        super().__init__()
        self.awaited: dict[str, asyncio.Event] = {}
        self._counted = counted
        self._came: list[asyncio.Event] = []

    def async_update_records(self, zc: Zeroconf, now: float, records: list[RecordUpdate]) -> None:
        self._counted(len(records))
        if self.awaited:
            names = (update.new.name for update in records if update.new.type == _SRV)
            self._came = [self.awaited[name] for name in names if name in self.awaited]

    def async_update_records_complete(self) -> None:
        """Now the cache has them."""
        for event in self._came:
            event.set()
        self._came = []


async def _within(seconds: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def _ip(record: DNSAddress) -> str:
    family = {4: socket.AF_INET, 16: socket.AF_INET6}.get(len(record.address))
    if family is None:
        return ""
    text = socket.inet_ntop(family, record.address)
    return f"{text}%{record.scope_id}" if record.scope_id and text.startswith("fe80:") else text


def _open(around: Surroundings) -> AsyncZeroconf:
    versions = (IPVersion.All, IPVersion.V4Only) if socket.has_ipv6 else (IPVersion.V4Only,)
    for version in versions:
        try:
            return AsyncZeroconf(list(around.interfaces), ip_version=version)
        except (OSError, RuntimeError) as error:
            failure = error  # a kernel without IPv6 refuses the first
    raise _failed(failure) from failure


def _failed(error: Exception) -> DiscoveryFailed:
    reason = str(error) or type(error).__name__
    return DiscoveryFailed(f"peers cannot be looked for on this network: {reason}")
