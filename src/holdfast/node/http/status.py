"""The state of this node in one answer, and the ends of its log in a smaller one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.responses import Response

from holdfast import __version__
from holdfast.node.core.views import Consumer
from holdfast.node.http.context import NodeApi, NodeRequest
from holdfast.node.links.status import LinkStatus
from holdfast.node.messages.outbox import LaneInfo, Outbox
from holdfast.node.sync.status import BrokerStatus
from holdfast.rules.disk_pressure import Pressure
from holdfast.service.http.route import Routes
from holdfast.storage.ports import Reader


class LogStatusResponse(msgspec.Struct, frozen=True):
    """The ends of the log. A cursor is an offset and the epoch that it counts in."""

    peer: str
    epoch: int
    first: int
    """The first offset that the log still holds."""
    head: int
    """The last offset; one less than `first` if the log is empty."""


class CallsInFlight(msgspec.Struct, frozen=True):
    """How many calls the node is answering now."""

    at_work: int
    waiting: int
    streams: int


class NodeStatus(msgspec.Struct, frozen=True):
    """The state of a node."""

    peer: str
    version: str
    phase: str
    """`starting`, `ready` or `stopping`."""
    started_at: int
    log: LogStatusResponse
    disk: Pressure | None
    calls: CallsInFlight
    consumers: list[Consumer]
    links: list[LinkStatus]
    brokers: list[BrokerStatus]
    outbox: Sequence[LaneInfo]
    """The lanes of the outbox, and what holds each up."""
    unread: int
    """Unread messages of all meshes."""


routes = Routes()


@routes.get("/v1/log", answers={200: LogStatusResponse})
async def _log(call: NodeRequest) -> Response:
    """The first and last offset of the log, and its epoch."""
    return call.answer(await call.api.run(_place, call.api))


@routes.get("/v1/status", answers={200: NodeStatus}, local_only=True)
async def _status(call: NodeRequest) -> Response:
    """The state of this node: its log, its disk, its readers, its links, its brokers."""
    return call.answer(await call.api.run(_stand, call.api))


def _place(api: NodeApi) -> LogStatusResponse:
    peer = api.node.peer
    return api.engine.read(
        "log.head", lambda tx: LogStatusResponse(peer, tx.epoch(), *tx.log_bounds())
    )


def _stand(api: NodeApi) -> NodeStatus:
    def read(tx: Reader) -> list[Consumer]:
        head = tx.log_bounds()[1]
        return [Consumer.of(row, head) for row in tx.consumer_list()]

    now = api.gate.now
    return NodeStatus(
        peer=api.node.peer,
        version=__version__,
        phase=api.phase,
        started_at=int(api.started_at * 1000),
        log=_place(api),
        disk=None if api.disk is None else api.disk.last,
        calls=CallsInFlight(now["call"], now["poll"], now["stream"]),
        consumers=api.engine.read("consumer.list", read),
        links=[] if api.link_manager is None else api.link_manager.status(),
        brokers=[] if api.sync_manager is None else api.sync_manager.status(),
        outbox=Outbox(api.engine, api.settings.outbox.policies).lanes(),
        unread=api.engine.message_count.latest().unread,
    )
