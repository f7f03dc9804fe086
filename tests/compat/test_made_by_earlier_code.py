"""Homes, brokers, lakes, exports, backups and snapshots that earlier code made open as before.

What is in the folder `made_by_0_1_0` was made once, by version 0.1.0 (see README.md). Each archive
is unpacked, opened with the code of today, and must answer as `expected.json` says that it answered
then. After that it is used: old things do not only have to be read, one has to go on with them.

Everything goes through the command and the library, as `compat.answers` asks: how the code is laid
out inside may change, this may not.
"""

from __future__ import annotations

import json
import lzma
import time
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import holdfast
from compat.answers import (
    address,
    ask,
    broker_answers,
    export_lines,
    home_answers,
    lake_answers,
    lake_query,
    mesh_answers,
    run,
    serving_broker,
    unpack,
)
from holdfast.rules.keys import text_of
from support.one_spark import one_spark

MADE = Path(__file__).with_name("made_by_0_1_0")
CHANGING = ("lamport", "past")
"""What is not the same any more in a home that was restored: its clocks skip ahead."""


@cache
def expected() -> Mapping[str, Any]:
    document: Mapping[str, Any] = json.loads((MADE / "expected.json").read_text(encoding="utf-8"))
    return document


def made(name: str, target: Path) -> Path:
    return unpack(MADE / f"{name}.tar.xz", target)


def old_export(target: Path) -> Path:
    path = target / "export.jsonl"
    path.write_bytes(lzma.decompress((MADE / "export.jsonl.xz").read_bytes()))
    return path


def same(found: Mapping[str, Any], then: Mapping[str, Any]) -> None:
    """Compares answer by answer: what differs can be read. Documents may have got new fields, and
    the doctor new checks; all that was there is as it was.
    """
    # Through JSON, where a tuple is a list, as it was when it was written down.
    now = json.loads(json.dumps(found))
    names = {name for name, _ in then["doctor"]} if "doctor" in then else set()
    now["doctor"] = [row for row in now.get("doctor", ()) if row[0] in names]
    _holds(now, {"doctor": [], **then}, "")


def _holds(now: Any, then: Any, where: str) -> None:
    if isinstance(then, dict) and isinstance(now, dict):
        assert now.keys() >= then.keys(), where
        for key, value in then.items():
            _holds(now[key], value, f"{where}/{key}")
    elif isinstance(then, list) and isinstance(now, list):
        assert len(now) == len(then), where
        for at, (one, value) in enumerate(zip(now, then, strict=True)):
            _holds(one, value, f"{where}/{at}")
    else:
        assert now == then, where


# --- homes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ana", "ben", "dora"])
def test_S11_a_home_that_earlier_code_made_answers_as_it_did(tmp_path: Path, name: str) -> None:
    same(home_answers(made(name, tmp_path), more=name == "ana"), expected()[name])


def test_S12_a_home_that_earlier_code_left_when_it_was_killed_has_all_that_was_written(
    tmp_path: Path,
) -> None:
    home = made("killed", tmp_path)
    assert (home / "data.db-wal").stat().st_size, "or it proves nothing"
    answers = home_answers(home)
    same(answers, expected()["killed"])
    assert ["last words", "in the WAL"] in [row[:2] for row in answers["meshes"]["team"]["state"]]


def test_S11_a_home_that_earlier_code_made_is_worked_on(tmp_path: Path) -> None:
    home = made("ana", tmp_path)
    before = expected()["ana"]
    with holdfast.open(home, sync="normal") as node:
        diary = node.mesh("diary")
        receipt = diary.state.set("build", "blue")
        assert receipt.offset == before["log"]["offset"] + 1
        assert receipt.stamp.lamport == before["meshes"]["diary"]["lamport"] + 1
        assert diary.state.as_of("build", offset=receipt.offset - 1)[0].value["tests"] == 412
        diary.state.delete("hers")
        diary.memory.set("lunch", "rice")
        diary.files.share("photos/fence.raw", b"another fence " * 9000)
        diary.facts.append("pump:7", "pressure", 4.4)
        released = next(task for task in diary.tasks.list() if task.title == "Paint the fence")
        assert diary.tasks.claim(released.task).generation == 1
        assert diary.tasks.complete(released.task).status.value == "completed"
        restored = next(node.conflicts())
        node.restore_conflict(restored.number)
        assert diary.state.get(restored.entity) == f"ana's {restored.entity}"
        assert [entry.entity for entry in node.log.fetch("pumps")][-1] == "pump:7"
        unread = [row.id for row in node.inbox.list(unread=True)]
        assert node.inbox.read(unread[0]).text == "the fence is painted"
        frontier = node.log.confirm("report", before["log"]["offset"]).position
        assert frontier == before["log"]["offset"] + 1
    run("link", "drop", "carl", "--all", "--home", str(home))
    assert ask("link", "quarantine", "carl", "--home", str(home)) == []
    assert ask("doctor", "--full", "--home", str(home))["status"] != "fail"


