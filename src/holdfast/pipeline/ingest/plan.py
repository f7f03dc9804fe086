"""The plan of a run: which offsets of which logs the lake lacks, and where to read them.

A log is known by its name and its epoch, wherever it was found: a home and its backup are one log,
and what the home has truncated is taken from the backup. Before the lake reads on, it checks that
it is the same log as before: the entry at the place where it stopped must have the id that the lake
remembers. Two homes with the same name are never mixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.pipeline.lake.checked import checked
from holdfast.pipeline.lake.compare import MissingPlaces
from holdfast.pipeline.lake.held import Key
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.reads import Position
from holdfast.pipeline.logs.disk import BackupLog
from holdfast.pipeline.logs.export import ExportLog
from holdfast.pipeline.logs.log import LogBounds, ReadableLog
from holdfast.rules.errors import HoldfastError, LakeSetBack, LogForked, Truncated

_COMPARED: Final = 64
"""How many of the last entries that two copies of a log both have are compared."""
_FORK_HINT: Final = (
    "two nodes must not have one name: read one of them under another (option `name`); a node "
    "that lost its last entries counts in a new epoch once it is started"
)


@dataclass(frozen=True)
class LocatedLog:
    """A log that answers, and its bounds when the plan was made."""

    log: ReadableLog
    place: LogBounds

    @property
    def key(self) -> Key:
        return self.place.log, self.place.epoch


@dataclass(frozen=True)
class LogStretch:
    """Offsets [start, stop) of one log, to be read from one location."""

    log: ReadableLog
    key: Key
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start

    def upto(self, rows: int) -> LogStretch:
        return LogStretch(self.log, self.key, self.start, min(self.stop, self.start + rows))


@dataclass(frozen=True)
class Gap:
    """Offsets [start, stop) of a log that no location has any more."""

    key: Key
    start: int
    stop: int
    rows: int = 0
    """How many of these offsets are lost; 0 if all are."""

    def __str__(self) -> str:
        log, epoch = self.key
        some = f"{self.rows} of the " if self.rows else ""
        return f"{some}offsets {self.start} to {self.stop - 1} in epoch {epoch} of log {log!r}"


@dataclass(frozen=True)
class UnreadableLog:
    """A log that cannot be read now, and why."""

    location: str
    error: HoldfastError
    log: str = ""


@dataclass
class IngestPlan:
    """Everything that is new, by log, and what cannot be read."""

    found: list[LocatedLog] = field(default_factory=list)
    stretches: dict[Key, list[LogStretch]] = field(default_factory=dict)
    before: dict[Key, int] = field(default_factory=dict)
    """By log: the last offset that the lake has; 0 if it has none."""
    gaps: list[Gap] = field(default_factory=list)
    failures: list[UnreadableLog] = field(default_factory=list)
    allow_gaps: bool = False

    @property
    def rows(self) -> int:
        return sum(part.rows for parts in self.stretches.values() for part in parts)

    def fail(self, group: Sequence[LocatedLog], error: HoldfastError) -> None:
        """Takes these logs out of the plan, for this reason."""
        self.failures += [UnreadableLog(one.log.location, error, one.place.log) for one in group]
        self.found = [one for one in self.found if one not in group]
        for key in {one.key for one in group}:
            if not any(one.key == key for one in self.found):
                self.stretches.pop(key, None)

    def head(self, key: Key) -> int:
        return max(one.place.head for one in self.found if one.key == key)


def make_plan(lake: Lake, logs: Iterable[ReadableLog], *, allow_gaps: bool = False) -> IngestPlan:
    """Asks every log for its bounds and compares them with the positions of the lake. A log that
    does not answer, or is not the same log as before, is noted as a failure; the others are
    planned.

    The lake is registered as a reader of each log here, and what it has is confirmed, in case an
    earlier run was stopped right before it could do that. Before that, what stands in `reads` is
    compared with what is stored: a log of which the lake has lost entries is not read on
    (LakeSetBack), and nothing is confirmed to it.
    """
    plan = IngestPlan(allow_gaps=allow_gaps)
    for log in logs:
        try:
            plan.found.append(LocatedLog(log, log.place()))
        except HoldfastError as error:
            plan.failures.append(UnreadableLog(log.location, error))
    lake.settle()
    lake, missing = checked(lake)
    positions = {(at.log, at.epoch): at for at in lake.positions()}
    groups: dict[Key, list[LocatedLog]] = {}
    for one in plan.found:
        groups.setdefault(one.key, []).append(one)
    for key, lost in missing.items():
        _stop(plan, groups.pop(key, []), lost)
    reach = {key: at.offset for key, at in positions.items()}
    for key, claimants in sorted(groups.items()):
        group = _same(plan, claimants, positions.get(key))
        try:
            if group:
                _plan_log(plan, key, group, positions.get(key), reach, allow_gaps)
                _register(lake, group, plan.before[key])
        except HoldfastError as error:
            plan.fail(group, error)
    return plan


def _stop(plan: IngestPlan, group: Sequence[LocatedLog], lost: MissingPlaces) -> None:
    """Reads nothing of a log of which the lake has lost entries, and confirms nothing to it."""
    error = LakeSetBack(f"the lake has lost what it had read: {lost}")
    if group:
        plan.fail(group, error)
    else:
        plan.failures.append(UnreadableLog(lost.key[0], error, lost.key[0]))


def _register(lake: Lake, group: Sequence[LocatedLog], known: int) -> None:
    """Asks the log to keep what the lake lacks, and confirms what it has."""
    for one in group:
        one.log.register(lake.consumer, max(known + 1, one.place.first))
        if known:
            one.log.confirm(lake.consumer, one.place.epoch, min(known, one.place.head))


def _same(
    plan: IngestPlan, claimants: Sequence[LocatedLog], known: Position | None
) -> list[LocatedLog]:
    """The claimants that are the log which was read before."""
    same: list[LocatedLog] = []
    for one in claimants:
        try:
            check_same(one, known)
            same.append(one)
        except HoldfastError as error:
            plan.fail([one], error)
    return same


def _plan_log(
    plan: IngestPlan,
    key: Key,
    group: Sequence[LocatedLog],
    known: Position | None,
    reach: dict[Key, int],
    allow_gaps: bool,
) -> None:
    """Plans one log. `reach`: how far each log is read in each epoch, this plan included."""
    for other in group[1:]:
        check_alike(group[0], other)
    before = 0 if known is None else known.offset
    parts, gaps = _cover(key, group, before, _older(reach, key))
    if gaps and not allow_gaps:
        raise _missing(gaps, group)
    plan.before[key] = before
    plan.gaps += gaps
    if parts:
        plan.stretches[key] = parts
        reach[key] = parts[-1].stop - 1


def _older(reach: Mapping[Key, int], key: Key) -> int:
    """How far the log was read in earlier epochs; a restored log goes on from a place in them."""
    return max(
        (at for (log, epoch), at in reach.items() if log == key[0] and epoch < key[1]), default=0
    )


def _cover(
    key: Key, group: Sequence[LocatedLog], before: int, older: int
) -> tuple[list[LogStretch], list[Gap]]:
    """The stretches from the position of the lake to the furthest head, each from a location that
    has it, and the gaps that no location has.
    """
    parts: list[LogStretch] = []
    gaps: list[Gap] = []
    at, head = before + 1, max(one.place.head for one in group)
    while at <= head:
        holders = [one for one in group if one.place.first <= at <= one.place.head]
        if holders:
            best = max(holders, key=lambda one: one.place.head)
            parts.append(LogStretch(best.log, key, at, best.place.head + 1))
            at = best.place.head + 1
            continue
        first = min(one.place.first for one in group if one.place.first > at)
        # What a restored log had truncated before was the same in the epoch before.
        lost = at if before else max(at, older + 1)
        if lost < first:
            gaps.append(Gap(key, lost, first))
        at = first
    return parts, gaps + _lost(key, group, before)


def _lost(key: Key, group: Sequence[LocatedLog], before: int) -> list[Gap]:
    """Gaps of single entries that a broker removed before the lake had read them."""
    lost = {one.place.lost for one in group if one.place.lost is not None}
    return [Gap(key, one.first, one.last + 1, one.rows) for one in lost if one.last > before]


def check_same(one: LocatedLog, known: Position | None) -> None:
    """Raises LogForked if it is not the log that was read before."""
    if known is None:
        return
    place, where = one.place, one.log.location
    if known.offset > place.head:
        if isinstance(one.log, BackupLog | ExportLog):
            return  # an older copy of what the lake has
        raise LogForked(
            f"log {place.log!r} at {where} ends at offset {place.head} of epoch {place.epoch}, but "
            f"the lake has read up to {known.offset}: it is not the log that was read before",
            hint=_FORK_HINT,
        )
    if known.offset < place.first or not known.id:
        return
    found = _ids(one, known.offset, known.offset + 1).get(known.offset, known.id)
    if found != known.id:
        raise LogForked(
            f"log {place.log!r} at {where} has {found} at offset {known.offset} of epoch "
            f"{place.epoch}, where the lake has read {known.id}: it is not the same log",
            hint=_FORK_HINT,
        )


def check_alike(one: LocatedLog, other: LocatedLog) -> None:
    """Raises LogForked if two locations of one log disagree in the last entries that both have."""
    last = min(one.place.head, other.place.head)
    first = max(one.place.first, other.place.first, last - _COMPARED + 1)
    if first > last:
        return
    # A token may allow only some entries, so only offsets that both give are compared.
    ours, theirs = _ids(one, first, last + 1), _ids(other, first, last + 1)
    if all(ours[offset] == theirs[offset] for offset in ours.keys() & theirs.keys()):
        return
    raise LogForked(
        f"{one.log.location} and {other.log.location} both hold log {one.place.log!r} in epoch "
        f"{one.place.epoch}, but differ between offsets {first} and {last}",
        hint=_FORK_HINT,
    )


def _ids(one: LocatedLog, start: int, stop: int) -> dict[int, str]:
    """By offset: the id of the entry."""
    found: dict[int, str] = {}
    for batch in one.log.batches(one.place.epoch, start, stop):
        offsets, ids = batch.column("offset").to_pylist(), batch.column("id").to_pylist()
        found.update(zip(offsets, ids, strict=True))
    return found


def _missing(gaps: Sequence[Gap], group: Sequence[LocatedLog]) -> Truncated:
    where = ", ".join(one.log.location for one in group)
    what = "; ".join(map(str, gaps))
    return Truncated(
        f"{what} at {where}: they were truncated before the lake has read them",
        first_available=gaps[-1].stop,
        hint="name a backup or an export that has them too, or go on without them: allow gaps",
    )
