"""`/metrics` of a broker, read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.responses import Response

from holdfast import __version__
from holdfast.broker.broker import MeshStanding, standings
from holdfast.broker.http.context import BrokerApi, BrokerRequest
from holdfast.rules.broker_rows import AcceptVerdict, QueueCounts
from holdfast.service.http.route import Route

_TEXT: Final = "text/plain"
_NAMED: Final = {
    AcceptVerdict.CREATED: ("accepted", "Envelopes that were accepted"),
    AcceptVerdict.DUPLICATE: ("duplicate", "Envelopes that had been accepted before"),
    AcceptVerdict.REUSED: ("reused", "Ids that came again with another request"),
}


def routes() -> list[Route]:
    return [
        Route(
            "GET",
            "/metrics",
            _scrape,
            "Figures for Prometheus, for this machine's own user.",
            answers={200: _TEXT},
            local_only=True,
            kind="probe",
        )
    ]


async def _scrape(call: BrokerRequest) -> Response:
    store = call.api.store
    stands = await standings(store)
    queues = {one.mesh: await store.queue_counts(one.mesh) for one in stands}
    figures = CollectorRegistry(auto_describe=False)
    figures.register(BrokerMetrics(call.api, await store.counts(), stands, queues))
    body: bytes = await call.api.run(generate_latest, figures)
    return Response(body, media_type=CONTENT_TYPE_LATEST)


class BrokerMetrics(Collector):
    """Everything that is measured of one broker process."""

    def __init__(
        self,
        api: BrokerApi,
        counts: dict[str, int],
        stands: list[MeshStanding],
        queues: dict[str, list[QueueCounts]],
    ) -> None:
        self._api, self._counts, self._stands, self._queues = api, counts, stands, queues

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        info = InfoMetricFamily("holdfast_broker", "This broker")
        info.add_metric([], {"version": __version__, "name": self._api.title})
        yield info
        yield _gauge("start_time_seconds", "When this process started", self._api.started_at)
        rows = GaugeMetricFamily("holdfast_broker_rows", "What the store holds", labels=["what"])
        for name, count in sorted(self._counts.items()):
            rows.add_metric([name], count)
        yield rows
        yield from self._accepting()
        yield from self._dedupe()
        yield from self._connections()
        yield from self._meshes()
        yield from self._calls()

    def _accepting(self) -> Iterator[Metric]:
        counts = self._api.broker.counts
        for verdict, (name, text) in _NAMED.items():
            family = CounterMetricFamily(f"holdfast_broker_{name}", text, labels=["mesh"])
            for (mesh, found), count in sorted(counts.verdicts.items()):
                if found == verdict:
                    family.add_metric([mesh], count)
            yield family
        refused = CounterMetricFamily(
            "holdfast_broker_refused", "Envelopes that were refused", labels=["mesh", "code"]
        )
        for (mesh, found), count in sorted(counts.verdicts.items()):
            if found not in _NAMED:
                refused.add_metric([mesh, found], count)
        for code, count in sorted(counts.refused.items()):
            refused.add_metric(["", code], count)
        yield refused
        yield CounterMetricFamily(
            "holdfast_broker_groups", "Transactions of accepted envelopes", value=counts.groups
        )
        waiting = self._api.broker.accepting
        yield _gauge("accept_waiting", "Envelopes that wait to be accepted", waiting.rows)
        yield _gauge("accept_waiting_bytes", "Their size", waiting.bytes)

    def _dedupe(self) -> Iterator[Metric]:
        counts = self._api.broker.counts
        family = CounterMetricFamily(
            "holdfast_broker_dedupe_fingerprint_mismatch",
            "Ids that came again with another fingerprint",
            labels=["client", "mesh"],
        )
        for (mesh, client), count in sorted(counts.mismatches.items()):
            family.add_metric([client, mesh], count)
        yield family
        yield CounterMetricFamily(
            "holdfast_broker_dedupe_orphan_check", "Orphan checks", value=counts.orphan_checks
        )
        found = GaugeMetricFamily(
            "holdfast_broker_dedupe_orphan_found",
            "Orphans that the last check found",
            labels=["mesh"],
        )
        for mesh, count in sorted(counts.orphans.items()):
            found.add_metric([mesh], count)
        if not counts.orphans:
            found.add_metric([""], 0)
        yield found
        yield CounterMetricFamily("holdfast_broker_sweeps", "Sweeps", value=counts.sweeps)
        yield CounterMetricFamily(
            "holdfast_broker_sweeps_put_off",
            "Sweeps that waited, because the clock was not believed",
            value=counts.put_off,
        )
        swept = CounterMetricFamily(
            "holdfast_broker_swept", "What sweeps have removed or released", labels=["what"]
        )
        for name, count in sorted(counts.swept.items()):
            swept.add_metric([name], count)
        yield swept

    def _connections(self) -> Iterator[Metric]:
        broker = self._api.broker
        yield _gauge("connections", "Nodes that are connected", len(broker.connections))
        yield CounterMetricFamily(
            "holdfast_broker_connections_opened", "Connections", value=broker.counts.opened
        )
        closed = CounterMetricFamily(
            "holdfast_broker_connections_closed", "Connections that ended", labels=["code"]
        )
        for code, count in sorted(broker.counts.closed.items()):
            closed.add_metric([str(code)], count)
        yield closed

    def _meshes(self) -> Iterator[Metric]:
        def family(name: str, text: str, *more: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"holdfast_broker_{name}", text, labels=["mesh", *more])

        epoch = family("mesh_epoch", "The epoch that it counts in")
        seq = family("mesh_seq", "The last seq")
        first = family("mesh_first_seq", "From here on every change is held")
        members = family("mesh_members", "Its members")
        lag = family("mesh_lag", "What the member that is furthest behind has not confirmed")
        following = family("mesh_followers", "Connections that follow it")
        depth = family("queue_depth", "Messages in a queue", "queue", "state")
        wakeups = self._api.broker.wakeups
        for one in self._stands:
            epoch.add_metric([one.mesh], one.epoch)
            seq.add_metric([one.mesh], one.seq)
            first.add_metric([one.mesh], one.first)
            members.add_metric([one.mesh], one.members)
            lag.add_metric([one.mesh], one.lag)
            following.add_metric([one.mesh], wakeups.followers(one.mesh))
            for queue in self._queues[one.mesh]:
                for state in ("ready", "taken", "dead"):
                    depth.add_metric([one.mesh, queue.queue, state], getattr(queue, state))
        yield from (epoch, seq, first, members, lag, following, depth)

    def _calls(self) -> Iterator[Metric]:
        counts = self._api.counts
        asked = CounterMetricFamily(
            "holdfast_http_requests", "Calls answered", labels=["method", "route", "status"]
        )
        for (method, route, status), count in sorted(list(counts.answers.items())):
            asked.add_metric([method, route, str(status)], count)
        yield asked
        spent = CounterMetricFamily(
            "holdfast_http_request_seconds", "The time they took", labels=["method", "route"]
        )
        for (method, route), seconds in sorted(list(counts.seconds.items())):
            spent.add_metric([method, route], seconds)
        yield spent


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"holdfast_broker_{name}", text, value=value)
