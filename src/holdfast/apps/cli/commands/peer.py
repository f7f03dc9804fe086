"""`holdfast peer`: the peers that this node has heard of, and the zones that it trusts.

A *peer* is a name under which some node writes; stamps carry it. A *zone* is a node that this node
speaks with directly and knows by its key. Every zone is a peer; most peers are not zones.

The daemon of this home looks at once after a change: a link that was refused for a key tries again,
and a link to a zone that is blocked ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from holdfast.apps.cli import documents, own_daemon
from holdfast.apps.cli.declare import DRY, FILTER, noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.node.library.node import Node
from holdfast.node.trust.blocked import block_peer
from holdfast.node.trust.trust import Trust
from holdfast.node.trust.whereabouts import addresses_of, last_seen
from holdfast.rules.errors import BadInput
from holdfast.rules.keys import is_good, split_card, text_of
from holdfast.rules.rows import ZoneRow
from holdfast.storage.files.home import HomePaths

peer_ = noun("peer", "Peers that this node has heard of, and zones that it trusts by their keys.")

READS = click.option(
    "--reads", multiple=True, metavar="MESH", help="A mesh to read, * for all; repeatable."
)
DAYS = click.option(
    "--days",
    type=click.IntRange(min=1),
    metavar="N",
    help="For how many days it is good; else without end.",
)


@contextmanager
def trusting(session: CommandSession) -> Iterator[tuple[Node, Trust]]:
    """The node, and whom it trusts."""
    with session.node() as node:
        yield node, Trust(node._engine, HomePaths(node.home))


# --- who is there ----------------------------------------------------------------------------


@verb(peer_, "list", mesh=FILTER, lists="last_seen_at")
def list_peers(session: CommandSession) -> None:
    """List all peers: those that meshes have heard of, and those that this node trusts.

    LINK is `up` while the bus of this node's daemon is connected with the peer. REFUSED counts what
    the peer sent and the bus refused; `--json` says why. STALE: not heard of for a while.
    """
    with session.node() as node:
        slugs = [row.slug for row in node.meshes()]
        if session.named_mesh is not None:
            slugs = [node.mesh(session.named_mesh).slug]
        trust = Trust(node._engine, HomePaths(node.home))
        rows = _everybody(node, trust, slugs, zones=session.named_mesh is None)
        where = "" if session.named_mesh is None else f" in {session.named_mesh}"
        session.rows(
            rows,
            "peer trust link address rtt_ms waiting refused last_seen_at stale",
            empty=f"no other peer is known{where}; trust one with: holdfast peer trust CARD",
        )


@verb(peer_, "presence", lists="updated_at")
def presence(session: CommandSession) -> None:
    """List the peers of a mesh: what each says of itself, and when it was last heard of.

    It is answered from what this node holds, without a network. This node has no LAST SEEN.
    """
    with session.mesh() as mesh:
        session.rows(
            (documents.in_mesh(row, mesh.slug) for row in mesh.presence.list()),
            "peer display_name status summary updated_at last_seen_at stale",
            empty=f"no peer is known in {mesh.slug}",
        )


@verb(peer_, "describe", writes=True)
@click.option("--name", metavar="TEXT", help="How this peer is called by people.")
@click.option("--status", metavar="TEXT", help="What it does now, in a word or two.")
@click.option("--summary", metavar="TEXT", help="What it is for, in a line.")
def describe(
    session: CommandSession, name: str | None, status: str | None, summary: str | None
) -> None:
    """Say of this node's peer what the others of a mesh see: in `peer presence`.

    What is not given stays as it is; an empty text takes it back.
    """
    if name is None and status is None and summary is None:
        raise BadInput("nothing is said", hint="give --name, --status or --summary")
    with session.mesh() as mesh:
        done = mesh.presence.set(display_name=name, status=status, summary=summary, id=session.id)
        said = documents.in_mesh(mesh.presence.get(), mesh.slug)
        fields = {key: said[key] for key in ("peer", "display_name", "status", "summary")}
        session.receipt(mesh, done, "memory.set", f"described {said['peer']} in", **fields)


@verb(peer_, "ping", mesh=False)
@click.argument("name")
def ping(session: CommandSession, name: str) -> None:
    """Say how long it takes over the bus to the peer NAME and back."""
    with session.node() as node:
        ms = node.bus.ping(name)
        session.talk(f"{name} answered in")
        session.show({"peer": name, "ms": ms}, f"{ms:.1f} ms\n")


@verb(peer_, "zones", mesh=False, lists="added_at")
def zones(session: CommandSession) -> None:
    """List the zones that this node trusts or has blocked: their keys, and what they may read."""
    with trusting(session) as (node, trust):
        session.rows(
            (_zone(node, row) for row in trust.zones()),
            "zone trust keys reads addresses added_at blocked_at",
            empty="no zone is trusted; trust one with: holdfast peer trust CARD",
        )


@verb(peer_, "card", mesh=False)
@click.option("--bus", is_flag=True, help="With the address of the daemon's bus behind it.")
def card(session: CommandSession, bus: bool) -> None:
    """Show this node's card: its name and public key, for others to trust."""
    with trusting(session) as (node, trust):
        text = trust.card()
        if bus:
            text = f"{text}@{own_daemon.bus_address(node.home)}"
        session.show({"zone": trust.name, "card": text}, f"{text}\n")


