"""The server of a lake as a service: its lock, its socket, the thread of its rounds, and its end.

Ending: it takes no more calls, finishes the round that it commits, and leaves. What is not done
after ten seconds is left to the next one: nothing of it was committed.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

from pyspark.sql import SparkSession

from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.serve.calls import LakeApi, routes
from holdfast.pipeline.serve.place import server_place
from holdfast.pipeline.serve.rounds import LakeRounds, OnReport
from holdfast.pipeline.serve.warm import WarmSession
from holdfast.pipeline.spark.ending import end_children
from holdfast.rules.limits import SPARK_END_MS_MAX
from holdfast.service.http.app import HttpApp
from holdfast.service.instance_lock import DaemonLock, DaemonNote
from holdfast.service.lifecycle import OnEvent, Service, end_process, silent
from holdfast.storage.files.durable import make_folder
from holdfast.storage.files.home import socket_path
from holdfast.transport.http_server import Server
from holdfast.transport.listeners import unix_listener


class LakeService(Service):
    """Serves one lake in the running event loop."""

    def __init__(
        self,
        start: Callable[[], SparkSession],
        lake: Lake,
        *,
        every_ms: int,
        on_report: OnReport = lambda report: None,
        on_event: OnEvent = silent,
        on_overtime: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(on_event, on_overtime or _end_all)
        self._lake = lake
        self._spark = WarmSession(start)
        self._rounds = LakeRounds(self._spark, lake, every_ms=every_ms, on_report=on_report)

    async def _start(self, ending: AsyncExitStack) -> None:
        paths = server_place(self._lake)
        paths.root.parent.mkdir(parents=True, exist_ok=True)
        make_folder(paths.root)
        lock = DaemonLock(paths, what="a server", end="end it first")
        ending.callback(lock.close)
        ending.callback(self._tell_stopped)
        await asyncio.to_thread(self._spark)
        rounds = threading.Thread(target=self._rounds.run, name="holdfast-rounds", daemon=True)
        rounds.start()
        ending.push_async_callback(asyncio.to_thread, rounds.join)
        ending.callback(self._rounds.stop)
        path = socket_path(paths)
        listener = unix_listener(path)
        ending.callback(path.unlink, missing_ok=True)
        ending.callback(listener.socket.close)
        now_ms = time.time_ns() // 1_000_000
        api = LakeApi(self._lake, self._spark, self._rounds, now_ms)
        server = Server(HttpApp(api, routes()), [listener])
        await server.start()
        ending.push_async_callback(server.stop)
        # Before the calls are waited for: one of them may wait for a round.
        ending.callback(self._rounds.stop)
        self.addresses = [listener.address]
        lock.write(DaemonNote(os.getpid(), self.addresses))
        self._start_watchdog(ending)
        api.phase = "ready"

    def _tell_ready(self) -> None:
        self._tell_serving({"lake": self._lake.root})

    async def reload(self) -> None:
        """Nothing to read again: the lake itself remembers its logs."""


def _end_all() -> None:
    end_children(SPARK_END_MS_MAX)
    end_process()
