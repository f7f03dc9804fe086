"""What a broker process has done since it started, for the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.rules.broker_rows import AcceptResult, AcceptVerdict, BrokerSwept, PushedEnvelope


class BrokerCounts:
    """Counted where it happens, read when somebody asks."""

    def __init__(self) -> None:
        self.verdicts: Counter[tuple[str, str]] = Counter()
        """By mesh and verdict. Meshes that do not exist are counted as one: strangers choose
        their names."""
        self.refused: Counter[str] = Counter()
        """Envelopes that were refused before anything was asked of the store, by code."""
        self.mismatches: Counter[tuple[str, str]] = Counter()
        """By mesh and the beginning of the sender's key."""
        self.groups = 0
        self.opened = 0
        self.closed: Counter[int] = Counter()
        """Connections that have ended, by code."""
        self.swept: Counter[str] = Counter()
        self.sweeps = 0
        self.put_off = 0
        """Sweeps that did not take place, because the clock was not believed."""
        self.orphan_checks = 0
        self.orphans: Counter[str] = Counter()
        """What the last check found, by mesh."""

    def answered(
        self, group: Sequence[PushedEnvelope], answers: Sequence[AcceptResult]
    ) -> list[tuple[PushedEnvelope, AcceptResult]]:
        """Counts them, and gives back those that were not created."""
        created: Counter[str] = Counter()
        others: list[tuple[PushedEnvelope, AcceptResult]] = []
        for one, answer in zip(group, answers, strict=True):
            if answer.verdict is AcceptVerdict.CREATED:
                created[one.mesh] += 1
            else:
                others.append((one, answer))
        for mesh, count in created.items():
            self.verdicts[mesh, AcceptVerdict.CREATED] += count
        for one, answer in others:
            known = answer.verdict is not AcceptVerdict.UNKNOWN_MESH
            self.verdicts[one.mesh if known else "", answer.verdict] += 1
            if answer.verdict is AcceptVerdict.REUSED:
                self.mismatches[one.mesh, one.sender.hex()[:16]] += 1
        return others

    def sweep(self, done: BrokerSwept) -> None:
        for name in done.__struct_fields__:
            self.swept[name] += getattr(done, name)
