"""Figures of all processes of a broker, at whichever the question arrives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

LABEL: Final = "process"

SampleRow = tuple[str, dict[str, str], float]


class ToldMetric(msgspec.Struct, frozen=True, array_like=True):
    """One metric of one process, as it crosses a line."""

    name: str
    text: str
    kind: str
    samples: list[SampleRow]


class ProcessStanding(msgspec.Struct, frozen=True):
    """How one process of a broker is."""

    process: int
    pid: int
    connections: int
    waiting: int


_FAMILIES: Final = msgspec.msgpack.Decoder(list[ToldMetric])
_STANDING: Final = msgspec.msgpack.Decoder(ProcessStanding)


def encode_metrics(metrics: Iterable[Metric]) -> bytes:
    return msgspec.msgpack.encode(
        [
            ToldMetric(
                metric.name,
                metric.documentation,
                metric.type,
                [(one.name, dict(one.labels), float(one.value)) for one in metric.samples],
            )
            for metric in metrics
        ]
    )


def encode_standing(standing: ProcessStanding) -> bytes:
    return msgspec.msgpack.encode(standing)


def standings(found: Mapping[int, bytes | None]) -> list[ProcessStanding]:
    """Of the processes that have answered."""
    return [_STANDING.decode(raw) for _, raw in sorted(found.items()) if raw is not None]


def labelled(found: Mapping[int, bytes | None]) -> Iterator[Metric]:
    """The metrics of all processes, each sample with its process; and which of them answered."""
    up = GaugeMetricFamily(
        "holdfast_broker_process_up", "Whether this process told its figures", labels=[LABEL]
    )
    merged: dict[str, Metric] = {}
    for number, raw in sorted(found.items()):
        up.add_metric([str(number)], 0.0 if raw is None else 1.0)
        for family in [] if raw is None else _FAMILIES.decode(raw):
            metric = merged.setdefault(family.name, Metric(family.name, family.text, family.kind))
            for name, labels, value in family.samples:
                metric.add_sample(name, {**labels, LABEL: str(number)}, value)
    yield up
    yield from merged.values()
