"""Taking in what a quorum has committed, on a node that has no vote.

Members, zones and imports bring pages (`protocol/commit_page.py`). Each row is decided again by the
same rules as on the voters (`node/core/commit.py`), and compared with the record beside it. So a
node without a vote has the same tables as the voters, and finds out if it has not:

    known       the rows are here already
    folded      some of them are new, and follow what is here
    gap         the page begins after the next number: the caller asks for what lies between
    forked      a number belongs to another entry here, or the voters are another group
    voter       this node has an order of its own: nothing is taken, only compared
    deposed     it is another order, of an incarnation that has ended: nothing of it counts any more

Where our rules come to something else than a record says, **the record stands**: the quorum has
decided, and whatever this node hands on must be what the quorum said. The entry gets its number and
its record here too, and changes nothing else, because what it did elsewhere cannot be told. That is
never silent: the number is kept in the trouble of the mesh (`commit_trouble`), where the doctor and
`confirm` see it, and it is logged. A fork stops the mesh at the number before it, for the same
reason; nothing that is here is undone.

Whom to believe is for the caller to say, before it hands a page in: a member that may relay, a
paired zone, the operator's file.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from typing import Final, Literal

import msgspec

from holdfast.node.core.commit import CommitRun, Committed, CommittedEntry
from holdfast.node.core.context import NodeContext
from holdfast.protocol.commit_page import CheckedLine, CheckedPage
from holdfast.rules.errors import CommitForked, UnknownMesh
from holdfast.rules.ids import id_text
from holdfast.rules.limits import COMMIT_TROUBLES_KEPT, REASON_CHARS_MAX
from holdfast.rules.quorum.commit_record import decode_stored_record
from holdfast.rules.quorum.state_rows import QuorumRow
from holdfast.rules.rows import JobRow
from holdfast.storage.ports import Reader, Transaction

log = logging.getLogger("holdfast")

PageOutcome = Literal["known", "folded", "gap", "forked", "voter", "deposed"]
TroubleKind = Literal["commit_diverged", "commit_forked"]
_JOB: Final = "commits.trouble:"


class CommitTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """A commit about which this node and somebody else disagree."""

    kind: TroubleKind
    number: int
    source: str
    """Who brought the other side."""
    detail: str
    found_at: int
    incarnation: int = 0
    """Of the voters, as the other side has it."""
    by_voter: bool = False
    """This node votes, and so may the other side: of two orders it is not clear which one counts
    (`rules/two_orders.py`). `number` is then 0 if both have committed the same so far."""


class PageTaken(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a page."""

    outcome: PageOutcome
    number: int
    """The last commit of the mesh that is here now."""
    new: int = 0
    known: int = 0
    results: tuple[Committed, ...] = ()
    """What became of the new ones."""
    trouble: tuple[CommitTrouble, ...] = ()
    """What this page has brought up; that was known before is not told again."""


