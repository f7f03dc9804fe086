"""How commands reach the quorums of a home: its daemon holds them, and this process asks it.

What is committed stands in the home's own store. A command that reads lets the daemon confirm how
fresh that is, then reads it itself. Without a daemon a local read still works, and says how old it
may be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.apps.cli import times
from holdfast.apps.cli.session import CommandSession
from holdfast.node.bus.holder import bus_socket
from holdfast.node.core.write_queue import queue_counts
from holdfast.node.quorum.api import ReadDemand, StrongReceipt
from holdfast.node.quorum.documents import ReceiptDocument
from holdfast.node.quorum.remote import RemoteQuorum
from holdfast.rules.errors import BadInput, NoDaemon, NoQuorum, NoVoters, TooStale
from holdfast.rules.quorum.degraded_read import DegradedRead, degraded
from holdfast.storage.ports import Reader

if TYPE_CHECKING:
    from holdfast.node.library.node import Mesh

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class QuorumCalls:
    """The quorum of one mesh, for one command."""

    def __init__(self, session: CommandSession, mesh: Mesh) -> None:
        self.session, self.mesh = session, mesh.slug
        self.engine = session.opened._engine
        self._paths = session.opened._opened.paths

    @property
    def has_daemon(self) -> bool:
        return bus_socket(self._paths) is not None

    @property
    def api(self) -> RemoteQuorum:
        """NoDaemon if nobody holds the quorums of this home."""
        address = bus_socket(self._paths)
        if address is None:
            raise NoDaemon(
                f"no daemon serves {self._paths.root}, and only a daemon takes part in a quorum",
                hint=f"start it: holdfast up --home {self._paths.root}",
            )
        return RemoteQuorum(address)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(work)

    def look(self, name: str, read: Callable[[Reader], T]) -> T:
        """Reads the store of this home, and asks nobody."""
        return self.engine.read(name, read)

    def read(
        self, demand: ReadDemand, name: str, look: Callable[[Reader], T]
    ) -> tuple[T, DegradedRead]:
        """What is committed, as fresh as demanded, and how fresh that is."""
        if demand.linearizable or self.has_daemon:
            fresh = self.run(self.api.confirm(self.mesh, demand))
        else:
            fresh = self._without_daemon(demand)
        return self.look(name, look), fresh

    def _without_daemon(self, demand: ReadDemand) -> DegradedRead:
        if demand.staleness_ms_max is not None:
            raise TooStale(
                "without a daemon nobody knows how old this is",
                hint=f"start one: holdfast up --home {self._paths.root}; or read with --local",
            )

        def look(tx: Reader) -> DegradedRead:
            if tx.quorum_get(self.mesh) is None:
                raise NoVoters(
                    f"the mesh {self.mesh!r} has no voters",
                    hint=f"give it some: holdfast quorum init {self.mesh} --voter PEER",
                )
            counts, now = queue_counts(tx, self.mesh), self.engine.ctx.now_ms()
            return degraded(tx.snapshot_latest(self.mesh), now, None, counts)

        return self.look("quorum.degraded", look)


@contextmanager
def open_quorum(session: CommandSession, name: str | None = None) -> Iterator[QuorumCalls]:
    with session.mesh(name) as mesh:
        yield QuorumCalls(session, mesh)


# --- reads -----------------------------------------------------------------------------------


def reads(function: F) -> F:
    """The options of a command that reads what a quorum has committed."""
    for option in (
        click.option("--local", is_flag=True, help="Whatever this node has; asks nobody."),
        click.option(
            "--max-staleness", metavar="SPAN", help="Refuse what may be older than this: 5s, 1m."
        ),
        click.option(
            "--linearizable",
            is_flag=True,
            help="All that was committed before (the default); refused without a quorum.",
        ),
    ):
        function = option(function)
    return function


def demand_of(linearizable: bool, max_staleness: str | None, local: bool) -> ReadDemand:
    if linearizable + local + (max_staleness is not None) > 1:
        raise BadInput("give one of --linearizable, --max-staleness and --local")
    if max_staleness is not None:
        return ReadDemand(linearizable=False, staleness_ms_max=times.parse_span(max_staleness))
    return ReadDemand(linearizable=not local)


def say_how_fresh(session: CommandSession, fresh: DegradedRead) -> None:
    """For people, on stderr; programs find it in the document."""
    session.talk(freshness(fresh))


def freshness(fresh: DegradedRead) -> str:
    waits = f"; {fresh.queue_depth} of this node's writes wait" if fresh.queue_depth else ""
    if fresh.mode == "fresh":
        return f"fresh: confirmed by a majority at {fresh.as_of}{waits}"
    if fresh.snapshot_version is None and not fresh.staleness_ms:
        return f"degraded: nobody has confirmed it since this node started{waits}"
    snapshot = f", snapshot {fresh.snapshot_version[:12]}" if fresh.snapshot_version else ""
    whose = f" of {fresh.source_node_id}" if fresh.source_node_id else ""
    age = times.span(fresh.staleness_ms)
    return f"degraded: as of {fresh.as_of}{whose}{snapshot}, up to {age} old{waits}"


# --- writes ----------------------------------------------------------------------------------


def written(session: CommandSession, receipt: StrongReceipt, sentence: str) -> int:
    """The answer to a strong write, and the exit code: 0, or 6 if it waits for a quorum."""
    import msgspec

    document = msgspec.to_builtins(ReceiptDocument.of(receipt))
    if receipt.state == "committed":
        outcome = "" if receipt.outcome is None else f" ({receipt.outcome.value})"
        session.wrote(document, f"{sentence}{outcome}")
        return 0
    session.wrote(
        document,
        f"queued: no quorum was there in time ({receipt.reason}); it waits on this node's disk, "
        f"and the daemon tries it again\n"
        f"hint: holdfast writes show {receipt.id} --mesh {receipt.mesh}",
    )
    return NoQuorum.exit_code
