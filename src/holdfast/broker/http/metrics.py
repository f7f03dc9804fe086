"""What `/metrics` of a broker says: what it accepted, its ids, connections and meshes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, InfoMetricFamily, Metric
from starlette.responses import Response

from holdfast import __version__
from holdfast.broker.figures import BrokerFigures
from holdfast.broker.http.context import BrokerApi, BrokerRequest
from holdfast.broker.http.metrics_tokens import KIND as METRICS
from holdfast.broker.processes.crew import Crew
from holdfast.broker.processes.gathered import encode_metrics, labelled
from holdfast.rules import compiled
from holdfast.rules.broker_rows import AcceptVerdict, MeshStanding
from holdfast.service.http.metrics import (
    ServiceCollector,
    calls_answered,
    counters,
    exposition,
    gauge,
    gauges,
    metrics_route,
)
from holdfast.service.http.route import Route

OF_PROCESS: Final = "metrics"
"""By what word processes ask each other for this."""
_UNCOUNTED: Final = BrokerFigures({}, [], {})
"""The store is counted once, by the process that is asked."""
_NAMED: Final = {
    AcceptVerdict.CREATED: ("accepted", "Envelopes that were accepted"),
    AcceptVerdict.DUPLICATE: ("duplicate", "Envelopes that had been accepted before"),
    AcceptVerdict.REUSED: ("reused", "Ids that came again with another request"),
}


def routes() -> list[Route]:
    summary = "Figures for Prometheus, for the operator or a token that reads them."
    return [metrics_route(_scrape, summary)]


async def _scrape(call: BrokerRequest) -> Response:
    if call.caller.kind != METRICS:
        call.require_local()
    metrics = BrokerMetrics(call.api, await call.api.figures.latest())
    crew = call.api.broker.crew
    if crew is not None:
        found = await crew.ask_all(OF_PROCESS)
        metrics.others = {**found, crew.place.number: metrics.told()}
    return await exposition(call, metrics)


def answer_others(api: BrokerApi, crew: Crew) -> None:
    """Lets the other processes have the figures of this one."""

    async def told(body: bytes) -> bytes:
        return BrokerMetrics(api, _UNCOUNTED).told()

    crew.answers(OF_PROCESS, told)


class BrokerMetrics(ServiceCollector):
    """Everything that is measured of a broker: what its store holds, and what its process has done.
    With `others` the second is that of several processes.
    """

    def __init__(self, api: BrokerApi, figures: BrokerFigures) -> None:
        self._api, self._figures = api, figures
        self.others: dict[int, bytes | None] | None = None

    def collect(self) -> Iterator[Metric]:
        info = InfoMetricFamily("holdfast_broker", "This broker")
        info.add_metric(
            [], {"version": __version__, "name": self._api.title, "reader": compiled.reader()}
        )
        yield info
        rows = (([name], count) for name, count in sorted(self._figures.counts.items()))
        yield gauges("holdfast_broker_rows", "What the store holds", ["what"], rows)
        yield from self._meshes()
        yield from self._of_process() if self.others is None else labelled(self.others)

    def told(self) -> bytes:
        """What this process has done, for another one."""
        return encode_metrics(self._of_process())

    def _of_process(self) -> Iterator[Metric]:
        yield _gauge("start_time_seconds", "When this process started", self._api.started_at)
        yield from self._accepting()
        yield from self._dedupe()
        yield from self._connections()
        yield self._followers()
        yield from calls_answered(self._api.counts)

    def _accepting(self) -> Iterator[Metric]:
        counts = self._api.broker.counts
        verdicts = sorted(counts.verdicts.items())
        for verdict, (name, text) in _NAMED.items():
            samples = (([mesh], count) for (mesh, found), count in verdicts if found == verdict)
            yield counters(f"holdfast_broker_{name}", text, ["mesh"], samples)
        refused = [
            ([mesh, found], count) for (mesh, found), count in verdicts if found not in _NAMED
        ]
        refused += [(["", code], count) for code, count in sorted(counts.refused.items())]
        yield counters(
            "holdfast_broker_refused", "Envelopes that were refused", ["mesh", "code"], refused
        )
        yield _counter("groups", "Transactions of accepted envelopes", counts.groups)
        waiting = self._api.broker.accepting
        yield _gauge("accept_waiting", "Envelopes that wait to be accepted", waiting.rows)
        yield _gauge("accept_waiting_bytes", "Their size", waiting.bytes)

    def _dedupe(self) -> Iterator[Metric]:
        counts = self._api.broker.counts
        yield counters(
            "holdfast_broker_dedupe_fingerprint_mismatch",
            "Ids that came again with another fingerprint",
            ["client", "mesh"],
            (
                ([client, mesh], count)
                for (mesh, client), count in sorted(counts.mismatches.items())
            ),
        )
        yield _counter("dedupe_orphan_check", "Orphan checks", counts.orphan_checks)
        yield gauges(
            "holdfast_broker_dedupe_orphan_found",
            "Orphans that the last check found",
            ["mesh"],
            (([mesh], count) for mesh, count in sorted(counts.orphans.items()) or [("", 0)]),
        )
        yield _counter("sweeps", "Sweeps", counts.sweeps)
        yield _counter(
            "sweeps_put_off",
            "Sweeps that waited, because the clock was not believed",
            counts.put_off,
        )
        yield counters(
            "holdfast_broker_swept",
            "What sweeps have removed or released",
            ["what"],
            (([name], count) for name, count in sorted(counts.swept.items())),
        )

    def _connections(self) -> Iterator[Metric]:
        broker = self._api.broker
        yield _gauge("connections", "Nodes that are connected", len(broker.connections))
        yield _counter("connections_opened", "Connections", broker.counts.opened)
        yield counters(
            "holdfast_broker_connections_closed",
            "Connections that ended",
            ["code"],
            (([str(code)], count) for code, count in sorted(broker.counts.closed.items())),
        )

    def _meshes(self) -> Iterator[Metric]:
        def family(name: str, text: str, figure: Callable[[MeshStanding], int]) -> Metric:
            samples = [([mesh.mesh], figure(mesh)) for mesh in self._figures.meshes]
            return gauges(f"holdfast_broker_{name}", text, ["mesh"], samples)

        yield family("mesh_epoch", "The epoch that it counts in", lambda mesh: mesh.epoch)
        yield family("mesh_seq", "The last seq", lambda mesh: mesh.seq)
        yield family("mesh_first_seq", "From here on every change is held", lambda mesh: mesh.first)
        yield family("mesh_members", "Its members", lambda mesh: mesh.members)
        yield family(
            "mesh_lag",
            "What the member that is furthest behind has not confirmed",
            lambda mesh: mesh.lag,
        )
        yield gauges(
            "holdfast_broker_queue_depth",
            "Messages in a queue",
            ["mesh", "queue", "state"],
            (
                ([mesh, queue.queue, state], getattr(queue, state))
                for mesh, queues in self._figures.queues.items()
                for queue in queues
                for state in ("ready", "taken", "dead")
            ),
        )

    def _followers(self) -> Metric:
        wakeups = self._api.broker.wakeups
        return gauges(
            "holdfast_broker_mesh_followers",
            "Connections that follow it",
            ["mesh"],
            [
                ([mesh], wakeups.followers(mesh))
                for mesh in sorted({one.mesh for one in self._figures.meshes} | {*wakeups.followed})
            ],
        )


def _gauge(name: str, text: str, value: float) -> Metric:
    return gauge(f"holdfast_broker_{name}", text, value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"holdfast_broker_{name}", text, value=value)