# --- export, backup, snapshot --------------------------------------------------------------------


def test_S13_an_export_is_the_one_that_earlier_code_made(tmp_path: Path) -> None:
    then = export_lines(old_export(tmp_path).read_text(encoding="utf-8"))
    assert len(then) == expected()["export"]["lines"]
    now = export_lines(run("export", "--home", str(made("ana", tmp_path))))
    for ours, theirs in zip(now, then, strict=True):
        assert json.loads(ours) == json.loads(theirs)


def test_S13_what_earlier_code_exported_is_imported_as_rows_and_as_a_log(tmp_path: Path) -> None:
    export = str(old_export(tmp_path))
    then = expected()["ana"]["meshes"]["diary"]
    for name, how in (("rows", ()), ("log", ("--log",))):
        home = str(tmp_path / name)
        run("init", "--peer", "zoe", "--home", home)
        run("import", export, *how, "--home", home)
        with holdfast.open(home, sync="normal") as node:
            found = mesh_answers(node, "diary")
        assert [row[:2] for row in found["state"]] == [row[:2] for row in then["state"]]
        assert {(row[2], row[4]) for row in found["vectors"]} == {
            (row[2], row[4]) for row in then["vectors"]
        }
        if how:
            for family in ("state", "memory", "vectors", "tasks"):
                assert json.loads(json.dumps(found[family])) == then[family]
        again = ask("export", str(tmp_path / f"{name}.jsonl"), "--home", home)
        assert again


def test_S13_a_backup_that_earlier_code_made_is_restored(tmp_path: Path) -> None:
    home = tmp_path / "restored"
    run("restore", str(made("backup", tmp_path)), "--home", str(home))
    then = expected()["ana"]
    with holdfast.open(home, sync="normal") as node:
        assert (node.peer, node.log.head().epoch) == ("ana", then["log"]["epoch"] + 1)
        found = {mesh: mesh_answers(node, mesh) for mesh in then["meshes"]}
        node.mesh("diary").state.set("after", "the restore")
    for mesh, answers in found.items():
        for key in CHANGING:
            del answers[key]
        same(answers, {k: v for k, v in then["meshes"][mesh].items() if k not in CHANGING})
    assert ask("doctor", "--home", str(home))["status"] != "fail"


def test_P6_a_snapshot_that_earlier_code_made_starts_a_node(tmp_path: Path) -> None:
    home = tmp_path / "new"
    card = expected()["ana"]["commands"]["peer card"]["card"]
    how = ("--snapshot", str(made("snapshot", tmp_path)), "--signed-by", card)
    run("restore", *how, "--peer", "new", "--home", str(home))
    with holdfast.open(home, sync="normal") as node:
        found = mesh_answers(node, "team")
    # It was made before the broker went away and ana wrote on, and ben is heard of in it.
    then = expected()["ben"]["meshes"]["team"]
    known = {"unsent"}
    assert found["state"] == [row for row in then["state"] if row[0] not in known]
    for family in ("memory", "vectors", "tasks"):
        assert json.loads(json.dumps(found[family])) == then[family]
    assert [row[:3] for row in found["files"]] == [row[:3] for row in then["files"]]


# --- a broker ------------------------------------------------------------------------------------


