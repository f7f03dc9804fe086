"""`/metrics`: figures for Prometheus, read at each scrape.

Nothing is counted twice: what the store knows is read from it, and the engine and the HTTP
application have their own counters. So a scrape costs a few reads, and between scrapes nothing is
done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from starlette.responses import Response

from holdfast import __version__
from holdfast.node.bus.standing import BusStanding
from holdfast.node.core.views import Consumer
from holdfast.node.http.bus_metrics import bus_metrics
from holdfast.node.http.context import NodeApi, NodeRequest
from holdfast.node.http.message_metrics import message_metrics
from holdfast.node.http.quorum.figures import QuorumFigures, quorum_figures, quorum_metrics
from holdfast.node.links.status import LinkStatus
from holdfast.node.sync.status import BrokerStatus, MeshStatus
from holdfast.rules.broker_sync import SyncState
from holdfast.rules.links import LinkState
from holdfast.rules.rows import ConsumerRow
from holdfast.service.http.metrics import (
    TEXT,
    ServiceCollector,
    calls_answered,
    counters,
    exposition,
    gauge,
    gauges,
)
from holdfast.service.http.route import Routes
from holdfast.storage.ports import Reader

routes = Routes()


@routes.get("/metrics", answers={200: TEXT}, kind="probe")
async def _scrape(call: NodeRequest) -> Response:
    """Figures for Prometheus."""
    call.require_trusted()
    bus = None if call.api.bus is None else await call.api.bus.api.standing()
    quorums = await quorum_figures(call.api)
    return await exposition(call, DaemonMetrics(call.api, bus, quorums))


class _Standing(NamedTuple):
    epoch: int
    first: int
    head: int
    consumers: list[ConsumerRow]


class DaemonMetrics(ServiceCollector):
    """Everything that is measured of one daemon."""

    def __init__(
        self,
        api: NodeApi,
        bus: BusStanding | None = None,
        quorums: Sequence[QuorumFigures] = (),
    ) -> None:
        self._api, self._bus, self._quorums = api, bus, quorums

    def collect(self) -> Iterator[Metric]:
        api = self._api
        info = InfoMetricFamily("holdfast", "This node")
        info.add_metric([], {"version": __version__, "peer": api.node.peer})
        yield info
        yield gauge("holdfast_start_time_seconds", "When this daemon started", api.started_at)
        standing = api.engine.read("metrics", _stand)
        yield from _log(standing)
        yield from _consumers(standing, api.engine.ctx.now_ms())
        yield from self._disk()
        if api.link_manager is not None:
            yield from _links(api.link_manager.status())
        if api.sync_manager is not None:
            yield from _brokers(api.sync_manager.status(), api.engine.ctx.now_ms())
        yield from message_metrics(api)
        if self._bus is not None:
            yield from bus_metrics(self._bus)
        yield from quorum_metrics(self._quorums)
        yield from self._work()
        yield from self._calls()

    def _disk(self) -> Iterator[Metric]:
        if self._api.disk is None:
            return
        last = self._api.disk.last
        yield gauge("holdfast_disk_fill_ratio", "How full the home is, 0 to 1", last.fill)
        yield gauge("holdfast_disk_used_bytes", "What the home holds", last.used)
        yield gauge("holdfast_disk_room_bytes", "What it may still grow by", last.room)
        yield gauges(
            "holdfast_disk_level",
            "How that is judged",
            ["level"],
            (([level], float(level == last.level)) for level in ("ok", "high", "full")),
        )

    def _work(self) -> Iterator[Metric]:
        metrics = self._api.engine.metrics
        verbs = sorted(list(metrics.verbs.items()))
        yield counters(
            "holdfast_operations",
            "Reads and writes of the store, by name",
            ["name"],
            (([name], verb.count) for name, verb in verbs),
        )
        yield counters(
            "holdfast_operation_seconds",
            "The time they took together",
            ["name"],
            (([name], verb.total_ns / 1e9) for name, verb in verbs),
        )
        yield counters(
            "holdfast_refusals",
            "Errors of those, by code",
            ["code"],
            (([code], count) for code, count in sorted(list(metrics.errors.items()))),
        )

    def _calls(self) -> Iterator[Metric]:
        yield from calls_answered(self._api.counts)
        now = self._api.gate.now
        yield gauges(
            "holdfast_http_in_flight",
            "Calls under way: at work, waiting, streams",
            ["kind"],
            (([kind], now[kind]) for kind in ("call", "poll", "stream")),
        )


def _stand(tx: Reader) -> _Standing:
    return _Standing(tx.epoch(), *tx.log_bounds(), tx.consumer_list())


def _log(found: _Standing) -> Iterator[Metric]:
    yield gauge("holdfast_log_epoch", "The epoch that the log counts in", found.epoch)
    yield gauge("holdfast_log_first_offset", "The first entry that is still there", found.first)
    yield gauge("holdfast_log_head_offset", "The last entry", found.head)
    count = max(0, found.head - found.first + 1)
    yield gauge("holdfast_log_entries", "Entries that the log holds", count)


def _consumers(found: _Standing, now_ms: int) -> Iterator[Metric]:
    def family(name: str, text: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"holdfast_consumer_{name}", text, labels=["consumer"])

    lag = family("lag_entries", "Entries that a consumer has not confirmed")
    frontier = family("frontier_offset", "Everything up to here is confirmed")
    silent = family("seconds_since_confirm", "Since its last confirmation")
    confirmed = CounterMetricFamily(
        "holdfast_consumer_confirmed", "Entries that it has confirmed", labels=["consumer"]
    )
    for row in found.consumers:
        consumer = Consumer.of(row, found.head)
        lag.add_metric([row.name], consumer.lag)
        frontier.add_metric([row.name], consumer.frontier)
        silent.add_metric([row.name], max(0, now_ms - row.seen_at) / 1000)
        confirmed.add_metric([row.name], found.head - consumer.lag)
    yield from (lag, frontier, silent, confirmed)


def _links(found: list[LinkStatus]) -> Iterator[Metric]:
    labels = ["link", "zone"]

    def gauge(name: str, text: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"holdfast_link_{name}", text, labels=labels)

    def counter(name: str, text: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"holdfast_link_{name}", text, labels=labels)

    state = GaugeMetricFamily(
        "holdfast_link_state", "1 for the state that it is in", labels=[*labels, "state"]
    )
    lag = gauge("lag_entries", "Entries of the source that are not here yet")
    cursor = gauge("cursor_offset", "Everything of the source up to here is here")
    attempts = gauge("failures_in_a_row", "Since it last worked")
    waiting = gauge("quarantined_entries", "Entries that were refused and are in quarantine")
    received = counter("received", "Entries that arrived")
    known = counter("duplicates", "Those among them that were here already")
    objects = counter("objects", "Objects pulled")
    missing = counter("objects_missing", "Objects that the source did not have")
    size = counter("bytes", "Bytes of entries and objects that arrived")
    for link in found:
        who = [link.name, link.zone]
        for each in LinkState:
            state.add_metric([*who, str(each)], float(each is link.state))
        if link.lag is not None:
            lag.add_metric(who, link.lag)
        cursor.add_metric(who, link.cursor)
        attempts.add_metric(who, link.attempts)
        waiting.add_metric(who, link.quarantined)
        received.add_metric(who, link.received)
        known.add_metric(who, link.known)
        objects.add_metric(who, link.objects_pulled)
        missing.add_metric(who, link.objects_missing)
        size.add_metric(who, link.bytes)
    yield from (state, lag, cursor, attempts, waiting, received, known, objects, missing, size)


def _brokers(found: list[BrokerStatus], now_ms: int) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "holdfast_sync_state", "1 for the state that it is in", labels=["broker", "state"]
    )
    attempts = GaugeMetricFamily(
        "holdfast_sync_failures_in_a_row", "Since it last worked", labels=["broker"]
    )
    connections = CounterMetricFamily(
        "holdfast_sync_connections", "Connections that came about", labels=["broker"]
    )
    for broker in found:
        for each in SyncState:
            state.add_metric([broker.broker, str(each)], float(each is broker.state))
        attempts.add_metric([broker.broker], broker.attempts)
        connections.add_metric([broker.broker], broker.connections)
    yield from (state, attempts, connections)
    yield from _shared([mesh for broker in found for mesh in broker.meshes], now_ms)


def _shared(found: list[MeshStatus], now_ms: int) -> Iterator[Metric]:
    def gauge(name: str, text: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"holdfast_sync_{name}", text, labels=["mesh"])

    def counter(name: str, text: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"holdfast_sync_{name}", text, labels=["mesh"])

    rows = GaugeMetricFamily(
        "holdfast_sync_outbox_rows", "What waits for the broker, by state", labels=["mesh", "state"]
    )
    lag = gauge("lag_entries", "Entries of the broker that are not here yet")
    cursor = gauge("cursor_seq", "Everything of the broker up to here is here")
    epoch = gauge("broker_epoch", "The epoch that the broker counts in")
    paused = gauge("paused", "1 while nothing is sent")
    oldest = gauge("oldest_pending_seconds", "How long the first that waits has waited")
    quarantined = gauge("quarantined_entries", "Entries that were refused and are in quarantine")
    pushed = counter("pushed", "Envelopes that the broker has taken")
    received = counter("received", "Envelopes that were new here")
    known = counter("duplicates", "Envelopes that were here already")
    refused = counter("refused", "Answers by which the broker refused an envelope")
    pruned = CounterMetricFamily(
        "holdfast_dedupe_history_pruned",
        "Envelopes that the broker knew and no longer held when they were sent again",
        labels=["mesh"],
    )
    for mesh in found:
        who = [mesh.mesh]
        counts = (("pending", mesh.pending), ("inflight", mesh.inflight), ("dead", mesh.dead))
        for name, count in counts:
            rows.add_metric([*who, name], count)
        if mesh.lag is not None:
            lag.add_metric(who, mesh.lag)
        cursor.add_metric(who, mesh.cursor)
        epoch.add_metric(who, mesh.epoch)
        paused.add_metric(who, float(mesh.state == "paused"))
        if mesh.oldest_pending_at is not None:
            oldest.add_metric(who, max(0, now_ms - mesh.oldest_pending_at) / 1000)
        quarantined.add_metric(who, mesh.quarantined)
        pushed.add_metric(who, mesh.pushed)
        received.add_metric(who, mesh.received)
        known.add_metric(who, mesh.duplicates)
        refused.add_metric(who, mesh.refused)
        pruned.add_metric(who, mesh.pruned)
    yield from (rows, lag, cursor, epoch, paused, oldest, quarantined)
    yield from (pushed, received, known, refused, pruned)
