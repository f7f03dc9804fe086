"""What a connection to a broker remembers of one mesh.

All of it is in memory and gone with the connection. What must last stands in the store: the cursor
in the row of the mesh, what waits in the outbox.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.rules.broker_sync import Cursor
from holdfast.rules.outbox import Suspect, Trial, lane_of
from holdfast.rules.rows import MeshRow, OutboxRow
from holdfast.service.problem import Problem

FIRST: Final = (-1, 0)
"""A rank and number before every row of an outbox."""


class Held(msgspec.Struct, frozen=True):
    """A row that waits until the broker has the objects that its envelope names."""

    row: OutboxRow
    objects: frozenset[str]


OnDead = Callable[[OutboxRow], None]


class MeshState:
    """One mesh on one connection."""

    def __init__(
        self, row: MeshRow, trial: Trial | None = None, on_dead: OnDead = lambda row: None
    ) -> None:
        """`on_dead` gets every row of the outbox that dies, after it is stored."""
        self._lock = threading.Lock()
        self.on_dead = on_dead
        self.slug = row.slug
        self.lane = lane_of(row.slug)
        self.server_id = row.server_id
        self.paused = row.sync_paused
        self.cursor = Cursor(row.broker_epoch, row.broker_seq)
        self.ahead = 0
        """The epoch that is being taken up: answers of an older one no longer count."""
        self.last = row.broker_seq
        """The last seq of the mesh at its broker, as far as this node knows."""
        self.grants: frozenset[str] = frozenset()
        self.ready = False
        """Both sides agree on the epoch: things may be pushed."""
        self.asking = False
        """The broker was asked where the mesh stands, and is followed from there."""
        self.own = False
        """The broker sends us what we pushed ourselves, too."""
        self.gaps = 0
        self.inflight: dict[int, OutboxRow] = {}
        self.trial = trial or Trial()
        """What may go after groups have failed as a whole; it outlasts the connection."""
        self.held: dict[int, Held] = {}
        self.brought: set[str] = set()
        """Objects that the broker has, or that this node cannot bring."""
        self.looked_to: tuple[int, int] = FIRST
        """Every due row up to this rank and number waits; the next look begins behind it."""
        self.not_before = 0
        """The broker was busy: nothing is pushed before this."""
        self.retry_at: int | None = None
        """When the first row that was refused may be tried again."""
        self.busy = 0
        """How many times in a row the broker was busy; 0 after it took something."""
        self.trouble: Problem | None = None
        self.snapshot: str | None = None
        """The id of a snapshot that has to be taken before anything else; empty: there is none."""
        self.commits_at = 0
        """How far the broker is in what the mesh's quorum has committed, as far as is known."""
        self.went_back = False
        """The broker has forgotten something; the snapshot that we made may be among it."""
        self.pushed = self.received = self.duplicates = self.refused = 0
        self.pruned = 0
        """Answers that an envelope was taken before, and that the broker no longer holds it."""

    def advance(self, cursor: Cursor) -> None:
        """The cursor in the store has moved. Two threads may report that in the other order."""
        with self._lock:
            self.cursor = max(cursor, self.cursor)

    def judge(
        self, passed: list[int], failed: list[OutboxRow], why: str, now: int, jitter: float
    ) -> Suspect | None:
        """Takes answers into the trial: rows that passed, rows at which the broker failed. Returns
        the row that is convicted by them.
        """
        convict = None
        with self._lock:
            if passed:
                self.trial, convict = self.trial.passed(passed)
            if failed:
                self.trial = self.trial.failed(failed, why, now, jitter)
        return convict

    def forget_suspect(self, number: int) -> None:
        with self._lock:
            self.trial = self.trial.forget(number)

    def refuse(self, error: Exception, at: int) -> None:
        """Sends nothing more of this mesh, until the broker is asked for it again and agrees."""
        self.ready = False
        self.trouble = Problem.of(error, at)

    @property
    def may_send(self) -> bool:
        return self.ready and not self.paused