class CommitPageIntake:
    """A page of commits. Calling it with a transaction takes it in, and returns what became of
    it.
    """

    repeatable = True

    def __init__(
        self,
        ctx: NodeContext,
        page: CheckedPage,
        source: str,
        *,
        idle_voter: bool = False,
        by_voter: bool = False,
    ) -> None:
        """`source` says for people who brought the page. `idle_voter`: this node was a voter and
        takes no part any more (it was removed, or restored from a backup), so that nothing else
        brings the order here. `by_voter`: the source may vote, and this node does.
        """
        self._ctx, self._page, self._source = ctx, page, source
        self._idle_voter, self._by_voter = idle_voter, by_voter

    def __call__(self, tx: Transaction) -> PageTaken:
        page = self._page
        if tx.mesh_get(page.mesh) is None:
            raise UnknownMesh(f"there is no mesh {page.mesh!r}")
        standing = tx.quorum_get(page.mesh)
        if standing is None and not page.lines:
            return PageTaken(outcome="known", number=0)
        standing = _first_row(page) if standing is None else standing
        known = [line for line in page.lines if line.record.number <= standing.number]
        fork = self._fork(tx, standing, known)
        if self._by_voter and (fork is None or page.incarnation < standing.incarnation):
            forget_claims(tx, page.mesh, self._source)  # if there were two orders, there is one now
        if fork is not None and page.incarnation < standing.incarnation:
            return PageTaken(outcome="deposed", number=standing.number)
        if fork is not None:
            trouble = self._note(tx, [fork])
            return PageTaken(outcome="forked", number=standing.number, trouble=trouble)
        fresh = page.lines[len(known) :]
        if standing.voter is not None and not self._idle_voter:
            return PageTaken(outcome="voter", number=standing.number, known=len(known))
        if not fresh:
            ahead = page.first > standing.number + 1
            outcome: PageOutcome = "gap" if ahead else "known"
            return PageTaken(outcome=outcome, number=standing.number, known=len(known))
        if fresh[0].record.number != standing.number + 1:
            return PageTaken(outcome="gap", number=standing.number, known=len(known))
        return self._fold(tx, standing, fresh, len(known))

    # --- what is here already ----------------------------------------------------------------

    def _fork(
        self, tx: Reader, standing: QuorumRow, known: Sequence[CheckedLine]
    ) -> CommitTrouble | None:
        """Why this page is not of the order that is here; None if it is."""
        return self._other_commit(tx, known) or self._other_group(standing)

    def _other_group(self, standing: QuorumRow) -> CommitTrouble | None:
        page = self._page
        number = 0 if self._by_voter else page.first
        if page.incarnation == standing.incarnation:
            if page.tag and standing.tag and page.tag != standing.tag:
                detail = "another group of voters claims the mesh, in the same incarnation"
                return self._trouble("commit_forked", number, detail)
        elif (
            self._by_voter
            and page.incarnation > standing.incarnation
            and page.engine == standing.engine  # else it has moved, and this node will hear of it
        ):
            detail = f"the mesh was recovered without this node: incarnation {page.incarnation}"
            return self._trouble("commit_forked", number, detail)
        return None

    def _other_commit(self, tx: Reader, known: Sequence[CheckedLine]) -> CommitTrouble | None:
        if not known:
            return None
        page = self._page
        here = tx.commit_range(page.mesh, known[0].record.number, len(known))
        ours = {row.number: row for row in here}
        for line in known:
            number = line.record.number
            row = ours.get(number)
            if row is None or row.record == line.record_bytes:
                continue
            mine = decode_stored_record(row.record)
            detail = (
                f"here it is {id_text(mine.id)} under {mine.fence}, there {id_text(line.record.id)}"
                f" under {line.record.fence}"
                if mine.id != line.record.id or mine.fence != line.record.fence
                else f"here it is {_outcome(mine.outcome)} {mine.reason}, there "
                f"{_outcome(line.record.outcome)} {line.record.reason}"
            )
            return self._trouble("commit_forked", number, detail)
        return None

    # --- what is new -------------------------------------------------------------------------

    def _fold(
        self, tx: Transaction, standing: QuorumRow, fresh: Sequence[CheckedLine], known: int
    ) -> PageTaken:
        why = self._not_next(tx, standing, fresh)
        if why:
            fork = self._trouble("commit_forked", fresh[0].record.number, why)
            noted = self._note(tx, [fork])
            return PageTaken(outcome="forked", number=standing.number, known=known, trouble=noted)
        results: list[Committed] = []
        for incarnation, group in groupby(fresh, lambda line: line.record.fence.incarnation):
            self._stand(tx, incarnation)
            entries = [_entry(line) for line in group]
            results += CommitRun(self._ctx, self._page.mesh, entries)(tx)
        diverged = [
            self._trouble(
                "commit_diverged",
                line.record.number,
                f"it was recorded as {_outcome(line.record.outcome)} {line.record.reason}, and our "
                f"rules make of it: {result.diverged}",
            )
            for line, result in zip(fresh, results, strict=True)
            if result.diverged
        ]
        trouble = self._note(tx, diverged)
        return PageTaken(
            outcome="folded",
            number=fresh[-1].record.number,
            new=len(fresh),
            known=known,
            results=tuple(results),
            trouble=trouble,
        )

    def _not_next(self, tx: Reader, standing: QuorumRow, fresh: Sequence[CheckedLine]) -> str:
        """Why these rows cannot follow what is here; empty if they can."""
        last, first = standing.fence, fresh[0].record.fence
        if last is not None:
            same = first.incarnation == last.incarnation
            counted = same and first.sequence <= max(standing.applied, last.sequence)
            if first.order <= last.order or counted:
                return f"its fence {first} is not newer than {last}, of commit {standing.number}"
            if (
                same
                and first.lease_epoch == last.lease_epoch
                and first.coordinator != last.coordinator
            ):
                return f"lease epoch {first.lease_epoch} was that of {last.coordinator!r}"
        decided = tx.intents_known(self._page.mesh, [line.record.id for line in fresh])
        for line in fresh:
            if line.record.id in decided:
                here = decided[line.record.id]
                what = "given up" if here.void else "committed"
                return f"the intent {id_text(line.record.id)} was {what} before, under {here.fence}"
        return ""

    def _stand(self, tx: Transaction, incarnation: int) -> None:
        """Makes room for entries of an incarnation: each counts its index anew."""
        page = self._page
        standing = tx.quorum_get(page.mesh) or _first_row(page)
        tag = page.tag if incarnation == page.incarnation else b""
        if standing.incarnation != incarnation:
            standing = msgspec.structs.replace(
                standing, incarnation=incarnation, applied=0, engine=page.engine, tag=tag
            )
        elif not standing.tag:
            # A snapshot of the lake knows neither.
            standing = msgspec.structs.replace(standing, tag=tag, engine=page.engine)
        tx.quorum_put(standing)

    # --- trouble -----------------------------------------------------------------------------

    def _trouble(self, kind: TroubleKind, number: int, detail: str) -> CommitTrouble:
        return CommitTrouble(
            kind=kind,
            number=number,
            source=self._source,
            detail=detail[:REASON_CHARS_MAX],
            found_at=self._ctx.now_ms(),
            incarnation=self._page.incarnation,
            by_voter=self._by_voter,
        )

    def _note(self, tx: Transaction, found: Sequence[CommitTrouble]) -> tuple[CommitTrouble, ...]:
        return note_trouble(tx, self._page.mesh, found)


