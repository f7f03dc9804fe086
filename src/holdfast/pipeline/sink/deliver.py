"""Sending changes to a node until it has answered each of them.

A node is reached through its daemon, or as a home on this machine's disk. The answer for a row is
final (written, already there, or refused with a reason) or passing: the daemon is away or restarts,
the disk is full, another process holds the store. Rows with a passing answer are sent again with
the same ids, until `patience_s` seconds have passed without progress. So it does not matter how far
an attempt came.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec

from holdfast.node.core.change import Receipt
from holdfast.node.core.context import NodeContext
from holdfast.node.core.loop_writer import LoopWriter
from holdfast.node.http.many import each
from holdfast.node.library.documents import (
    ChangeDocument,
    Prepared,
    PreparedChange,
    prepare,
    write_all,
)
from holdfast.node.library.node import Node, open_node
from holdfast.protocol.log_wire import NDJSON
from holdfast.rules.backoff import backoff_ms
from holdfast.rules.errors import BadAnswer, BadInput, Broken, HoldfastError, JobFailed, Unknown
from holdfast.rules.limits import SECOND_MS
from holdfast.transport.deadline_socket import Address
from holdfast.transport.http_client import Client

PATIENCE_S: Final = 120.0
_ADDRESSES: Final = ("http://", "https://", "unix:")
_ASK_LATER: Final = frozenset({408, 429})
"""Statuses below 500 that pass: the request took too long, or there were too many."""


class RowOutcome(msgspec.Struct, frozen=True):
    """The node's answer for one change."""

    status: int
    duplicate: bool = False
    code: str = ""
    message: str = ""

    @property
    def is_in(self) -> bool:
        return self.status < 300

    @property
    def is_passing(self) -> bool:
        return is_passing(self.status)


def is_passing(status: int) -> bool:
    return status >= 500 or status in _ASK_LATER


class Target(Protocol):
    """A node that takes changes."""

    location: str

    def peer(self) -> str:
        """The node's own name."""

    def send(self, lines: Sequence[bytes]) -> list[RowOutcome]:
        """The outcome of each change, in their order; raises if the node gave no answer at all."""

    def close(self) -> None: ...


def is_address(location: str) -> bool:
    """Whether the location is the address of a daemon, and not the path of a home."""
    return location.startswith(_ADDRESSES)


def check_location(location: str) -> None:
    """Raises BadInput for a location that cannot be a node."""
    if is_address(location):
        Address.parse(location)
    elif not location or "://" in location:
        raise BadInput(
            f"{location!r} is no node: save to http://127.0.0.1:PORT, unix:/ITS/SOCKET or its home"
        )


def open_target(location: str, options: Mapping[str, str]) -> Target:
    """A target for a location, not connected or opened yet. `options` by names in lower case."""
    check_location(location)
    if is_address(location):
        return HttpTarget(location, _token(options))
    return HomeTarget(location)


def _token(options: Mapping[str, str]) -> str | None:
    file = options.get("token_file") or options.get("tokenfile")
    if file is None:
        return options.get("token")
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the token cannot be read from {file}: {error}") from None


# --- a daemon ----------------------------------------------------------------------------------


class _Named(msgspec.Struct):
    peer: str


class _Error(msgspec.Struct):
    code: str
    message: str = ""


class _Result(msgspec.Struct):
    status: int
    duplicate: bool = False
    error: _Error | None = None


class _Results(msgspec.Struct):
    results: list[_Result]


class HttpTarget:
    """A node through its daemon."""

    def __init__(self, location: str, token: str | None) -> None:
        self.location = location
        self._client = Client(location, token=token)

    def peer(self) -> str:
        return self._client.call("GET", "/v1/log").json(_Named).peer

    def send(self, lines: Sequence[bytes]) -> list[RowOutcome]:
        body = b"\n".join(lines)
        headers = {"Content-Type": NDJSON}
        answer = self._client.call("POST", "/v1/changes", body=body, headers=headers)
        return [
            RowOutcome(one.status, one.duplicate)
            if one.error is None
            else RowOutcome(one.status, False, one.error.code, one.error.message)
            for one in answer.json(_Results).results
        ]

    def close(self) -> None:
        self._client.close()


# --- a home ------------------------------------------------------------------------------------


