"""Metrics of the outbox, the inbox and the message hook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from holdfast.node.core.message_count import MessageFigures
from holdfast.node.http.context import NodeApi
from holdfast.node.settings import HOOK_EVENTS
from holdfast.rules.outbox import OutboxState, lane_of
from holdfast.storage.ports import Reader


def message_metrics(api: NodeApi) -> Iterator[Metric]:
    found = api.engine.message_count.latest()
    yield from api.engine.read("metrics", lambda tx: _standing(tx, found, api.engine.ctx.now_ms()))
    hooks = CounterMetricFamily(
        "holdfast_hook_runs",
        "Times that hooks ran, by event and how it went",
        labels=["event", "how"],
    )
    runs = Counter[tuple[str, str]]() if api.hooks is None else api.hooks.runs
    for event in HOOK_EVENTS:
        for how in ("done", "failed", "late"):
            hooks.add_metric([event, how], runs[event, how])
    yield hooks
    missed = 0 if api.event_hooks is None else api.event_hooks.missed
    yield CounterMetricFamily(
        "holdfast_hook_events_missed", "Events that came faster than hooks ended", value=missed
    )


def _standing(tx: Reader, found: MessageFigures, now_ms: int) -> list[Metric]:
    counts = found.outbox
    lanes = {lane for lane, _ in counts}
    lanes |= {lane_of(row.slug) for row in tx.mesh_list() if row.shared}
    rows = GaugeMetricFamily(
        "holdfast_outbox_rows", "Envelopes in the outbox", labels=["lane", "state"]
    )
    age = GaugeMetricFamily(
        "holdfast_outbox_oldest_seconds",
        "How long the first that the broker has not got has waited",
        labels=["lane"],
    )
    for lane in sorted(lanes):
        for state in OutboxState:
            rows.add_metric([lane, state.value], counts.get((lane, state.value), 0))
        oldest = tx.outbox_oldest(lane)
        age.add_metric([lane], 0 if oldest is None else max(0, now_ms - oldest) / 1000)
    inbox = GaugeMetricFamily("holdfast_inbox_messages", "Messages that came", value=found.inbox)
    unread = GaugeMetricFamily(
        "holdfast_inbox_unread", "Those that nobody has read", value=found.unread
    )
    return [rows, age, inbox, unread]
