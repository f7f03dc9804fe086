"""What is known outside `quorum.db` about what it must show, so that one that went back is noticed.

A voter that forgets a vote may give it twice, and then two leaders are elected in one term. So a
file beside the database, `quorum.mark`, says what was promised: for each group the incarnation, the
voter id, the term and the vote. It is written after the database has committed such a change and
before anybody is answered. Elections are rare, so this second sync is, too. How many writes a group
has made is noted only now and then (every `QUORUM_MARK_WRITES`, at each opening, and exactly at a
clean close), because entries come all the time.

**Noticed** at the opening, and then the groups concerned must rejoin:

- the database is missing, damaged, or another one than the mark's, or comes without its mark;
- it was put back from a copy of an earlier opening, or of an earlier moment of the last one if the
  home was closed well since;
- after a bad end: a copy that lacks a vote, a term, or more than `QUORUM_MARK_WRITES` writes; any
  copy that took the place of the file by a rename (the file has another number then);
- the home was restored from a backup: the database of the home names groups (`KnownGroup`) that are
  not here, or voters, terms and entries that this file has not seen.

**Not noticed** here:

- after a bad end, a copy of the last opening that was written over the file in place and lacks only
  entries, fewer than `QUORUM_MARK_WRITES` writes; votes are never lost that way;
- the whole home as it was, mark included.

In both cases the leader notices that the index which this voter had acknowledged went back, and
refuses it. Of a vote that an older copy of the whole home has forgotten nobody can know, unless the
home's place tells that it is a copy (`HomeCopied`).

A mark never claims too much, since the commit comes first; so a crash is never taken for a copy.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec

from holdfast.rules.quorum.log_rows import TAKES_PART, KnownGroup, Standing
from holdfast.storage.files.durable import durable_replace
from holdfast.storage.sqlite.quorum.rows import Card

log = logging.getLogger("holdfast")

_OLDER: Final = "its Raft log is older than what this node had acknowledged"


class MarkedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """What the database must show of a group at least."""

    incarnation: int
    tag: bytes
    voter: int
    standing: Standing
    term: int
    vote: int
    written: int


class QuorumMark(msgspec.Struct, frozen=True, kw_only=True):
    store: str
    """The random id of the database."""
    generation: int
    """How many times it was opened."""
    clean: bool
    """It was closed well, and shows exactly this."""
    file: int
    """The number that the file system gave to the database; 0: it says nothing."""
    groups: dict[str, MarkedGroup]


def read_quorum_mark(path: Path) -> QuorumMark | None:
    """None also for one that cannot be read: the caller then has to doubt."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=QuorumMark)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as error:
        log.warning("%s cannot be read: %s", path, error)
        return None


def write_quorum_mark(path: Path, mark: QuorumMark) -> None:
    durable_replace(path, msgspec.json.encode(mark))


def marked(cards: Iterable[Card]) -> dict[str, MarkedGroup]:
    return {
        card.group.scope: MarkedGroup(
            incarnation=card.group.incarnation,
            tag=card.group.tag,
            voter=card.group.voter,
            standing=card.group.standing,
            term=card.head.term,
            vote=card.head.vote,
            written=card.head.written,
        )
        for card in cards
    }


def why_doubt_store(store: str, generation: int, file: int, mark: QuorumMark | None) -> str | None:
    """Why a whole database may have gone back; None if nothing says so. A generation more than the
    mark's is the end of an opening that came no further than that: nothing was saved in it.
    """
    if mark is None:
        return "the database has come without its mark"
    if mark.store != store:
        return "the mark beside the database is that of another one"
    if generation not in (mark.generation, mark.generation + 1):
        return f"the database was opened {generation} times, its mark says {mark.generation}"
    if not mark.clean and file and mark.file and file != mark.file:
        return "after a bad end another file took the place of the database"
    return None


def why_doubt_group(card: Card, used: Collection[int], mark: MarkedGroup) -> str | None:
    """Why a group may have gone back, by what the mark says of it. Ids are never used again: a
    group that has had the voter id of the mark, and has another one now, has gone on.
    """
    group, head = card.group, card.head
    if group.incarnation < mark.incarnation or mark.voter not in used:
        return f"this node was voter {mark.voter} of incarnation {mark.incarnation} before"
    same = group.voter == mark.voter
    if same and mark.standing not in TAKES_PART and group.standing in TAKES_PART:
        return f"this node was {mark.standing} before"
    if head.term < mark.term:
        return f"{_OLDER}: it is in term {head.term}, and was in {mark.term}"
    if head.term == mark.term and mark.vote not in (0, head.vote):
        return f"{_OLDER}: it has forgotten its vote in term {mark.term}"
    if head.written < mark.written:
        return f"{_OLDER}: its last write is {head.written}, and was {mark.written}"
    return None


def why_doubt_known(card: Card, used: Collection[int], known: KnownGroup) -> str | None:
    """The same by what the home's own database says."""
    if card.group.incarnation < known.incarnation or known.voter not in used:
        return f"this node was voter {known.voter} of incarnation {known.incarnation} before"
    if card.head.last < known.applied:
        return f"{_OLDER}: it ends at {card.head.last}, and {known.applied} was applied"
    if card.head.term < known.term:
        return f"{_OLDER}: it is in term {card.head.term}, and was in {known.term}"
    return None
