"""The small rules that rows themselves know."""

from __future__ import annotations

import pytest

from holdfast.rules.order import Version
from holdfast.rules.tasks import TaskStatus
from support.envelopes import make_id
from support.stores import file_row, state_row, task_row, version


def test_S5_a_row_knows_the_version_that_made_it() -> None:
    assert state_row("k", 4, "bob").version == Version(4, "bob", make_id(4))


@pytest.mark.parametrize(
    ("content", "tombstone", "in_blob"),
    [(b"", False, False), (b"x", False, False), (None, False, True), (None, True, False)],
)
def test_S9_a_file_is_in_a_blob_when_it_is_live_and_its_row_holds_nothing(
    content: bytes | None, tombstone: bool, in_blob: bool
) -> None:
    assert file_row("ana", "p", content=content, tombstone=tombstone).in_blob is in_blob


@pytest.mark.parametrize(
    ("status", "holder", "by"),
    [
        (TaskStatus.OPEN, None, None),
        (TaskStatus.OPEN, version(1, "bob"), None),
        (TaskStatus.CLAIMED, version(1, "bob"), "bob"),
        (TaskStatus.COMPLETED, version(1, "bob"), "bob"),
        (TaskStatus.CANCELLED, None, None),
    ],
)
def test_S10_a_task_is_claimed_by_its_holder_unless_it_is_open(
    status: TaskStatus, holder: Version | None, by: str | None
) -> None:
    assert task_row("t", status=status, holder=holder).claimed_by == by
