"""`holdfast lease`: a name that one holder at a time has, by decision of a quorum."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from holdfast.apps.cli import times
from holdfast.apps.cli.declare import noun, verb
from holdfast.apps.cli.quorum_calls import (
    QuorumCalls,
    demand_of,
    open_quorum,
    reads,
    say_how_fresh,
    written,
)
from holdfast.apps.cli.session import CommandSession
from holdfast.node.quorum.documents import LeaseDocument
from holdfast.node.quorum.remote import RemoteQuorum
from holdfast.rules.bodies import encode_body
from holdfast.rules.errors import BadInput, UnknownKey
from holdfast.rules.limits import LEASE_GRACE_MS, LEASE_TTL_MS, QUORUM_PAGE_ROWS, QUORUM_WAIT_MS_MAX
from holdfast.rules.quorum.intents import LeaseRelease
from holdfast.rules.quorum.view import LeaseRow
from holdfast.storage.ports import Reader

lease_ = noun("lease", "A name that one holder at a time has, with a fence to show to others.")


@verb(lease_, "run")
@click.argument("name")
@click.argument("command", nargs=-1, required=True)
@click.option(
    "--ttl", metavar="SPAN", help="How long it lasts without a renewal; 30s if not given."
)
@click.option("--wait", metavar="SPAN", help="Wait for it so long; without: refused if it is held.")
@click.option(
    "--grace",
    metavar="SPAN",
    help="Between SIGTERM and SIGKILL for a command that lost its lease; 10s if not given.",
)
def run(
    session: CommandSession,
    name: str,
    command: tuple[str, ...],
    ttl: str | None,
    wait: str | None,
    grace: str | None,
) -> int:
    """Run COMMAND while this node holds the lease NAME; the exit code is that of the command.

    The command finds its fence in HOLDFAST_FENCE (and NAME in HOLDFAST_LEASE, the mesh in
    HOLDFAST_MESH). The lease is renewed while it runs. If it cannot be renewed in time the command
    gets SIGTERM, then SIGKILL before the lease is given away, and the exit code is 5. A guard does
    the same if this process is stopped or killed.

    What a lease promises: of two holders the later one has the greater fence, always. What it does
    not: that the earlier one has stopped. A machine may sleep, or stop as a whole, and wake up as
    if nothing had happened. So show the fence to whatever you protect, and let that refuse a fence
    lower than one it has seen: fences sort as text. Holdfast does so in its own writes:
    holdfast entity put … --fence "NAME@$HOLDFAST_FENCE".
    """
    from holdfast.apps.cli.leased_command import run_leased
    from holdfast.node.library.aio_lease import AsyncLease

    ttl_ms = LEASE_TTL_MS if ttl is None else times.parse_span(ttl)
    wait_ms = 0 if wait is None else times.parse_span(wait)
    if wait_ms > QUORUM_WAIT_MS_MAX:
        raise BadInput(f"{wait} is too long to wait", hint="wait for 10m at most, and try again")
    grace_ms = LEASE_GRACE_MS if grace is None else times.parse_span(grace)
    with open_quorum(session) as quorum:
        api = quorum.api

        async def reach() -> RemoteQuorum:
            return api

        async def leased() -> int:
            mesh = quorum.mesh
            lease = AsyncLease(quorum.engine, mesh, reach, name, ttl_ms=ttl_ms, wait_ms=wait_ms)
            about = {"HOLDFAST_LEASE": name, "HOLDFAST_MESH": mesh}
            return await run_leased(lease, command, about, grace_ms=grace_ms, talk=session.talk)

        return quorum.run(leased())


@verb(lease_, "list", lists="")
@reads
def list_(session: CommandSession, **fresh: Any) -> None:
    """List the leases that somebody holds."""
    with open_quorum(session) as quorum:
        mesh = quorum.mesh

        def look(tx: Reader) -> list[LeaseRow]:
            return tx.lease_list(mesh, "", QUORUM_PAGE_ROWS)

        rows, read = quorum.read(demand_of(**fresh), "lease.list", look)
        say_how_fresh(session, read)
        documents = [_document(mesh, row) for row in rows]
        if session.as_json:
            session.show({"mesh": mesh, "leases": documents, "read": msgspec.to_builtins(read)})
            return
        for document in documents:
            document["ttl"] = times.span(document["ttl_ms"])
        session.rows(
            documents, "name holder ttl since_at waiting", empty=f"nobody holds a lease of {mesh}"
        )


@verb(lease_, "show")
@click.argument("name")
@reads
def show(session: CommandSession, name: str, **fresh: Any) -> None:
    """Show who holds a lease, under which fence, and who waits for it."""
    with open_quorum(session) as quorum:
        mesh = quorum.mesh
        row, read = quorum.read(
            demand_of(**fresh), "lease.get", lambda tx: tx.lease_get(mesh, name)
        )
        say_how_fresh(session, read)
        if row is None:
            raise UnknownKey(
                f"nobody holds the lease {name!r} of {mesh!r}",
                hint=f"see: holdfast lease list --mesh {mesh}",
            )
        document = _document(mesh, row)
        session.show(
            {**document, "read": msgspec.to_builtins(read)},
            fields="mesh name holder session fence ttl_ms since_at waiting",
        )


@verb(lease_, "release", writes=True)
@click.argument("name")
def release(session: CommandSession, name: str) -> int:
    """Give back the lease NAME that this node holds, whichever of its processes took it.

    For a holder that died: its lease would end by itself, after its time to live. A command that
    still runs under it is told at its next renewal.
    """
    with open_quorum(session) as quorum:
        row = _row(quorum, name)
        if row is None or row.holder != session.peer:
            holder = "nobody" if row is None else row.holder
            raise UnknownKey(
                f"this node does not hold {name!r}: {holder} does",
                hint=f"see: holdfast lease list --mesh {quorum.mesh}",
            )
        receipt = quorum.run(
            quorum.api.intend(
                quorum.mesh,
                "lease.release",
                name,
                encode_body(LeaseRelease(row.session)),
                id=session.id,
            )
        )
        return written(session, receipt, f"released {name} of {quorum.mesh}")


def _row(quorum: QuorumCalls, name: str) -> LeaseRow | None:
    mesh = quorum.mesh
    return quorum.look("lease.get", lambda tx: tx.lease_get(mesh, name))


def _document(mesh: str, row: LeaseRow) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(LeaseDocument.of(mesh, row))
    return document
