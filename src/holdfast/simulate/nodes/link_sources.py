"""The other end of a link for code that waits for its answers.

`Direct` serves commands of people, which tell a source that a link is removed, or ask what it still
holds. The answer comes at once or not at all.

`RecordedAnswers` serves the link itself, whose questions travel: it gives the answers that have
come so far, and raises `Ask` with the question that has no answer yet. Its caller sends that
question, and runs the same code again when the answer has come.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.node.links.source import LinkSource
from holdfast.protocol.commit_page import StateObject
from holdfast.protocol.link_snapshot import (
    LinkSnapshotPart,
    SnapshotPartAsked,
    decode_part,
    encode_part,
)
from holdfast.protocol.log_wire import Batch, Confirmation, Fetch, Registration
from holdfast.rules.errors import HoldfastError, Unreachable
from holdfast.rules.rows import LinkRow
from holdfast.simulate.nodes.link import (
    Answer,
    Object,
    Piece,
    Question,
    Retirement,
    SimulatedLink,
    serve,
)

if TYPE_CHECKING:
    from holdfast.simulate.zones.zones import ZoneWorld


class Ask(Exception):
    """The question that must be answered before the code can go on."""

    def __init__(self, question: Question) -> None:
        super().__init__(str(question))
        self.question = question


class _Source(ABC):
    """A source of a link, made from one function that answers questions."""

    @abstractmethod
    def answer(self, question: Question) -> Answer: ...

    def register(self, registration: Registration) -> None:
        self._ask(registration)

    def fetch(self, fetch: Fetch) -> Batch:
        answer = self._ask(fetch)
        assert isinstance(answer, Batch), f"a fetch is answered with {answer}"
        return answer

    def confirm(self, confirmation: Confirmation) -> None:
        self._ask(confirmation)

    def commits_held(self) -> dict[str, int]:
        return {}  # no mesh of these worlds has voters

    def commits_page(self, mesh: str, first: int) -> bytes:
        raise AssertionError("no mesh of these worlds has voters")

    def committed_state(self, mesh: str, have: int) -> StateObject:
        raise AssertionError("no mesh of these worlds has voters")

    def snapshot_part(self, asked: SnapshotPartAsked) -> LinkSnapshotPart:
        answer = self._ask(asked)
        assert isinstance(answer, LinkSnapshotPart), f"a part is answered with {answer}"
        return decode_part(encode_part(answer))  # as it travels

    def retire(self, consumer: str) -> None:
        self._ask(Retirement(consumer))

    def object_size(self, sha: str) -> int | None:
        return self._piece(sha, 0).size

    def object(self, sha: str, start: int, size: int) -> bytes:
        return self._piece(sha, start).content[:size]

    def abort(self) -> None:
        return None  # no call is under way

    def close(self) -> None:
        return None  # nothing is open

    def _piece(self, sha: str, start: int) -> Object:
        answer = self._ask(Piece(sha, start))
        assert isinstance(answer, Object), f"a piece is answered with {answer}"
        return answer

    def _ask(self, question: Question) -> Answer:
        answer = self.answer(question)
        if isinstance(answer, HoldfastError):
            raise answer
        return answer


class Direct(_Source):
    """A source that is asked directly, without the network."""

    def __init__(self, world: ZoneWorld, relation: SimulatedLink) -> None:
        self._world, self._relation = world, relation

    def answer(self, question: Question) -> Answer:
        world, relation = self._world, self._relation
        ways = {(relation.reader, relation.source), (relation.source, relation.reader)}
        served = None
        if not ways & world.links.cut:
            machine = world.machines[relation.source]
            served = world.run_on(machine, "answer", lambda node: serve(node, relation, question))
        if served is None:
            raise Unreachable(f"{relation.source} does not answer")
        return served[0]


class RecordedAnswers(_Source):
    """A source that repeats answers which have come already, in the order of the questions."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = list(answers)

    def answer(self, question: Question) -> Answer:
        if not self._answers:
            raise Ask(question)
        return self._answers.pop(0)


def reach_in(world: ZoneWorld, reader: str, row: LinkRow) -> LinkSource:
    """The connection for a link of `reader`, in the form that `node.links` expects."""
    for relation in world.entitlement.ever:
        if (relation.reader, relation.name) == (reader, row.name):
            found = relation
    return Direct(world, found)
