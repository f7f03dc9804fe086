"""The daemon: it opens one home for as long as the process lives, and serves it.

To start, it takes the lock that says which process serves this home, opens it, binds the listeners,
starts the links, the syncs and the bus, and reports that it is ready. It ends in reverse order, so
that it begins nothing that it cannot finish: no more calls, answers for waiting calls, no more
messages, no more pulling, no more upkeep, then it waits for the writer and closes the home. All of
it has ten seconds; what has not ended by then is left as a crash would leave it, and the next start
repairs that.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from holdfast.node.bus.host import BusHost
from holdfast.node.core.loop_writer import LoopWriter
from holdfast.node.daemon.hooks import EventHooks, HookRunner
from holdfast.node.daemon.message_hook import MessageWatch, outbox_event
from holdfast.node.daemon.reload import Reloader, event_hooks, from_nowhere
from holdfast.node.daemon.upkeep import NodeUpkeep
from holdfast.node.home import whereabouts
from holdfast.node.home.opening import open_home
from holdfast.node.http.app import node_routes
from holdfast.node.http.context import NodeApi
from holdfast.node.library.node import Node
from holdfast.node.links.pull import PULL_LOCK
from holdfast.node.links.status import LinkStatus
from holdfast.node.links.worker import LinkManager
from holdfast.node.settings import Settings
from holdfast.node.sync.manager import SyncManager
from holdfast.node.sync.session import BrokerAddress
from holdfast.node.sync.terms import require_age
from holdfast.node.trust.trust import Trust
from holdfast.node.upkeep.disk import DiskWatch
from holdfast.node.upkeep.sweep import Ttl
from holdfast.node.watching.log_watch import LogWatch, WakeSocket
from holdfast.rules import limits
from holdfast.rules.broker_sync import SyncState
from holdfast.rules.disk_pressure import Pressure
from holdfast.rules.errors import HoldfastError, HomeCopied, WrongKey
from holdfast.rules.home_copy import HomePlace
from holdfast.rules.links import LinkState
from holdfast.rules.rows import OutboxRow
from holdfast.service.clock import Clock
from holdfast.service.http.app import HttpApp
from holdfast.service.http.parts import MakeParts, no_parts
from holdfast.service.http.request import ConcurrencyLimits, RequestCounts
from holdfast.service.instance_lock import DaemonLock, DaemonNote, daemon_note, wait_until_free
from holdfast.service.lifecycle import OnEvent, Service, silent
from holdfast.service.listeners import bind_listeners, open_loopback
from holdfast.service.sessions import Sessions
from holdfast.service.supervision import Supervision
from holdfast.storage.files import home as homes
from holdfast.storage.files.home import HomePaths
from holdfast.transport.http_server import Server

log = logging.getLogger("holdfast")


class Daemon(Service):
    """Serves one home in the running event loop."""

    def __init__(
        self,
        home: str | Path | None,
        settings: Settings,
        *,
        on_event: OnEvent = silent,
        on_overtime: Callable[[], None] | None = None,
        sync: str | None = None,
        load: Callable[[], Settings] = from_nowhere,
        moved: bool = False,
        ttl_ms: int | None = None,
        clock: Clock | None = None,
        parts: MakeParts = no_parts,
    ) -> None:
        """`load` reads the settings again, for a reload. `moved`: the home was moved here, and no
        original goes on elsewhere. After `ttl_ms` the daemon ends by itself. `clock`: what the node
        takes for the time; the machine's, if it is not given. `parts` makes what is served besides
        the API.
        """
        super().__init__(on_event, on_overtime)
        self._home, self._settings, self._sync = home, settings.check(), sync
        self._load, self._moved, self._ttl_ms, self._clock = load, moved, ttl_ms, clock
        self._parts = parts
        self._api: NodeApi | None = None
        self._talkative = False
        self._last_state: dict[tuple[str, str], str | None] = {}

    @property
    def api(self) -> NodeApi:
        assert self._api is not None, "the daemon is not up"
        return self._api

    # --- starting ----------------------------------------------------------------------------

    async def _start(self, ending: AsyncExitStack) -> None:
        root = homes.resolve_home(self._home, os.environ)
        paths = homes.require_home(root)
        lock = DaemonLock(paths)
        ending.callback(lock.close)
        ending.callback(self._tell_stopped)  # while we hold it: `down` waits for the lock
        copied = self._check_place(paths)
        opened = await asyncio.to_thread(
            open_home,
            root,
            sync=self._sync,
            wakes_daemon=False,
            new_epoch=copied,
            source=self._clock,
        )
        node = Node(opened)
        ending.push_async_callback(asyncio.to_thread, node.close)
        self._note_place(paths)
        age = self._settings.outbox.max_age_hours
        node._engine.read("sync.terms", lambda tx: require_age(tx, age))
        self._api = api = self._make_api(node, paths, ending)
        settings = self._settings
        listeners, api.certificate = bind_listeners(paths, settings, ending, socket=settings.socket)
        api.reload = Reloader(api, self._load, paths.root, listeners).reload
        self._start_upkeep(api, ending)
        self._start_links(api, paths, ending)
        await self._start_syncs(api, ending)
        await self._start_bus(api, paths, ending)
        app = HttpApp(api, node_routes())
        app.parts = self._parts(api, app)
        server = Server(app, listeners, web=settings.web)
        ending.push_async_callback(self._end_calls, server)
        self.addresses = api.addresses
        self._note_addresses(api, lock, server)
        api.open_door = partial(self._open_door, api, lock, server)
        for part in app.parts:
            await ending.enter_async_context(part.life())
        await server.start()
        self._note_addresses(api, lock, server)
        self._start_waking(api, paths, ending)
        self._start_messages(api, ending)
        api.phase = "ready"
        if self._ttl_ms is not None:
            loop = asyncio.get_running_loop()
            ending.callback(loop.call_later(self._ttl_ms / limits.SECOND_MS, self.stop).cancel)

    def _check_place(self, paths: HomePaths) -> bool:
        """Whether the home may be a copy that was let pass; raises HomeCopied if it was not."""
        found = whereabouts.place(paths)
        if not found.suspicious:
            return False
        where = "on another machine" if found is HomePlace.OTHER_HOST else "as other files"
        if not (self._moved or self._settings.copied_home == "allow"):
            raise HomeCopied(f"{paths.root} was last served {where}: it was copied or moved")
        log.warning("%s was last served %s; its log counts on in a new epoch", paths.root, where)
        return True

    def _note_place(self, paths: HomePaths) -> None:
        if whereabouts.place(paths) is not HomePlace.SAME:
            try:
                whereabouts.note(paths)
            except HoldfastError as error:  # a full disk: it is noted at a later start
                log.warning("a copy of %s would not be noticed: %s", paths.root, error.message)

    async def reload(self) -> None:
        api = self._api
        if api is None or api.phase != "ready":
            return
        try:
            done = api.reload()
        except HoldfastError as error:
            log.error("the settings stay as they are: %s (%s)", error.message, error.hint)
        else:
            log.warning("%s", done.sentence)

    def _make_api(self, node: Node, paths: HomePaths, ending: AsyncExitStack) -> NodeApi:
        engine = node._engine
        threads = ThreadPoolExecutor(limits.SERVER_THREADS, "holdfast-serve")
        ending.callback(threads.shutdown, wait=False)
        trust = Trust(engine, paths)
        log_watch = LogWatch(lambda: engine.read("log.head", lambda tx: tx.log_bounds()[1]))
        disk = DiskWatch(engine, paths, self._settings.disk_limit_bytes)
        disk.on_change(lambda found: self._news(log_watch, "disk", _disk_news(found)))
        return NodeApi(
            node=node,
            trust=trust,
            sessions=Sessions(trust, clock=monotonic, random=os.urandom),
            settings=self._settings,
            log_watch=log_watch,
            gate=ConcurrencyLimits(),
            counts=RequestCounts(),
            threads=threads,
            writer=LoopWriter(engine, node._opened.store.writer),
            disk=disk,
            started_at=engine.ctx.now_ms() / 1000,
        )

    def _start_upkeep(self, api: NodeApi, ending: AsyncExitStack) -> None:
        assert api.disk is not None
        upkeep = NodeUpkeep(
            api.node,
            api.disk,
            ttl=lambda: Ttl.of_settings(api.settings.retention),
            lags=lambda: _lags(api),
        )
        upkeep.start()
        ending.push_async_callback(
            asyncio.to_thread, upkeep.stop, limits.SHUTDOWN_SWEEP_MS_MAX / 1000
        )

    def _start_links(self, api: NodeApi, paths: HomePaths, ending: AsyncExitStack) -> None:
        def changed(status: LinkStatus) -> None:
            self._news(api.log_watch, "link", _link_news(status))

        link_manager = api.link_manager = LinkManager(api.engine, api.trust, on_change=changed)
        ending.push_async_callback(
            asyncio.to_thread, link_manager.stop, limits.SHUTDOWN_DRAIN_MS_MAX / 1000
        )
        if daemon_note(paths, PULL_LOCK) is None:
            link_manager.start()
        else:
            self._in_background(_start_after_pull(link_manager, paths), ending)

    async def _start_syncs(self, api: NodeApi, ending: AsyncExitStack) -> None:
        def changed(broker: BrokerAddress, unit: Supervision[SyncState]) -> None:
            self._news(api.log_watch, "broker", _broker_news(broker, unit))

        def died(row: OutboxRow) -> None:
            if api.message_watch is None:  # it starts after the sync
                api.log_watch.post("outbox", outbox_event(row))
            else:
                api.message_watch.died(row)

        outbox = self._settings.outbox
        sync_manager = api.sync_manager = SyncManager(
            api.engine,
            api.trust,
            policies=outbox.policies,
            max_age_hours=outbox.max_age_hours,
            on_change=changed,
            on_dead=died,
        )
        await sync_manager.start()
        ending.push_async_callback(sync_manager.stop)
        api.log_watch.on_look.append(sync_manager.ring)

    async def _start_bus(self, api: NodeApi, paths: HomePaths, ending: AsyncExitStack) -> None:
        if not self._settings.bus.enabled:
            return
        try:
            host = api.bus = await BusHost.bind(
                api.engine,
                api.node._opened.store,
                paths,
                self._settings,
                patience_ms=limits.BUS_HOLDER_MS,
            )
        except WrongKey as error:
            # All else of the node works without the bus, and whoever asks for it hears why.
            api.bus_problem = error
            log.error("the bus is closed: %s (%s)", error.message, error.hint)
            return
        ending.push_async_callback(host.close)
        host.on_link(lambda document: self._news(api.log_watch, "peer", document))
        api.log_watch.on_look.append(lambda: host.log_at(api.log_watch.head))

    async def _open_door(self, api: NodeApi, lock: DaemonLock, server: Server) -> None:
        await open_loopback(server, api.node.home)
        self._note_addresses(api, lock, server)

    def _note_addresses(self, api: NodeApi, lock: DaemonLock, server: Server) -> None:
        api.addresses[:] = [listener.address for listener in server.listeners]
        lock.write(DaemonNote(os.getpid(), api.addresses))

    def _start_waking(self, api: NodeApi, paths: HomePaths, ending: AsyncExitStack) -> None:
        api.engine.store.on_commit(api.log_watch.ring)
        wake = WakeSocket(homes.wake_path(paths, make=True), api.log_watch)
        ending.callback(wake.close)
        self._in_background(api.log_watch.watch(), ending)
        self._start_watchdog(ending)
        # What was written between opening the home and now.
        api.log_watch.look()

    def _start_messages(self, api: NodeApi, ending: AsyncExitStack) -> None:
        settings = self._settings
        about = {"HOLDFAST_HOME": str(api.node.home), "HOLDFAST_PEER": api.node.peer}
        hooks = api.hooks = HookRunner(about, settings.hook_environment)
        message_watch = api.message_watch = MessageWatch(
            api.engine, api.log_watch, settings.hook_message, hooks, api.run
        )
        self._in_background(message_watch.watch(), ending)
        api.event_hooks = EventHooks(hooks, api.log_watch, event_hooks(settings))
        self._in_background(api.event_hooks.watch(), ending)

    def _news(self, log_watch: LogWatch, kind: str, document: dict[str, Any]) -> None:
        """Passes an event on, in the thread that found it out."""
        log_watch.post(kind, document)
        # Nothing before `ready`, and nothing after `stopping`, when all of this is expected. Only
        # one line for a link that is out of reach: it tries again and again, perhaps for weeks.
        about, state = (kind, document.get("name", "")), document.get("state")
        if self._talkative and state != LinkState.CONNECTING:
            if state is None or self._last_state.get(about) != state:
                self._on_event(kind, document)
            self._last_state[about] = state

    def _tell_ready(self) -> None:
        api = self.api
        self._tell_serving(
            {
                "home": str(api.node.home),
                "peer": api.node.peer,
                "card": api.trust.card(),
                "bus": [] if api.bus is None else api.bus.bus.addresses,
            }
        )
        self._talkative = True

    # --- ending ------------------------------------------------------------------------------

    def _tell_stopping(self) -> None:
        self._talkative = False
        super()._tell_stopping()

    async def _end_calls(self, server: Server) -> None:
        """Answers waiting calls with what there is, ends streams, and lets other calls finish."""
        self.api.phase = "stopping"
        self.api.log_watch.close()
        await server.stop()


async def _start_after_pull(link_manager: LinkManager, paths: HomePaths) -> None:
    """Two must not pull one link: a process that does gives way as soon as it sees this daemon."""
    moment_s = limits.LINK_PULL_WAIT_MS_MAX / limits.SECOND_MS
    while not await asyncio.to_thread(wait_until_free, paths, moment_s, PULL_LOCK):
        log.info("links wait until `link pull` of another process has ended")
    await asyncio.to_thread(link_manager.start)


def _disk_news(found: Pressure) -> dict[str, Any]:
    return {"level": found.level, "fill": round(found.fill, 4), "room": found.room}


def _lags(api: NodeApi) -> dict[str, Any]:
    """How many entries of each shared mesh and of each link are not here yet, where it is known."""
    brokers = [] if api.sync_manager is None else api.sync_manager.status()
    links = [] if api.link_manager is None else api.link_manager.status()
    return {
        "sync": {mesh.mesh: mesh.lag for broker in brokers for mesh in broker.meshes},
        "links": {link.name: link.lag for link in links},
    }


def _broker_news(broker: BrokerAddress, unit: Supervision[SyncState]) -> dict[str, Any]:
    return {
        "name": broker.name,
        "url": broker.url,
        "state": str(unit.state),
        "since": unit.since,
        "error": _present_error(unit),
    }


def _link_news(status: LinkStatus) -> dict[str, Any]:
    return {
        "name": status.name,
        "zone": status.zone,
        "state": str(status.state),
        "since": status.since,
        "cursor": status.cursor,
        "lag": status.lag,
        "error": _present_error(status),
    }


def _present_error(status: LinkStatus | Supervision[SyncState]) -> str | None:
    """The code of the last error, until the work has succeeded again."""
    problem = status.last_error
    return None if problem is None or not status.attempts else problem.code
