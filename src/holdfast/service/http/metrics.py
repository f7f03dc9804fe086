"""`/metrics` of a service: figures for Prometheus, read when they are asked for.

Nothing is counted twice: a collector takes what the store and the server have counted. So a scrape
costs a few reads, and between scrapes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.responses import Response

from holdfast.service.http.request import Request, RequestCounts
from holdfast.service.http.route import Handler, Route

TEXT: Final = "text/plain"

Sample = tuple[Sequence[str], float]
"""The values of the labels, and the figure."""


class ServiceCollector(Collector):
    """Collects when it is asked to. Nothing is known before it is read, and there is no other
    collector to clash with: so it describes nothing.
    """

    def describe(self) -> Iterator[Metric]:
        return iter(())


def metrics_route(scrape: Handler, summary: str, *, local_only: bool = False) -> Route:
    return Route(
        "GET",
        "/metrics",
        scrape,
        summary,
        answers={200: TEXT},
        local_only=local_only,
        kind="probe",
    )


async def exposition(call: Request[Any], collector: Collector) -> Response:
    """What a collector finds now, as Prometheus reads it."""
    figures = CollectorRegistry(auto_describe=False)
    figures.register(collector)
    body: bytes = await call.api.run(generate_latest, figures)
    return Response(body, media_type=CONTENT_TYPE_LATEST)


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def gauges(
    name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, figure in samples:
        family.add_metric(values, figure)
    return family


def counters(
    name: str, text: str, labels: Sequence[str], samples: Iterable[Sample]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, figure in samples:
        family.add_metric(values, figure)
    return family


def calls_answered(counts: RequestCounts) -> Iterator[Metric]:
    yield counters(
        "holdfast_http_requests",
        "Calls answered",
        ["method", "route", "status"],
        (
            ([method, route, str(status)], count)
            for (method, route, status), count in sorted(list(counts.answers.items()))
        ),
    )
    yield counters(
        "holdfast_http_request_seconds",
        "The time they took",
        ["method", "route"],
        sorted(list(counts.seconds.items())),
    )