# --- trust -----------------------------------------------------------------------------------


@verb(peer_, "trust", mesh=False)
@click.argument("card")
@READS
@DAYS
@click.option(
    "--at", multiple=True, metavar="HOST:PORT", help="Where its bus is, without mDNS; repeatable."
)
def trust_(
    session: CommandSession,
    card: str,
    reads: tuple[str, ...],
    days: int | None,
    at: tuple[str, ...],
) -> None:
    """Trust the zone on CARD by the key on it. Run again with a second key, both are good.

    A trusted zone may send messages over the bus; what it may read is what --reads says. A card may
    have the address of the zone's bus behind it: CARD@HOST:PORT.
    """
    from holdfast.node.settings import dial_address

    card, address = split_card(card)
    at = at if address is None else (address, *at)
    with trusting(session) as (node, trust):
        row = trust.trust(card, reads=reads, days=days, at=map(dial_address, at))
        own_daemon.refresh(node.home)
        warn_of_unknown(session, node, reads)
        may = ", ".join(row.reads) or "nothing yet: grant it with --reads MESH"
        session.talk(f"{row.name} is trusted; it may read {may}")
        _show(session, node, row)


@verb(peer_, "revoke", mesh=False, removes=DRY)
@click.argument("name")
@click.option(
    "--reads", multiple=True, metavar="MESH", help="A mesh that the zone may no longer read."
)
@click.option("--key", metavar="KEY", help="A key, or the card with it, that is no longer good.")
def revoke(session: CommandSession, name: str, reads: tuple[str, ...], key: str | None) -> None:
    """Take back from the zone NAME a mesh that it may read, or one of its keys."""
    with trusting(session) as (node, trust):
        if session.dry_run:
            left = trust.foresee_revoke(name, reads=reads, key=key)
            may = f"let {name} read {', '.join(left.reads) or 'nothing'}, by {_keys(left)}"
            session.goes_on(may, name=name, reads=left.reads, keys=len(left.keys))
            return
        row = trust.revoke(name, reads=reads, key=key)
        own_daemon.refresh(node.home)
        session.talk(f"{name} may read {', '.join(row.reads) or 'nothing'}, by {_keys(row)}")
        _show(session, node, row)


@verb(peer_, "block", mesh=False)
@click.argument("name")
def block(session: CommandSession, name: str) -> None:
    """Drop what the peer NAME sends to this node, and stop speaking with it if it is a zone.

    Its messages, over brokers and the bus, are counted, and it is not told. What it changes in
    meshes still comes by way of others and by brokers: else the nodes of a mesh would differ.
    """
    with trusting(session) as (node, trust):
        slugs = [row.slug for row in node.meshes()]
        known = {row["peer"] for row in _everybody(node, trust, slugs, zones=True)}
        # A name that nobody has is a slip: then it is asked for as a zone, which says so.
        zone = _zone_blocked(trust, name) if name in known else trust.block(name)
        blocked = block_peer(node._engine, name)
        own_daemon.refresh(node.home)
        session.talk(f"{name} is blocked; to hear it again: holdfast peer unblock {name}")
        if zone is None:
            session.show(documents.plain(blocked), f"{name}\n")
            return
        session.talk("it is no trusted zone any more; to trust it again: holdfast peer trust CARD")
        _show(session, node, zone)


def _zone_blocked(trust: Trust, name: str) -> ZoneRow | None:
    return trust.block(name) if name in {row.name for row in trust.zones()} else None


@verb(peer_, "unblock", mesh=False)
@click.argument("name")
def unblock(session: CommandSession, name: str) -> None:
    """Hear the peer NAME again. What was dropped meanwhile does not come again."""
    with session.node() as node:
        row = node.unblock_peer(name)
        own_daemon.refresh(node.home)
        session.talk(f"{name} is heard again; {row.dropped} of its messages were dropped")
        session.show(documents.plain(row), f"{name}\n")


