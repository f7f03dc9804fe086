"""`holdfast mesh share`, and what the other verbs of `mesh` do for a mesh that has no broker.

Members, invites and grants are kept in the owner's home, so most of these need no connection. A
daemon that runs is told, and tells the members. Joining and leaving ask the owner over the bus: the
daemon does, if one holds the bus, else the command itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.apps.cli import documents, own_daemon, short_ids
from holdfast.apps.cli.commands.mesh_local import mesh_
from holdfast.apps.cli.declare import verb
from holdfast.apps.cli.session import CommandSession
from holdfast.apps.cli.times import iso
from holdfast.rules.errors import NoDaemon, UnknownKey
from holdfast.rules.keys import text_of

if TYPE_CHECKING:
    from holdfast.node.library.node import Mesh, Node


def is_over_bus(session: CommandSession, mesh: Mesh) -> bool:
    """Whether the mesh is shared over the bus, and at no broker."""
    return not mesh.info().shared and session.opened.bus.sharing.is_shared(mesh.slug)


def is_meant(session: CommandSession, mesh: Mesh, via: str | None) -> bool:
    """Whether a command is for the bus; `via` says so where the mesh is shared both ways."""
    return via == "bus" or (via is None and is_over_bus(session, mesh))


@verb(mesh_, "share")
@click.argument("name", required=False)
def share(session: CommandSession, name: str | None) -> None:
    """Share the mesh NAME over the bus, with no broker: this node is its owner and lets others in.

    Then hand out an invite: holdfast mesh invite NAME. Members find each other on the LAN; this
    node must be there for them to join, and once a month to renew what they were given.
    """
    with session.mesh(name) as mesh:
        shared = session.opened.bus.sharing.share(mesh.slug)
        own_daemon.refresh(session.opened.home)
        session.talk(f"{mesh.slug} is shared over the bus; {shared.owner} is its owner")
        session.talk(f"let others in with: holdfast mesh invite {mesh.slug}")
        session.show(documents.plain(shared), f"{mesh.slug}\n")


def invite(
    session: CommandSession,
    mesh: Mesh,
    uses: int,
    hours: int,
    grants: tuple[str, ...],
    at: str | None,
) -> None:
    from holdfast.node.settings import dial_address

    node = session.opened
    is_owner = any(one.ours for one in node.bus.sharing.shared() if one.mesh == mesh.slug)
    addresses = [at] if at is not None else _addresses(node) if is_owner else []
    made = node.bus.sharing.invite(
        mesh.slug,
        uses=uses,
        hours=hours,
        grants=grants,
        addresses=[dial_address(one) for one in addresses],
    )
    if is_owner:
        session.talk(f"good for {uses}, for {hours} hours; take it back with its id {made.id[:12]}")
        if not addresses:
            session.talk("it names no address: others find this node on the LAN, or --at HOST:PORT")
        session.talk("newcomers need this node to run: holdfast up --bus-listen HOST:PORT")
    else:
        session.talk(f"good for 1, for {hours} hours at most; the owner of {mesh.slug} lets it in")
    session.show(documents.plain(made), f"{made.text}\n")


def _addresses(node: Node) -> list[str]:
    """Where the daemon of this home listens for the bus; none if there is no daemon."""
    try:
        return [own_daemon.bus_address(node.home)]
    except NoDaemon:
        return []


def invites(session: CommandSession, mesh: Mesh, drop: str | None) -> None:
    sharing = session.opened.bus.sharing
    rows = [
        {
            "id": row.digest.hex(),
            "grants": list(row.grants),
            "uses_left": row.uses_left,
            "expires_at": row.expires_at,
            "made_at": row.made_at,
        }
        for row in sharing.invites(mesh.slug)
    ]
    if drop is None:
        session.rows(
            rows,
            "id grants uses_left expires_at made_at",
            empty=f"no invite to {mesh.slug} is open",
        )
        return
    meant = meant_invite(mesh, drop, ((row["id"], row["grants"], row["made_at"]) for row in rows))
    what = f"take back the invite {meant}"
    if not session.goes_on(what, asks=False, mesh=mesh.slug, id=meant):
        return
    gone = sharing.drop_invite(mesh.slug, meant)
    session.talk("the invite is no longer good")
    session.show({"mesh": mesh.slug, "id": meant, "dropped": gone}, "")


def meant_invite(mesh: Mesh, given: str, known: Iterable[tuple[Any, Any, Any]]) -> str:
    """The id of the invite that is meant, of those with these ids, grants and times."""
    missing = UnknownKey(
        f"no invite to {mesh.slug} begins with {given!r}",
        hint=f"see: holdfast mesh invites {mesh.slug}",
    )
    words = ((id, f"{', '.join(grants)}  made {iso(made_at)}") for id, grants, made_at in known)
    return short_ids.one_of(given, words, missing)


def join(session: CommandSession, text: str) -> None:
    with session.node() as node:
        joined = node.bus.join(text)
        session.talk(f"{joined.name} is a member of {joined.mesh}, which {joined.owner} owns")
        has_daemon = own_daemon.bus_standing(node.home) is not None
        how = "" if has_daemon else ", with the daemon: holdfast up"
        session.talk(f"what is in it comes over the bus{how}")
        session.show(msgspec.structs.asdict(joined), f"{joined.mesh}\n")


def members(session: CommandSession, mesh: Mesh) -> None:
    session.rows(
        (
            {
                "name": member.name,
                "grants": list(member.grants),
                "added_at": member.added_at,
                "key": text_of(member.key),
            }
            for member in session.opened.bus.sharing.members(mesh.slug)
        ),
        "name grants added_at key",
        empty=f"{mesh.slug} has no members",
    )


def grant(session: CommandSession, mesh: Mesh, member: str, grants: tuple[str, ...]) -> None:
    changed = session.opened.bus.sharing.grant(mesh.slug, member, grants)
    own_daemon.refresh(session.opened.home)
    session.talk(f"{changed.name} may {', '.join(changed.grants)}")
    found = {"name": changed.name, "grants": list(changed.grants), "key": text_of(changed.key)}
    session.show({"mesh": mesh.slug, **found}, f"{changed.name}\n")


def remove_member(session: CommandSession, mesh: Mesh, member: str) -> None:
    gone = session.opened.bus.sharing.remove_member(mesh.slug, member)
    told = own_daemon.refresh(session.opened.home)
    session.talk(f"{gone.name} is no member of {mesh.slug} any more")
    session.talk(f"no invite lets it in again, until: holdfast mesh admit {gone.name}")
    if not told:
        session.talk("the other members hear of it from the daemon: holdfast up")
    session.show({"mesh": mesh.slug, "member": gone.name, "removed": True}, "")


@verb(mesh_, "admit")
@click.argument("member")
def admit(session: CommandSession, member: str) -> None:
    """Let MEMBER, a name or a key that was removed from a mesh of yours, join it again.

    It needs an invite, like any other: holdfast mesh invite. Only for meshes without a broker.
    """
    with session.mesh() as mesh:
        key = session.opened.bus.sharing.admit(mesh.slug, member)
        own_daemon.refresh(session.opened.home)
        session.talk(f"{member} may join {mesh.slug} again, with an invite")
        session.show({"mesh": mesh.slug, "member": member, "key": key}, f"{key}\n")


def leave(session: CommandSession, mesh: Mesh, remove: bool, forget: bool) -> None:
    session.opened.bus.leave(mesh.slug, remove=remove, forget=forget)
    own_daemon.refresh(session.opened.home)
    session.talk(f"{mesh.slug} is a mesh of this node alone now")
    session.show({"mesh": mesh.slug}, "")
