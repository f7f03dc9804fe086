"""`holdfast outbox`: what this node has to send to brokers and peers, and what failed."""

from __future__ import annotations

import os

import click
import msgspec

from holdfast.apps.cli import own_daemon, short_ids
from holdfast.apps.cli.commands.send import show_sent
from holdfast.apps.cli.declare import ASKS, KEY, noun, verb
from holdfast.apps.cli.session import CommandSession
from holdfast.node.library.node import Node
from holdfast.node.messages.outbox import Outbox, OutboxItem
from holdfast.node.settings import load
from holdfast.rules.errors import BadInput
from holdfast.rules.outbox import is_peer_lane

outbox_ = noun(
    "outbox",
    "What this node has to send to its brokers and to peers of the bus. An ID is the number of an "
    "item, or the first digits of its id.",
)

_ITEM = (
    "number id mesh lane op entity priority state attempts created_at retry_at tried_at "
    "ended_at code error broker_id broker_epoch broker_seq replaces blocked_by"
)


@verb(outbox_, "list", mesh=False, lists="created_at")
@click.option("--failed", is_flag=True, help="Only what the other side will not take.")
@click.option("--lane", metavar="LANE", help="Only of this lane, or of this mesh.")
@click.option("--all", "everything", is_flag=True, help="Also what is done.")
def list_(session: CommandSession, failed: bool, lane: str | None, everything: bool) -> None:
    """List what waits, what failed and why, and what waits for what."""
    with session.warning_node() as node:
        outbox = outbox_of(node)
        items = outbox.list(failed=failed, lane=lane)
        for lane_ in () if session.as_json else outbox.lanes():
            if lane_.failing is not None and lane_.blocks:
                session.talk(f"{lane_.lane}: {lane_.blocks} waits for {lane_.failing}")
        session.rows(
            (
                msgspec.structs.asdict(item)
                for item in items
                if failed or everything or item.state != "done"
            ),
            "number id lane op entity state attempts code error blocked_by created_at",
            empty="nothing has failed" if failed else "nothing waits to be sent",
        )


@verb(outbox_, "lanes", mesh=False, lists="")
def lanes(session: CommandSession) -> None:
    """Show each lane: how much is where, and what holds it up."""
    with session.warning_node() as node:
        session.rows(
            map(msgspec.structs.asdict, outbox_of(node).lanes()),
            "lane policy pending inflight done dead aborted oldest_at failing problem blocks",
            empty="no mesh is shared",
        )


@verb(outbox_, "show", mesh=False)
@click.argument("id_", metavar="ID")
def show(session: CommandSession, id_: str) -> None:
    """Show how far one change or message has got."""
    with session.warning_node() as node:
        outbox, id = _meant(node, id_)
        session.show(msgspec.structs.asdict(outbox.get(id)), fields=_ITEM)


@verb(outbox_, "retry", mesh=False)
@click.argument("id_", metavar="ID")
def retry(session: CommandSession, id_: str) -> None:
    """Try a change or message again at once, now that what was wrong is put right."""
    with session.warning_node() as node:
        outbox, id = _meant(node, id_)
        item = outbox.retry(id)
        if is_peer_lane(item.lane):
            own_daemon.refresh(node.home)  # a broker's lane notices by itself
        _changed(session, item)


@verb(outbox_, "requeue", mesh=False, writes=KEY)
@click.argument("id_", metavar="ID")
@click.option(
    "--new-id",
    is_flag=True,
    help="Yes, as a new message; --id names its id.",
)
def requeue(session: CommandSession, id_: str, new_id: bool) -> None:
    """Send a message that failed again as a new one, to the same destination."""
    if not new_id:
        raise BadInput(
            "a message goes again under a new id: a receiver that has the first one gets two",
            hint=f"if that is what you want: holdfast outbox requeue --new-id {id_}; "
            "if it may go as it was: holdfast outbox retry",
        )
    with session.warning_node() as node:
        outbox, id = _meant(node, id_)
        show_sent(session, outbox.requeue(id, new_id=session.key))


@verb(outbox_, "drop", mesh=False, removes=ASKS)
@click.argument("id_", metavar="ID")
def drop(session: CommandSession, id_: str) -> None:
    """Give a change or message up: the broker will not get it from this node."""
    with session.warning_node() as node:
        outbox, id = _meant(node, id_)
        item = outbox.get(id)
        what = f"give up {item.op} {item.entity}".rstrip() + f" on its way to {item.lane}"
        if session.goes_on(what, id=id, lane=item.lane):
            _changed(session, outbox.drop(id))


def _changed(session: CommandSession, item: OutboxItem) -> None:
    session.talk(f"{item.op or 'it'} is {item.state}")
    session.show(msgspec.structs.asdict(item), f"{item.id}\n")


def _meant(node: Node, given: str) -> tuple[Outbox, str]:
    outbox = outbox_of(node)
    return outbox, short_ids.outbox_item(node, outbox, given)


def outbox_of(node: Node) -> Outbox:
    """The outbox of a node, with the policies that the settings of its daemon name."""
    return Outbox(node._engine, load(os.environ, {}).outbox.policies)
