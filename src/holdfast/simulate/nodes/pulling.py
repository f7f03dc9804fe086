"""How nodes of a simulated world learn of each other's changes: by links, as in life.

Both ends are the real ones (`holdfast.simulate.nodes.link`), and what to do after an error is
decided by `rules.links`. Only what lies between them is played: questions and answers are messages
of a world whose network loses, delays, doubles and reorders them.

A reader's process remembers little about a link (`ReaderState`), and forgets it when it dies. It
waits for the answer to one question at a time. An answer that comes late or twice is not waited for
any more; if it holds entries, the reader takes them in all the same, because that must do no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from holdfast.node.library.node import Node
from holdfast.node.links import receive
from holdfast.node.links.same_log import LOOK, begins_as_read, is_same_log
from holdfast.node.links.snapshot import LinkSnapshotTaken, take_snapshot
from holdfast.protocol.log_wire import (
    Batch,
    Confirmation,
    Fetch,
    Registration,
    decode_batch,
    encode_batch,
)
from holdfast.rules.envelope import decode_trusted
from holdfast.rules.errors import (
    EpochChanged,
    HoldfastError,
    PastEnd,
    Truncated,
    UnknownConsumer,
    Unreachable,
)
from holdfast.rules.links import (
    LinkState,
    after_error,
    rows_after_batch,
    rows_after_break,
    start_of,
    without_snapshot,
)
from holdfast.rules.rows import LinkRow
from holdfast.simulate.nodes.link import (
    BATCH_ENTRIES_MAX,
    OWN_TROUBLE,
    Answer,
    Object,
    Piece,
    Question,
    ReaderState,
    Retirement,
    SimulatedLink,
    lacking_of,
    row_of,
    serve,
    store_piece,
    take_in,
)
from holdfast.simulate.nodes.link_sources import Ask, RecordedAnswers

if TYPE_CHECKING:
    from holdfast.simulate.nodes.nodes import NodeWorld

T = TypeVar("T")

NARROW: Final = 0.2
"""Which part of the links has a line that breaks under large answers."""
NARROW_BYTES: Final = 700
READ_AHEAD: Final = 0.8
"""How often the next batch is asked for before this one is stored."""
FOR_A_PERSON: Final = frozenset({LinkState.TRUNCATED, LinkState.QUARANTINE_FULL})
BEGINNING_TRIES: Final = 3


class Pulling:
    """The readers' side of every link of a world, and the answers to their questions."""

    def __init__(self, world: NodeWorld) -> None:
        self._world = world
        self._rng = world.fork("pulling")
        self._numbers = 0

    def pull(self, relation: SimulatedLink) -> None:
        """The reader asks the source for news, unless the link is paused or waits for a person."""
        row = self._row(relation)
        if row is None or row.paused or relation.memory.state in FOR_A_PERSON:
            return
        if relation.memory.connected:
            self._fetch(relation, row)
        elif row.epoch == 0:
            # A reader of that name may be left from an earlier link, and stand past its beginning.
            then = partial(self._register, relation)
            self._ask(relation, Retirement(relation.consumer), then, but=UnknownConsumer)
        else:
            self._register(relation, None)

    def forget(self, reader: str) -> None:
        """The reader was started again: its new process knows nothing of its links."""
        for relation in self._world.relations:
            if relation.reader == reader:
                relation.memory = ReaderState()

    # --- where to begin -----------------------------------------------------------------------

    def _register(self, relation: SimulatedLink, answer: Answer) -> None:
        # Where reading goes on, the reader's cursor says. The source only learns what it must keep.
        asked = Registration(
            consumer=relation.consumer,
            filter=msgspec.structs.replace(relation.filter, beyond=relation.reader),
            retire_ms=relation.retire_ms,
            retire_lag=relation.retire_lag,
        )
        self._ask(relation, asked, partial(self._registered, relation))

    def _registered(self, relation: SimulatedLink, answer: Answer) -> None:
        row, memory = self._row(relation), relation.memory
        if row is None:
            return
        if row.epoch == 0 or memory.new_epoch not in (None, row.epoch):
            self._find_beginning(relation, 1, BEGINNING_TRIES)
        else:
            self._look_back(relation, row, [])

    def _look_back(self, relation: SimulatedLink, row: LinkRow, answers: list[Answer]) -> None:
        """Asks what a link asks to make sure that the log is the one that it has read."""

        def look(node: Node) -> tuple[bool, Question | None]:
            try:
                return is_same_log(
                    node._engine, RecordedAnswers(answers), row, relation.consumer, relation.rows
                ), None
            except Ask as ask:
                return True, ask.question

        done = self._on(relation, "pull", look)
        if done is None:
            return
        same, question = done
        if question is not None:
            then = partial(self._looked_back, relation, row, answers)
            self._ask(relation, question, then, but=(Truncated, PastEnd))
        elif same and relation.memory.wants_snapshot:
            self._snapshot(relation, row)
        elif same:
            relation.memory.connected = True
            self._fetch(relation, row)
        else:
            self._world.break_off(f"{relation.label} takes the log of its source for another one")

    def _looked_back(
        self, relation: SimulatedLink, row: LinkRow, answers: list[Answer], answer: Answer
    ) -> None:
        self._look_back(relation, row, [*answers, answer])

    def _find_beginning(self, relation: SimulatedLink, first: int, tries: int) -> None:
        def found(answer: Answer) -> None:
            if isinstance(answer, Truncated) and tries:
                self._find_beginning(relation, answer.first_available, tries - 1)
            elif isinstance(answer, Truncated):
                self._fail(relation, answer)
            elif isinstance(answer, Batch):
                self._begin(relation, answer)

        asked = Fetch(
            consumer=relation.consumer,
            limit=min(LOOK, relation.rows),
            start=first,
            epoch=relation.memory.new_epoch,
        )
        self._ask(relation, asked, found, but=Truncated)

    def _begin(self, relation: SimulatedLink, found: Batch) -> None:
        row = self._row(relation)
        if row is None:
            return
        start = start_of(row.epoch, row.cursor, found.epoch, found.first)
        if row.epoch and found.first > 1:
            as_read = self._on(relation, "begin", lambda n: begins_as_read(n._engine, row, found))
            if as_read is None:
                return
            start = start if as_read else None

        def begin(node: Node) -> LinkRow:
            return receive.start_over(node._engine, relation.name, found.epoch, start or 1)

        self._world.begins(relation, row.epoch, found, start)
        begun = self._on(relation, "begin", begin)
        if begun is None:
            return
        relation.memory.new_epoch = None
        if start is None:
            self._fail(relation, Truncated("it was never read", first_available=found.first))
        else:
            relation.memory.connected = True
            self._fetch(relation, begun)

    def _snapshot(self, relation: SimulatedLink, row: LinkRow) -> None:
        """Makes up for what the source has truncated, by the code that links run."""
        world = self._world
        source = world.source_of(relation)

        def act(node: Node) -> LinkSnapshotTaken | HoldfastError | None:
            try:
                return take_snapshot(node._engine, source, row)
            except OWN_TROUBLE:
                raise
            except HoldfastError as error:
                return error

        taken = world.take_snapshot(relation, act)
        if isinstance(taken, HoldfastError):
            self._fail(relation, taken)
        elif taken is not None:
            world.happened["snapshot"] += 1
            world.note(f"{relation.label} takes {taken.rows} changes of a snapshot")
            relation.memory = ReaderState(connected=True)
            self._fetch(relation, taken.link)

    # --- questions and answers ----------------------------------------------------------------

    def _fetch(self, relation: SimulatedLink, row: LinkRow, start: int | None = None) -> None:
        position = row.cursor + 1 if start is None else start
        asked = Fetch(
            consumer=relation.consumer,
            limit=min(BATCH_ENTRIES_MAX, relation.rows),
            start=position,
            confirm=row.cursor,
            epoch=row.epoch,
        )
        self._ask(relation, asked, partial(self._fetched, relation, position))

    def _ask(
        self,
        relation: SimulatedLink,
        question: Question,
        then: Callable[[Answer], None],
        *,
        but: type[HoldfastError] | tuple[type[HoldfastError], ...] = (),
    ) -> None:
        """Sends a question, and calls `then` with the answer if it comes while the reader waits for
        it. An error as the answer ends the connection, unless `but` names it.
        """
        self._numbers += 1
        number = relation.memory.awaited = self._numbers

        def hear(answer: Answer) -> None:
            if not self._hears(relation):
                return
            if relation.memory.awaited != number:
                self._take_late(relation, answer)
                return
            relation.memory.awaited = 0
            if isinstance(answer, HoldfastError) and not isinstance(answer, but):
                self._fail(relation, answer)
            else:
                then(answer)

        self._world.links.send(
            relation.reader,
            relation.source,
            "a question",
            lambda: self._answer(relation, question, hear),
        )

    def _answer(
        self, relation: SimulatedLink, question: Question, hear: Callable[[Answer], None]
    ) -> None:
        world = self._world
        served = world.run_on(
            world.machines[relation.source], "answer", lambda node: serve(node, relation, question)
        )
        if served is None:
            return
        (answer,) = served
        about: list[str] = []
        raw = b""
        if isinstance(answer, Batch):
            world.given(relation, answer)
            about = [decode_trusted(raw).op for raw in answer.raws]
            raw = encode_batch(answer)  # as it travels
            if self._breaks(relation, answer, raw):
                answer, raw, about = Unreachable("the line broke"), b"", []
        world.links.send(
            relation.source,
            relation.reader,
            "news" if about else "an answer",
            lambda: hear(decode_batch(raw) if raw else answer),
            about=about,
        )

    def _breaks(self, relation: SimulatedLink, answer: Batch, raw: bytes) -> bool:
        """Some lines do not carry much at a time; one entry they do."""
        narrow = self._world.fork(f"line of {relation.label}").random() < NARROW
        breaks = narrow and len(raw) > NARROW_BYTES and len(answer.raws) > 1
        self._world.happened["line too narrow"] += breaks
        return breaks

    # --- what arrives -------------------------------------------------------------------------

    def _fetched(self, relation: SimulatedLink, position: int, answer: Answer) -> None:
        assert isinstance(answer, Batch), f"a fetch is answered with {answer}"
        if answer.start != position:
            self._world.break_off(
                f"{relation.label} asked from {position} on and was answered from {answer.start}"
            )
        relation.memory.batch, relation.memory.absent = answer, set()
        relation.rows = rows_after_batch(relation.rows)
        self._go_on(relation)

    def _go_on(self, relation: SimulatedLink) -> None:
        """Asks for what the batch still lacks, or takes it in."""
        memory, batch = relation.memory, relation.memory.batch
        if batch is None:
            return
        lacking = self._on(
            relation, "objects", lambda node: lacking_of(node._engine, batch, memory.absent)
        )
        if lacking is None:
            return
        if not lacking:
            memory.batch = None
            self._take(relation, batch)
            return
        piece = lacking[0]

        def arrived(answer: Answer) -> None:
            assert isinstance(answer, Object), f"a piece is answered with {answer}"
            self._store(relation, piece, answer)

        self._ask(relation, piece, arrived)

    def _store(self, relation: SimulatedLink, asked: Piece, found: Object) -> None:
        if found.size is None:
            self._world.note(f"{relation.source} does not have object {asked.sha256[:8]}")
            self._world.happened["object absent"] += 1
            relation.memory.absent.add(asked.sha256)
            self._go_on(relation)
        elif self._on(relation, "objects", lambda node: store_piece(node._engine, asked, found)):
            self._world.happened["object resumed" if asked.start else "object begun"] += 1
            self._go_on(relation)

    def _take(self, relation: SimulatedLink, batch: Batch) -> None:
        memory, before = relation.memory, self._row(relation)
        if before is None or before.paused:
            return
        more = batch.upto < batch.head
        if more and before.epoch == batch.epoch and self._rng.random() < READ_AHEAD:
            self._world.happened["read ahead"] += 1
            self._fetch(relation, before, batch.upto + 1)
        taken = self._world.take(relation, lambda node: take_in(node._engine, relation.name, batch))
        if taken is None:
            return
        if isinstance(taken, HoldfastError):
            # Read ahead of a batch that was not stored in the end, it leaves a hole.
            if batch.start <= before.cursor + 1:
                self._world.break_off(f"{relation.label} refuses an honest batch: {taken}")
            self._fail(relation, taken)
            return
        memory.attempts = 0
        memory.state = LinkState.CATCHING_UP if more else LinkState.LIVE
        self._world.note(
            f"{relation.label} takes {taken.new} new and {taken.known} known entries, "
            f"up to {taken.link.cursor}"
        )
        if taken.quarantined:
            self._world.break_off(f"{relation.label} quarantines {taken.quarantined} entries")
        if memory.awaited:
            return  # the next batch is on its way
        if more:
            self._fetch(relation, taken.link)
        else:
            self._confirm(relation, taken.link)

    def _confirm(self, relation: SimulatedLink, row: LinkRow) -> None:
        asked = Confirmation(consumer=relation.consumer, offset=row.cursor, epoch=row.epoch)
        self._ask(relation, asked, lambda answer: None)

    def _take_late(self, relation: SimulatedLink, answer: Answer) -> None:
        """Takes in a batch that is no longer waited for. It may be refused, or bring entries."""
        if not isinstance(answer, Batch):
            return
        batch = answer
        lacking = self._on(relation, "objects", lambda node: lacking_of(node._engine, batch, set()))
        if lacking is None or lacking:
            return
        taken = self._world.take(relation, lambda node: take_in(node._engine, relation.name, batch))
        if taken is not None:
            refused = isinstance(taken, HoldfastError)
            self._world.happened["late and refused" if refused else "late"] += 1

    # --- trouble ------------------------------------------------------------------------------

    def _fail(self, relation: SimulatedLink, error: HoldfastError) -> None:
        """The connection is over. The next one begins at the stored cursor."""
        world, memory = self._world, relation.memory
        plan = after_error(error, memory.attempts, self._rng.random())
        if isinstance(error, Truncated) and memory.wants_snapshot:
            plan = without_snapshot()
        world.note(f"{relation.label} is {plan.state}: {type(error).__name__}")
        world.happened[type(error).__name__] += 1
        relation.memory = ReaderState(attempts=memory.attempts + 1, state=plan.state)
        if isinstance(error, Unreachable):
            relation.rows = rows_after_break(min(BATCH_ENTRIES_MAX, relation.rows))
        if isinstance(error, EpochChanged):
            relation.memory.new_epoch = error.epoch
        relation.memory.wants_snapshot = plan.state is not LinkState.TRUNCATED and (
            isinstance(error, Truncated) or memory.wants_snapshot
        )
        if plan.delay_ms is not None:
            world.at(plan.delay_ms + 1, self._again, relation, name=f"{relation.label} tries again")

    def _again(self, relation: SimulatedLink) -> None:
        if self._hears(relation) and not relation.memory.awaited:
            self.pull(relation)

    def _hears(self, relation: SimulatedLink) -> bool:
        return relation in self._world.relations and self._world.machines[relation.reader].up

    def _row(self, relation: SimulatedLink) -> LinkRow | None:
        return self._on(relation, "pull", lambda node: row_of(node, relation.name))

    def _on(self, relation: SimulatedLink, what: str, act: Callable[[Node], T]) -> T | None:
        return self._world.run_on(self._world.machines[relation.reader], what, act)
