"""One run: the parts one after the other, each with its share of the time."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from holdfast.apps.bench import disk, messages, writes
from holdfast.apps.bench.figures import Figure
from holdfast.node.trust.trust import Trust
from holdfast.rules.errors import HoldfastError
from holdfast.service.problem import Problem

_SHARES: Final = {"disk": 0.1, "home": 0.65, "broker": 0.25}
Begins = Callable[[str, int, int], None]
"""Is told of each part before it begins: its name, its number, and how many there are."""


class BrokerToMeasure(NamedTuple):
    """A broker, by whom, and with what it asks for before it makes a mesh."""

    trust: Trust
    url: str
    card: str
    token: str | None


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of this machine."""

    part: str
    what: str
    here: float
    unit: str
    readme: tuple[float, float] | None = None
    """What the README says: from, to."""
    ratio: float | None = None
    """To the README; above 1 this machine is better."""


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, and which parts could not be."""

    figures: list[Measured]
    problems: dict[str, Problem]


def run(
    beside: Path, seconds: float, broker: BrokerToMeasure | None, now_ms: int, begins: Begins
) -> BenchReport:
    """Measures on the disk of the folder `beside`, in a folder of its own that is removed."""
    place = Path(tempfile.mkdtemp(prefix=".holdfast-bench-", dir=beside))
    try:
        parts: dict[str, Callable[[float], Iterator[tuple[Figure, float]]]] = {
            "disk": lambda share: disk.measure(place, share),
            "home": lambda share: writes.measure(place, share),
        }
        if broker is not None:
            parts["broker"] = lambda share: messages.measure(*broker, share)
        whole = sum(_SHARES[part] for part in parts)
        found: list[list[Measured]] = []
        problems: dict[str, Problem] = {}
        for number, (part, measure) in enumerate(parts.items(), 1):
            begins(part, number, len(parts))
            try:
                share = seconds * _SHARES[part] / whole
                found.append([_of(*one) for one in measure(share)])
            except HoldfastError as error:
                problems[part] = Problem.of(error, now_ms)
        return BenchReport(figures=list(chain.from_iterable(found)), problems=problems)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _of(figure: Figure, here: float) -> Measured:
    readme = None
    if figure.low is not None:
        readme = figure.low, figure.low if figure.high is None else figure.high
    return Measured(
        part=figure.part,
        what=figure.what,
        here=here,
        unit=figure.unit,
        readme=readme,
        ratio=figure.ratio(here),
    )
