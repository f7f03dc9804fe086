"""What may be saved to the log of a group, and how far the log is afterwards.

Both quorum logs, in memory and on SQLite, ask here before they change anything. So a mistake of
whoever drives the log (a write that comes late, a gap, a vote given twice) is refused, and never
lowers a term, changes a vote or drops what is known to be committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from msgspec.structs import replace

from holdfast.rules.errors import (
    BadValue,
    LogMismatch,
    MustRejoin,
    NotAMember,
    OverLimit,
    VoterReused,
)
from holdfast.rules.limits import QUORUM_ENTRY_BYTES_MAX, QUORUM_WRITE_ENTRIES_MAX
from holdfast.rules.quorum.log_rows import (
    FOUNDED_AT,
    TAG_BYTES,
    TAKES_PART,
    GroupRow,
    GroupWrite,
    HardStateRow,
    LogHead,
    QuorumSnapshot,
)

INDEX_MAX = (1 << 40) - 1
"""A log that wrote a million entries a second would come here after twelve days; it does not."""
TermAt = Callable[[int], int | None]
"""The term of an entry, or of the base; None if the log does not reach there."""


def check_identity(tag: bytes, voter: int, incarnation: int) -> None:
    """Raises BadValue for what can name no group and no voter."""
    if len(tag) != TAG_BYTES:
        raise BadValue(f"the tag of a group has {TAG_BYTES} bytes, not {len(tag)}")
    if not (0 < voter < 1 << 63 and 0 < incarnation < 1 << 63):
        raise BadValue("voter ids and incarnations are numbers from 1 on, of 63 bits")


def founded(
    group: GroupRow, old: tuple[GroupRow, LogHead] | None, used: Collection[int], term: int
) -> LogHead:
    """The head of a log that begins behind what another engine has committed. Who joins such a
    group begins behind nothing, and so gets all of that as a snapshot.
    """
    check_identity(group.tag, group.voter, group.incarnation)
    check_fresh_voter(group.scope, group.voter, used)
    if old is not None and group.incarnation <= old[0].incarnation:
        raise LogMismatch(f"{group.scope} is in incarnation {old[0].incarnation} here already")
    term = max(term, 0 if old is None else old[1].term)
    written = 0 if old is None else old[1].written
    first = FOUNDED_AT
    return LogHead(
        term=term,
        commit=first,
        written=written,
        base=first,
        base_term=term,
        last=first,
        last_term=term,
    )


def check_fresh_voter(scope: str, voter: int, used: Collection[int]) -> None:
    """Raises VoterReused: under the same id it might vote a second time."""
    if voter in used:
        raise VoterReused(f"this node was voter {voter} of {scope} before")


def check_takes_part(group: GroupRow, voter: int) -> None:
    """Raises unless this node may save for the group as this voter."""
    if group.standing == "must_rejoin":
        raise must_rejoin(group)
    if group.standing not in TAKES_PART:
        raise NotAMember(f"this node was removed from the voters of {group.scope}")
    if voter != group.voter:
        raise LogMismatch(
            f"a write of voter {voter} of {group.scope}, where this node is voter {group.voter}"
        )


def must_rejoin(group: GroupRow) -> MustRejoin:
    return MustRejoin(f"voter {group.voter} of {group.scope} may not take part: {group.reason}")


def after_write(group: GroupRow, head: LogHead, write: GroupWrite, term_at: TermAt) -> LogHead:
    """How far the log is after a write, or the error with which it is refused."""
    check_takes_part(group, write.voter)
    _check_number(head, write.scope, write.number)
    kept = _after_hard_state(head, write.scope, write.hard)
    if write.cut_from is not None:
        # By what was committed before: the entries that come with it may be committed already.
        kept = _after_cut(kept, write, head.commit, term_at)
    if write.entries:
        kept = _after_entries(kept, write)
    return replace(kept, written=write.number)


def _check_number(head: LogHead, scope: str, number: int) -> None:
    if not head.written < number < 1 << 63:
        raise LogMismatch(f"write {number} of {scope} after write {head.written}: it comes late")


def _after_hard_state(head: LogHead, scope: str, hard: HardStateRow | None) -> LogHead:
    if hard is None:
        return head
    if not (head.term <= hard.term < 1 << 63 and 0 <= hard.vote < 1 << 63):
        raise LogMismatch(f"{scope} is in term {head.term} and not in {hard.term} any more")
    if hard.term == head.term and head.vote not in (0, hard.vote):
        raise LogMismatch(
            f"the vote of {scope} in term {head.term} was given to {head.vote}, "
            f"and cannot be given to {hard.vote}"
        )
    return replace(head, term=hard.term, vote=hard.vote, commit=max(head.commit, hard.commit))


def _after_cut(head: LogHead, write: GroupWrite, committed: int, term_at: TermAt) -> LogHead:
    cut = write.cut_from
    assert cut is not None, "the caller has looked"
    if not head.base < cut <= head.last + 1:
        raise LogMismatch(
            f"the log of {write.scope} has {head.first} to {head.last}: "
            f"it cannot be cut from {cut} on"
        )
    if cut <= min(committed, head.last):
        raise LogMismatch(f"entry {cut} of {write.scope} is committed: it cannot be dropped")
    term = term_at(cut - 1)
    assert term is not None, "an entry between base and last has a term"
    return replace(head, last=cut - 1, last_term=term)


def _after_entries(head: LogHead, write: GroupWrite) -> LogHead:
    entries = write.entries
    if len(entries) > QUORUM_WRITE_ENTRIES_MAX:
        raise OverLimit(f"{len(entries)} entries in a write; {QUORUM_WRITE_ENTRIES_MAX} may be")
    if entries[0].index != head.last + 1 or entries[-1].index > INDEX_MAX:
        raise LogMismatch(
            f"the log of {write.scope} ends at {head.last}: entry {entries[0].index} "
            "does not follow"
        )
    first = entries[0].index
    if [entry.index for entry in entries] != list(range(first, first + len(entries))):
        raise LogMismatch(f"the entries of a write of {write.scope} have gaps")
    terms = [head.last_term, *[entry.term for entry in entries], head.term]
    if terms != sorted(terms):
        raise LogMismatch(
            f"the terms of the entries of {write.scope} fall, or are above its own {head.term}"
        )
    longest = max([len(entry.payload) for entry in entries])
    if longest > QUORUM_ENTRY_BYTES_MAX:
        raise OverLimit(f"an entry of {longest} bytes; {QUORUM_ENTRY_BYTES_MAX} may be")
    for kind in {entry.kind for entry in entries}:
        if not 0 <= kind < 256:
            raise BadValue(f"{kind} is no kind of an entry: it is a byte")
    return replace(head, last=entries[-1].index, last_term=entries[-1].term)


def after_compaction(group: GroupRow, head: LogHead, index: int, term_at: TermAt) -> LogHead:
    """How far the log is when a snapshot of ours holds everything up to an index."""
    check_takes_part(group, group.voter)
    if not head.base <= index <= min(head.last, head.commit):
        raise LogMismatch(
            f"the log of {group.scope} has committed {head.first} to "
            f"{min(head.last, head.commit)}: it cannot begin after {index}"
        )
    term = term_at(index)
    assert term is not None, "an entry between base and last has a term"
    return replace(head, base=index, base_term=term)


def check_snapshot(group: GroupRow, head: LogHead, snapshot: QuorumSnapshot, voter: int) -> None:
    """Raises unless the log may be replaced by this snapshot."""
    check_takes_part(group, voter)
    if not head.base < snapshot.index <= INDEX_MAX or snapshot.term < head.base_term:
        raise LogMismatch(
            f"the log of {group.scope} begins after {head.base}: a snapshot up to "
            f"{snapshot.index} of term {snapshot.term} is older"
        )
    if snapshot.term > head.term:
        raise LogMismatch(
            f"{group.scope} is in term {head.term}, and a snapshot has entries of {snapshot.term}"
        )
    if snapshot.size < 0:
        raise BadValue("a snapshot of less than nothing")


def after_install(
    group: GroupRow,
    head: LogHead,
    snapshot: QuorumSnapshot,
    voter: int,
    number: int,
    term_at: TermAt,
    hard: HardStateRow | None = None,
) -> tuple[LogHead, bool]:
    """How far the log is when it begins after the snapshot, and whether the entries after it stay:
    they do if the log has the snapshot's last entry. Term and vote may change with it.
    """
    _check_number(head, group.scope, number)
    # By what was committed before: with it comes that the snapshot is.
    committed = head.commit
    head = _after_hard_state(head, group.scope, hard)
    check_snapshot(group, head, snapshot, voter)
    stays = snapshot.index <= head.last and term_at(snapshot.index) == snapshot.term
    if not stays and head.base < snapshot.index <= min(committed, head.last):
        raise LogMismatch(
            f"entry {snapshot.index} of {group.scope} is committed, and is another one in the "
            "snapshot"
        )
    kept = replace(
        head,
        base=snapshot.index,
        base_term=snapshot.term,
        commit=max(head.commit, snapshot.index),
        written=number,
    )
    if stays:
        return kept, True
    return replace(kept, last=snapshot.index, last_term=snapshot.term), False


def raised(head: LogHead, hard: HardStateRow) -> LogHead:
    """A head that is in no older term than this."""
    if hard.term > head.term:
        return replace(head, term=hard.term, vote=hard.vote)
    return head
