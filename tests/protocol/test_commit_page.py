"""Pages of commits: what a page says of itself is checked where it enters."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.protocol.commit_page import CommitLine, CommitPage, decode_page, encode_page
from holdfast.rules import limits
from holdfast.rules.envelope import decode
from holdfast.rules.errors import BadCommitPage
from holdfast.rules.quorum.commit_record import CommitRecord
from holdfast.rules.quorum.view import EntityRevision
from holdfast.rules.reconcile import Outcome
from support.commit_pages import mission, page_of, voter_with, with_line, with_record
from support.envelopes import make_id, state_set
from support.quorum_state import fence

ENVELOPES = [mission("a"), mission("b"), mission("a", "u", base=7), mission("c")]


@pytest.fixture(scope="module")
def page() -> CommitPage:
    return page_of(voter_with(ENVELOPES))


def replaced(page: CommitPage, **changed: object) -> CommitPage:
    return msgspec.structs.replace(page, **changed)


def other_envelope(page: CommitPage) -> CommitPage:
    rows = list(page.rows)
    rows[1] = CommitLine(rows[1].record, rows[2].raw)
    return replaced(page, rows=tuple(rows))


def plain_write(page: CommitPage) -> CommitPage:
    raw = state_set("k", "v")
    envelope = decode(raw)
    record = decode_first(page)
    return with_line(
        page,
        0,
        msgspec.structs.replace(
            record, id=envelope.id, fingerprint=envelope.fingerprint, mesh=envelope.mesh
        ),
        raw,
    )


def decode_first(page: CommitPage) -> CommitRecord:
    return decode_page(encode_page(page)).lines[0].record


LIES: dict[str, Callable[[CommitPage], CommitPage]] = {
    "another version": lambda page: replaced(page, version=2),
    "an end before its rows": lambda page: replaced(page, end=2),
    "numbers that leave one out": lambda page: with_record(page, 2, number=4),
    "another first number": lambda page: replaced(page, first=2, end=9),
    "another mesh in its head": lambda page: replaced(page, mesh="other"),
    "another mesh in a record": lambda page: with_record(page, 1, mesh="other"),
    "another id in a record": lambda page: with_record(page, 1, id=make_id(77)),
    "another fingerprint": lambda page: with_record(page, 1, fingerprint=b"x" * 32),
    "another envelope": other_envelope,
    "a fence that falls": lambda page: with_record(page, 2, fence=fence(1)),
    "a fence twice": lambda page: with_record(page, 2, fence=fence(2)),
    "two coordinators of one epoch": lambda page: with_record(
        page, 2, fence=fence(3, coordinator="eve")
    ),
    "a sequence that falls": lambda page: with_record(page, 3, fence=fence(2, epoch=2)),
    "an incarnation that falls": lambda page: with_record(
        with_record(page, 1, fence=fence(2, incarnation=2)), 2, fence=fence(3)
    ),
    "an incarnation that its source does not know": lambda page: with_record(
        page, 3, fence=fence(4, incarnation=2)
    ),
    "a refusal that changed something": lambda page: with_record(
        page, 0, outcome=Outcome.CONFLICT_REQUIRES_MERGE, reason="revision_moved"
    ),
    "a refusal without a reason": lambda page: with_record(page, 0, outcome=None, revisions=()),
    "a write that no quorum decides": plain_write,
    "one intent twice": lambda page: with_line(
        page,
        3,
        msgspec.structs.replace(decode_first(page), number=4, fence=fence(4)),
        page.rows[0].raw,
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_Q4_a_page_that_is_not_what_it_says_is_refused_as_a_whole(
    page: CommitPage, lie: str
) -> None:
    decode_page(encode_page(page))  # by itself it is right
    with pytest.raises(BadCommitPage):
        decode_page(encode_page(LIES[lie](page)))


def test_Q4_a_page_keeps_the_bytes_of_envelopes_and_records(page: CommitPage) -> None:
    checked = decode_page(encode_page(page))
    assert [(one.record_bytes, one.raw) for one in checked.lines] == [
        (row.record, row.raw) for row in page.rows
    ]
    assert [one.record.number for one in checked.lines] == [1, 2, 3, 4]
    assert (checked.first, checked.end) == (1, 4)
    assert checked.lines[0].record.revisions == (EntityRevision("mission", "a", 1),)


def test_Q4_a_page_has_no_more_rows_than_a_page_may_have(page: CommitPage) -> None:
    rows = page.rows[:1] * (limits.COMMIT_PAGE_ROWS + 1)
    with pytest.raises(BadCommitPage):
        decode_page(encode_page(replaced(page, rows=rows, end=limits.COMMIT_PAGE_ROWS + 9)))


@given(cut=st.integers(0, 400), put=st.binary(max_size=3))
def test_Q4_a_damaged_page_is_refused_and_never_breaks_the_reader(cut: int, put: bytes) -> None:
    whole = encode_page(page_of(voter_with(ENVELOPES[:1])))
    damaged = whole[:cut] + put + whole[cut + len(put) + 1 :]
    try:
        checked = decode_page(damaged)
    except BadCommitPage:
        return
    assert checked.mesh