def note_trouble(
    tx: Transaction, mesh: str, found: Sequence[CommitTrouble]
) -> tuple[CommitTrouble, ...]:
    """Keeps trouble that is not known; returns what was kept."""
    if not found:
        return ()
    kept = commit_trouble(tx, mesh)
    there = {_same(one) for one in kept}
    fresh = [one for one in found if _same(one) not in there]
    # One claim of each voter: whoever claims much does not push the others out.
    told = {one.source for one in fresh if one.by_voter}
    kept = [one for one in kept if not (one.by_voter and one.source in told)]
    fresh = fresh[: max(0, COMMIT_TROUBLES_KEPT - len(kept))]
    if fresh:
        cursor = {"trouble": msgspec.to_builtins([*kept, *fresh])}
        tx.job_put(JobRow(name=_JOB + mesh, cursor=cursor, updated_at=fresh[-1].found_at))
    return tuple(fresh)


def commit_trouble(tx: Reader, mesh: str) -> list[CommitTrouble]:
    """Commits of a mesh about which this node and others disagree, oldest first."""
    row = tx.job_get(_JOB + mesh)
    return [] if row is None else msgspec.convert(row.cursor["trouble"], list[CommitTrouble])


def _same(one: CommitTrouble) -> object:
    return (one.source, one.incarnation, one.number > 0) if one.by_voter else (one.kind, one.number)


def claims_of(tx: Reader, mesh: str) -> tuple[CommitTrouble, ...]:
    """What others that may vote have shown of another order than this voter's."""
    return tuple(one for one in commit_trouble(tx, mesh) if one.by_voter)


def forget_claims(tx: Transaction, mesh: str, source: str | None = None) -> None:
    """There is one order again: an operator has decided, or this source has the same."""
    kept = commit_trouble(tx, mesh)
    left = [one for one in kept if not (one.by_voter and source in (None, one.source))]
    if len(left) == len(kept):
        return
    forget_trouble(tx, mesh)
    if left:
        cursor = {"trouble": msgspec.to_builtins(left)}
        tx.job_put(JobRow(name=_JOB + mesh, cursor=cursor, updated_at=left[-1].found_at))


def forget_trouble(tx: Transaction, mesh: str) -> None:
    """A person has looked, or the mesh is followed anew."""
    tx.job_drop(_JOB + mesh)


def tell_trouble(mesh: str, found: Sequence[CommitTrouble]) -> None:
    """Logs what a page or a state has brought up: after its commit, by whoever had it taken in."""
    for one in found:
        log.error(
            "%s: commit %d of %s, as %s has it: %s",
            one.kind,
            one.number,
            mesh,
            one.source,
            one.detail,
        )


def raise_fork(mesh: str, taken: PageTaken) -> None:
    """Raises CommitForked if a page was not of the order that is here."""
    if taken.outcome == "forked":
        why = f": {taken.trouble[0].detail}" if taken.trouble else ""
        raise CommitForked(f"{mesh} has another order here after commit {taken.number}{why}")


def _first_row(page: CheckedPage) -> QuorumRow:
    """Where a node stands that has heard nothing of a quorum yet."""
    first = page.lines[0].record.fence.incarnation
    tag = page.tag if first == page.incarnation else b""
    return QuorumRow(mesh=page.mesh, engine=page.engine, incarnation=first, tag=tag)


def _entry(line: CheckedLine) -> CommittedEntry:
    record = line.record
    index = record.fence.sequence  # both engines count so
    return CommittedEntry(line.raw, record.fence, record.committed_at, index, line.record_bytes)


def _outcome(outcome: object) -> str:
    return "refused" if outcome is None else str(outcome)
