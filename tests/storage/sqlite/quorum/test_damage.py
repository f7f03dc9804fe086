"""Damage that no power cut can have made: the group must rejoin, other groups go on, and nothing is
removed.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import apsw
import pytest

from holdfast.rules.errors import EntryDamaged, MustRejoin, NewerSchema, NotOurs, StoreFailed
from support.quorum_logs import TAG, entry, filled, opened, snapshot, write
from support.seeds import seeds


def two_groups(home: Path, *, clean: bool = True) -> None:
    log = opened(home)
    for scope in ("team", "other"):
        filled(log, 1, 1, 2, scope=scope)
    log.close() if clean else log.abort()


def harm(home: Path, statement: str) -> None:
    con = apsw.Connection(str(home / "quorum.db"))
    con.execute(statement)
    con.close()


TEAM = "(SELECT number FROM quorum_group WHERE scope = 'team')"
HARM = {
    "payload": f"UPDATE entry SET payload = x'00' WHERE place >> 40 = {TEAM} AND place & 255 = 2",
    "term": f"UPDATE entry SET term = 2 WHERE place >> 40 = {TEAM} AND place & 255 = 2",
    "kind": f"UPDATE entry SET kind = 7 WHERE place >> 40 = {TEAM} AND place & 255 = 2",
    "missing": f"DELETE FROM entry WHERE place >> 40 = {TEAM} AND place & 255 = 2",
    "tail": f"DELETE FROM entry WHERE place >> 40 = {TEAM} AND place & 255 = 3",
    "of another": "UPDATE entry SET payload = (SELECT payload FROM entry WHERE place & 255 = 1), "
    "sum = (SELECT sum FROM entry WHERE place & 255 = 1) "
    f"WHERE place >> 40 = {TEAM} AND place & 255 = 2",
    "runs": f"UPDATE run SET term = 5 WHERE place >> 40 = {TEAM} AND place & 255 = 3",
    "no runs": f"DELETE FROM run WHERE place >> 40 = {TEAM}",
    "boundary": "UPDATE boundary SET config = x'00' WHERE id = 1",
    "no boundary": "DELETE FROM boundary WHERE id = 1",
    "head": "UPDATE head SET vote = 2 WHERE id = 1",
    "no head": "DELETE FROM head WHERE id = 1",
    "voter": "UPDATE quorum_group SET voter = 2 WHERE id = 1",
    "beyond": f"INSERT INTO entry VALUES ({TEAM} << 40 | 4, 1, 1, x'', x'')",
    "standing": "UPDATE quorum_group SET standing = 'learner' WHERE id = 1",
}


@pytest.mark.parametrize("kind", HARM)
def test_Q4_damage_found_at_the_opening_after_a_bad_end_concerns_its_group_alone(
    tmp_path: Path, kind: str
) -> None:
    two_groups(tmp_path, clean=False)
    harm(tmp_path, HARM[kind])
    log = opened(tmp_path)
    assert log.group("team").standing == "must_rejoin"
    with pytest.raises(MustRejoin):
        log.save(write(2, term=9))
    assert log.group("other").standing == "voter"
    log.save(write(2, entry(4, 2), scope="other"))
    log.close()
    log = opened(tmp_path)
    assert [group.standing for group in log.groups()] == ["voter", "must_rejoin"]
    log.close()


@pytest.mark.parametrize("kind", ["payload", "missing", "runs", "boundary", "no runs"])
def test_Q4_damage_found_by_a_read_makes_its_group_rejoin(tmp_path: Path, kind: str) -> None:
    two_groups(tmp_path)
    harm(tmp_path, HARM[kind])
    log = opened(tmp_path)
    assert log.group("team").standing == "voter", "after a clean end rows are looked at when read"

    def read() -> None:
        log.boundary("team")
        log.entries("team", 1, 9, 999)

    with pytest.raises(EntryDamaged):
        read()
    assert log.group("team").standing == "must_rejoin"
    with pytest.raises(MustRejoin):
        log.save(write(2, term=9))
    rows = apsw.Connection(str(tmp_path / "quorum.db"))
    assert rows.execute("SELECT count(*) FROM entry").get == (5 if kind == "missing" else 6)
    rows.close()
    log.close()


def test_Q4_damage_found_by_a_write_makes_its_group_rejoin(tmp_path: Path) -> None:
    two_groups(tmp_path)
    harm(tmp_path, HARM["no runs"])
    log = opened(tmp_path)
    with pytest.raises(EntryDamaged):
        log.save(write(2, cut=3))
    assert log.group("team").standing == "must_rejoin"
    assert log.group("other").standing == "voter"
    log.close()


def test_Q4_a_file_that_is_no_database_is_kept_and_all_its_groups_must_rejoin(
    tmp_path: Path,
) -> None:
    two_groups(tmp_path)
    (tmp_path / "quorum.db").write_bytes(b"rubbish" * 1000)
    log = opened(tmp_path)
    assert [group.standing for group in log.groups()] == ["must_rejoin"] * 2
    assert log.head("team").term == 2
    log.close()
    kept = [path.read_bytes() for path in tmp_path.glob("quorum.db.corrupt-*")]
    assert kept == [b"rubbish" * 1000]


def test_Q4_a_database_of_others_or_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    two_groups(tmp_path)
    harm(tmp_path, "PRAGMA user_version = 99")
    with pytest.raises(NewerSchema):
        opened(tmp_path)
    (tmp_path / "quorum.db").unlink()
    harm(tmp_path, "CREATE TABLE theirs (a)")
    with pytest.raises(NotOurs):
        opened(tmp_path)


def test_Q4_commits_that_a_damaged_wal_drops_are_noticed(tmp_path: Path) -> None:
    """SQLite ends the log at the first frame that it does not believe, and says nothing."""
    home = tmp_path / "home"
    home.mkdir()
    log = opened(home, file_number=lambda path: 0)
    filled(log, 1)
    whole = len((home / "quorum.db-wal").read_bytes())
    for at in range(2, 8):
        log.save(write(at, entry(at, 1)))
    found = {}
    for name in ("whole", "harmed"):
        copy = tmp_path / name
        shutil.copytree(home, copy)
        (copy / "quorum.db-shm").unlink()
        if name == "harmed":
            wal = copy / "quorum.db-wal"
            wal.write_bytes(flipped(wal.read_bytes(), whole + 100))
        other = opened(copy, file_number=lambda path: 0)
        found[name] = other.group("team")
        assert other.head("team").last == (7 if name == "whole" else 1)
        other.close()
    log.close()
    assert found["whole"].standing == "voter"
    assert "6 commits" in found["harmed"].reason


def test_Q4_a_schema_that_says_something_else_is_noticed(tmp_path: Path) -> None:
    """The names of columns are text in the file: what bears no sum could change its meaning."""
    two_groups(tmp_path, clean=False)
    path = tmp_path / "quorum.db"
    content = path.read_bytes()
    for name, other, before in ((b"term", b"xxxx", b"config"), (b"size", b"term", b"digest")):
        old = name + b" INTEGER NOT NULL,\n    " + before
        assert content.count(old) == 1
        content = content.replace(old, old.replace(name, other))
    content = content.replace(b"xxxx INTEGER", b"size INTEGER")
    with open(path, "r+b") as file:
        file.write(content)
    log = opened(tmp_path)
    assert [group.standing for group in log.groups()] == ["must_rejoin"] * 2
    log.close()


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :]


@pytest.mark.parametrize("seed", seeds(1))
def test_Q4_a_flipped_bit_is_harmless_or_noticed_and_never_believed(
    tmp_path: Path, seed: int
) -> None:
    """In the database after a bad end: whatever is flipped, the group shows what was saved, or does
    not vote.
    """
    rng = random.Random(seed)
    (tmp_path / "a").mkdir()
    two_groups(tmp_path / "a", clean=False)
    original = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    content = original["quorum.db"]
    noticed = 0
    for case in range(40):
        home = tmp_path / f"case-{case}"
        home.mkdir()
        for name, bytes_ in original.items():
            (home / name).write_bytes(bytes_)
        # Where something stands: most of a page is empty.
        at = rng.choice([n for n in range(0, len(content), 7) if content[n]])
        with open(home / "quorum.db", "r+b") as file:
            file.write(flipped(content, at))
        noticed += judge(home, at)
    assert noticed > 5


def judge(home: Path, at: int) -> bool:
    try:
        log = opened(home, file_number=lambda path: 0)
    except (NotOurs, NewerSchema, StoreFailed):
        return True  # it does not open: nobody votes with it
    found = False
    for scope in ("team", "other"):
        group = log.group(scope)
        if group.standing != "voter":
            found = True
            continue
        head = log.head(scope)
        assert (head.term, head.vote, head.last) == (2, 0, 3), f"byte {at}"
        assert [(e.index, e.term, e.payload) for e in log.entries(scope, 1, 9, 999)] == [
            (e.index, e.term, e.payload) for e in (entry(1, 1), entry(2, 1), entry(3, 2))
        ], f"byte {at}"
        assert log.voters_used(scope) >= {1}, f"byte {at}"
    log.close()
    return found


def test_Q8_a_part_of_a_snapshot_that_was_harmed_is_not_handed_out(tmp_path: Path) -> None:
    log = opened(tmp_path)
    filled(log, 1)
    log.intake_begin("team", 1, snapshot(9, 1, b"content"))
    log.intake_add("team", 0, b"content")
    log.close()
    harm(tmp_path, "UPDATE intake_part SET content = x'00'")
    log = opened(tmp_path)
    with pytest.raises(Exception, match="is not what came in"):
        log.intake_install("team", 1, 2)
    assert log.group("team").standing == "voter"
    assert log.group("team").tag == TAG
    log.close()
