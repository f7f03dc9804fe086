"""One instance of zeroconf: all that the bus uses of that library, and the only place to know it.

It costs memory and time to load, so it is imported when discovery begins and not before.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from zeroconf import (  # type: ignore[attr-defined]  # two of them are not in its __all__
    DNSOutgoing,
    DNSQuestion,
    IPVersion,
    RecordUpdate,
    RecordUpdateListener,
    ServiceStateChange,
    Zeroconf,
)
from zeroconf import Error as ZeroconfError
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from holdfast.rules.bus.discovery import (
    SERVICE,
    VERSION,
    VERSION_FIELD,
    Surroundings,
    full_name,
    host_name,
)
from holdfast.rules.errors import DiscoveryFailed
from holdfast.rules.limits import BUS_RESOLVING_MS

_QUERY: Final = 0
_IN: Final = 1
_A: Final = 1
_TXT: Final = 16
_AAAA: Final = 28
_SRV: Final = 33
"""Numbers of RFC 1035, 2782 and 3596."""


class MdnsAnswer(NamedTuple):
    """What the network says of a name. Nothing of it is true because it is said."""

    addresses: list[str]
    port: int | None
    fields: Mapping[bytes, bytes | None]


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
        self._zeroconf = _open(around)
        self._zeroconf.zeroconf.async_add_listener(_RecordCounter(counted), None)
        self._browser: AsyncServiceBrowser | None = None

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

    def ask(self, instance: str) -> None:
        """Asks where a peer is as if nothing were known of it. The answer is heard as a change."""
        out = DNSOutgoing(_QUERY)
        for name, kind in (
            (full_name(instance), _SRV),
            (full_name(instance), _TXT),
            (host_name(instance), _A),
            (host_name(instance), _AAAA),
        ):
            out.add_question(DNSQuestion(name, kind, _IN))
        self._zeroconf.zeroconf.async_send(out)

    async def resolve(self, instance: str) -> MdnsAnswer | None:
        """Where a peer is, from what was heard or by asking; None: nobody answers."""
        info = AsyncServiceInfo(SERVICE, full_name(instance))
        try:
            if not await info.async_request(self._zeroconf.zeroconf, BUS_RESOLVING_MS):
                return None
        except ZeroconfError as error:
            raise _failed(error) from error
        return MdnsAnswer(info.parsed_scoped_addresses(), info.port, info.properties)

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
            properties={VERSION_FIELD: VERSION},
            server=host_name(self._instance),
            parsed_addresses=list(around.addresses),
        )


class _RecordCounter(RecordUpdateListener):
    """Counts what comes, so that it can be too much."""

    def __init__(self, counted: Callable[[int], None]) -> None:
        super().__init__()
        self._counted = counted

    def async_update_records(self, zc: Zeroconf, now: float, records: list[RecordUpdate]) -> None:
        self._counted(len(records))

    def async_update_records_complete(self) -> None:
        """Nothing is kept."""


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
