"""The job of a verification: what all nodes must hold, looked at by tasks, in one exchange."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate

from holdfast.pipeline.fold.plan import HeldFiles, Span, cuts_of, shares_of, spans_for, within
from holdfast.pipeline.fold.scatter import TableRoute
from holdfast.pipeline.fold.silver import BUCKETS, held_files, things_are_current
from holdfast.pipeline.fold.turned import turns_table
from holdfast.pipeline.lake.files import File
from holdfast.pipeline.lake.id_ranges import id_ranges
from holdfast.pipeline.lake.lake import Lake
from holdfast.pipeline.lake.schema import COMMITTED, MAKES
from holdfast.pipeline.spark.workers import Workers
from holdfast.pipeline.verify.digests import L
from holdfast.pipeline.verify.expected import Scope, count_of
from holdfast.pipeline.verify.gather import VerifyGather
from holdfast.pipeline.verify.scatter import LOG, VerifyScatter
from holdfast.pipeline.verify.silver import Gaps, added
from holdfast.rules import digests as rules
from holdfast.rules.limits import AUDIT_SHARE_ROWS, FOLD_BUCKETS


def look_at(
    workers: Workers,
    lake: Lake,
    scopes: Sequence[Scope],
    look: L,
    *,
    tables: Sequence[str] = rules.TABLES,
    silver: bool = True,
) -> tuple[L, Gaps]:
    """What `look` finds in the rows of these tables that the nodes must hold: the fold of the
    envelopes that count for each, of the commits up to where each is, and as `log` the entries that
    its log still has. With `silver` the rows are compared with those of silver too.
    """
    folded = dict.fromkeys(turns_table(name) for name in tables if name != LOG)
    spans = {name: _spans(workers, lake, name, count_of(scopes), silver) for name in folded}
    firsts = accumulate((len(some) for some in spans.values()), initial=0)
    routes = [
        TableRoute(
            name=name,
            since=-1,
            buckets=FOLD_BUCKETS,
            first=first,
            starts=tuple(span.first for span in some),
        )
        for (name, some), first in zip(spans.items(), firsts, strict=False)
    ]
    every = [span for some in spans.values() for span in some]
    scatter = VerifyScatter(
        bronze=lake.bronze.reader(),
        sightings=lake.sightings.reader(),
        quarantine=lake.quarantine.reader(),
        ranges=id_ranges(lake, _shares(workers, lake)),
        scopes=scopes,
        routes=routes,
        look=look.begun() if LOG in tables else None,
        commits=lake.commits.reader(),
        commit_shares=_commit_shares(workers, lake, scopes, folded),
        lost=lake.known_commits.lost,
    )
    gather = VerifyGather(
        spans=every,
        things=[_things(lake, span) for span in every],
        meshes={scope.tag(mesh): mesh for scope in scopes for mesh in scope.forgotten},
        look=look.begun(),
    )
    reading = len(scatter.ranges) + len(scatter.commit_shares)
    done = workers.exchange("verify", scatter, reading, gather, max(1, len(every)))
    found = look.begun()
    gaps: Gaps = {}
    for of_log in done.scattered:
        if of_log is not None:
            found.absorb(of_log)
    for part in done.gathered:
        found.absorb(part.look)
        for place, gap in part.gaps.items():
            gaps[place] = added(gaps.get(place), gap)
    return found, gaps


def _shares(workers: Workers, lake: Lake) -> int:
    rows = lake.bronze.rows + lake.sightings.rows
    shares = -(-rows // AUDIT_SHARE_ROWS)
    return max(shares, workers.parallelism if rows >= AUDIT_SHARE_ROWS // 4 else 1)


def _spans(workers: Workers, lake: Lake, name: str, new: int, silver: bool) -> list[Span]:
    """The spans of a table, with the files of silver if they are wanted."""
    # Increments first: one that is merged meanwhile is then read twice, and not left out.
    increments = held_files(lake.increments(name)) if silver else None
    base = held_files(lake.silver(name)) if silver else None
    held = [file for part in (base, increments) if part is not None for file in part.files]
    size = sum(file.size for file in held)
    count = spans_for(new + sum(file.rows for file in held), size, workers.parallelism)
    return [
        Span(
            name=name,
            first=cut.start,
            stop=cut.stop,
            buckets=FOLD_BUCKETS,
            base=None if base is None else within(base, cut, FOLD_BUCKETS),
            increments=None if increments is None else within(increments, cut, FOLD_BUCKETS),
            writer=None,
        )
        for cut in cuts_of(count, FOLD_BUCKETS)
    ]


def _commit_shares(
    workers: Workers, lake: Lake, scopes: Sequence[Scope], tables: Collection[str]
) -> list[list[File]]:
    """The files of commits that the tasks read; none where no node has a mesh with voters."""
    if not any(scope.commits for scope in scopes) or not COMMITTED & set(tables):
        return []
    return shares_of(lake.commits.files(), workers.parallelism)


def _things(lake: Lake, span: Span) -> HeldFiles | None:
    """The things of a span as silver has them, if they were made of all of its turns."""
    if span.name not in MAKES or span.base is None or lake.increments(span.name).files():
        return None
    if not things_are_current(lake, MAKES[span.name]):
        # A job was killed after it had merged turns and before it made things of them.
        return None
    things = lake.silver(MAKES[span.name])
    if things.txn(BUCKETS) is None:
        return None  # earlier code did not say how many buckets its things have
    return within(held_files(things), range(span.first, span.stop), span.buckets)
