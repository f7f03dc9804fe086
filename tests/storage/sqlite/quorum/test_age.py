"""A file that shows less than was acknowledged is noticed when it is opened: its groups must
rejoin, and no term falls.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from holdfast.rules.errors import LogMismatch, MustRejoin, VoterReused
from holdfast.rules.quorum.log_rows import GroupRow, KnownGroup
from holdfast.storage.files.home import HomePaths
from holdfast.storage.quorum_port import QuorumLog
from support.quorum_logs import TAG, entry, filled, opened, write

KNOWN = KnownGroup(scope="team", incarnation=1, tag=TAG, voter=1)


def standing(home: Path, *known: KnownGroup) -> GroupRow:
    log = opened(home, known=known)
    try:
        return log.group("team")
    finally:
        log.close()


def files(home: Path) -> dict[str, bytes]:
    """The database as it lies there."""
    return {
        path.name: path.read_bytes() for path in home.glob("quorum.db*") if "shm" not in path.name
    }


def put_back(home: Path, copy: dict[str, bytes]) -> None:
    """An older copy is written over the files in place, as `cp` does."""
    for path in home.glob("quorum.db*"):
        if path.name not in copy and path.name != "quorum.db":
            path.unlink()
    for name, content in copy.items():
        with open(home / name, "r+b" if (home / name).exists() else "wb") as file:
            file.truncate()
            file.write(content)


def test_Q4_a_home_that_was_closed_and_opened_goes_on(tmp_path: Path) -> None:
    for term in range(1, 5):
        log = opened(tmp_path)
        if term == 1:
            filled(log, 1)
        log.save(write(term + 1, entry(term + 1, term), term=term, vote=term))
        assert log.group("team").standing == "voter"
        log.close()
    log = opened(tmp_path)
    assert (log.head("team").term, log.head("team").vote, log.head("team").last) == (4, 4, 5)
    log.close()


def test_Q4_a_bad_end_is_not_taken_for_a_copy(tmp_path: Path) -> None:
    for term in range(1, 5):
        log = opened(tmp_path)
        if term == 1:
            filled(log, 1)
        log.save(write(term + 1, entry(term + 1, term), term=term, vote=term))
        log.abort()
    assert standing(tmp_path).standing == "voter"


def test_Q4_a_home_that_was_closed_well_may_be_moved(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    log = opened(tmp_path / "old")
    filled(log, 1)
    log.close()
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    assert standing(tmp_path / "new").standing == "voter"


def test_Q4_an_older_copy_is_noticed_after_a_clean_end(tmp_path: Path) -> None:
    log = opened(tmp_path)
    filled(log, 1)
    log.close()
    log = opened(tmp_path)
    copy = files(tmp_path)
    log.save(write(2, entry(2, 1)))
    log.close()
    put_back(tmp_path, copy)
    group = standing(tmp_path)
    assert group.standing == "must_rejoin"
    assert "its last write is 1, and was 2" in group.reason


def test_Q4_a_copy_of_an_earlier_opening_is_noticed_after_a_crash(tmp_path: Path) -> None:
    log = opened(tmp_path)
    filled(log, 1)
    log.close()
    copy = files(tmp_path)
    log = opened(tmp_path)
    log.save(write(2, entry(2, 1)))
    log.abort()
    put_back(tmp_path, copy)
    assert "was opened" in standing(tmp_path).reason


def test_Q4_a_forgotten_vote_is_noticed_however_it_came_about(tmp_path: Path) -> None:
    log = opened(tmp_path)
    filled(log, 1)
    copy = files(tmp_path)
    log.save(write(2, term=7, vote=3))
    log.abort()
    put_back(tmp_path, copy)
    log = opened(tmp_path)
    assert log.group("team").standing == "must_rejoin"
    assert (log.head("team").term, log.head("team").written) == (7, 2), "terms never fall"
    with pytest.raises(MustRejoin):
        log.save(write(3, term=8, vote=1))
    rejoin(log)
    log.close()
    assert standing(tmp_path).standing == "learner"


def rejoin(log: QuorumLog) -> None:
    with pytest.raises(VoterReused):
        log.join("team", incarnation=1, tag=TAG, voter=1)
    log.join("team", incarnation=1, tag=TAG, voter=2)
    with pytest.raises(LogMismatch):
        log.save(write(3, term=6, voter=2))
    log.save(write(3, term=7, vote=3, voter=2))


def test_Q4_a_vote_of_the_same_term_that_is_gone_is_noticed(tmp_path: Path) -> None:
    log = opened(tmp_path)
    filled(log, 1)
    log.save(write(2, term=7))
    copy = files(tmp_path)
    log.save(write(3, term=7, vote=3))
    log.abort()
    put_back(tmp_path, copy)
    assert "forgotten its vote in term 7" in standing(tmp_path).reason


def test_Q4_after_a_crash_another_file_in_its_place_is_noticed(tmp_path: Path) -> None:
    log = opened(tmp_path)
    filled(log, 1)
    log.abort()
    copy = tmp_path / "quorum.copy"
    shutil.copy(tmp_path / "quorum.db", copy)
    os.replace(copy, tmp_path / "quorum.db")
    assert "another file" in standing(tmp_path).reason


@pytest.mark.parametrize("lost", [("quorum.db",), ("quorum.db", "quorum.db-wal")])
def test_Q4_a_file_that_is_missing_leaves_no_voter(tmp_path: Path, lost: tuple[str, ...]) -> None:
    log = opened(tmp_path)
    filled(log, 1)
    log.save(write(2, term=4, vote=2))
    log.abort()
    for name in lost:
        (tmp_path / name).unlink(missing_ok=True)
    log = opened(tmp_path)
    assert log.group("team").standing == "must_rejoin"
    assert (log.head("team").term, log.head("team").last) == (4, 0)
    assert log.voters_used("team") == {1}
    log.close()


def test_Q4_a_file_without_its_mark_or_with_that_of_another_is_doubted(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        log = opened(tmp_path / name)
        filled(log, 1)
        log.close()
    mark = HomePaths(tmp_path / "a").quorum_mark
    mark.write_bytes(HomePaths(tmp_path / "b").quorum_mark.read_bytes())
    assert "that of another" in standing(tmp_path / "a").reason
    for broken in (None, b"{", b'{"store": 1}'):
        home = tmp_path / f"b-{broken is None}-{len(broken or b'')}"
        shutil.copytree(tmp_path / "b", home)
        if broken is None:
            HomePaths(home).quorum_mark.unlink()
        else:
            HomePaths(home).quorum_mark.write_bytes(broken)
        assert "without its mark" in standing(home).reason


def test_Q4_a_restored_home_has_no_past_to_vote_with(tmp_path: Path) -> None:
    group = standing(tmp_path, KNOWN)
    assert (group.standing, group.voter) == ("must_rejoin", 1)
    assert "restored" in group.reason
    assert standing(tmp_path).standing == "must_rejoin", "it is remembered"


@pytest.mark.parametrize(
    ("known", "says"),
    [
        (KnownGroup(scope="team", incarnation=1, tag=TAG, voter=1, applied=2), "applied"),
        (KnownGroup(scope="team", incarnation=1, tag=TAG, voter=1, term=2), "term 1"),
        (KnownGroup(scope="team", incarnation=2, tag=TAG, voter=1), "incarnation 2"),
        (KnownGroup(scope="team", incarnation=1, tag=TAG, voter=5), "voter 5"),
    ],
)
def test_Q4_what_the_homes_database_knows_must_be_there(
    tmp_path: Path, known: KnownGroup, says: str
) -> None:
    log = opened(tmp_path)
    filled(log, 1)
    log.close()
    assert standing(tmp_path, KNOWN).standing == "voter"
    group = standing(tmp_path, known)
    assert group.standing == "must_rejoin"
    assert says in group.reason


def test_Q4_the_mark_is_raised_after_so_many_writes(tmp_path: Path) -> None:
    log = opened(tmp_path, mark_writes=5)
    filled(log, 1)
    copy = files(tmp_path)
    mark = HomePaths(tmp_path).quorum_mark
    before = mark.read_bytes()
    for at in range(2, 6):
        log.save(write(at, entry(at, 1)))
        assert mark.read_bytes() == before, "entries alone cost no second sync"
    log.save(write(6, entry(6, 1)))
    assert mark.read_bytes() != before
    log.abort()
    put_back(tmp_path, copy)
    assert "its last write is 1, and was 6" in standing(tmp_path).reason


def test_Q4_a_group_that_was_removed_does_not_come_back_by_an_older_copy(tmp_path: Path) -> None:
    log = opened(tmp_path)
    filled(log, 1)
    copy = files(tmp_path)
    log.set_standing("team", 1, "removed")
    log.abort()
    put_back(tmp_path, copy)
    assert "was removed before" in standing(tmp_path).reason