@verb(peer_, "blocked", mesh=False)
def blocked(session: CommandSession) -> None:
    """List the peers whose messages are dropped here, and how many were."""
    with session.node() as node:
        session.rows(
            map(documents.plain, node.blocked_peers()),
            "peer since dropped",
            empty="no peer is blocked",
        )


# --- a new key -------------------------------------------------------------------------------


@verb(peer_, "rotate", mesh=False)
@click.option("--switch", is_flag=True, help="Make the next key the key of this node.")
def rotate(session: CommandSession, switch: bool) -> None:
    """Make the next key of this node and show its card; later, --switch to it."""
    with trusting(session) as (node, trust):
        old = trust.card()
        text = trust.switch() if switch else trust.make_next()
        if switch:
            own_daemon.refresh(node.home)
            session.talk("this is the key of this node now; the old one is gone")
            session.talk("next, on every node that trusts this one, take the old key back:")
            session.talk(f"  `holdfast peer revoke {trust.name} --key {old.rpartition(':')[2]}`")
        else:
            session.talk("next, on every node that trusts this one: `holdfast peer trust CARD`")
            session.talk("then here: holdfast peer rotate --switch")
        document = {"zone": trust.name, "card": text, "switched": switch, "before": old}
        session.show(document, f"{text}\n")


# --- what they share -------------------------------------------------------------------------


def warn_of_unknown(session: CommandSession, node: Node, reads: Iterable[str]) -> None:
    """Warns of names of meshes that are not here: a misspelt one would grant nothing."""
    known = {row.slug for row in node.meshes()}
    for mesh in sorted(set(reads) - known - {"*"}):
        session.warn("unknown_mesh", f"there is no mesh {mesh!r} here yet", mesh=mesh)


def _everybody(
    node: Node, trust: Trust, slugs: list[str], *, zones: bool
) -> Iterator[dict[str, Any]]:
    """One row for each peer, by name."""
    rows: dict[str, dict[str, Any]] = {}
    for slug in slugs:
        for found in node.mesh(slug).peers():
            row = rows.setdefault(found.peer, _peer(found.peer))
            row["meshes"].append(documents.in_mesh(found, slug))
            if row["last_seen_at"] is None or found.last_seen_at > row["last_seen_at"]:
                row.update(last_seen_at=found.last_seen_at, stale=found.stale)
    linked = own_daemon.bus_peers(node.home)
    for zone in trust.zones():
        if not zones and zone.name not in rows:
            continue
        row = rows.setdefault(zone.name, _peer(zone.name))
        state = _zone(node, zone)
        row.update(trust=state["trust"], address=next(iter(state["addresses"]), None))
        row["last_seen_at"] = max(state["seen_at"] or 0, row["last_seen_at"] or 0) or None
    for slug in [one.mesh for one in node.bus.sharing.shared() if one.mesh in slugs]:
        for member in node.bus.sharing.members(slug):
            if member.name != trust.name:
                row = rows.setdefault(member.name, _peer(member.name))
                row["trust"] = "member" if row["trust"] == "-" else row["trust"]
    for name, standing in linked.items():
        if zones:
            rows.setdefault(name, _peer(name))
        if name in rows:
            seen = max(standing.pop("seen_at") or 0, rows[name]["last_seen_at"] or 0) or None
            rows[name].update({**standing, "last_seen_at": seen})
    yield from (rows[name] for name in sorted(rows))


def _peer(name: str) -> dict[str, Any]:
    return {
        "peer": name,
        "trust": "-",
        "link": "down",
        "address": None,
        "rtt_ms": None,
        "waiting": 0,
        "refused": 0,
        "last_seen_at": None,
        "stale": False,
        "meshes": [],
    }


def _show(session: CommandSession, node: Node, row: ZoneRow) -> None:
    session.show(_zone(node, row), f"{row.name}\n")


def _zone(node: Node, row: ZoneRow) -> dict[str, Any]:
    now_ms = node._engine.ctx.now_ms()
    where = node._engine.read("peer.zone", lambda tx: (addresses_of(tx, row), last_seen(tx, row)))
    good = [key for key in row.keys if is_good(key, now_ms)]
    state = "trusted" if good else "expired" if row.keys else "no key"
    return {
        "zone": row.name,
        "trust": state if row.blocked_at is None else "blocked",
        "keys": [text_of(key.key) for key in good],
        "reads": list(row.reads),
        "added_at": row.added_at,
        "blocked_at": row.blocked_at,
        "addresses": list(where[0]),
        "seen_at": where[1],
        "all_keys": [
            {"key": text_of(key.key), "added_at": key.added_at, "expires_at": key.expires_at}
            for key in row.keys
        ],
    }


def _keys(row: ZoneRow) -> str:
    return "1 key" if len(row.keys) == 1 else f"{len(row.keys)} keys"
