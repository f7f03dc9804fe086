"""The commits of an export, taken in as pages by a node without a vote.

The operator vouches for the file. It is read a second time for them: what stamps decided before
there were voters stands in the log, and has to be here first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.node.core.committed_intake import CommitPageIntake, PageTaken, tell_trouble
from holdfast.node.core.engine import NodeEngine
from holdfast.protocol.commit_page import CommitLine, CommitPage, check_page
from holdfast.protocol.export_lines import CommittedLine, NumberedLines, QuorumLine, decode_line
from holdfast.rules.errors import CommitForked
from holdfast.rules.limits import COMMIT_PAGE_BYTES, COMMIT_PAGE_ROWS


class ImportedCommits(NamedTuple):
    """How many commits were new, and which could not be taken: line, code and why."""

    counts: dict[str, int]
    refused: list[tuple[int, str, str]]


def import_commits(engine: NodeEngine, lines: NumberedLines) -> ImportedCommits:
    """Takes in all commits of an export."""
    found = ImportedCommits({}, [])
    for line, mesh, taken in _pages(engine, lines):
        found.counts["committed"] = found.counts.get("committed", 0) + taken.new
        if taken.outcome in ("forked", "gap"):
            what = f"commits of {mesh} after {taken.number} are not taken: {taken.outcome}"
            found.refused.append((line, CommitForked.code, what))
    return found


def _pages(engine: NodeEngine, lines: NumberedLines) -> Iterator[tuple[int, str, PageTaken]]:
    """What became of each page, with the line after it and its mesh."""
    for at, quorum, run in _runs(lines):
        page = CommitPage(
            mesh=quorum.mesh,
            engine=quorum.engine,
            incarnation=quorum.incarnation,
            tag=quorum.group,
            first=run[0].number,
            rows=tuple(CommitLine(line.record, line.raw) for line in run),
            end=max(quorum.number, run[-1].number),
        )
        taken = engine.write("import", CommitPageIntake(engine.ctx, check_page(page), "the import"))
        tell_trouble(quorum.mesh, taken.trouble)
        yield at, quorum.mesh, taken


def _runs(lines: NumberedLines) -> Iterator[tuple[int, QuorumLine, list[CommittedLine]]]:
    """Commits that follow each other, few enough for a page, with the number of a line there."""
    quorum: QuorumLine | None = None
    run: list[CommittedLine] = []
    size = at = 0
    for at, raw in lines:
        if not raw.startswith((b'{"kind":"quorum"', b'{"kind":"commit"')):
            continue
        line = decode_line(raw)
        follows = isinstance(line, CommittedLine) and run and line.number == run[-1].number + 1
        full = len(run) == COMMIT_PAGE_ROWS or size >= COMMIT_PAGE_BYTES
        if run and quorum is not None and (full or not follows):
            yield at, quorum, run
            run, size = [], 0
        if isinstance(line, QuorumLine):
            quorum = line
        elif isinstance(line, CommittedLine):
            run.append(line)
            size += len(raw)
    if run and quorum is not None:
        yield at, quorum, run
