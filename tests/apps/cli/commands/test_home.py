"""`holdfast init`, `status`, `paths`, `mesh`, `peer`, `check`: the home and its state."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

import holdfast
from support.cli import TIME_MASK, Cli

ROOT = os.geteuid() == 0


# --- making one ------------------------------------------------------------------------------


def test_S1_init_makes_a_home_and_says_where(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "new" / "home")
    done = cli("init", "--peer", "ana", "--mesh", "team")
    assert done.out == f"{cli.home}\n"
    assert done.err.splitlines() == [
        "made a home for ana",
        "made the mesh team",
        "next: holdfast state set KEY VALUE",
    ]
    assert stat.S_IMODE(cli.home.stat().st_mode) == 0o700
    assert [row["mesh"] for row in cli("mesh", "list", "--json").json] == ["team"]


def test_S1_init_twice_is_harmless_for_the_same_peer_only(cli: Cli) -> None:
    again = cli("init", "--peer", "ana", "--json").json
    assert again == {"home": str(cli.home), "peer": "ana", "created": False, "mesh": None}
    other = cli("init", "--peer", "bo", "--json", code=5)
    assert other.error["code"] == "already_exists"


def test_S1_home_as_an_option_wins_over_the_environment(cli: Cli, tmp_path: Path) -> None:
    other = tmp_path / "other"
    made = cli("init", "--peer", "bo", "--home", str(other), "--json").json
    assert (made["home"], made["created"]) == (str(other), True)
    assert cli("status", "--home", str(other), "--json").json["peer"] == "bo"
    assert cli("--home", str(other), "status", "--json").json["peer"] == "bo"
    assert cli("status", "--json").json["peer"] == "ana"


@pytest.mark.parametrize(
    ("peer", "code"),
    [
        ("", "bad_peer_id"),
        (" ana", "bad_peer_id"),
        ("a\nb", "bad_peer_id"),
        ("x" * 129, "over_limit"),
        ("\udcff", "bad_peer_id"),
    ],
)
def test_S1_a_peer_that_could_be_mistaken_is_refused(tmp_path: Path, peer: str, code: str) -> None:
    cli = Cli(tmp_path / "home")
    assert cli("init", "--peer", peer, "--json", code=2).error["code"] == code
    assert not cli.home.exists()


def test_S1_a_folder_of_somebody_elses_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "novel.txt").write_text("chapter one")
    refused = Cli(tmp_path)("init", "--peer", "ana", "--json", code=5)
    assert refused.error["code"] == "already_exists"


# --- how it stands -----------------------------------------------------------------------------


def test_U2_status_says_how_things_stand(cli: Cli) -> None:
    cli("state", "set", "k", "v")
    cli("consumer", "add", "lake")
    said = cli("status")
    lines = said.out.splitlines()
    assert lines[:3] == [
        f"home       {cli.home}",
        "peer       ana",
        "log        epoch 1, offsets 1 to 1",
    ]
    assert "mesh       team at lamport 1: 1 state" in lines
    assert "consumer   lake lags by 1" in lines
    assert said.err == "next: holdfast log tail\n"
    status = cli("status", "--json").json
    assert status["log"] == {"epoch": 1, "first": 1, "last": 1}
    assert status["meshes"][0]["rows"]["state"] == 1
    assert (status["exists"], status["conflicts_open"], status["processes"]) == (True, 0, [])


def test_U2_alone_it_prints_status_and_the_next_step(cli: Cli, tmp_path: Path) -> None:
    assert "peer       ana" in cli().out
    assert cli("--json").json["peer"] == "ana"
    nothing = Cli(tmp_path / "none")
    said = nothing()
    assert said.out == f"there is no Holdfast home in {tmp_path / 'none'}\n"
    assert "holdfast init --peer NAME" in said.err
    assert nothing("--json").json == {
        "home": str(tmp_path / "none"),
        "exists": False,
        "next": "holdfast init --peer NAME",
    }
    bare = Cli(tmp_path / "bare")
    bare("init", "--peer", "ana")
    assert bare().err == "next: holdfast mesh create NAME\n"


def test_U2_without_a_home_every_command_says_how_to_make_one(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "none")
    for words in (("status",), ("state", "get", "k"), ("mesh", "list"), ("log", "tail")):
        missing = cli(*words, "--json", code=4).error
        assert missing["code"] == "no_home"
        assert missing["hint"] == "create one with: holdfast init --peer NAME"
    assert cli("status", code=4).err.splitlines()[1].startswith("hint: create one with")


def test_U2_paths_are_told_without_opening_anything(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "none")
    paths = cli("paths", "--json").json
    assert paths["database"] == str(tmp_path / "none" / "data.db")
    assert f"database   {paths['database']}\n" in cli("paths").out
    assert cli("paths", "socket").out == f"{tmp_path / 'none' / 'api.sock'}\n"
    assert cli("paths", "blobs", "--json").json == {"blobs": str(tmp_path / "none" / "blobs")}
    assert "'database'" in cli("paths", "data", code=2).err
    assert not cli.home.exists()


def test_U2_paths_tell_where_the_socket_is_when_the_path_of_the_home_is_long(
    tmp_path: Path,
) -> None:
    cli = Cli(tmp_path / ("d" * 90))
    place = Path(cli("paths", "socket").out.rstrip("\n"))
    assert cli.home not in place.parents
    assert len(os.fsencode(place)) < 100
    cli("init", "--peer", "ana", "--mesh", "team")
    cli("up", "--detach")
    assert place.is_socket()
    cli("down")


def test_U2_meshes_are_created_listed_and_described(cli: Cli) -> None:
    assert cli("mesh", "create", "lab", "--title", "The Lab").out == "lab\n"
    assert cli("mesh", "list").masked == (
        "MESH  NAME     KIND      LAMPORT  CREATED\n"
        f"lab   The Lab  personal  0        {TIME_MASK}\n"
        f"team  team     personal  0        {TIME_MASK}\n"
    )
    assert cli("mesh", "info", "lab", "--json").json["name"] == "The Lab"
    assert "name          The Lab\n" in cli("mesh", "info", "lab").out
    assert cli("mesh", "clock", "lab", "--json").json == {
        "mesh": "lab",
        "lamport": 0,
        "sync_state": "local",
        "last_sync_at": None,
    }
    assert cli("mesh", "clock", "--mesh", "lab").out.splitlines()[1] == "lamport       0"
    assert cli("mesh", "create", "lab", "--json", code=5).error["code"] == "already_exists"
    assert cli("mesh", "create", "Bad Name", "--json", code=2).error["code"] == "bad_input"
    assert cli("mesh", "info", "none", "--json", code=4).error["code"] == "unknown_mesh"


def test_U2_the_mesh_is_the_only_one_or_must_be_named(cli: Cli) -> None:
    cli("state", "set", "k", "in team")
    cli("mesh", "create", "lab")
    unclear = cli("state", "get", "k", "--json", code=2).error
    assert unclear["message"] == "this home has several meshes: lab, team"
    assert "--mesh NAME" in unclear["hint"]
    assert cli("state", "get", "k", "--mesh", "team").out == "in team\n"
    assert cli("--mesh", "team", "state", "get", "k").out == "in team\n"
    assert cli("state", "get", "k", env={"HOLDFAST_MESH": "team"}).out == "in team\n"
    over = cli("state", "get", "k", "--mesh", "lab", env={"HOLDFAST_MESH": "team"}, code=4)
    assert "'lab'" in over.err
    unknown = cli("state", "list", env={"HOLDFAST_MESH": "none"}, code=4)
    assert "there is no mesh 'none'" in unknown.err


def test_U2_peers_that_were_heard_of_are_listed(cli: Cli, tmp_path: Path) -> None:
    empty = cli("peer", "list")
    assert (empty.out, empty.err.partition(";")[0]) == ("", "no other peer is known")
    with holdfast.open(tmp_path / "bo", peer="bo", create=True) as bo:
        bo.create_mesh("team").state.set("k", "v")
        with holdfast.open(cli.home) as ana:
            ana.apply([entry.raw for entry in bo.log.range()])
    assert cli("peer", "list", "--json").json[0]["peer"] == "bo"
    assert cli("peer", "list").out.splitlines()[0].split() == [
        *("PEER", "TRUST", "LINK", "ADDRESS", "RTT", "MS", "WAITING", "REFUSED"),
        *("LAST", "SEEN", "STALE"),
    ]
    assert cli("peer", "list", "--mesh", "team", "--json").json[0]["meshes"][0]["mesh"] == "team"


# --- checks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "code", "word"),
    [((5, 9), 0, "ok"), ((2, 9), 1, "warning"), ((1, 2), 2, "critical")],
)
def test_U2_check_lag_answers_as_monitoring_tools_expect(
    cli: Cli, bounds: tuple[int, int], code: int, word: str
) -> None:
    cli("consumer", "add", "lake")
    for _ in range(3):
        cli("state", "set", "k", "v")
    words = ("check", "lag", "--warn", str(bounds[0]), "--critical", str(bounds[1]))
    assert cli(*words, code=code).out == f"{word}: lake lags by 3 entries\n"
    found = cli(*words, "--json", code=code).json
    assert (found["status"], found["value"]) == (word, 3)
    assert cli(*words, "--format", "json", code=code).json == found
    assert cli(*words, "--format", "nagios", code=code).out == (
        f"HOLDFAST LAG {word.upper()} - lake lags by 3 entries | lag=3;{bounds[0]};{bounds[1]}\n"
    )
    prometheus = cli(*words, "--format", "prometheus", code=code).out
    assert f"holdfast_check_lag_level {code}\n" in prometheus
    assert "holdfast_check_lag_value 3\n" in prometheus


def test_U2_a_check_that_finds_nothing_out_is_unknown(cli: Cli, tmp_path: Path) -> None:
    assert cli("check", "lag").out == "ok: the log has no reader\n"
    assert cli("check", "lag", "--consumer", "none", code=3).out.startswith("unknown: ")
    nowhere = Cli(tmp_path / "none")
    for name in ("lag", "disk", "integrity", "backup"):
        assert nowhere("check", name, "--json", code=3).json["status"] == "unknown"


def test_U2_check_disk_and_integrity(cli: Cli) -> None:
    assert cli("check", "disk", "--warn", "1B", "--critical", "1B", code=2).err.startswith("error")
    assert cli("check", "disk", "--warn", "2", "--critical", "1").out.startswith("ok: ")
    cli("check", "disk", "--warn", "9000TiB", "--critical", "1", code=1)
    cli("check", "disk", "--warn", "9000TiB", "--critical", "8000TiB", code=2)
    backwards = cli("check", "disk", "--warn", "1", "--critical", "2", "--json", code=2)
    assert backwards.error["code"] == "bad_input"
    assert cli("check", "integrity").out == "ok: the database holds together\n"
    database = cli.home / "data.db"
    content = bytearray(database.read_bytes())
    content[4096 * 3 : 4096 * 5] = os.urandom(4096 * 2)
    database.write_bytes(content)
    assert cli("check", "integrity", "--json", code=2).json["status"] == "critical"


# --- a home that is not as it should be ------------------------------------------------------


@pytest.mark.parametrize("quick", [True, False])
def test_S1_loose_modes_are_mended_and_told(cli: Cli, quick: bool) -> None:
    cli("state", "set", "k", "v")
    os.chmod(cli.home / "data.db", 0o644)
    os.chmod(cli.home, 0o755)
    done = cli("state", "get", "k", *([] if quick else ["--as-of", "offset:1"]))
    assert done.out == "v\n"
    assert done.err.splitlines() == [
        f"warning: {cli.home} had mode 0755; it is 0700 again",
        f"warning: {cli.home / 'data.db'} had mode 0644; it is 0600 again",
    ]
    assert stat.S_IMODE((cli.home / "data.db").stat().st_mode) == 0o600
    assert cli("state", "get", "k").err == ""


def test_S1_a_warning_is_json_where_everything_is(cli: Cli) -> None:
    os.chmod(cli.home / "data.db", 0o644)
    said = cli("mesh", "list", "--json")
    assert json.loads(said.err)["warning"]["type"] == "home"
    assert len(said.json) == 1


@pytest.mark.skipif(not ROOT, reason="only root can give files away")
@pytest.mark.parametrize("name", ["", "data.db"])
def test_S1_a_home_of_somebody_else_is_refused(cli: Cli, name: str) -> None:
    cli("state", "set", "k", "v")
    os.chown(cli.home / name, 12345, -1)
    for words in (("state", "get", "k"), ("state", "set", "k", "w"), ("status",)):
        refused = cli(*words, "--json", code=7).error
        assert refused["code"] == "not_ours"
        assert "12345" in refused["message"]


def test_S11_a_newer_schema_is_refused_and_left_alone(cli: Cli) -> None:
    cli("state", "set", "k", "v")
    connection = apsw.Connection(str(cli.home / "data.db"))
    connection.pragma("user_version", 999)
    connection.close()
    for words in (("state", "get", "k"), ("state", "set", "k", "w"), ("status",)):
        refused = cli(*words, "--json", code=1).error
        assert refused["code"] == "newer_schema"
        assert "upgrade" in refused["hint"]


def test_S12_a_damaged_database_is_told_with_the_way_out(cli: Cli) -> None:
    (cli.home / "data.db").write_bytes(b"this is no database" * 1000)
    refused = cli("state", "get", "k", "--json", code=1).error
    assert refused["code"] == "store_corrupt"
    assert "doctor --repair" in refused["hint"]


def test_S12_an_unclean_end_is_noticed_by_the_quickest_command(cli: Cli) -> None:
    cli("state", "set", "k", "v")
    code = (
        "import os, sys, holdfast\n"
        "node = holdfast.open(sys.argv[1])\n"
        "node.mesh('team').state.set('k', 'w')\n"
        "os._exit(1)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(cli.home)], check=False)
    found = cli("state", "get", "k")
    assert found.out == "w\n"
    assert (
        found.err == f"warning: {cli.home} was not closed cleanly; what was written last is whole\n"
    )
    assert cli("state", "get", "k").err == ""


def test_S1_two_processes_work_on_one_home_at_once(cli: Cli) -> None:
    with holdfast.open(cli.home) as node:
        node.mesh("team").state.set("k", "from the library")
        assert cli.process("state", "get", "k").out == "from the library\n"
        assert cli.process("state", "set", "k", "from the command").code == 0
        assert node.mesh("team").state.get("k") == "from the command"
        seen = json.loads(cli.process("status", "--json").raw)["processes"]
        assert [process["pid"] for process in seen] == [os.getpid()]
        writers = [cli.start("state", "set", f"key-{number}", "v") for number in range(3)]
        for writer in writers:
            writer.communicate(timeout=60)
        assert [writer.returncode for writer in writers] == [0, 0, 0]
        assert len(list(node.mesh("team").state.list("key-"))) == 3


def test_S1_whoever_holds_the_lock_is_named(cli: Cli) -> None:
    blocker = apsw.Connection(str(cli.home / "data.db"))
    with holdfast.open(cli.home):
        blocker.execute("BEGIN IMMEDIATE")
        try:
            refused = cli.process("state", "set", "k", "v", "--json")
        finally:
            blocker.execute("ROLLBACK")
            blocker.close()
    assert refused.code == 1
    assert refused.error["code"] == "store_busy"
    assert f"process {os.getpid()}" in refused.error["message"]


def test_U2_a_home_that_was_named_is_named_in_the_hint(tmp_path: Path) -> None:
    elsewhere = tmp_path / "h 3"
    made = Cli(tmp_path / "usual")("init", "--peer", "ana", "--home", str(elsewhere))
    assert made.err.endswith(f"next: holdfast mesh create --home '{elsewhere}' NAME\n")
    told = Cli(tmp_path / "usual")("state", "get", "k", "--json", "--home", str(elsewhere), code=4)
    assert f"holdfast mesh create --home '{elsewhere}' NAME" in told.err


def test_U2_init_makes_nothing_if_the_mesh_cannot_be_made(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "home")
    cli("init", "--peer", "ana", "--mesh", "My Mesh", code=2)
    assert not cli.home.exists()
    cli("init", "--peer", "ben", "--mesh", "team")
