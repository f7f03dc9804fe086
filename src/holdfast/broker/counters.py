"""What a broker process has done since it started, for the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.rules.broker_rows import AcceptResult, AcceptVerdict, BrokerSwept, PushedEnvelope
from holdfast.rules.push_columns import Created, PushColumns, beside


class BrokerCounts:
    """Counters that are increased where something happens, and read by the metrics."""

    def __init__(self) -> None:
        self.verdicts: Counter[tuple[str, str]] = Counter()
        """Envelopes by mesh and verdict. Unknown meshes are counted together, because strangers
        choose their names."""
        self.refused: Counter[str] = Counter()
        """Envelopes that were refused before they reached the store, by code."""
        self.mismatches: Counter[tuple[str, str]] = Counter()
        """Reused ids by mesh and the beginning of the sender's key."""
        self.groups = 0
        self.opened = 0
        self.closed: Counter[int] = Counter()
        """Connections that have ended, by close code."""
        self.swept: Counter[str] = Counter()
        self.sweeps = 0
        self.put_off = 0
        """Sweeps that were skipped because the broker did not believe its clock."""
        self.orphan_checks = 0
        self.orphans: Counter[str] = Counter()
        """Orphans that the last check found, by mesh."""

    def answered(
        self, group: Sequence[PushedEnvelope], answers: Sequence[AcceptResult]
    ) -> list[tuple[PushedEnvelope, AcceptResult]]:
        """Counts the answers for a group of envelopes; returns the pairs that were not created."""
        created: Counter[str] = Counter()
        others: list[tuple[PushedEnvelope, AcceptResult]] = []
        for part, told in beside(group, answers):
            if isinstance(part, PushColumns) and isinstance(told, Created):
                created[part.mesh] += len(told)
                continue
            for envelope, answer in zip(part, told, strict=True):
                if answer.verdict is AcceptVerdict.CREATED:
                    created[envelope.mesh] += 1
                else:
                    others.append((envelope, answer))
        for mesh, count in created.items():
            self.verdicts[mesh, AcceptVerdict.CREATED] += count
        for envelope, answer in others:
            known = answer.verdict is not AcceptVerdict.UNKNOWN_MESH
            self.verdicts[envelope.mesh if known else "", answer.verdict] += 1
            if answer.verdict is AcceptVerdict.REUSED:
                self.mismatches[envelope.mesh, envelope.sender.hex()[:16]] += 1
        return others

    def sweep(self, done: BrokerSwept) -> None:
        for name in done.__struct_fields__:
            self.swept[name] += getattr(done, name)
