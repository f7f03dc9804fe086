"""`holdfast link`: the logs of other zones that this node pulls.

A command changes the store, then asks the daemon of this home to look. Without a daemon the change
waits for one, and the command says so.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from holdfast.apps.cli import documents, own_daemon
from holdfast.apps.cli.declare import ASKS, noun, verb
from holdfast.apps.cli.link_pulling import pull_now
from holdfast.apps.cli.progress import Progress
from holdfast.apps.cli.session import CommandSession
from holdfast.node.library.node import Node
from holdfast.node.links.registry import Links, LinkView
from holdfast.node.trust.trust import Trust
from holdfast.rules.envelope import decode
from holdfast.rules.errors import BadInput, BadKey, HoldfastError, NoDaemon, Refused
from holdfast.rules.filters import CLASSES, Filter
from holdfast.rules.ids import id_text
from holdfast.rules.limits import CHUNK_ROWS
from holdfast.rules.links import LinkState, origins_of, said_of_origins
from holdfast.rules.outbox import is_lane
from holdfast.rules.rows import QuarantineRow
from holdfast.storage.files.home import HomePaths

_LIVE = "state attempts retry_at last_error source_head lag received new known "
_LIVE += "objects_pulled objects_missing bytes last_batch_at snapshot_rows"
_CARD = "name zone url meshes subjects classes carries state since_at lag cursor epoch source_head "
_CARD += "received new known quarantined objects_pulled objects_missing bytes last_batch_at "
_CARD += "snapshot_rows "
_CARD += "trouble hint attempts retry_at added_at moved_at"
_IDLE = "not running"

link_ = noun("link", "Logs of other zones that this node pulls.")


@verb(link_, "add", mesh=False)
@click.argument("url")
@click.option("--peer", "zone", required=True, metavar="ZONE", help="The zone that listens there.")
@click.option("--name", metavar="NAME", help="The name of the link; else that of the zone.")
@click.option("--mesh", "meshes", multiple=True, metavar="NAME", help="A mesh to pull; repeatable.")
@click.option("--subject", "subjects", multiple=True, metavar="PREFIX", help="Only these entities.")
@click.option(
    "--class", "classes", multiple=True, type=click.Choice(list(CLASSES)), help="Only these."
)
@click.option(
    "--carries",
    multiple=True,
    metavar="own|any|ORIGIN",
    help="Whose entries the zone may bring: its own (the default), any peer's, or those of ORIGIN.",
)
@click.option("--paused", is_flag=True, help="Only store it; `holdfast link resume` starts it.")
def add(session: CommandSession, url: str, zone: str, name: str | None, **options: Any) -> None:
    """Pull the log of the zone that listens at URL (https://host:port)."""
    with _links(session) as (node, links):
        options["meshes"] = options["meshes"] or _mesh_meant(session, node)
        options["carries"] = options["carries"] or ("own",)
        view = links.add(zone if name is None else name, url, zone, **options)
        session.talk(f"{view.name} pulls {', '.join(view.meshes)} from {zone}: {_carried(view)}")
        _changed(session, node, view, begins=not view.paused)


@verb(link_, "list", mesh=False, lists="")
def list_(session: CommandSession) -> None:
    """List the links and how they stand."""
    with _links(session) as (node, links):
        live = live_status(session, node)
        session.rows(
            (standing(view, live) for view in links.list()),
            "name zone meshes carries state lag cursor quarantined trouble",
            empty="no links; pull from a zone with: holdfast link add URL --peer ZONE",
        )


@verb(link_, "show", mesh=False)
@click.argument("name")
def show(session: CommandSession, name: str) -> None:
    """Show one link: what it pulls, how far it is, what went wrong last."""
    with _links(session) as (node, links):
        view = links.get(name)
        session.talk(f"{name} carries {_carried(view)}")
        session.show(standing(view, live_status(session, node)), fields=_CARD)


@verb(link_, "pause", mesh=False)
@click.argument("name")
def pause(session: CommandSession, name: str) -> None:
    """Stop pulling until the link is resumed. The source keeps what is new."""
    with _links(session) as (node, links):
        view = links.pause(name)
        session.talk(f"{name} is paused at offset {view.cursor} of {view.zone}")
        _changed(session, node, view, begins=False)


@verb(link_, "resume", mesh=False, removes=ASKS)
@click.argument("name")
@click.option(
    "--skip-missing",
    is_flag=True,
    help="Go on after what the source no longer holds; what its tables still show is taken.",
)
def resume(session: CommandSession, name: str, skip_missing: bool) -> None:
    """Go on pulling."""
    with _links(session) as (node, links):
        before = links.get(name)
        if skip_missing or session.dry_run:
            missing = links.missing(name) if skip_missing else 0
            what = _what_resumes(before, missing, skips=skip_missing)
            about = {"name": name, "zone": before.zone, "missing": missing}
            if not session.goes_on(what, asks=missing != 0, **about):
                return
        view = links.resume(name, skip_missing=skip_missing)
        skipped = view.cursor - before.cursor
        if skip_missing and skipped > 0:
            session.talk(f"skipped {skipped} entries that {view.zone} no longer holds")
        elif skip_missing:
            session.talk(f"{view.zone} holds everything that comes next: nothing was skipped")
        session.talk(f"{name} goes on after offset {view.cursor} of {view.zone}")
        _changed(session, node, view, begins=True)


def _what_resumes(view: LinkView, missing: int | None, *, skips: bool) -> str:
    if not skips or missing == 0:
        return f"go on with {view.name} after offset {view.cursor} of {view.zone}"
    count = "what" if missing is None else f"{missing} entries that"
    return f"skip {count} {view.zone} no longer holds"


@verb(link_, "pull", mesh=False)
@click.argument("name")
@click.option(
    "--patience",
    type=click.IntRange(1),
    metavar="SECONDS",
    help="Give up if nothing moves for so long.",
)
def pull(session: CommandSession, name: str, patience: int | None) -> None:
    """Bring what the zone has now, and wait for it.

    No daemon is needed. If one runs, it pulls, and the command waits for it. Interrupted, the same
    command goes on where it was.
    """
    with _links(session) as (node, _), _pulling(session, name) as progress:
        done = pull_now(node, name, patience, progress.to)
        came = f"{done.new} new, {done.known} known" if done.new or done.known else "nothing new"
        session.talk(f"{name} is at offset {done.cursor} of {done.zone}: {came}")
        if done.quarantined:
            session.warn(
                "quarantined",
                f"{done.quarantined} were refused: see holdfast link quarantine {name}",
            )
        session.show(documents.plain(done), f"{done.new}\n")


def _pulling(session: CommandSession, name: str) -> Progress:
    leaves = "what was brought stays; the same command, or the daemon, goes on from there"
    return Progress(session, f"{name}: offset", leaves=leaves)


@verb(link_, "remove", mesh=False, removes=ASKS)
@click.argument("name")
def remove(session: CommandSession, name: str) -> None:
    """Forget a link. What it brought stays here."""
    with _links(session) as (node, links):
        view = links.get(name)
        what = f"forget the link {name} and its place in the log of {view.zone} ({view.cursor})"
        if not session.goes_on(what, name=name, zone=view.zone, cursor=view.cursor):
            return
        removed = links.remove(name)
        own_daemon.refresh(node.home)
        if removed.told:
            session.talk(f"{name} is removed, and {removed.zone} no longer waits for it")
        else:
            session.warn(
                "source_not_told",
                f"{name} is removed, but {removed.zone} was not told: {removed.why_not}; it keeps "
                f"its log for us until it runs: holdfast consumer retire {removed.consumer}",
            )
        session.show({**documents.plain(removed), "removed": True}, f"{name}\n")


@verb(link_, "objects", mesh=False)
@click.argument("name")
def objects(session: CommandSession, name: str) -> None:
    """Bring the content of files that is missing here, as after a snapshot."""
    with _links(session) as (_, links):
        pulled = links.bring_objects(name)
        session.talk(f"brought {pulled.objects} objects; {name} has no content of {pulled.missing}")
        session.show({"name": name, **documents.plain(pulled)}, f"{pulled.objects}\n")


# --- quarantine ----------------------------------------------------------------------------------


@verb(link_, "quarantine", mesh=False, lists="found_at")
@click.argument("name")
def quarantine(session: CommandSession, name: str) -> None:
    """List envelopes that a link brought and this node refused, with the reason."""
    with _links(session) as (_, links):
        links.quarantine(name, 0, 1)
        session.rows(
            map(_quarantined, _all_quarantined(links, name)),
            "number offset origin op entity code message found_at",
            empty=f"{name} has brought nothing that was refused",
        )


@verb(link_, "retry", mesh=False)
@click.argument("name")
def retry(session: CommandSession, name: str) -> None:
    """Try quarantined envelopes again: what passes now is taken in."""
    with _links(session) as (node, links):
        retried = links.retry_quarantined(name)
        session.talk(f"{retried.passed} passed, {retried.refused} are still refused")
        _mended(session, node, links, name, **documents.plain(retried))


@verb(link_, "drop", mesh=False, removes=ASKS)
@click.argument("name")
@click.argument("numbers", nargs=-1, type=int, metavar="[NUMBER]...")
@click.option("--all", "everything", is_flag=True, help="All that the link has brought.")
def drop(session: CommandSession, name: str, numbers: tuple[int, ...], everything: bool) -> None:
    """Give up quarantined envelopes for good."""
    if bool(numbers) is everything:
        raise BadInput("say which by their numbers, or --all")
    with _links(session) as (node, links):
        known = {row.number for row in _all_quarantined(links, name)}
        if strange := sorted(set(numbers) - known):
            raise BadKey(
                f"{name} has no quarantined envelope {strange[0]}",
                hint=f"see: holdfast link quarantine {name}",
            )
        gone = sorted(set(numbers) or known)
        if not session.goes_on(_what_drops(name, gone), name=name, numbers=gone):
            return
        for number in sorted(set(numbers)):
            links.drop_quarantined(number)
        dropped = links.drop_all_quarantined(name) if everything else len(set(numbers))
        session.talk(f"gave up {dropped}")
        _mended(session, node, links, name, dropped=dropped)


def _what_drops(name: str, numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:5])) + (" …" if len(numbers) > 5 else "")
    count = f"{len(numbers)} envelope{'s' * (len(numbers) != 1)}"
    return f"give up {count} of the quarantine of {name} ({shown}) for good"