class HomeTarget:
    """A node as a home on this machine, which other processes may have open too."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._node: Node | None = None
        self._loop = asyncio.Runner()

    def peer(self) -> str:
        return self._open().peer

    def send(self, lines: Sequence[bytes]) -> list[RowOutcome]:
        node = self._open()
        prepared = each(lines, partial(_prepared, node._engine.ctx), "changes")
        outcomes = self._loop.run(_write(node, prepared))
        if any(isinstance(one, Broken | Unknown) for one in outcomes):
            self._shut()  # the store takes nothing more until it is opened again
        return [_outcome(one) for one in outcomes]

    def close(self) -> None:
        self._shut()
        self._loop.close()

    def _open(self) -> Node:
        if self._node is None:
            self._node = open_node(self.location)
        return self._node

    def _shut(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            node.close()


async def _write(node: Node, prepared: Sequence[Prepared]) -> list[Receipt | HoldfastError]:
    return await write_all(LoopWriter(node._engine, node._opened.store.writer), prepared)


def _prepared(ctx: NodeContext, line: bytes) -> PreparedChange:
    try:
        document = msgspec.json.decode(line, type=ChangeDocument)
    except msgspec.ValidationError as error:
        raise BadInput(f"the change does not fit: {error}") from None
    return prepare(ctx, document)


def _outcome(one: Receipt | HoldfastError) -> RowOutcome:
    if isinstance(one, HoldfastError):
        return RowOutcome(one.http_status, False, one.code, one.message)
    return RowOutcome(200 if one.duplicate else 201, one.duplicate)


# --- patience ----------------------------------------------------------------------------------


class Delivery:
    """Sends changes to one node, and again those whose answer was passing."""

    def __init__(
        self,
        target: Target,
        patience_s: float = PATIENCE_S,
        *,
        wait: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        lot: Callable[[], float] = random.random,
    ) -> None:
        self._target = target
        self._patience_s = patience_s
        self._ended = threading.Event()
        self._pause = wait or self._ended.wait
        self._clock, self._lot = clock, lot
        self._attempts = 0
        self._since = 0.0

    def peer(self) -> str:
        self._begin()
        while True:
            try:
                return self._target.peer()
            except HoldfastError as error:
                self._wait(_passing(error), "its name was asked for")

    def send(self, lines: Sequence[bytes]) -> list[RowOutcome]:
        """The final outcome of each change, in their order. JobFailed if the patience ends."""
        settled: dict[int, RowOutcome] = {}
        waiting = list(range(len(lines)))
        self._begin()
        while waiting:
            trouble: str
            try:
                answers = self._target.send([lines[index] for index in waiting])
            except HoldfastError as error:
                trouble = _passing(error)
            else:
                if len(answers) != len(waiting):
                    raise BadAnswer(
                        f"{self._target.location} answers {len(answers)} of {len(waiting)} changes"
                    )
                settled.update(
                    (index, one)
                    for index, one in zip(waiting, answers, strict=True)
                    if not one.is_passing
                )
                left = [one for one in answers if one.is_passing]
                if len(left) < len(waiting):
                    self._begin()
                trouble = f"{left[0].code}: {left[0].message}" if left else ""
                waiting = [index for index in waiting if index not in settled]
            if waiting:
                self._wait(trouble, f"{len(waiting)} rows were to be written")
        return [settled[index] for index in range(len(lines))]

    def close(self) -> None:
        """Ends a wait for the node at once; may be called from any thread."""
        self._ended.set()
        self._target.close()

    def _begin(self) -> None:
        self._attempts, self._since = 0, self._clock()

    def _wait(self, trouble: str, doing: str) -> None:
        self._attempts += 1
        left_s = self._patience_s - (self._clock() - self._since)
        if left_s <= 0:
            raise JobFailed(
                f"{self._target.location} gave no answer within {self._patience_s:g} s when {doing}"
                f" ({trouble}); write again: what is in stays, once"
            )
        self._pause(min(left_s, backoff_ms(self._attempts, self._lot()) / SECOND_MS))
        if self._ended.is_set():
            raise JobFailed(f"the writing to {self._target.location} was broken off when {doing}")


def _passing(error: HoldfastError) -> str:
    """The text of a passing error; any other error is raised."""
    if not is_passing(error.http_status):
        raise error
    return f"{error.code}: {error.message}"