def good(invites: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that are good still, on the day of the test."""
    now_ms = time.time() * 1000
    return [invite for invite in invites if invite["expires_at"] > now_ms]


@pytest.mark.timeout(400)
def test_D1_a_broker_that_earlier_code_made_is_served_and_old_members_meet_at_it(
    tmp_path: Path,
) -> None:
    homes = {name: made(name, tmp_path) for name in ("ana", "ben", "dora")}
    store = made("hub", tmp_path)
    then = expected()["hub"]
    with serving_broker(store) as ready:
        for home, mesh in (("ana", "team"), ("ben", "team"), ("dora", "garden")):
            run("mesh", "move", address(ready), "--mesh", mesh, "--home", str(homes[home]))
        found = broker_answers(store, ready, {"team": homes["ana"], "garden": homes["dora"]})
        for mesh in ("team", "garden"):
            assert good(found[mesh].pop("invites")) == good(then[mesh]["invites"])
            for member in then[mesh]["members"]:
                # The same key: it was shown as hex then, and is shown as on cards now.
                member["key"] = text_of(bytes.fromhex(member["key"]))
            same(found[mesh], {k: v for k, v in then[mesh].items() if k != "invites"})
        for key in ("name", "card", "status", "orphans"):
            assert found[key] == then[key]
        _meet(homes)
        _take(homes)
        _join(homes, tmp_path)
    assert ask("broker", "orphans", "--store", str(store)) == []


def _meet(homes: Mapping[str, Path]) -> None:
    """What ana could not send reaches ben, and both end with the same."""
    for name in ("ana", "ben", "ana"):
        run("mesh", "sync", "team", "--home", str(homes[name]))
    waiting = ask("outbox", "list", "--home", str(homes["ana"]))
    assert [row["state"] for row in waiting] == ["aborted"], "as it was dropped, then"
    with (
        holdfast.open(homes["ana"], sync="normal") as ana,
        holdfast.open(homes["ben"], sync="normal") as ben,
    ):
        hers, his = mesh_answers(ana, "team"), mesh_answers(ben, "team")
        came = [ben.inbox.get(row.id).text for row in ben.inbox.list()]
        assert ben.mesh("team").files.read("unsent.raw", peer="ana") == b"unsent " * 11_000
    for family in ("state", "memory", "vectors", "files", "tasks"):
        assert hers[family] == his[family], family
    known = list(expected()["ben"]["bodies"].values())
    assert came == [*(text for text, _ in known), "are you there?", "still here"]


def _take(homes: Mapping[str, Path]) -> None:
    """What waited in the queue is taken, a dead letter too, once its owner has revived it."""
    owner, taker = (("--mesh", "team", "--home", str(homes[name])) for name in ("ana", "ben"))
    (dead,) = ask("queue", "letters", "jobs", *owner)
    run("queue", "letters", "jobs", "--revive", str(dead["seq"]), *owner)
    done = run("queue", "run", "jobs", *taker, "--", "cat")
    assert sorted(done.replace(".jpg", ".jpg\n").split("\n")) == [
        *("", "resize 0.jpg", "resize 2.jpg", "resize 3.jpg", "resize 9.jpg")
    ]


def _join(homes: Mapping[str, Path], folder: Path) -> None:
    """Somebody new gets all: of one mesh by what was handed in, of the other by its snapshot."""
    new = str(folder / "eve")
    run("init", "--peer", "eve", "--home", new)
    for mesh, owner in (("team", "ana"), ("garden", "dora")):
        invite = run("mesh", "invite", mesh, "--home", str(homes[owner])).strip()
        run("mesh", "join", invite, "--home", new)
        run("mesh", "sync", mesh, "--home", new)
        with (
            holdfast.open(new, sync="normal") as eve,
            holdfast.open(homes[owner], sync="normal") as node,
        ):
            got, had = mesh_answers(eve, mesh), mesh_answers(node, mesh)
        for family in ("state", "memory", "vectors", "files", "tasks"):
            assert got[family] == had[family], (mesh, family)


_FIRST_MADE = (
    "SELECT key, created_at <= updated_at AS changed FROM memory WHERE created_at IS NOT NULL "
    "UNION ALL SELECT path, created_at <= updated_at FROM files WHERE created_at IS NOT NULL "
    "ORDER BY 1"
)

# --- a lake --------------------------------------------------------------------------------------


@pytest.mark.timeout(400)
def test_P2_a_lake_that_earlier_code_made_is_asked_and_goes_on_from_where_it_was(
    tmp_path: Path,
) -> None:
    ana, ben, store = (made(name, tmp_path) for name in ("ana", "ben", "hub"))
    lake = ("--lake", str(made("lake", tmp_path)))
    then = expected()["lake"]
    status = ask("pipeline", "status", "--offline", *lake)
    assert {key: status[key] for key in then["status"]} == then["status"]
    with holdfast.open(ana, sync="normal") as node:
        diary = node.mesh("diary")
        diary.state.set("after", "the lake was made")
        for value in ("first", "second"):
            diary.memory.set("twice", value)
            diary.files.share("twice.txt", value.encode())
        head = node.log.head().offset
    for log in ("ana", "ben", "hub/team"):  # they are not any more where they were
        run("pipeline", "forget", log, *lake)
    with serving_broker(store) as ready:
        run("mesh", "move", address(ready), "--mesh", "team", "--home", str(ana))
        run("mesh", "sync", "team", "--home", str(ana))
        logs = (str(ana), str(ben), f"broker+{address(ready)}/team", "--key-file", str(ana))
        before, increment, verified, after, first = one_spark(
            ("pipeline", "query", lake_query(), "--limit=100000", *lake),
            ("pipeline", "run", *logs, *lake),
            ("pipeline", "verify", str(ana), "--as-read", *lake),
            ("pipeline", "query", "SELECT key, value FROM state WHERE mesh = 'diary'", *lake),
            ("pipeline", "query", _FIRST_MADE, *lake),
        )
    same(lake_answers(before), then["rows"])
    read = {log["log"]: (log["from"], log["to"]) for log in increment["logs"]}
    places = {log["log"]: log["offset"] for log in then["status"]["logs"]}
    assert read["ana"] == (places["ana"] + 1, head)
    assert increment["failures"] == []
    assert not verified["differs"]
    assert {log["log"]: log["status"] for log in verified["logs"]} == {"ana": "same"}
    assert {"key": "after", "value": '"the lake was made"'} in after
    assert first == [{"key": "twice", "changed": True}, {"key": "twice.txt", "changed": True}]
