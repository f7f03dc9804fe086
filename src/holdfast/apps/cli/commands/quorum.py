"""`holdfast quorum`: who decides strong writes of a mesh, and how that stands."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from holdfast.apps.cli import asking, tables, times
from holdfast.apps.cli.declare import ASKS, DRY, noun, verb
from holdfast.apps.cli.quorum_calls import QuorumCalls, open_quorum
from holdfast.apps.cli.session import CommandSession
from holdfast.node.bus.auth_material import AuthMaterial
from holdfast.node.quorum.documents import QuorumView
from holdfast.node.quorum.ports import OrderMember, OrderStatus
from holdfast.node.quorum.standing import even_warning, warnings_of
from holdfast.rules.errors import BadInput
from holdfast.storage.files.home import HomePaths

quorum_ = noun("quorum", "Voters of a mesh, who decide its strong writes by majority.")

_MESH = click.argument("mesh_name", metavar="[MESH]", required=False)
_TIMEOUT = click.option("--timeout", metavar="SPAN", help="How long it may take, as 90s.")
_LOSS = (
    "recover makes this node the only voter of {mesh}, with what is on its disk: strong writes "
    "that others acknowledged and that are not here are lost for good, and the voters of before "
    "must never come back with their data"
)


@verb(quorum_, "init")
@click.argument("mesh_name", metavar="MESH")
@click.option("--voter", "voters", multiple=True, metavar="PEER", help="Votes beside this node.")
@click.option(
    "--engine",
    default="embedded",
    show_default=True,
    metavar="ENGINE",
    help="`embedded`, or an etcd: etcd://HOST:PORT,HOST:PORT (with TLS, but for loopback).",
)
def init(session: CommandSession, mesh_name: str, voters: tuple[str, ...], engine: str) -> None:
    """Give MESH voters: this node and every --voter, which must be a member that may vote.

    Three voters survive the loss of one, five of two. From then on tasks, entities, settings and
    leases of the mesh are decided by a majority; all else travels as before.
    """
    warning = even_warning(len(set(voters)) + 1) if engine == "embedded" else ""
    if warning:
        session.warn("even_voters", warning)
    with open_quorum(session, mesh_name) as quorum:
        status = quorum.run(quorum.api.init(quorum.mesh, voters, engine=engine))
        who = "an etcd keeps the order of" if status.engine == "etcd" else _deciding(status)
        session.talk(f"{who} {quorum.mesh} from now on")
        _show(session, status)


@verb(quorum_, "move")
@click.argument("mesh_name", metavar="MESH")
@click.option(
    "--engine",
    required=True,
    metavar="ENGINE",
    help="`embedded`, or an etcd: etcd://HOST:PORT,HOST:PORT.",
)
@click.option("--voter", "voters", multiple=True, metavar="PEER", help="Votes beside this node.")
def move(session: CommandSession, mesh_name: str, engine: str, voters: tuple[str, ...]) -> None:
    """Let another engine keep the order of MESH: an etcd, or this node and every --voter.

    The old order ends with an entry of its own; strong writes wait in the queue until the new one
    has begun. What was cut short goes on by itself, or when you say it again. To let other nodes
    use the etcd too, say the same there.
    """
    with open_quorum(session, mesh_name) as quorum:
        status = quorum.run(quorum.api.move(quorum.mesh, voters, engine=engine))
        who = "an etcd keeps" if status.engine == "etcd" else f"{_voters(status)} keep"
        session.talk(f"{who} the order of {quorum.mesh} now, in incarnation {status.incarnation}")
        _show(session, status)


@verb(quorum_, "status")
@_MESH
def status(session: CommandSession, mesh_name: str | None) -> None:
    """Show who coordinates, since which lease epoch, how far each member is, and what waits."""
    with open_quorum(session, mesh_name) as quorum:
        view = quorum.run(quorum.api.view(quorum.mesh))
        if session.as_json:
            session.show(_document(view))
            return
        _card(view)
        _members(view.order)
        for warning in view.warnings:
            session.warn("quorum", warning)


@verb(quorum_, "members", lists="")
@_MESH
def members(session: CommandSession, mesh_name: str | None) -> None:
    """List the members of the group that decides, with how far each has come."""
    with open_quorum(session, mesh_name) as quorum:
        order = quorum.run(quorum.api.status(quorum.mesh))
        session.rows(_rows(order), _MEMBER, empty="an etcd decides for this mesh")


@verb(quorum_, "add")
@click.argument("peer")
@_TIMEOUT
def add(session: CommandSession, peer: str, timeout: str | None) -> None:
    """Make the member PEER of a mesh a voter: it learns everything first, then it votes."""
    with open_quorum(session) as quorum:
        order = quorum.run(quorum.api.add(quorum.mesh, peer, timeout_ms=_ms(timeout)))
        _changed(session, order, f"{peer} votes in {quorum.mesh}")


@verb(quorum_, "remove")
@click.argument("peer")
@_TIMEOUT
@click.option("--last", is_flag=True, help="Also if it is this node, and the only voter.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(session: CommandSession, peer: str, timeout: str | None, last: bool, yes: bool) -> None:
    """Take the vote from PEER. It stays a member of the mesh.

    With --last the only voter gives up too. Then nobody decides strong writes of the mesh any more,
    until a member recovers it; and its node can delete the mesh.
    """
    with open_quorum(session) as quorum:
        mesh = quorum.mesh
        if last:
            asking.agree(
                f"Take the last vote of {mesh}? Nobody decides its strong writes then.",
                yes=yes,
                paste=f"holdfast quorum remove {peer} --mesh {mesh} --last --yes",
            )
        call = quorum.api.remove(mesh, peer, timeout_ms=_ms(timeout), last=last)
        order = quorum.run(call)
        _changed(session, order, f"{peer} votes no more in {quorum.mesh}")


@verb(quorum_, "transfer")
@click.argument("peer", required=False)
@_TIMEOUT
def transfer(session: CommandSession, peer: str | None, timeout: str | None) -> None:
    """Let the voter PEER coordinate, or the best one. Writes wait meanwhile, none is refused."""
    with open_quorum(session) as quorum:
        order = quorum.run(quorum.api.transfer(quorum.mesh, peer, timeout_ms=_ms(timeout)))
        _changed(session, order, f"{order.coordinator or 'nobody yet'} coordinates {quorum.mesh}")


@verb(quorum_, "step-down")
@_MESH
def step_down(session: CommandSession, mesh_name: str | None) -> None:
    """Let the coordinator stop at once; the voters elect another one."""
    with open_quorum(session, mesh_name) as quorum:
        order = quorum.run(quorum.api.step_down(quorum.mesh))
        session.talk(f"the coordinator of {quorum.mesh} has stepped down; another one is elected")
        _show(session, order)


@verb(quorum_, "forget-claim", removes=DRY)
@click.argument("peer")
def forget_claim(session: CommandSession, peer: str) -> None:
    """Let go of another order of a mesh that PEER has shown, when it is gone for good.

    While it is there it shows it again. Where such claims have stopped this group, this is refused:
    there only recover decides which order counts.
    """
    with open_quorum(session) as quorum:
        call = quorum.api.forget_claim(quorum.mesh, peer, dry_run=session.dry_run)
        order = quorum.run(call)
        what = f"forget the claim of {peer} to the order of {quorum.mesh}"
        if not session.goes_on(what, asks=False, mesh=quorum.mesh, peer=peer):
            return
        _changed(session, order, f"the claim of {peer} to the order of {quorum.mesh} is forgotten")


@verb(quorum_, "pause")
@_MESH
def pause(session: CommandSession, mesh_name: str | None) -> None:
    """Leave strong writes that wait where they are, until resume. New ones are decided as ever."""
    with open_quorum(session, mesh_name) as quorum:
        quorum.run(quorum.api.pause(quorum.mesh))
        session.talk(f"writes of {quorum.mesh} that wait are not replayed")
        session.talk(f"hint: holdfast quorum resume {quorum.mesh}")
        session.show({"mesh": quorum.mesh, "paused": True}, "")


@verb(quorum_, "resume")
@_MESH
def resume(session: CommandSession, mesh_name: str | None) -> None:
    """Replay strong writes that wait again."""
    with open_quorum(session, mesh_name) as quorum:
        quorum.run(quorum.api.resume(quorum.mesh))
        session.talk(f"writes of {quorum.mesh} that wait are replayed")
        session.show({"mesh": quorum.mesh, "paused": False}, "")


@verb(quorum_, "recover")
@_MESH
@click.option("--accept-loss", is_flag=True, help="Yes, I know what may be lost.")
def recover(session: CommandSession, mesh_name: str | None, accept_loss: bool) -> None:
    """After a majority of the voters is gone for good: go on with what this node has.

    This node becomes the only voter, in a new incarnation, so that every fence of before is older
    than every fence from now on. What only the others had is lost, though it was acknowledged. Run
    it on the node that has come furthest, once, and never let the old voters come back with their
    data. Then add voters again: holdfast quorum add PEER.
    """
    with open_quorum(session, mesh_name) as quorum:
        if not accept_loss:
            raise BadInput(
                _LOSS.format(mesh=quorum.mesh),
                hint=f"if you know that: holdfast quorum recover {quorum.mesh} --accept-loss",
            )
        order = quorum.run(quorum.api.recover(quorum.mesh, accept_loss=True))
        _changed(session, order, f"{quorum.mesh} goes on as incarnation {order.incarnation}")


def replay_writes(session: CommandSession, quorum: QuorumCalls, node: str | None) -> None:
    done = quorum.run(quorum.api.replay(quorum.mesh, node=node))
    document = msgspec.to_builtins(done)
    session.talk(
        f"tried {done.attempted}: {done.applied} applied, {done.failed} failed; "
        f"{done.pending} still wait"
    )
    if done.failed:
        session.talk(f"hint: holdfast writes list --failed --mesh {quorum.mesh}")
    session.show({"mesh": quorum.mesh, **document}, "")


@verb(quorum_, "replay")
@_MESH
@click.option("--node", metavar="PEER", help="Only writes that are for this node.")
def replay(session: CommandSession, mesh_name: str | None, node: str | None) -> None:
    """Try the strong writes that wait for a quorum now."""
    with open_quorum(session, mesh_name) as quorum:
        replay_writes(session, quorum, node)


@verb(quorum_, "forget-auth", mesh=False, removes=ASKS)
@click.argument("providers", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every provider.")
def forget_auth(session: CommandSession, providers: tuple[str, ...], everything: bool) -> None:
    """Delete the keys and tokens of PROVIDERS from this home. Other nodes keep theirs."""
    if bool(providers) == everything:
        raise BadInput("say whose", hint="name providers, or give --all")
    with session.node() as node:
        material = AuthMaterial(node._engine, HomePaths(node.home))
        known = material.summary().providers
        meant = tuple(known) if everything else tuple(one for one in known if one in providers)
        what = f"delete the auth material of {', '.join(meant) or 'nobody'}"
        if not session.goes_on(what, providers=meant):
            return
        gone = material.forget(None if everything else providers)
        session.talk(f"deleted the auth material of {gone.count} providers")
        session.show(msgspec.to_builtins(gone), "".join(f"{one}\n" for one in gone.providers))


# --- what they show --------------------------------------------------------------------------

_MEMBER = "peer part lag link heard disk"


def _ms(timeout: str | None) -> int | None:
    return None if timeout is None else times.parse_span(timeout)


def _voters(order: OrderStatus) -> str:
    count = sum(one.place == "voter" for one in order.members)
    return "1 voter" if count == 1 else f"{count} voters"


def _deciding(order: OrderStatus) -> str:
    voters = _voters(order)
    return f"{voters} decides for" if voters.startswith("1 ") else f"{voters} decide for"


def _changed(session: CommandSession, order: OrderStatus, sentence: str) -> None:
    session.talk(sentence)
    for warning in warnings_of(order):
        session.warn("quorum", warning)
    _show(session, order)


def _show(session: CommandSession, order: OrderStatus) -> None:
    session.show(msgspec.to_builtins(order), f"{order.mesh}\n")


def _document(view: QuorumView) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(view)
    return document


def _card(view: QuorumView) -> None:
    order, writes = view.order, view.writes
    coordinator = order.coordinator or "nobody is known"
    fields = {
        "mesh": order.mesh,
        "engine": order.engine,
        "coordinator": f"{coordinator}, lease epoch {order.lease_epoch}, "
        f"incarnation {order.incarnation}",
        "this node": order.part.replace("_", " "),
        "majority": "heard" if order.has_quorum else "not heard",
        "committed": f"{order.committed}, of which this node has folded {order.applied}",
        "confirmed": "not yet"
        if order.confirmed_ms is None
        else f"{times.span(order.confirmed_ms)} ago",
        "minority": view.minority,
        "handoff": view.handoff,
        "replay": "paused" if view.paused else "on",
        "writes": f"{writes.pending} wait, {writes.failed} failed",
        "conflicts": view.conflicts,
    }
    tables.card(fields, list(fields))


def _members(order: OrderStatus) -> None:
    tables.table(_rows(order), _MEMBER.split())


def _rows(order: OrderStatus) -> list[dict[str, Any]]:
    return [_row(order, one) for one in order.members]


def _row(order: OrderStatus, member: OrderMember) -> dict[str, Any]:
    lag = None if member.match is None else max(0, order.committed - member.match)
    return {
        **msgspec.to_builtins(member),
        "part": "coordinator" if member.leads else member.place,
        "lag": lag,
        "link": "up" if member.linked else None if order.part == "member" else "down",
        "heard": None if member.heard_ms is None else f"{times.span(member.heard_ms)} ago",
    }
