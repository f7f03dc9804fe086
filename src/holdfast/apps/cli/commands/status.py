"""`holdfast status`, and `holdfast` alone: how the home stands, and what to do next."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.apps.cli import documents, output, own_daemon, tables, times
from holdfast.apps.cli.declare import command_of
from holdfast.apps.cli.session import CommandSession
from holdfast.node.library.node import Node
from holdfast.rules import compiled
from holdfast.rules.errors import HoldfastError, NoDaemon, NoHome
from holdfast.service.instance_lock import daemon_note
from holdfast.storage.files import presence as presences
from holdfast.storage.files.home import HomePaths


@command_of("status")
def status_(session: CommandSession) -> None:
    """Say how the home stands, and what to do next."""
    with session.warning_node() as node:
        _show_status(session, node)


def overview(home: str | None, context: str | None, as_json: bool) -> None:
    """What `holdfast` alone says: the status, or how to begin."""
    session = CommandSession(home=home, context=context, as_json=as_json)
    try:
        with session.warning_node() as node:
            _show_status(session, node)
    except NoHome as error:
        root = documents.path(session.check_home())
        begin = output.pasteable("holdfast init --peer NAME")
        session.show(
            {"home": root, "exists": False, "next": begin},
            f"{error.message}\n",
        )
        session.talk("next: holdfast init --peer NAME --mesh NAME; see also: holdfast --help")


def _show_status(session: CommandSession, node: Node) -> None:
    status = _status(session, node)
    session.show(status, "".join(_status_text(status)))
    session.talk(f"next: {status['next']}")


def _status(session: CommandSession, node: Node) -> dict[str, Any]:
    paths = HomePaths(node.home)
    head = node.log.head()
    served = daemon_note(paths)
    links = _links(session, node)
    brokers = brokers_of(session, node)
    return {
        "home": documents.path(node.home),
        "exists": True,
        "peer": node.peer,
        "log": {"epoch": head.epoch, "first": head.first, "last": head.offset},
        "meshes": [
            {**documents.mesh(row), "rows": node.mesh(row.slug).counts()} for row in node.meshes()
        ],
        "consumers": [msgspec.structs.asdict(reader) for reader in node.log.consumers()],
        "conflicts_open": sum(1 for _ in node.conflicts()),
        "database_bytes": sum(_size(path) for path in (paths.database, paths.wal)),
        "retention": _retention(session),
        "disk_free_bytes": shutil.disk_usage(node.home).free,
        "processes": [
            {"pid": holder.pid, "command": holder.command, "started_at": holder.started_at}
            for holder in presences.others(paths)
        ],
        "daemon": None if served is None else {"pid": served.pid, "listening": served.addresses},
        "reader": compiled.reader(),
        "bus": None if served is None else own_daemon.bus_standing(node.home),
        "links": links,
        "brokers": brokers,
        "outbox": _lanes(node) if brokers else [],
        "inbox": dict(zip(("messages", "unread"), node.inbox.counts(), strict=True)),
        "next": output.pasteable(
            "holdfast up" if (links or brokers) and served is None else next_step(node)
        ),
    }


def _retention(session: CommandSession) -> dict[str, Any] | None:
    """What a sweep keeps; None if the settings cannot be read: then nothing is swept."""
    from holdfast.node.settings import load

    try:
        return load(os.environ, {}).retention.shown()
    except HoldfastError as error:
        session.warn("settings", f"the settings cannot be read: {error.message}")
        return None


def _lanes(node: Node) -> list[dict[str, Any]]:
    from holdfast.apps.cli.commands.outbox import outbox_of  # for homes that share something

    return [msgspec.structs.asdict(lane) for lane in outbox_of(node).lanes()]


def _links(session: CommandSession, node: Node) -> list[dict[str, Any]]:
    """How the links stand: as the daemon says, or as they are stored where there is no daemon."""
    if not node._engine.read("link.list", lambda tx: tx.link_list()):
        return []
    # These import keys and TLS, which most homes have no use for.
    from holdfast.apps.cli.commands import link
    from holdfast.node.links.registry import Links
    from holdfast.node.trust.trust import Trust

    live = link.live_status(session, node)
    links = Links(node._engine, Trust(node._engine, HomePaths(node.home)))
    return [link.standing(view, live) for view in links.list()]


def brokers_of(session: CommandSession, node: Node) -> list[dict[str, Any]]:
    """How this node stands with its brokers: as the daemon says, or as it is stored."""
    rows = [row for row in node.meshes() if row.shared]
    if not rows:
        return []
    try:
        answer = own_daemon.ask(node.home, "GET", "/v1/brokers")
        found: list[dict[str, Any]] = msgspec.json.decode(answer)["brokers"]
        return found
    except NoDaemon:
        pass
    except HoldfastError as error:
        session.warn("daemon", f"the daemon does not say how its brokers stand: {error.message}")
    from holdfast.node.sync.status import stored

    return [msgspec.to_builtins(broker) for broker in stored(node._engine)]


def _status_text(status: Mapping[str, Any]) -> Iterator[str]:
    log = status["log"]
    yield f"home       {status['home']}\n"
    yield f"peer       {tables.visible(status['peer'])}\n"
    yield f"log        epoch {log['epoch']}, offsets {log['first']} to {log['last']}\n"
    yield f"database   {times.size(status['database_bytes'])}\n"
    yield f"disk       {times.size(status['disk_free_bytes'])} free\n"
    yield from _retention_text(status["retention"])
    for mesh in status["meshes"]:
        counts = ", ".join(f"{count} {name}" for name, count in mesh["rows"].items() if count)
        yield f"mesh       {mesh['mesh']} at lamport {mesh['lamport']}: {counts or 'empty'}\n"
    for consumer in status["consumers"]:
        yield f"consumer   {tables.visible(consumer['name'])} lags by {consumer['lag']}\n"
    served = status["daemon"]
    if served is not None:
        where = ", ".join(map(tables.visible, served["listening"])) or "not listening yet"
        yield f"daemon     process {served['pid']}: {where}\n"
    else:
        yield f"daemon     none{', so nothing is pulled' if status['links'] else ''}\n"
    yield from _bus_text(status["bus"])
    for link in status["links"]:
        lag = ", lag unknown" if link["lag"] is None else f", lags by {link['lag']}"
        trouble = "" if link["trouble"] is None else f" ({tables.visible(link['trouble'])})"
        yield f"link       {tables.visible(link['name'])} is {link['state']}{lag}{trouble}\n"
    for broker in status["brokers"]:
        yield from _broker_text(broker)
    for lane in status["outbox"]:
        if lane["failing"] is not None:
            waits = f"{lane['blocks']} waits for {lane['failing']}" if lane["blocks"] else ""
            what = waits or f"{lane['failing']} was refused"
            yield f"outbox     {lane['lane']}: {what} ({tables.visible(lane['problem'])})\n"
    if status["inbox"]["unread"]:
        yield f"inbox      {status['inbox']['unread']} unread\n"
    if status["conflicts_open"]:
        yield f"conflicts  {status['conflicts_open']} open\n"
    if status["reader"] != "compiled":
        yield f"reader     {status['reader']}: there is no compiled part, or it is turned off\n"
    for process in status["processes"]:
        yield f"open in    process {process['pid']} ({tables.visible(process['command'])})\n"


def _retention_text(kept: Mapping[str, Any] | None) -> Iterator[str]:
    if kept is None:
        return
    spans = {name: span for name, span in kept.items() if name != "meshes"}
    for mesh, own in {"": spans, **kept["meshes"]}.items():
        said = ", ".join(f"{name} {span}" for name, span in own.items())
        yield f"keeps      {mesh and f'in {mesh}: '}{said}\n"


def _bus_text(bus: Mapping[str, Any] | None) -> Iterator[str]:
    """A line if others reach the bus, or it reaches others, or something waits for them."""
    up = [peer["peer"] for peer in bus["peers"] if peer["link"] == "up"] if bus else []
    if bus and (bus["listening"] or up or bus["waiting"]):
        where = ", ".join(bus["listening"]) or "listens nowhere"
        linked = f"linked with {', '.join(map(tables.visible, up))}" if up else "no peer is linked"
        waits = f"; {bus['waiting']} messages wait" if bus["waiting"] else ""
        yield f"bus        {where}; {linked}{waits}\n"
    for warning in bus.get("warnings", ()) if bus else ():
        yield f"           {tables.visible(warning)}\n"


def _broker_text(broker: Mapping[str, Any]) -> Iterator[str]:
    error = broker["last_error"]
    trouble = "" if error is None or not broker["attempts"] else f" ({error['message']})"
    yield f"broker     {tables.visible(broker['broker'])} is {broker['state']}"
    yield f"{tables.visible(trouble)}\n"
    for mesh in broker["meshes"]:
        yield f"shared     {mesh['mesh']} is {mesh['state']}: {_waiting(mesh)}\n"
        if (problem := mesh["trouble"]) is not None:  # it names the lane, and what to do about it
            yield f"           {tables.visible(problem['message'])}\n"
            yield f"           {tables.visible(problem['hint'])}\n"


def _waiting(mesh: Mapping[str, Any]) -> str:
    waiting = mesh["pending"] + mesh["inflight"]
    parts = [f"{waiting} to send" if waiting else "all is sent"]
    if mesh["lag"]:
        parts.append(f"{mesh['lag']} to come")
    if mesh["dead"]:
        parts.append(f"{mesh['dead']} refused, see: holdfast outbox list --failed")
    if mesh["state"] == "paused":
        parts.append("go on with: holdfast mesh resume")
    return ", ".join(parts)


def next_step(node: Node) -> str:
    """The command that helps most from here."""
    if not node.meshes():
        return "holdfast mesh create NAME"
    if next(node.conflicts(), None) is not None:
        return "holdfast conflict list"
    if node.log.head().offset == 0:
        return "holdfast state set KEY VALUE"
    return "holdfast log tail"


def _size(path: os.PathLike[str]) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
