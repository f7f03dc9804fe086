"""A node of a load: a real daemon and its user in one process.

    python -m tools.loading.node HOME --journal FOLDER --rate 8 --keep-ms 60000

The user writes to every family, sends to a topic, to members and to a queue, takes from the queue,
and from time to time has no daemon at all: then the node is offline, and the user writes on. Every
acknowledged write goes into a journal, and so do the log and the inbox, line by line as they grow;
at the end of the load the journals of all nodes must agree. The log is swept closely behind
the journal, so that no file of the home may grow.

It obeys one word per line: `offline`, `online`, `quiet` (ends the writing), `end`. Once a second it
says how it stands, as one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import queue
import random
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import time_ns
from typing import Any

import msgspec

import holdfast
from holdfast.node.daemon.daemon import Daemon
from holdfast.node.library.node import Node
from holdfast.node.settings import Settings
from holdfast.node.upkeep.sweep import Ttl
from holdfast.rules.errors import NotFound, StoreBusy, StoreClosed, TooMany, Unreachable
from holdfast.rules.ids import id_text, uuid7
from holdfast.storage.ports import Reader
from tools.loading.journal import Journal
from tools.loading.user import MESH, QUEUE, User

LOOK_S = 1.0
TAKE_S = 0.5
ALL = 1 << 40
PAGE = 2000


def brief(keep_ms: int) -> Ttl:
    """Moments in place of months. Tombstones are kept for longer than any node is away."""
    return Ttl(
        log_ms=keep_ms,
        tombstone_ms=8 * keep_ms,
        dedupe_ms=8 * keep_ms,
        blob_ms=keep_ms,
        orphan_ms=keep_ms,
        outbox_ms=keep_ms,
        unread_ms=keep_ms,
    )


class Served:
    """A home behind a daemon, in a thread with a loop of its own."""

    def __init__(self, home: Path) -> None:
        self._told: queue.Queue[BaseException | None] = queue.Queue()
        self._home = home
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        failed = self._told.get()
        if failed is not None:
            raise failed

    @property
    def node(self) -> Node:
        return self._daemon.api.node

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._daemon.stop)
        self._thread.join()

    def _serve(self) -> None:
        async def work() -> None:
            self._loop = asyncio.get_running_loop()
            self._daemon = Daemon(
                self._home,
                Settings(),
                on_event=lambda event, _: self._told.put(None) if event == "ready" else None,
                # The process goes on, without a daemon.
                on_overtime=lambda: logging.getLogger("holdfast").error("ending took too long"),
            )
            await self._daemon.run()

        try:
            asyncio.run(work())
        except BaseException as error:
            self._told.put(error)
            raise


class Alone:
    """A home without a daemon."""

    def __init__(self, home: Path) -> None:
        self.node = holdfast.open(home)

    def close(self) -> None:
        self.node.close()


class Party:
    """One node with all that uses it. Its threads take turns; long work is left to the daemon."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._home: Path = given.home
        self._ttl = brief(given.keep_ms)
        self._turn = threading.Lock()
        self._at: Served | Alone = Served(self._home)
        self._online = True
        peer = self._at.node.peer
        self._rng = random.Random(f"{given.seed} {peer} {os.getpid()}")
        self._user = User(peer, self._rng, given.friends)
        self._log = Journal(given.journal / f"{peer}.log")
        self._inbox = Journal(given.journal / f"{peer}.inbox")
        self._acked = Journal(given.journal / f"{peer}.acked")
        self._settled = Journal(given.journal / f"{peer}.settled")
        self._every_s = 1 / given.rate
        self._quiet, self._end = threading.Event(), threading.Event()
        self.written = self.busy = 0

    def run(self) -> None:
        threads = [
            threading.Thread(target=work, daemon=True)
            for work in (self._write, self._follow, self._work_off)
        ]
        for thread in threads:
            thread.start()
        for line in sys.stdin:
            self._obey(line.strip())
            if line == "end\n":
                break
        self._quiet.set()
        self._end.set()
        for thread in threads:
            thread.join()
        self._follow_once()
        self._at.close()

    def _obey(self, word: str) -> None:
        if word == "quiet":
            self._quiet.set()
        if word in ("offline", "online"):
            with self._turn:
                self._at.close()
                self._online = word == "online"
                self._at = (Served if self._online else Alone)(self._home)

    # --- its threads ---------------------------------------------------------------------------

    def _write(self) -> None:
        while not self._quiet.wait(self._every_s):
            id = id_text(uuid7(time_ns() // 1_000_000, self._rng.randbytes(10)))
            act = self._user.draw(id)
            try:
                with self._turn:
                    act(self._at.node.mesh(MESH))
            except StoreBusy:
                self.busy += 1  # it has not happened
                continue
            self._acked.add(id)
            self.written += 1

    def _follow(self) -> None:
        while not self._end.wait(LOOK_S):
            self._follow_once()
            say({"written": self.written, "busy": self.busy, **self._on_node(self._standing)})

    def _follow_once(self) -> None:
        with suppress(StoreBusy):
            self._on_node(self._journal)

    def _journal(self, node: Node) -> None:
        """What is new goes into the journals; what stands there may be forgotten."""
        while page := node._engine.read("load", self._new_entries):
            self._log.add_all(page)
        while page := node._engine.read("load", self._new_messages):
            self._inbox.add_all(page)
            for line in page:
                with suppress(NotFound):  # a sweep was here between the kill and now
                    node.inbox.read(line.split()[1])
        node.sweep(self._ttl)

    def _new_entries(self, tx: Reader) -> list[str]:
        found = tx.log_range(self._log.reached + 1, ALL, PAGE)
        return [f"{e.offset} {id_text(e.id)} {e.origin} {e.op} {e.entity}" for e in found]

    def _new_messages(self, tx: Reader) -> list[str]:
        found = tx.inbox_list(None, False, self._inbox.reached, PAGE)
        return [f"{row.number} {id_text(row.id)}" for row in found]

    def _standing(self, node: Node) -> dict[str, Any]:
        def read(tx: Reader) -> dict[str, Any]:
            first, head = tx.log_bounds()
            lane = f"broker:{MESH}"
            oldest = tx.outbox_oldest(lane)
            now = node._engine.ctx.now_ms()
            counts = tx.outbox_counts()
            mesh = tx.mesh_get(MESH)
            return {
                "cursor": 0 if mesh is None else mesh.broker_seq,
                "online": self._online,
                "kept": head - first + 1,
                "outbox": sum(counts.values()),
                "waiting": sum(counts.get((lane, s), 0) for s in ("pending", "inflight")),
                "failed": sum(counts.get((lane, s), 0) for s in ("dead", "aborted")),
                "oldest_ms": 0 if oldest is None else max(0, now - oldest),
                "inbox": tx.inbox_counts()[0],
            }

        return node._engine.read("load", read)

    def _work_off(self) -> None:
        """Takes from the queue. A message is finished once, by the taker that gets that answer."""
        while not self._end.wait(TAKE_S):
            if self._online:
                with suppress(Unreachable, TooMany, StoreBusy):
                    self._take_some()

    def _take_some(self) -> None:
        with self._turn:
            sharing = self._at.node.sharing
        try:
            taken = sharing.take(MESH, QUEUE, 20)
            for message in taken:
                if self._rng.random() < 0.1:
                    sharing.settle(MESH, QUEUE, message.handle, "again")
                    continue
                self._settled.add(f"{message.id} asked")
                if sharing.settle(MESH, QUEUE, message.handle, "done"):
                    self._settled.add(f"{message.id} done")
        except StoreClosed:
            pass  # it has gone offline meanwhile; another takes them when their time is over

    def _on_node(self, act: Callable[[Node], Any]) -> Any:
        with self._turn:
            return act(self._at.node)


def say(document: dict[str, Any]) -> None:
    os.write(1, msgspec.json.encode(document) + b"\n")


def die(failed: threading.ExceptHookArgs) -> None:
    """A thread that fails must not leave the others to look as if all were well."""
    threading.__excepthook__(failed)
    os._exit(1)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("home", type=Path)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--keep-ms", type=int, required=True)
    parser.add_argument("--friends", nargs="+", required=True)
    parser.add_argument("--seed", default="0")
    # Warnings that the broker is away are expected here.
    logging.getLogger("holdfast").setLevel(logging.ERROR)
    threading.excepthook = die
    party = Party(parser.parse_args())
    say({"event": "ready", "pid": os.getpid()})
    party.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
