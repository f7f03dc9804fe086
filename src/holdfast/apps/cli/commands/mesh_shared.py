"""`holdfast mesh publish`, `join`, `invite` …: meshes that several nodes share through a broker.

All of these commands ask the broker themselves, with a daemon or without one. A write into a shared
mesh needs no broker: it waits in the outbox.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast.apps.cli import documents, inputs
from holdfast.apps.cli.commands import mesh_bus
from holdfast.apps.cli.commands.mesh_local import mesh_
from holdfast.apps.cli.declare import ASKS, DRY, verb
from holdfast.apps.cli.progress import Progress
from holdfast.apps.cli.session import CommandSession
from holdfast.apps.cli.times import iso
from holdfast.rules.errors import Unreachable
from holdfast.rules.invites import PeerInvite, parse_any_invite
from holdfast.rules.keys import text_of
from holdfast.rules.limits import (
    INVITE_FIRST_HOURS,
    INVITE_HOURS,
    INVITE_HOURS_MAX,
    INVITE_USES_MAX,
    SECOND_MS,
)

if TYPE_CHECKING:
    from holdfast.node.library.node import Mesh
    from holdfast.node.sharing.publish import Published
    from holdfast.node.sharing.sharing import Sharing
    from holdfast.node.sync.run_once import SyncOutcome
    from holdfast.protocol.broker_http import Member

TOKEN = "HOLDFAST_BROKER_TOKEN"
GRANT = click.option(
    "--grant",
    "grants",
    multiple=True,
    type=click.Choice(["read", "write", "send", "relay", "invite", "audit", "vote"]),
    help="What it may do; repeatable. Else read, write and send.",
)


VIA = click.option(
    "--via",
    type=click.Choice(["broker", "bus"]),
    help="Of a mesh that is shared both ways: which of the two. Else the broker.",
)


_STAYS = "what was exchanged stays; the rest goes with the daemon, or by the same command"
_GOES_ON = "the same command goes on where it stopped"


@contextmanager
def shared(session: CommandSession, name: str | None = None) -> Iterator[tuple[Mesh, Sharing]]:
    """The mesh of this name, else of --mesh, else the only one; and what asks its broker."""
    with session.mesh(name) as mesh:
        yield mesh, session.opened.sharing


def _settle(session: CommandSession, mesh: str, patience_s: int | None) -> SyncOutcome:
    """Exchanges everything with the broker; gives up when nothing moves for `patience_s`."""
    from holdfast.node.settings import load
    from holdfast.node.sync.run_once import wait_until_synced
    from holdfast.node.trust.trust import Trust
    from holdfast.rules.limits import SYNC_WAIT_MS
    from holdfast.storage.files.home import HomePaths

    node = session.opened
    paths = HomePaths(node.home)
    patience_ms = SYNC_WAIT_MS if patience_s is None else patience_s * SECOND_MS
    with Progress(session, "changes that wait:", leaves=_STAYS) as progress:
        return wait_until_synced(
            node._engine,
            Trust(node._engine, paths),
            paths,
            mesh,
            patience_ms=patience_ms,
            on_waiting=progress.to,
            outbox=load(os.environ, {}).outbox,
        )


# --- making and joining --------------------------------------------------------------------------


@verb(mesh_, "publish")
@click.argument("name", required=False)
@click.option("--broker", metavar="URL", help="The broker to share it through: https://HOST:PORT.")
@click.option("--card", help="The card of the broker; may be left out on this machine.")
@click.option("--title", metavar="TEXT", help="A title for people, at the broker.")
@click.option(
    "--as", "as_name", metavar="NAME", help="Publish a copy under this name; its own is taken."
)
@click.option("--no-wait", is_flag=True, help="Do not wait until the broker has everything.")
@click.option(
    "--invite-hours",
    type=click.IntRange(1, INVITE_HOURS_MAX),
    default=INVITE_FIRST_HOURS,
    show_default=True,
    help="How long the first invite is good for.",
)
def publish(
    session: CommandSession,
    name: str | None,
    broker: str | None,
    card: str | None,
    title: str | None,
    as_name: str | None,
    no_wait: bool,
    invite_hours: int,
) -> None:
    """Share the mesh NAME through a broker, with all that is in it.

    If it is interrupted, the same command goes on; the broker need not be named again. If the
    broker asks for a token, the command takes it from $HOLDFAST_BROKER_TOKEN, or from
    the file that $HOLDFAST_BROKER_TOKEN_FILE names.

    Where the broker has another mesh of the name, the hint offers one that is free. With --as a
    copy is published: it has the stamps, origins and deletions of the original, which stays here
    as it is, and new ids.
    """
    with shared(session, name) as (mesh, sharing):
        published = as_name or mesh.slug
        with Progress(session, "sending", leaves=_GOES_ON) as bar:
            done = sharing.publish(
                mesh.slug,
                broker=broker,
                card=card,
                name=title,
                token=inputs.secret_of(TOKEN),
                progress=lambda what, count, total: bar.to(count, total),
                wait=None if no_wait else lambda: _settle(session, published, None).waiting,
                invite_hours=invite_hours,
                as_name=as_name,
            )
        _show_published(session, done, invite_hours)
        if done.mesh != mesh.slug:
            session.talk(
                f"{mesh.slug} stays here as it was; what is written to it from now on is not in "
                f"{done.mesh}. When nobody needs it: holdfast mesh delete {mesh.slug}"
            )


def _show_published(session: CommandSession, done: Published, invite_hours: int) -> None:
    if done.way == "before":
        session.talk(f"{done.mesh} is shared already, at {done.broker_url}")
    else:
        how = "as a snapshot" if done.way == "snapshot" else "through the outbox"
        again = "went on with publishing" if done.resumed else "published"
        rows = f"{done.rows} change{'s' * (done.rows != 1)} from before"
        session.talk(f"{again} {done.mesh} at {done.broker_url}: {rows} {how}")
    if done.waiting:
        session.talk(f"{done.waiting} still wait for the broker; the daemon sends them")
    if done.invite is not None:
        session.talk(
            f"an invite for one member, for {_lasting(invite_hours)}; hand it on like a key:"
        )
    text = f"{done.invite}\n" if done.invite is not None else f"{done.mesh}\n"
    session.show(msgspec.structs.asdict(done), text)


def _lasting(hours: int) -> str:
    days, rest = divmod(hours, 24)
    count, unit = (hours, "hour") if rest else (days, "day")
    return f"{count} {unit}{'s' * (count != 1)}"


@verb(mesh_, "join", mesh=False)
@click.argument("invite")
def join(session: CommandSession, invite: str) -> None:
    """Join the mesh that INVITE is for; - reads the invite from stdin."""
    text = inputs.text_of(invite)
    if isinstance(parse_any_invite(text), PeerInvite):
        mesh_bus.join(session, text)
        return
    with session.node() as node:
        with Progress(session, "receiving", leaves=_GOES_ON) as bar:
            joined = node.sharing.join(
                text, progress=lambda what, count, total: bar.to(count, total)
            )
        rows = f" with {joined.rows} changes" if joined.rows else ""
        session.talk(f"{node.peer} is a member of {joined.mesh}{rows}")
        session.talk("the rest comes with the daemon (holdfast up), or with: holdfast mesh sync")
        session.show(msgspec.structs.asdict(joined), f"{joined.mesh}\n")


@verb(mesh_, "sync")
@click.argument("name", required=False)
@click.option(
    "--patience",
    type=click.IntRange(1),
    metavar="SECONDS",
    help="Give up if nothing moves for so long.",
)
def sync(session: CommandSession, name: str | None, patience: int | None) -> None:
    """Exchange everything with the broker now, and wait until that is done."""
    with session.mesh(name) as mesh:
        outcome = _settle(session, mesh.slug, patience)
        if not outcome.done:
            raise Unreachable(
                f"{outcome.waiting} changes of {mesh.slug} still wait, "
                f"{outcome.lag} are not here yet"
                + (f": {outcome.trouble}" if outcome.trouble else ""),
                hint="see: holdfast status, holdfast outbox list",
            )
        session.talk(f"{mesh.slug} and its broker have the same")
        session.show(documents.in_mesh(outcome, mesh.slug), "")


@verb(mesh_, "leave", removes=ASKS)
@click.argument("name", required=False)
@click.option(
    "--remove",
    is_flag=True,
    help="Of a mesh of yours: also remove it from the broker, for all members.",
)
@click.option("--forget", is_flag=True, help="Do not tell the broker: it is gone.")
def leave(session: CommandSession, name: str | None, remove: bool, forget: bool) -> None:
    """Stop sharing the mesh NAME. All that is in it stays here, as a mesh of this node alone."""
    with shared(session, name) as (mesh, sharing):
        if not session.goes_on(_what_ends(mesh, remove), mesh=mesh.slug, remove=remove):
            return
        if mesh_bus.is_over_bus(session, mesh):
            mesh_bus.leave(session, mesh, remove, forget)
            return
        left = sharing.leave(mesh.slug, remove=remove, forget=forget)
        session.talk(f"{mesh.slug} is a mesh of this node alone now")
        if left.given_up:
            session.warn("given_up", f"{left.given_up} changes or messages were never handed in")
        session.show(msgspec.structs.asdict(left), "")


def _what_ends(mesh: Mesh, remove: bool) -> str:
    if remove:
        return f"end the sharing of {mesh.slug} for all its members"
    return f"leave {mesh.slug} (another invite lets this node in again)"


@verb(mesh_, "move")
@click.argument("url")
def move(session: CommandSession, url: str) -> None:
    """Say that the broker of a mesh is at URL from now on: the same broker, by its key."""
    with shared(session) as (mesh, sharing):
        row = sharing.move(mesh.slug, url)
        session.talk(f"the broker of {mesh.slug} is at {row.broker_url}")
        session.show(documents.mesh(row), "")


# --- members -------------------------------------------------------------------------------------


@verb(mesh_, "invite")
@click.argument("name", required=False)
@click.option("--uses", type=click.IntRange(1, INVITE_USES_MAX), default=1, show_default=True)
@click.option(
    "--hours", type=click.IntRange(1, INVITE_HOURS_MAX), default=INVITE_HOURS, show_default=True
)
@GRANT
@click.option(
    "--at", metavar="URL", help="Where others reach the broker, or this node's bus (HOST:PORT)."
)
@VIA
def invite_(
    session: CommandSession,
    name: str | None,
    uses: int,
    hours: int,
    grants: tuple[str, ...],
    at: str | None,
    via: str | None,
) -> None:
    """Make an invite to the mesh NAME. Anybody who has its text may join: hand it on like a key.

    A mesh that is shared through a broker and over the bus has invites of both kinds: by --via bus
    newcomers join at this node, else at the broker.
    """
    with shared(session, name) as (mesh, sharing):
        if mesh_bus.is_meant(session, mesh, via):
            mesh_bus.invite(session, mesh, uses, hours, grants, at)
            return
        made = sharing.invite(mesh.slug, uses=uses, hours=hours, grants=grants, at=at)
        session.talk(f"good for {uses}, for {hours} hours; take it back with its id {made.id[:12]}")
        if at is None and (mesh.info().broker_url or "").startswith("http:"):
            session.talk("good on this machine only; for others say where the broker is: --at URL")
        if via is None and session.opened.bus.sharing.is_shared(mesh.slug):
            session.talk("it leads to the broker; one that leads to this node: --via bus")
        session.show(documents.in_mesh(made, mesh.slug), f"{made.text}\n")


@verb(mesh_, "invites", removes=DRY, lists="made_at")
@click.argument("name", required=False)
@click.option(
    "--drop", metavar="ID", help="Take the invite with this id back; its first digits are enough."
)
@VIA
def invites(session: CommandSession, name: str | None, drop: str | None, via: str | None) -> None:
    """List the invites of the mesh NAME that are still good, or take one back."""
    with shared(session, name) as (mesh, sharing):
        if mesh_bus.is_meant(session, mesh, via):
            mesh_bus.invites(session, mesh, drop)
            return
        open_ = sharing.invites(mesh.slug)
        if drop is None:
            session.rows(
                map(documents.plain, open_),
                "id grants uses_left expires_at made_at",
                empty=f"no invite to {mesh.slug} is open",
            )
            return
        known = ((one.id, one.grants, one.made_at) for one in open_)
        meant = mesh_bus.meant_invite(mesh, drop, known)
        what = f"take back the invite {meant}"
        if not session.goes_on(what, asks=False, mesh=mesh.slug, id=meant):
            return
        gone = sharing.drop_invite(mesh.slug, meant)
        session.talk("the invite is no longer good")
        session.show({"mesh": mesh.slug, "id": meant, "dropped": gone}, "")


@verb(mesh_, "members", lists="added_at")
@click.argument("name", required=False)
@VIA
def members(session: CommandSession, name: str | None, via: str | None) -> None:
    """List the members of the mesh NAME, as its broker or its owner says.

    If the broker cannot be reached, those that it listed last: SEEN AT is then when the broker or
    this node last heard of each, and a warning says since when nothing was exchanged.
    """
    with shared(session, name) as (mesh, sharing):
        if mesh_bus.is_meant(session, mesh, via):
            mesh_bus.members(session, mesh)
            return
        session.rows(
            _members(session, mesh, sharing),
            "name grants added_at seen_at key",
            empty=f"{mesh.slug} has no members",
        )


def _members(session: CommandSession, mesh: Mesh, sharing: Sharing) -> Iterable[documents.Document]:
    try:
        return map(_member, sharing.members(mesh.slug))
    except Unreachable as error:
        known = sharing.known_members(mesh.slug)
        if not known:
            raise
        since = mesh.info().last_sync_at
        session.warn(
            "offline",
            f"{error.message}: these are the members as it listed them last; "
            + (f"nothing was exchanged since {iso(since)}" if since else "nothing was exchanged"),
            mesh=mesh.slug,
            since=since,
        )
        return [
            {
                "name": one.name,
                "key": text_of(one.key),
                "grants": list(one.grants),
                "added_at": None,
                "seen_at": one.seen_at,
            }
            for one in known
        ]


def _member(member: Member) -> documents.Document:
    """A member with its key as it is shown everywhere."""
    return {**documents.plain(member), "key": text_of(bytes.fromhex(member.key))}


@verb(mesh_, "grant")
@click.argument("member")
@GRANT
@VIA
def grant(session: CommandSession, member: str, grants: tuple[str, ...], via: str | None) -> None:
    """Change what MEMBER, a name or a key, may do in a mesh that is yours."""
    with shared(session) as (mesh, sharing):
        if mesh_bus.is_meant(session, mesh, via):
            mesh_bus.grant(session, mesh, member, grants)
            return
        given = grants or ("read", "write", "send")
        changed = sharing.grant(mesh.slug, member, given)
        session.talk(f"{changed.name} may {', '.join(changed.grants)}")
        session.show(_member(changed), f"{changed.name}\n")


@verb(mesh_, "remove-member", removes=ASKS)
@click.argument("member")
@VIA
def remove_member(session: CommandSession, member: str, via: str | None) -> None:
    """Remove MEMBER, a name or a key, from a mesh. It keeps what it has, and gets no more."""
    with shared(session) as (mesh, sharing):
        if not session.goes_on(f"remove {member} from {mesh.slug}", mesh=mesh.slug, member=member):
            return
        if mesh_bus.is_meant(session, mesh, via):
            mesh_bus.remove_member(session, mesh, member)
            return
        removed = sharing.remove_member(mesh.slug, member)
        session.talk(f"{member} is no member of {mesh.slug} any more")
        session.show({"mesh": mesh.slug, "member": member, "removed": removed}, "")


# --- destinations --------------------------------------------------------------------------------

DROP = click.option("--drop", is_flag=True, help="Remove it instead.")


@verb(mesh_, "topic", removes=ASKS)
@click.argument("topic")
@DROP
def topic(session: CommandSession, topic: str, drop: bool) -> None:
    """Declare TOPIC: what is sent to it goes to every member who has subscribed."""
    _declare(session, "topic", topic, drop)


@verb(mesh_, "queue", removes=ASKS)
@click.argument("queue")
@click.option(
    "--visibility",
    type=click.IntRange(1),
    metavar="SECONDS",
    help="How long a taken message is hidden from others; else 30.",
)
@click.option(
    "--deliveries",
    type=click.IntRange(1),
    metavar="N",
    help="How often a message is delivered before it goes to the dead letters; else 10.",
)
@DROP
def queue(
    session: CommandSession, queue: str, visibility: int | None, deliveries: int | None, drop: bool
) -> None:
    """Declare QUEUE: each message that is sent to it goes to one of its takers."""
    visibility_ms = None if visibility is None else visibility * SECOND_MS
    _declare(session, "queue", queue, drop, visibility_ms, deliveries)


def _declare(
    session: CommandSession,
    kind: str,
    ref: str,
    drop: bool,
    visibility_ms: int | None = None,
    deliveries: int | None = None,
) -> None:
    with shared(session) as (mesh, sharing):
        if drop or session.dry_run:
            what = f"{'remove' if drop else 'declare'} the {kind} {ref} of {mesh.slug}"
            asks = drop and kind == "queue"
            if not session.goes_on(what, asks=asks, mesh=mesh.slug, kind=kind, ref=ref):
                return
            gone = sharing.drop_destination(mesh.slug, kind, ref)
            session.talk(f"{kind} {ref} is there no more" if gone else f"there is no {kind} {ref}")
            session.show({"mesh": mesh.slug, "kind": kind, "ref": ref, "dropped": gone}, "")
            return
        made = sharing.declare(
            mesh.slug, kind, ref, visibility_ms=visibility_ms, deliveries_max=deliveries
        )
        session.talk(f"{mesh.slug} has the {kind} {ref}")
        session.show(msgspec.structs.asdict(made), f"{ref}\n")


@verb(mesh_, "destinations", lists="made_at")
@click.argument("name", required=False)
def destinations(session: CommandSession, name: str | None) -> None:
    """List the topics and queues of the mesh NAME, and what this node has subscribed to."""
    with shared(session, name) as (mesh, sharing):
        since = sharing.subscriptions(mesh.slug)
        session.rows(
            (
                {**documents.plain(row), "subscribed": row.kind == "topic" and row.ref in since}
                for row in sharing.destinations(mesh.slug)
            ),
            "kind ref subscribed visibility_ms deliveries_max made_at",
            empty=f"{mesh.slug} has no topic and no queue yet",
        )


@verb(mesh_, "subscribe")
@click.argument("topic")
def subscribe(session: CommandSession, topic: str) -> None:
    """Get what is sent to TOPIC, from now on."""
    with shared(session) as (mesh, sharing):
        since = sharing.subscribe(mesh.slug, topic)
        session.talk(f"this node gets what is sent to {topic} from now on")
        session.show({"mesh": mesh.slug, "topic": topic, "since": since}, "")


@verb(mesh_, "unsubscribe")
@click.argument("topic")
def unsubscribe(session: CommandSession, topic: str) -> None:
    """Get no more of what is sent to TOPIC."""
    with shared(session) as (mesh, sharing):
        ended = sharing.unsubscribe(mesh.slug, topic)
        session.talk(f"no more of {topic}" if ended else f"{topic} was not subscribed to")
        session.show({"mesh": mesh.slug, "topic": topic, "ended": ended}, "")
