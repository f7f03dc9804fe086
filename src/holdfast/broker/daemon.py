"""A broker that serves: its folder, its store, its listeners, and the order in which they end.

Ending: the broker takes no more calls and frames, writes and answers what was handed in, closes the
sockets with "going away", and closes the store. All of it has ten seconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from holdfast.broker.broker import Broker, ticks_ms
from holdfast.broker.connection import Connection
from holdfast.broker.http.app import broker_app
from holdfast.broker.http.context import BrokerApi
from holdfast.broker.http.fast_accept import FastAccept
from holdfast.broker.identity import Identity
from holdfast.broker.processes.crew import Crew
from holdfast.broker.server_clock import ServerClock
from holdfast.broker.settings import BrokerSettings
from holdfast.broker.upkeep import BrokerUpkeep
from holdfast.rules import limits
from holdfast.rules.errors import AnotherBroker, HoldfastError
from holdfast.rules.keys import public_key
from holdfast.service.clock import Clock, SystemClock
from holdfast.service.http.parts import MakeParts, no_parts
from holdfast.service.instance_lock import DaemonLock, DaemonNote
from holdfast.service.lifecycle import OnEvent, Service, silent
from holdfast.service.listeners import bind_listeners, open_loopback, renew_certificate
from holdfast.storage.broker.port import BrokerStore
from holdfast.storage.files.home import HomePaths
from holdfast.transport.http_server import Server
from holdfast.transport.listeners import Listener

log = logging.getLogger("holdfast")

SYNC_PATH: Final = "/v1/sync"


def open_store(settings: BrokerSettings) -> BrokerStore:
    """The store that the settings name, which the caller still has to open."""
    if settings.dsn is not None:
        from holdfast.storage.broker.postgres import PostgresBrokerStore

        return PostgresBrokerStore(settings.dsn)
    from holdfast.storage.broker.sqlite import SqliteBrokerStore, ThreadedBrokerStore
    from holdfast.storage.broker.sqlite.room import BrokerRoom

    room = BrokerRoom(settings.store, keeps_ballast=True)
    return ThreadedBrokerStore(SqliteBrokerStore(settings.store, sync=settings.sync, room=room))


async def claim(store: BrokerStore, identity: Identity, settings: BrokerSettings) -> None:
    """Makes the database this broker's; raises if it is another one's."""
    key = public_key(identity.seed())
    noted = await store.claim(key, replace=settings.replace_key)
    if noted != key:
        raise AnotherBroker(
            f"this database belongs to the broker with the key {noted.hex()}, and the key in "
            f"{settings.store} is {key.hex()}"
        )


class BrokerDaemon(Service):
    """Serves one broker in the running event loop."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        on_event: OnEvent = silent,
        on_overtime: Callable[[], None] | None = None,
        parts: MakeParts = no_parts,
        crew: Crew | None = None,
    ) -> None:
        """`parts` makes what is served besides the API. `crew`: this is one of several processes,
        whose parent listens and holds the folder.
        """
        super().__init__(on_event, on_overtime)
        self._settings, self._parts, self._crew = settings.check(), parts, crew
        self._broker: Broker | None = None
        self._api: BrokerApi | None = None
        self.ready = asyncio.Event()
        self._listeners: list[Listener] = []

    @property
    def broker(self) -> Broker:
        assert self._broker is not None, "the broker is not up"
        return self._broker

    @property
    def api(self) -> BrokerApi:
        assert self._api is not None, "the broker is not up"
        return self._api

    # --- starting ----------------------------------------------------------------------------

    async def _start(self, ending: AsyncExitStack) -> None:
        settings = self._settings
        identity = await asyncio.to_thread(Identity, settings.store, settings.name)
        paths = HomePaths(settings.store)
        crew, lock = self._crew, None
        if crew is None:
            lock = DaemonLock(paths, what="a broker", end="end it first")
            ending.callback(lock.close)
        else:
            crew.on_stop, crew.on_reload = self.stop, self._reload_soon
            await crew.begin(ending)
        ending.callback(self._tell_stopped)
        own = SystemClock()
        source: Clock = own if settings.dsn is None else ServerClock(own, ticks_ms)
        store = open_store(settings)
        await store.open(source.now_ms())
        ending.push_async_callback(store.close)
        if isinstance(source, ServerClock):
            source.set(await store.server_ms())
        await claim(store, identity, settings)
        await store.set_mode(*settings.mode)
        threads = ThreadPoolExecutor(limits.SERVER_THREADS, "holdfast-broker")
        ending.callback(threads.shutdown, wait=False)
        broker = self._broker = Broker(
            store, identity, settings, settings.mode, threads=threads, source=source, crew=crew
        )
        store.on_news(broker.wakeups.news)
        store.wants_only_some_news()
        api = self._api = BrokerApi(broker)
        bind = bind_listeners if crew is None else crew.listeners
        listeners, broker.certificate = bind(paths, settings, ending)
        self._listeners = listeners
        app = broker_app(api)
        app.parts = self._parts(api, app)
        server = Server(
            app,
            listeners,
            quick=FastAccept(api),
            lines={SYNC_PATH: lambda kind: Connection(broker, kind)},
            most=limits.BROKER_CONNECTIONS_MAX,
            web=settings.web,
        )
        if crew is not None:
            crew.connections = lambda: server.connections
        self._in_background(BrokerUpkeep(broker).run(), ending)
        ending.push_async_callback(self._end_calls, server)
        self.addresses = api.addresses
        self._note_addresses(api, lock, server)
        api.open_door = partial(self._open_door, api, lock, server)
        for part in app.parts:
            await ending.enter_async_context(part.life())
        await server.start()
        self._note_addresses(api, lock, server)
        self._start_watchdog(ending)
        api.phase = "ready"
        self.ready.set()

    async def _open_door(self, api: BrokerApi, lock: DaemonLock | None, server: Server) -> None:
        await open_loopback(server, self._settings.store)
        self._note_addresses(api, lock, server)

    def _note_addresses(self, api: BrokerApi, lock: DaemonLock | None, server: Server) -> None:
        api.addresses[:] = [listener.address for listener in server.listeners]
        api.doors[:] = [one.address for one in server.listeners if not one.shared]
        if lock is not None:
            lock.write(DaemonNote(os.getpid(), api.addresses))

    def _reload_soon(self) -> None:
        self.broker.in_background(self.reload())

    def _tell_ready(self) -> None:
        if self._crew is not None:
            self._on_event("ready", {})
            self._crew.ready()
            return
        identity = self.broker.identity
        self._tell_serving(
            {
                "store": str(self._settings.store),
                "database": "sqlite" if self._settings.dsn is None else "postgresql",
                "name": identity.name,
                "card": identity.card(),
            }
        )

    async def reload(self) -> None:
        """Reads a renewed certificate. Everything else about a broker stands in its flags."""
        if not self.ready.is_set():
            return
        try:
            renewed = renew_certificate(self._settings.store, self._settings, self._listeners)
        except HoldfastError as error:
            log.error("the certificate stays as it is: %s (%s)", error.message, error.hint)
            return
        if renewed is None or renewed == self.broker.certificate:
            log.warning("reloaded: nothing has changed")
        else:
            self.broker.certificate = renewed
            log.warning("reloaded: tls_cert")

    # --- ending ------------------------------------------------------------------------------

    async def _end_calls(self, server: Server) -> None:
        """Answers what members pushed, then closes the connections."""
        self.api.phase = "stopping"
        await server.stop()
        await self.broker.accepting.close()
        await self.broker.settle()