# --- what they share -----------------------------------------------------------------------------


@contextmanager
def _links(session: CommandSession) -> Iterator[tuple[Node, Links]]:
    with session.node() as node:
        yield node, Links(node._engine, Trust(node._engine, HomePaths(node.home)))


def _mesh_meant(session: CommandSession, node: Node) -> tuple[str, ...]:
    if session.named_mesh is not None:
        return (session.named_mesh,)
    slugs = [row.slug for row in node.meshes()]
    if len(slugs) == 1:
        return (slugs[0],)
    raise BadInput(
        f"this home has {len(slugs)} meshes{': ' if slugs else ''}{', '.join(slugs)}",
        hint="say which to pull with --mesh NAME; several are fine",
    )


def _carried(view: LinkView) -> str:
    return said_of_origins(view.zone, Filter(origins=origins_of(view.zone, view.carries)))


def _changed(
    session: CommandSession, node: Node, view: LinkView, *, begins: bool, **more: object
) -> None:
    """Asks the daemon to look, and prints what comes of it."""
    runs = own_daemon.refresh(node.home)
    if begins and not runs:
        session.talk("no daemon runs here: it begins with: holdfast up")
    session.show({**documents.plain(view), **more, "daemon": runs}, f"{view.name}\n")


def _mended(session: CommandSession, node: Node, links: Links, name: str, **more: object) -> None:
    """Answers a command that changed the quarantine of a link, or of a shared mesh's lane."""
    if not is_lane(name):
        _changed(session, node, links.get(name), begins=True, **more)
        return
    runs = own_daemon.refresh(node.home)
    session.show({"name": name, **more, "daemon": runs}, f"{name}\n")


