"""The log of a group as its machine sees it: which term each entry is of, and the configs.

Payloads stay with the driver. What the rules need is the term of every index, and terms come in
runs: `(first index, term)` for each, so a log of a million entries from three terms is three pairs.
The log begins after a boundary, the last entry that a snapshot covers.

Configs stand here with the index of their entry, the one at or below the boundary first. The last
one is in force from the moment it is appended; when its entry is cut off, the one before it is in
force again. Both follow from the same tuple, so they cannot come apart.
"""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from holdfast.rules.quorum.raft.config import GroupConfig


class RaftLog(msgspec.Struct, frozen=True):
    """Terms by runs, from the boundary to the last entry."""

    boundary: int = 0
    """The last index that a snapshot covers; 0 if there is none."""
    boundary_term: int = 0
    last: int = 0
    """The last index; the boundary's if the log is empty."""
    runs: tuple[tuple[int, int], ...] = ()
    """First index and term of each run, both growing; all above the boundary."""
    configs: tuple[tuple[int, GroupConfig], ...] = ((0, GroupConfig()),)
    """Index and config; only the first is at or below the boundary."""

    @property
    def last_term(self) -> int:
        return self.runs[-1][1] if self.runs else self.boundary_term

    @property
    def config(self) -> GroupConfig:
        """The config in force: the last one in the log, committed or not."""
        return self.configs[-1][1]

    @property
    def config_index(self) -> int:
        return self.configs[-1][0]

    def term_at(self, index: int) -> int:
        """The term of an entry; -1 where this log says nothing: below the boundary, or past the
        end.
        """
        if index == self.last:
            return self.last_term
        if index > self.last or index < self.boundary:
            return -1
        if index == self.boundary:
            return self.boundary_term
        return self.runs[bisect_right(self.runs, (index + 1,)) - 1][1]

    def appended(self, term: int, count: int) -> RaftLog:
        """The log with so many more entries of one term."""
        assert count > 0
        assert term >= self.last_term, "terms never fall along a log"
        runs = self.runs
        if not runs or runs[-1][1] != term:
            runs = (*runs, (self.last + 1, term))
        return RaftLog(self.boundary, self.boundary_term, self.last + count, runs, self.configs)

    def with_config(self, index: int, config: GroupConfig) -> RaftLog:
        assert index > self.config_index, "configs stand in the order of their entries"
        configs = (*self.configs, (index, config))
        return RaftLog(self.boundary, self.boundary_term, self.last, self.runs, configs)

    def cut(self, first: int) -> RaftLog:
        """The log without the entries from `first` on; the config before them is in force again."""
        assert self.boundary < first <= self.last
        runs = tuple([run for run in self.runs if run[0] < first])
        configs = tuple([pair for pair in self.configs if pair[0] < first])
        return RaftLog(self.boundary, self.boundary_term, first - 1, runs, configs)

    def compacted(self, index: int) -> RaftLog:
        """The log after a snapshot at `index` that agrees with it; what follows stays."""
        assert self.boundary <= index <= self.last
        term = self.term_at(index)
        tail = tuple([run for run in self.runs if run[0] > index])
        if index < self.last and (not tail or tail[0][0] != index + 1):
            tail = ((index + 1, self.term_at(index + 1)), *tail)
        keep = bisect_right(self.configs, index, key=lambda pair: pair[0]) - 1
        return RaftLog(index, term, self.last, tail, self.configs[keep:])

    def config_at(self, index: int) -> tuple[int, GroupConfig]:
        """The last config at or below `index`, which is not below the boundary."""
        last = self.configs[-1]
        if last[0] <= index:
            return last  # as nearly always: this is asked for every message
        found = bisect_right(self.configs, index, key=lambda pair: pair[0]) - 1
        return self.configs[max(found, 0)]

    def probe_from(self, index: int, term: int) -> int:
        """The highest index up to `index` whose term is at most `term`: no entry above it can be
        the same in a log that has `term` at `index`. Never below the boundary.
        """
        index = min(index, self.last)
        while index > self.boundary and self.term_at(index) > term:
            index = self._run_start(index) - 1
        return max(index, self.boundary)

    def up_to_date(self, last: int, last_term: int) -> bool:
        """Whether a log with this end has all that may be committed here (Raft's election rule)."""
        return (last_term, last) >= (self.last_term, self.last)

    def _run_start(self, index: int) -> int:
        return self.runs[bisect_right(self.runs, (index + 1,)) - 1][0]


def after_snapshot(index: int, term: int, config_index: int, config: GroupConfig) -> RaftLog:
    """An empty log after a snapshot, with the config that the snapshot carries."""
    return RaftLog(index, term, index, (), ((config_index, config),))
