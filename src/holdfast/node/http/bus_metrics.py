"""Metrics of the bus: links, messages, refusals, what waits."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from holdfast.node.bus.standing import BusStanding
from holdfast.rules.limits import SECOND_MS


def bus_metrics(found: BusStanding) -> Iterator[Metric]:
    up = GaugeMetricFamily("holdfast_bus_link_up", "1 while there is a link", labels=["peer"])
    rtt = GaugeMetricFamily(
        "holdfast_bus_rtt_seconds", "How long it takes to a peer and back", labels=["peer"]
    )
    waiting = GaugeMetricFamily(
        "holdfast_bus_outbox_waiting", "Messages that wait for a peer", labels=["peer"]
    )
    messages = CounterMetricFamily(
        "holdfast_bus_messages", "Messages of the links, by outcome", labels=["peer", "outcome"]
    )
    refused = CounterMetricFamily(
        "holdfast_bus_refused", "Messages of a peer that were refused", labels=["peer", "reason"]
    )
    for peer in found.peers:
        up.add_metric([peer.peer], float(peer.link == "up"))
        waiting.add_metric([peer.peer], peer.waiting)
        if peer.rtt_ms is not None:
            rtt.add_metric([peer.peer], peer.rtt_ms / SECOND_MS)
        outcomes = (("sent", peer.sent), ("acked", peer.acked), ("received", peer.received))
        for outcome, count in (*outcomes, ("duplicate", peer.again)):
            messages.add_metric([peer.peer, outcome], count)
        for reason, count in sorted(peer.refused_by.items()):
            refused.add_metric([peer.peer, reason], count)
    yield from (up, rtt, waiting, messages, refused)
    links = sum(peer.link == "up" for peer in found.peers)
    yield GaugeMetricFamily("holdfast_bus_links", "Links that are up", value=links)
    events = CounterMetricFamily(
        "holdfast_bus_events", "What else has happened on the bus, by name", labels=["event"]
    )
    for name, count in sorted(found.counts.items()):
        events.add_metric([name], count)
    yield events
