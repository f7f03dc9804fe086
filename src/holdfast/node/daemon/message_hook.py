"""Reports new messages and failures of the outbox as events, and runs the message hook.

It wakes when the log grows. The hook is a command of the operator; it runs for one message after
the other, with the message as JSON on its stdin. A message is marked before the hook runs, so that
no message runs it twice, whatever is killed meanwhile. A hook that fails is logged and counted
(`hooks`), and the message stays in the inbox like any other.

A hook gets only messages that arrive after it was set up.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec

from holdfast.node.core.engine import NodeEngine
from holdfast.node.daemon.hooks import HookRunner
from holdfast.node.http.inbox import opened
from holdfast.node.messages.inbox import Inbox
from holdfast.node.watching.log_watch import LogWatch
from holdfast.rules.errors import HoldfastError, UnknownMessage
from holdfast.rules.ids import id_text
from holdfast.rules.limits import CHUNK_ROWS, HOOK_ROWS, OUTBOX_PAGE_ROWS
from holdfast.rules.outbox import lane_of
from holdfast.rules.rows import InboxRow, JobRow, OutboxRow
from holdfast.storage.ports import Reader, Transaction

log = logging.getLogger("holdfast")

_JOB = "hook_message"
_LOOK_S = 1.0
"""How often it looks for failures in the outbox, which do not make the log grow."""


class MessageWatch:
    """A task of the daemon, from its start to its end."""

    def __init__(
        self,
        engine: NodeEngine,
        log_watch: LogWatch,
        hook: list[str],
        runner: HookRunner,
        run: Callable[..., Coroutine[Any, Any, Any]],
    ) -> None:
        """`run` runs work that may block in a thread."""
        self._engine, self._log_watch, self._hook, self._run = engine, log_watch, hook, run
        self._runner = runner
        # Now, and not at the first look of the task: a message that comes between is news.
        self._last = engine.read("hook", lambda tx: tx.inbox_last())
        self._failing: dict[str, str] = {}
        """By lane: the first row that fails, of which there was an event."""
        self._told: deque[str] = deque(maxlen=OUTBOX_PAGE_ROWS)
        """Rows whose death was an event lately."""
        self._changed = True
        """The hook is to be set up, or to be removed."""

    def set_hook(self, hook: list[str]) -> None:
        """Another command, or none, from the next look on. A hook gets only messages that arrive
        after it was set up; one that replaces another goes on where that one was.
        """
        self._hook, self._changed = hook, True

    def died(self, row: OutboxRow) -> None:
        """A row of the outbox has died; from any thread. Each is an event, also behind others."""
        problem = outbox_event(row)
        self._told.append(problem["id"])
        self._log_watch.post("outbox", problem)

    async def watch(self) -> None:
        """Runs until it is cancelled."""
        while not self._log_watch.closing:
            head = self._log_watch.head
            try:
                if self._changed:
                    await self._begin_anew()
                await self._look()
            except HoldfastError as error:
                # The store is closing or its disk failed: that is reported elsewhere.
                log.info("the inbox could not be looked at: %s", error.message)
            await self._log_watch.wait(head, _LOOK_S)

    # --- the beginning -----------------------------------------------------------------------

    async def _begin_anew(self) -> None:
        self._changed = False
        try:
            await self._run(self._begin)
        except HoldfastError:
            self._changed = True
            raise

    def _begin(self) -> None:
        """Sets the hook up or removes it."""
        known = self._engine.read("hook", lambda tx: tx.job_get(_JOB))
        if known is not None and not self._hook:
            self._engine.write("hook", lambda tx: tx.job_drop(_JOB))
        elif known is None and self._hook:
            while self._engine.write("hook", self._pass_over):
                pass
            self._engine.write("hook", self._set_up)

    def _pass_over(self, tx: Transaction) -> int:
        rows = tx.inbox_unhooked(CHUNK_ROWS)
        tx.inbox_hooked([row.number for row in rows], self._engine.ctx.now_ms())
        return len(rows)

    def _set_up(self, tx: Transaction) -> None:
        now = self._engine.ctx.now_ms()
        tx.job_put(JobRow(name=_JOB, cursor={"command": self._hook}, updated_at=now))

    # --- each look ---------------------------------------------------------------------------

    async def _look(self) -> None:
        new, failing = await self._run(self._news)
        for row in new:
            self._last = row.number
            self._log_watch.post("message", _event(row))
        for lane, problem in failing.items():
            news = self._failing.get(lane) != problem["id"]
            if news and not (problem["state"] == "dead" and problem["id"] in self._told):
                self._log_watch.post("outbox", problem)
        for lane in self._failing.keys() - failing.keys():
            self._log_watch.post("outbox", {"lane": lane, "id": None, "state": None})
        self._failing = {lane: problem["id"] for lane, problem in failing.items()}
        if self._hook:
            for row in await self._run(self._unhooked):
                await self._run_hook(row)

    def _news(self) -> tuple[list[InboxRow], dict[str, dict[str, Any]]]:
        def read(tx: Reader) -> tuple[list[InboxRow], dict[str, dict[str, Any]]]:
            failing: dict[str, dict[str, Any]] = {}
            for mesh in tx.mesh_list():
                first = tx.outbox_failing(lane_of(mesh.slug), None) if mesh.shared else ()
                failing |= {row.lane: outbox_event(row) for row in first}
            return tx.inbox_list(None, False, self._last, CHUNK_ROWS), failing

        return self._engine.read("inbox.watch", read)

    def _unhooked(self) -> list[InboxRow]:
        return self._engine.read("hook", lambda tx: tx.inbox_unhooked(HOOK_ROWS))

    # --- the hook ----------------------------------------------------------------------------

    async def _run_hook(self, row: InboxRow) -> None:
        try:
            message = await self._run(Inbox(self._engine).get, id_text(row.id))
        except UnknownMessage as error:
            log.warning("the hook does not run for a message: %s", error.message)
            message = None
        await self._run(self._mark, row)
        if message is not None:
            document, about = msgspec.json.encode(opened(message)), f"message {id_text(row.id)}"
            await self._runner.run("message", self._hook, document, about)

    def _mark(self, row: InboxRow) -> None:
        now = self._engine.ctx.now_ms()
        self._engine.write("hook", partial(_hooked, row.number, now))


def _hooked(number: int, now_ms: int, tx: Transaction) -> None:
    tx.inbox_hooked((number,), now_ms)


def _event(row: InboxRow) -> dict[str, Any]:
    return {
        "number": row.number,
        "id": id_text(row.id),
        "mesh": row.mesh,
        "kind": row.kind,
        "ref": row.ref,
        "sender": row.sender,
        "priority": row.priority,
        "received_at": row.received_at,
    }


def outbox_event(row: OutboxRow) -> dict[str, Any]:
    return {
        "lane": row.lane,
        "id": id_text(row.id),
        "state": str(row.state),
        "attempts": row.attempts,
        "code": row.code,
        "error": row.error,
    }
