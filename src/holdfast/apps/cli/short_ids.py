"""Ids as people type them: the first digits of one, or the number that a list shows beside it.

    task = short_ids.task(mesh, "0193f5e1")
    id = short_ids.message(node, "1")

A whole id goes through as it is, so that what is said of one that is not there is said in one
place. Digits that end in no id are refused with the words for that kind of thing; digits that begin
several are refused with a list of what they may mean. The search is a range of an index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from holdfast.node.library.node import Mesh, Node
from holdfast.node.messages.outbox import Outbox
from holdfast.rules.errors import NeedsHome, NotFound, UnknownMessage, UnknownTask
from holdfast.rules.id_prefix import (
    IdSpan,
    ambiguous,
    as_number,
    is_whole,
    prefix_span,
)
from holdfast.rules.ids import id_text
from holdfast.rules.limits import CANDIDATES_MAX
from holdfast.rules.outbox import quorum_lane_of
from holdfast.storage.ports import Reader

Reads = Callable[[str, Callable[[Reader], list[str]]], list[str]]


def task(mesh: Mesh, given: str) -> str:
    """The id of the task of a mesh that is meant."""

    def words(id: str) -> str:
        row = mesh.tasks.get(id)
        return f"{row.status}  {row.title}"

    def within(tx: Reader, span: IdSpan, limit: int) -> list[str]:
        return tx.task_ids_within(mesh.slug, span, limit)

    def listed() -> Iterable[str]:
        return (row.task for row in mesh.tasks.list())

    ids = _within(_reads(mesh), within, given, listed)
    return _one(given, ids, words, UnknownTask(f"there is no task {given!r} in {mesh.slug!r}"))


def message(node: Node, given: str) -> str:
    """The id of the message of the inbox that is meant, by its number or its first digits."""
    number = as_number(given)
    if number is not None:
        found = next(iter(node.inbox.list(after=number - 1)), None)
        if found is not None and found.number == number:
            return found.id

    def words(id: str) -> str:
        found = node.inbox.get(id)
        return f"number {found.number}  from {found.sender} to {found.kind} {found.ref}"

    def within(tx: Reader, span: IdSpan, limit: int) -> list[str]:
        return [id_text(id) for id in tx.inbox_ids_within(span, limit)]

    def listed() -> Iterable[str]:
        return (row.id for row in node.inbox.list())

    ids = _within(_reads(node), within, given, listed)
    missing = UnknownMessage(
        f"there is no message {given!r} in the inbox", hint="see: holdfast inbox list"
    )
    return _one(given, ids, words, missing)


def outbox_item(node: Node, outbox: Outbox, given: str) -> str:
    """The id of what is in the outbox, by its number or its first digits."""
    number = as_number(given)
    if number is not None:
        rows = node._engine.read("outbox.list", lambda tx: tx.outbox_list(None, (), number - 1, 1))
        if rows and rows[0].number == number:
            return id_text(rows[0].id)

    def words(id: str) -> str:
        item = outbox.get(id)
        return f"number {item.number}  {item.state}  {item.op} {item.entity} on {item.lane}"

    def within(tx: Reader, span: IdSpan, limit: int) -> list[str]:
        return [id_text(id) for id in tx.outbox_ids_within(None, span, limit)]

    ids = _within(_reads(node), within, given)
    missing = UnknownMessage(
        f"nothing with the id {given!r} is in the outbox",
        hint="see: holdfast outbox list --all",
    )
    return _one(given, ids, words, missing)


def strong_write(read: Reads, mesh: str, given: str, words: Callable[[str], str]) -> str:
    """The id of the strong write of a mesh that is meant."""

    def within(tx: Reader, span: IdSpan, limit: int) -> list[str]:
        return [id_text(id) for id in tx.outbox_ids_within(quorum_lane_of(mesh), span, limit)]

    missing = UnknownMessage(
        f"no write {given!r} of {mesh!r} ever waited here",
        hint=f"see: holdfast writes list --all --mesh {mesh}",
    )
    return _one(given, _within(read, within, given), words, missing)


def one_of(given: str, known: Iterable[tuple[str, str]], missing: NotFound) -> str:
    """The id that is meant among a few that were listed, each with the words that tell it apart."""
    meant = {id: words for id, words in known if given and id.startswith(given)}
    if given in meant:
        return given
    return _one(given, list(meant), meant.__getitem__, missing)


def _reads(place: Mesh | Node) -> Reads:
    """The reads of a home; what is far away has none, and raises NeedsHome when it is asked."""
    return lambda operation, look: place._engine.read(operation, look)


def _within(
    read: Reads,
    within: Callable[[Reader, IdSpan, int], list[str]],
    given: str,
    listed: Callable[[], Iterable[str]] | None = None,
) -> list[str]:
    """`listed` gives all ids, where the place is far away and can only list them."""
    span = prefix_span(given)
    if is_whole(given):
        return [given if span is None else id_text(span.first)]
    if span is None:
        return []
    # One more than is shown, so that it is known whether there are more.
    try:
        return read("ids.within", lambda tx: within(tx, span, CANDIDATES_MAX + 1))
    except NeedsHome:
        if listed is None:
            raise
        begins = (id for id in listed() if id.replace("-", "").startswith(given.replace("-", "")))
        return list(islice(begins, CANDIDATES_MAX + 1))


def _one(given: str, ids: list[str], words: Callable[[str], str], missing: NotFound) -> str:
    if not ids:
        raise missing
    if len(ids) > 1:
        raise ambiguous(given, ids, words)
    return ids[0]