def standing(view: LinkView, live: Mapping[str, Mapping[str, Any]] | None) -> dict[str, Any]:
    """A link as it is stored, and how it stands by `live_status`."""
    document: dict[str, Any] = {**documents.plain(view), **dict.fromkeys(_LIVE.split())}
    document |= {"since_at": None, "trouble": None, "hint": None}
    document["state"] = LinkState.PAUSED.value if view.paused else _IDLE
    status = None if live is None else live.get(view.name)
    if status is None:
        return document
    document |= {name: status.get(name) for name in (*_LIVE.split(), "cursor")}
    document["since_at"] = status["since"]
    error = status["last_error"]
    # An error that is over is no trouble.
    if error is not None and status["state"] not in (LinkState.LIVE, LinkState.CATCHING_UP):
        document |= {"trouble": f"{error['code']}: {error['message']}", "hint": error["hint"]}
    return document


def _quarantined(row: QuarantineRow) -> dict[str, Any]:
    """A row of the quarantine, with what can be read of its envelope."""
    document: dict[str, Any] = {
        **{name: getattr(row, name) for name in ("number", "link", "epoch", "offset")},
        **dict.fromkeys(("id", "mesh", "op", "entity", "origin")),
        **{name: getattr(row, name) for name in ("code", "message", "found_at")},
        "raw": base64.b64encode(row.raw).decode(),
    }
    try:
        envelope = decode(row.raw)
    except Refused:
        return document
    fields = {name: getattr(envelope, name) for name in ("mesh", "op", "entity", "origin")}
    return {**document, **fields, "id": id_text(envelope.id)}


def _all_quarantined(links: Links, name: str) -> Iterator[QuarantineRow]:
    after = 0
    while rows := links.quarantine(name, after, CHUNK_ROWS):
        yield from rows
        after = rows[-1].number


def live_status(session: CommandSession, node: Node) -> dict[str, Mapping[str, Any]] | None:
    """How the links stand, by name, as the daemon says; None if there is no daemon."""
    try:
        answer = own_daemon.ask(node.home, "GET", "/v1/links")
    except NoDaemon:
        return None
    except HoldfastError as error:
        session.warn("daemon", f"the daemon does not say how its links stand: {error.message}")
        return None
    return {status["name"]: status for status in msgspec.json.decode(answer)["links"]}
