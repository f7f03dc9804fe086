"""All audits of bronze as one job: every row is read once, whatever is looked for in it.

A task reads a range of ids and judges what it can judge alone. What concerns all envelopes of an
origin, all places of a log or all versions of a key it sends on, as little of it as suffices, to a
task that has everything of that origin, log or key. Those tasks judge, and write the tables of the
measures. The driver gets counts and the worst rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from holdfast.pipeline.audits import chains, commits, conflicts, delays, fences, growth
from holdfast.pipeline.audits.arrays import Spans
from holdfast.pipeline.audits.chains import CHAINS, judge_chains
from holdfast.pipeline.audits.commits import (
    CommitOrder,
    judge_commit_fences,
    judge_commit_gaps,
    judge_left_behind,
    judge_order,
)
from holdfast.pipeline.audits.conflicts import CONFLICTS, HOT_SPOTS, Overrides, versions_of
from holdfast.pipeline.audits.delays import LAG, STALENESS, delays_of, lag_of, staleness_of
from holdfast.pipeline.audits.fences import FENCES, judge_fences
from holdfast.pipeline.audits.growth import GROWTH, grown, growth_of
from holdfast.pipeline.audits.live_facts import LiveFacts
from holdfast.pipeline.audits.origins import (
    GAPS,
    REPEATS,
    STAMPS,
    OriginRuns,
    OwnRuns,
    judge_gaps,
    judge_own_order,
    judge_repeats,
    judge_stamps,
)
from holdfast.pipeline.audits.parcels import by_kind, parcels_of, targets_of
from holdfast.pipeline.audits.places import (
    OFFSETS,
    ORPHANS,
    PlaceRuns,
    aside_places,
    judge_conflicts,
    judge_ids,
)
from holdfast.pipeline.audits.refusals import REFUSED, SIGNATURES, judge_aside
from holdfast.pipeline.audits.runs import Explode, origin_runs, own_runs, place_runs
from holdfast.pipeline.audits.scan import AGAIN, Scan, Share
from holdfast.pipeline.audits.shape import Found
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.id_ranges import id_ranges
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.writer import FileWriter
from holdfast.pipeline.spark.workers import Exchanged, Parcel, Scattering, Workers
from holdfast.rules.limits import AUDIT_SHARE_ROWS

BY_RUNS: Final = frozenset(audit.name for audit in (ORPHANS, OFFSETS, GAPS, REPEATS, STAMPS))
"""Audits that compare neighbouring runs."""
OF_BRONZE: Final = BY_RUNS | {
    *(audit.name for audit in (FENCES, CHAINS, SIGNATURES, REFUSED, HOT_SPOTS)),
    *(measure.name for measure in (LAG, STALENESS, CONFLICTS, GROWTH)),
}
"""What this job looks for."""
_OF_VERSIONS: Final = frozenset({HOT_SPOTS.name, CONFLICTS.name})
_OF_DELAYS: Final = frozenset({LAG.name, STALENESS.name})
_OF_ASIDE: Final = frozenset({ORPHANS.name, SIGNATURES.name, REFUSED.name})
_OF_COMMITS: Final = frozenset({FENCES.name, GAPS.name})
_RUN_COLUMNS: Final = (
    *(*AGAIN, "mesh", "origin", "origin_epoch", "seq", "lamport"),
    *("entity", "created_at", "base_lamport"),
)


class JudgedPart(msgspec.Struct, frozen=True, kw_only=True):
    """What a task of the second step reports."""

    found: list[Found]
    files: dict[str, list[File]]
    """By measure: the files that the task has written."""
    explode: Explode
    """Where runs overlap."""


class BronzeJob(msgspec.Struct, frozen=True, kw_only=True):
    """The job as an object that Spark sends to the tasks."""

    wanted: frozenset[str]
    """The names of the audits and measures."""
    scan: Scan
    writers: Mapping[str, FileWriter]
    """By measure; a measure without a writer is not kept."""
    partly: frozenset[str]
    """Logs of which the lake does not get all entries."""
    explode: Explode
    gathers: int

    def wants(self, names: Collection[str]) -> bool:
        return not self.wanted.isdisjoint(names)

    # --- the first step ------------------------------------------------------------------------

    def scatter(self, number: int) -> Scattering[list[Found]]:
        share = self.scan.share(number)
        for kind, spread, rows in self._sent(number, share):
            yield from parcels_of(kind, rows, targets_of(rows[spread], self.gathers))
        parts = judge_aside(share, self.wanted) if self.wants(_OF_ASIDE) else []
        if ORPHANS.name in self.wanted:
            parts += judge_ids(share) + judge_conflicts(share)
        return parts

    def _sent(self, number: int, share: Share) -> Iterator[tuple[str, str, pa.Table]]:
        """What goes on to others: its kind, the column by which it is spread, and the rows."""
        if self.wants(BY_RUNS):
            yield "origins", "origin", origin_runs(share, self.explode.origins)
            yield "own", "log", own_runs(share, self.explode.own)
            yield "places", "log", place_runs(share, self.explode.places)
            yield "aside", "log", aside_places(share)
        if self.wants(_OF_VERSIONS):
            yield "versions", "entity", versions_of(share)
        if self.wants(_OF_DELAYS):
            yield "delays", "log", delays_of(share)
        if GROWTH.name in self.wanted:
            yield "growth", "mesh", growth_of(share)
        if FENCES.name in self.wanted:
            yield "fences", "mesh", share.fenced
        if CHAINS.name in self.wanted:
            yield "chains", "mesh", share.chained
        if self.wants(_OF_COMMITS):
            yield "commits", "mesh", self.scan.commits_of(number, commits.COLUMNS)

    # --- the second step -----------------------------------------------------------------------

    def gather(self, target: int, parcels: Sequence[Parcel]) -> JudgedPart:
        tables = by_kind(parcels)
        parts: list[Found] = []
        explode = Explode()
        if self.wants(BY_RUNS):
            parts, explode = self._by_runs(tables)
        measures: dict[str, Callable[[], pa.Table]] = {}
        if "versions" in tables:
            overrides = Overrides(tables["versions"])
            parts += overrides.hot_spots() if HOT_SPOTS.name in self.wanted else []
            measures[CONFLICTS.name] = overrides.per_day
        if "fences" in tables:
            parts += judge_fences(tables["fences"])
        if "chains" in tables:
            parts += judge_chains(tables["chains"])
        if "commits" in tables:
            parts += self._of_commits(tables["commits"])
        if "delays" in tables:
            measures[LAG.name] = lambda: lag_of(tables["delays"])
            measures[STALENESS.name] = lambda: staleness_of(tables["delays"])
        if "growth" in tables:
            measures[GROWTH.name] = lambda: grown(tables["growth"])
        files = {
            name: self.writers[name].write([make()])
            for name, make in measures.items()
            if name in self.writers
        }
        return JudgedPart(found=parts, files=files, explode=explode)

    def _of_commits(self, rows: pa.Table) -> list[Found]:
        found = judge_commit_gaps(rows) if GAPS.name in self.wanted else []
        if FENCES.name in self.wanted:
            order = CommitOrder(rows)
            found += judge_order(order) + judge_commit_fences(order) + judge_left_behind(order)
        return found

    def _by_runs(self, tables: Mapping[str, pa.Table]) -> tuple[list[Found], Explode]:
        """What is wrong between runs, or where to look again."""
        empty = self.scan.without_rows
        kinds: dict[str, Callable[[], pa.Table]] = {
            "origins": lambda: origin_runs(empty, {}),
            "own": lambda: own_runs(empty, {}),
            "places": lambda: place_runs(empty, {}),
            "aside": lambda: aside_places(empty),
        }
        rows = {kind: tables[kind] if kind in tables else make() for kind, make in kinds.items()}
        origins, own = OriginRuns(rows["origins"]), OwnRuns(rows["own"])
        places = PlaceRuns(rows["places"], rows["aside"])
        explode = Explode(origins.contested(), own.contested(), places.contested())
        if explode.any:
            return [], explode
        judges: dict[str, Callable[[], list[Found]]] = {
            ORPHANS.name: places.twice,
            OFFSETS.name: lambda: places.holes(self.partly),
            GAPS.name: lambda: judge_gaps(origins, own.spans(), places.begun()),
            REPEATS.name: lambda: judge_repeats(origins),
            STAMPS.name: lambda: judge_stamps(origins) + judge_own_order(own),
        }
        parts = [part for name, judge in judges.items() if name in self.wanted for part in judge()]
        return parts, explode


def audit_bronze(
    workers: Workers,
    lake: Lake,
    wanted: Collection[str],
    facts: LiveFacts,
    writers: Mapping[str, FileWriter],
) -> tuple[list[Found], dict[str, list[File]]]:
    """What the audits with these names find, and by measure the files that were written."""
    job = bronze_job(workers, lake, wanted, facts, writers)
    if not job.wanted:
        return [], {}
    done = _run(workers, job)
    found = [part for parts in done.scattered for part in parts]
    files: dict[str, list[File]] = {}
    for part in done.gathered:
        found += part.found
        for name, written in part.files.items():
            files.setdefault(name, []).extend(written)
    explode = merged_explode([part.explode for part in done.gathered])
    if explode.any:
        # A target that has to look again has not judged by runs yet; the others judge once more.
        found = [part for parts in done.scattered for part in parts]
        found += [p for part in done.gathered for p in part.found if p.audit not in BY_RUNS]
        again = msgspec.structs.replace(
            job, wanted=job.wanted & BY_RUNS, writers={}, explode=explode
        )
        second = _run(workers, again)
        assert not merged_explode([part.explode for part in second.gathered]).any
        found += [part for parts in second.gathered for part in parts.found]
    return found, files


def merged_explode(parts: Sequence[Explode]) -> Explode:
    """Targets have different origins and logs, so nothing is in two of them."""

    def all_of(spans: Sequence[Spans]) -> Spans:
        return {name: found for part in spans for name, found in part.items()}

    return Explode(
        all_of([part.origins for part in parts]),
        all_of([part.own for part in parts]),
        all_of([part.places for part in parts]),
    )


def _run(workers: Workers, job: BronzeJob) -> Exchanged[list[Found], JudgedPart]:
    return workers.exchange(
        "audit bronze", job.scatter, len(job.scan.ranges), job.gather, job.gathers
    )


def bronze_job(
    workers: Workers,
    lake: Lake,
    wanted: Collection[str],
    facts: LiveFacts,
    writers: Mapping[str, FileWriter],
) -> BronzeJob:
    names = frozenset(wanted) & OF_BRONZE
    rows = lake.bronze.rows + lake.sightings.rows
    shares = max(1, -(-rows // AUDIT_SHARE_ROWS))
    if rows >= AUDIT_SHARE_ROWS // 4:
        shares = max(shares, workers.parallelism)
    scan = Scan(
        bronze=lake.bronze.reader(),
        sightings=lake.sightings.reader(),
        quarantine=lake.quarantine.reader(),
        ranges=id_ranges(lake, shares),
        positions=lake.offsets,
        columns=_columns(names),
        commits=lake.commits.reader(),
        commit_files=lake.commits.files() if lake.commits.exists else (),
        fences=FENCES.name in names,
        chains=CHAINS.name in names,
        again=not names.isdisjoint(BY_RUNS | _OF_DELAYS),
        aside=not names.isdisjoint(BY_RUNS | _OF_ASIDE),
    )
    return BronzeJob(
        wanted=names,
        scan=scan,
        writers=writers,
        partly=frozenset(log.log for log in facts.logs if not log.whole),
        explode=Explode(),
        gathers=shares,
    )


def _columns(names: frozenset[str]) -> list[str]:
    """The columns of bronze that are needed."""
    needed = ["id"]
    for who, columns in (
        (BY_RUNS, _RUN_COLUMNS),
        (_OF_VERSIONS, conflicts.COLUMNS),
        (_OF_DELAYS, delays.COLUMNS),
        ({GROWTH.name}, growth.COLUMNS),
        ({FENCES.name}, (*fences.COLUMNS, "write_class", "state")),
        ({CHAINS.name}, (*chains.COLUMNS, "op")),
    ):
        if not names.isdisjoint(who):
            needed += columns
    return list(dict.fromkeys(needed))
