"""`holdfast state`, `memory`, `vector`, `file`: what people see and what programs get."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.rules.limits import INLINE_BYTES_MAX
from support.cli import ID, TIME_MASK, Cli

MINTED = "01890a5d-ac96-774b-bcce-b302099a8057"


# --- state ------------------------------------------------------------------------------------


def test_U2_a_write_prints_its_id_as_data_and_what_it_did_as_talk(cli: Cli) -> None:
    done = cli("state", "set", "build", "green")
    assert ID.fullmatch(done.out.strip())
    assert done.err == "set 'build' in team at 1@ana\n"


def test_U2_a_write_says_in_json_what_became_of_it(cli: Cli) -> None:
    done = cli("state", "set", "build", "green", "--json", "--id", MINTED)
    assert done.json == {
        "id": MINTED,
        "mesh": "team",
        "op": "state.set",
        "key": "build",
        "lamport": 1,
        "peer": "ana",
        "offset": 1,
        "duplicate": False,
        "outcome": "applied",
    }
    assert done.err == ""


@pytest.mark.parametrize(("family", "deletes"), [("state", "delete"), ("memory", "forget")])
def test_U2_a_write_that_expects_another_stamp_is_a_conflict_and_says_what_to_do(
    cli: Cli, family: str, deletes: str
) -> None:
    cli(family, "set", "a key", "1", "--create-only")
    taken = cli(family, "set", "a key", "2", "--create-only", "--json", code=5).error
    assert (taken["code"], taken["present"]) == ("stamp_moved", "1@ana")
    look, _, then = taken["hint"].removeprefix("look at it: ").partition("; ")
    assert cli(*shlex.split(look)[1:]).json["lamport"] == 1
    assert then == "then decide, and write with --expect 1@ana"
    cli(family, "set", "a key", "2", "--expect", "1@ana")
    assert cli(family, deletes, "a key", "--expect", "1@ana", code=5).out == ""
    cli(family, deletes, "a key", "--expect", "2@ana")
    gone = cli(family, "set", "a key", "3", "--expect", "2@ana", "--json", code=5).error
    assert "present" not in gone
    assert gone["hint"].endswith("write with --create-only")
    both = cli(family, "set", "k", "v", "--expect", "1@ana", "--create-only", code=2)
    assert "two answers" in both.err


def test_U2_a_retry_with_the_same_id_is_applied_once(cli: Cli) -> None:
    first = cli("state", "set", "k", "v", "--id", MINTED)
    again = cli("state", "set", "k", "v", "--id", MINTED)
    assert first.out == again.out == f"{MINTED}\n"
    assert "had done it before" in again.err
    assert cli("log", "range", "--json").json[-1]["offset"] == 1
    other = cli("state", "set", "k", "w", "--id", MINTED, "--json", code=5)
    assert other.error["code"] == "id_reused"


@pytest.mark.parametrize(
    ("value", "shown"),
    [("hello", "hello\n"), ("two\nlines\n", "two\nlines\n"), ("", "\n"), ("żółw 🐢", "żółw 🐢\n")],
)
def test_U2_state_get_prints_text_as_it_is(cli: Cli, value: str, shown: str) -> None:
    cli("state", "set", "k", value)
    assert cli("state", "get", "k").out == shown


@pytest.mark.parametrize("text", ["17", "-0.5", "true", "null", '{"a":[1,"ż"]}', '"text"'])
def test_U2_state_set_takes_json_when_told_to(cli: Cli, text: str) -> None:
    cli("state", "set", "k", "--json-value", "--", text)
    assert cli("state", "get", "k").out == ("text\n" if text == '"text"' else f"{text}\n")
    assert cli("state", "get", "k", "--json").json["value"] == json.loads(text)


def test_U2_a_value_of_a_dash_reads_stdin(cli: Cli) -> None:
    cli("state", "set", "k", "-", stdin="from a pipe\n")
    assert cli("state", "get", "k", "--json").json["value"] == "from a pipe\n"
    cli("state", "set", "k", "-", "--json-value", stdin="[1, 2]")
    assert cli("state", "get", "k").out == "[1,2]\n"


def test_U2_state_get_gives_the_entry_in_json(cli: Cli) -> None:
    cli("state", "set", "k", "v")
    found = cli("state", "get", "k", "--json")
    at = found.json["updated_at"]
    assert found.out == (
        f'{{"mesh":"team","key":"k","value":"v","lamport":1,"peer":"ana","updated_at":{at}}}\n'
    )


def test_U2_state_list_is_a_table_for_people(cli: Cli) -> None:
    cli("state", "set", "build", "green")
    cli("state", "set", "a-long-key", "[1, 2]", "--json-value")
    assert cli("state", "list").masked == (
        "KEY         VALUE  LAMPORT  PEER  UPDATED\n"
        f"a-long-key  [1,2]  2        ana   {TIME_MASK}\n"
        f"build       green  1        ana   {TIME_MASK}\n"
    )
    assert cli("state", "list", "--prefix", "b").out.count("\n") == 2


def test_U2_state_list_is_an_array_for_programs(cli: Cli) -> None:
    assert cli("state", "list", "--json").out == "[]\n"
    cli("state", "set", "build", "green")
    cli("state", "set", "deploy", "red")
    found = cli("state", "list", "--json")
    assert [entry["key"] for entry in found.json] == ["build", "deploy"]
    assert found.json[0] == cli("state", "get", "build", "--json").json


def test_U2_an_empty_list_says_so_on_stderr_only(cli: Cli) -> None:
    found = cli("state", "list")
    assert (found.out, found.err) == ("", "team has no state here\n")


def test_U2_tables_show_control_characters_instead_of_obeying_them(cli: Cli) -> None:
    cli("state", "set", "k", "\x1b[31mred\r\nnext")
    assert r"\x1b[31mred\r\nnext" in cli("state", "list").out


def test_U2_a_long_value_is_cut_in_a_table_and_whole_everywhere_else(cli: Cli) -> None:
    cli("state", "set", "k", "x" * 500)
    assert len(cli("state", "list").out.splitlines()[1]) < 160
    assert cli("state", "get", "k").out == "x" * 500 + "\n"
    assert cli("state", "list", "--json").json[0]["value"] == "x" * 500


def test_U2_columns_fit_wide_and_combining_characters(cli: Cli) -> None:
    cli("state", "set", "日本", "v")
    cli("state", "set", "e\u0301", "v")
    rows = cli("state", "list").out.splitlines()
    assert rows[0].startswith("KEY   VALUE")
    assert [row for row in rows if row.startswith("日本  v")]
    assert [row for row in rows if row.startswith("e\u0301     v")]


def test_U2_state_delete_and_what_follows(cli: Cli) -> None:
    cli("state", "set", "k", "v")
    assert cli("state", "delete", "k", "--json").json["op"] == "state.delete"
    gone = cli("state", "get", "k", code=4)
    assert (gone.out, gone.err.splitlines()[0]) == ("", "error: state of 'team' has no key 'k'")
    assert cli("state", "delete", "k", "--json", code=4).error["code"] == "unknown_key"


def test_S19_state_is_shown_as_it_was(cli: Cli) -> None:
    cli("state", "set", "k", "old")
    cli("state", "set", "k", "new")
    cli("state", "set", "l", "only new")
    assert cli("state", "get", "k", "--as-of", "offset:1").out == "old\n"
    assert cli("state", "get", "k", "--as-of", "lamport:1").out == "old\n"
    assert cli("state", "get", "k", "--as-of", "2100-01-01").out == "new\n"
    cli("state", "get", "k", "--as-of", "2000-01-01T00:00:00Z", code=4)
    assert [row["value"] for row in cli("state", "list", "--as-of", "offset:1", "--json").json] == [
        "old"
    ]
    at = cli("state", "get", "k", "--as-of", "offset:2", "--json").json
    assert (at["value"], at["lamport"]) == ("new", 2)


@pytest.mark.parametrize("point", ["offset:x", "lamport:", "yesterday", "offset:-1", ""])
def test_S19_a_point_in_the_past_that_means_nothing_is_refused(cli: Cli, point: str) -> None:
    refused = cli("state", "get", "k", "--as-of", point, "--json", code=2)
    assert refused.error["hint"]


def test_U3_a_key_shows_its_versions_newest_first(cli: Cli, tmp_path: Path) -> None:
    cli("state", "set", "k", "old")
    cli("state", "set", "k", "new")
    cli("state", "delete", "k")
    cli("memory", "set", "k", "mine", "--tag", "x")
    assert cli("state", "history", "k").masked == (
        "CHANGE  VALUE  LAMPORT  PEER  OFFSET  UPDATED\n"
        f"delete  -      3        ana   3       {TIME_MASK}\n"
        f"set     new    2        ana   2       {TIME_MASK}\n"
        f"set     old    1        ana   1       {TIME_MASK}\n"
    )
    assert [
        row["value"] for row in cli("state", "history", "k", "--limit", "2", "--json").json
    ] == [
        None,
        "new",
    ]
    (own,) = cli("memory", "history", "k", "--json").json
    assert (own["value"], own["tags"], own["change"]) == ("mine", ["x"], "set")
    assert cli("state", "history", "none", "--json", code=4).error["code"] == "unknown_key"
    cli("memory", "history", "k", "--peer", "bo", code=4)
    _bo_writes(cli, tmp_path)
    (his,) = cli("memory", "history", "k", "--peer", "bo", "--json").json
    assert his["peer"] == "bo"


# --- memory -----------------------------------------------------------------------------------


def test_U2_memory_is_set_recalled_and_forgotten(cli: Cli) -> None:
    cli("memory", "set", "wifi", "hunter2", "--tag", "home", "--tag", "net")
    assert cli("memory", "get", "wifi").out == "hunter2\n"
    found = cli("memory", "get", "wifi", "--json").json
    assert (found["peer"], found["tags"], found["value"]) == ("ana", ["home", "net"], "hunter2")
    assert cli("memory", "list").masked == (
        "PEER  KEY   VALUE    TAGS      LAMPORT  UPDATED\n"
        f"ana   wifi  hunter2  home,net  1        {TIME_MASK}\n"
    )
    assert cli("memory", "list", "--tag", "work", "--json").json == []
    assert cli("memory", "list", "--tag", "net", "--json").json == [found]
    cli("memory", "forget", "wifi")
    assert "remembers nothing" in cli("memory", "get", "wifi", code=4).err
    assert cli("memory", "forget", "wifi", "--json", code=4).error["code"] == "unknown_key"


def test_S7_recall_by_scope(cli: Cli, tmp_path: Path) -> None:
    cli("memory", "set", "k", "mine")
    _bo_writes(cli, tmp_path)
    assert cli("memory", "get", "k").out == "mine\n"
    assert cli("memory", "get", "k", "--scope", "self").out == "mine\n"
    assert cli("memory", "get", "k", "--scope", "peer:bo").out == "of bo\n"
    everyone = cli("memory", "get", "k", "--scope", "all", "--json").json
    assert [(one["peer"], one["value"]) for one in everyone] == [("bo", "of bo"), ("ana", "mine")]
    assert cli("memory", "get", "k", "--scope", "all").masked == (
        "PEER  VALUE  TAGS  LAMPORT  UPDATED\n"
        f"bo    of bo        5        {TIME_MASK}\n"
        f"ana   mine         1        {TIME_MASK}\n"
    )
    assert len(cli("memory", "list", "--scope", "all", "--json").json) == 2
    cli("memory", "get", "k", "--scope", "peer:cy", code=4)
    cli("memory", "get", "none", "--scope", "all", code=4)
    assert cli("memory", "get", "k", "--scope", "them", "--json", code=2).error["hint"]


def test_S19_memory_is_shown_as_it_was(cli: Cli, tmp_path: Path) -> None:
    cli("memory", "set", "k", "mine")
    _bo_writes(cli, tmp_path)
    cli("memory", "set", "k", "newer")
    assert cli("memory", "get", "k", "--as-of", "offset:1").out == "mine\n"
    past = cli("memory", "get", "k", "--as-of", "2100-01-01", "--scope", "all", "--json").json
    assert [one["value"] for one in past] == ["newer", "of bo"]
    listed = cli("memory", "list", "--as-of", "offset:2", "--scope", "peer:bo", "--json").json
    assert [one["value"] for one in listed] == ["of bo"]
    cli("memory", "get", "k", "--as-of", "offset:2", "--scope", "them", code=2)


def _bo_writes(cli: Cli, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "bo", peer="bo", create=True) as bo:
        team = bo.create_mesh("team")
        for _ in range(4):
            team.state.set("tick", 1)
        team.memory.set("k", "of bo")
        with holdfast.open(cli.home) as ana:
            ana.apply([bo.log.tail(1)[0].raw])


def test_S21_vectors_and_files_are_asked_by_scope_as_memory_is(cli: Cli, tmp_path: Path) -> None:
    model = ("--model", "acme:tiny:1")
    cli("vector", "store", "mine", "[1, 0]", *model)
    cli("file", "share", "mine.txt", "--from", "-", stdin="x")
    with holdfast.open(tmp_path / "bo", peer="bo", create=True) as bo:
        team = bo.create_mesh("team")
        identity = holdfast.Model(provider="acme", name="tiny", version="1", dim=2)
        team.vectors.store("his", [1, 0], model=identity)
        team.files.share("his.txt", b"y")
        with holdfast.open(cli.home) as ana:
            ana.apply([entry.raw for entry in reversed(bo.log.tail(2))])
    wanted = {
        (): {"mine", "his"},
        ("--scope", "all"): {"mine", "his"},
        ("--scope", "self"): {"mine"},
        ("--scope", "peer:bo"): {"his"},
        ("--scope", "peer:cy"): set(),
    }
    for scope, names in wanted.items():
        hits = cli("vector", "search", "[1, 0]", *model, *scope, "--json").json
        assert {hit["key"] for hit in hits} == names, scope
        files = cli("file", "list", *scope, "--json").json
        assert {one["path"] for one in files} == {f"{name}.txt" for name in names}, scope
    assert [f["path"] for f in cli("file", "list", "--peer", "bo", "--json").json] == ["his.txt"]
    assert cli("vector", "search", "[1, 0]", *model, "--scope", "them", "--json", code=2).error[
        "hint"
    ]
    assert cli("file", "list", "--scope", "them", "--json", code=2).error["hint"]
    assert cli("file", "list", "--scope", "self", "--peer", "bo", "--json", code=2).error["hint"]


def test_S21_a_peer_is_described_and_listed_with_its_presence(cli: Cli) -> None:
    done = cli("peer", "describe", "--name", "Ana A.", "--status", "in", "--json").json
    assert (done["peer"], done["display_name"], done["status"]) == ("ana", "Ana A.", "in")
    cli("peer", "describe", "--status", "away")
    (row,) = cli("peer", "presence", "--json").json
    assert (row["display_name"], row["status"], row["summary"]) == ("Ana A.", "away", "")
    assert row["last_seen_at"] is None
    assert "Ana A." in cli("peer", "presence").out
    assert cli("peer", "describe", "--json", code=2).error["hint"]
    cli("peer", "describe", "--name", "x" * 200, code=2)


# --- vectors ----------------------------------------------------------------------------------


def test_U3_vectors_are_stored_and_searched_by_words(cli: Cli) -> None:
    cli("vector", "store", "boat", "--text", "a small boat at sea")
    cli("vector", "store", "tax", "--text", "-", "--content", "taxes", stdin="the tax is late")
    hits = cli("vector", "search", "--text", "ships", "--json").json
    assert [(hit["key"], hit["content"]) for hit in hits] == [
        ("boat", "a small boat at sea"),
        ("tax", "taxes"),
    ]
    for mixed in (("[1]",), ("--model", "a:b"), ("--dim", "2"), ("--quantization", "int8")):
        refused = cli("vector", "search", "--text", "ships", *mixed, "--json", code=2)
        assert refused.error["code"] == "bad_input"
    assert "--text" in cli("vector", "search", "[1]", "--json", code=2).error["hint"]


def test_U2_vectors_are_stored_searched_and_deleted(cli: Cli) -> None:
    model = ("--model", "acme:tiny:1")
    cli(
        "vector", "store", "east", "[1, 0]", *model, "--content", "sunrise", "--metadata", '{"n":1}'
    )
    cli("vector", "store", "north", "-", *model, stdin="[0, 1]")
    hits = cli("vector", "search", "[0.9, 0.1]", *model, "--json").json
    assert [hit["key"] for hit in hits] == ["east", "north"]
    assert (hits[0]["content"], hits[0]["metadata"]) == ("sunrise", {"n": 1})
    table = cli("vector", "search", "[1, 0]", *model, "--exact", "--limit", "1").out
    assert table == (
        "DISTANCE  KEY   PEER  CONTENT  METADATA\n"
        '0.0       east  ana   sunrise  {"n":1}\n'
    )  # fmt: skip
    assert cli("vector", "models").masked == (
        "MODEL        DIM  QUANTIZATION  CREATED                   DEPRECATED  LAST READ\n"
        f"acme:tiny:1  2    float32       {TIME_MASK}  -           -\n"
    )
    assert cli("vector", "models", "--json").json[0]["dim"] == 2
    assert cli("vector", "delete", "east", *model, "--json").json["op"] == "vector.delete"
    assert [hit["key"] for hit in cli("vector", "search", "[1, 0]", *model, "--json").json] == [
        "north"
    ]
    assert cli("vector", "delete", "east", *model, "--json", code=4).error["code"] == "unknown_key"


def test_U2_vectors_of_bytes_and_bits_are_stored_as_they_are(cli: Cli) -> None:
    model = ("--model", "acme:small")
    cli("vector", "store", "east", "[100, 0]", *model, "--quantization", "int8")
    # What is stored under the model is known from then on.
    cli("vector", "store", "north", "[0, -128]", *model)
    hits = cli("vector", "search", "[100, 1]", *model, "--json").json
    assert (hits[0]["key"], hits[0]["distance"]) == ("east", 1.0)
    logged = cli("log", "range", "--json").json
    assert logged[-1]["body"]["embedding"] == [0, -128]
    bits = ("--quantization", "binary", "--dim", "8")
    cli("vector", "store", "bits", "[1,0,1,0,0,0,0,1]", *model, *bits)
    hits = cli("vector", "search", "[1,0,1,0,0,0,0,0]", *model, "--json").json
    assert [(hit["key"], hit["distance"]) for hit in hits] == [("bits", 1.0)]
    refused = cli("vector", "store", "k", "[0.5, 1]", *model, "--json", code=2).error
    assert refused["code"] == "bad_vector"
    cli("vector", "store", "k", "[0.5, 1]", *model, "--quantization", "float32")
    several = cli("vector", "search", "[1, 1]", *model, "--json", code=2).error
    assert several["hint"] == "say which with --quantization"


def test_U2_a_vector_may_come_from_a_file(cli: Cli, tmp_path: Path) -> None:
    source = tmp_path / "vector.json"
    source.write_text("[0.5, 0.5]")
    cli("vector", "store", "k", "--from", str(source), "--model", "acme:tiny")
    found = cli("vector", "search", "--from", str(source), "--model", "acme:tiny", "--json").json
    assert [hit["key"] for hit in found] == ["k"]
    cli("vector", "store", "k", "[1]", "--from", str(source), "--model", "acme:tiny", code=2)


def test_U2_a_model_that_nobody_used_finds_nothing(cli: Cli) -> None:
    found = cli("vector", "search", "[1]", "--model", "acme:none")
    assert (found.out, found.err) == ("", "nothing is stored under acme:none in team\n")
    gone = cli("vector", "delete", "k", "--model", "acme:none", "--json", code=4)
    assert gone.error["code"] == "unknown_model"


@pytest.mark.parametrize(
    ("vector", "code"),
    [
        ("[1, 2, 3]", "bad_vector"),
        ("[1]", "bad_vector"),
        ("[NaN, 1]", "bad_vector"),
        ("[1e999, 1]", "bad_vector"),
        ('["a", "b"]', "bad_vector"),
        ("[]", "bad_vector"),
        ("{}", "bad_vector"),
        ("[1, 2", "bad_vector"),
    ],
)
def test_U2_a_vector_that_does_not_fit_is_refused(cli: Cli, vector: str, code: str) -> None:
    cli("vector", "store", "k", "[1, 0]", "--model", "acme:tiny")
    for verb in (("store", "l"), ("search",)):
        refused = cli("vector", *verb, vector, "--model", "acme:tiny", "--json", code=2)
        assert refused.error["code"] == code


def test_U2_another_length_under_the_same_name_must_be_meant(cli: Cli) -> None:
    cli("vector", "store", "k", "[1, 0]", "--model", "acme:tiny")
    refused = cli("vector", "store", "k", "[1, 0, 0]", "--model", "acme:tiny", code=2)
    assert "--dim 3" in refused.err
    cli("vector", "store", "k", "[1, 0, 0]", "--model", "acme:tiny", "--dim", "3")
    unclear = cli("vector", "delete", "k", "--model", "acme:tiny", code=2)
    assert "several lengths: 2, 3" in unclear.err
    cli("vector", "delete", "k", "--model", "acme:tiny", "--dim", "3")
    wrong = cli("vector", "store", "k", "[1, 0]", "--model", "acme:tiny", "--dim", "3", code=2)
    assert wrong.err.startswith("error: ")


def test_U2_vectors_move_to_another_model_by_a_command(cli: Cli, tmp_path: Path) -> None:
    for word in ("one", "three"):
        cli("vector", "store", word, "[1, 0]", "--model", "acme:old", "--content", word)
    embed = tmp_path / "embed.py"
    embed.write_text(
        "import json, sys\n"
        "json.dump([[len(text), 0, 0] for text in json.load(sys.stdin)], sys.stdout)\n"
    )
    words = ("vector", "reembed", "acme:old", "acme:new", "--dim", "3")
    command = f"{sys.executable} {embed}"
    assert cli(*words, "--command", command, "--json").json["moved"] == 2
    found = cli("vector", "search", "[5, 0, 0]", "--model", "acme:new", "--json").json
    assert [hit["key"] for hit in found] == ["three", "one"]
    assert cli(*words, "--command", command).out == "0\n"
    for broken in ("false", "echo no json", "echo {}", "no-such-command", ""):
        cli("vector", "store", "x", "[1, 0]", "--model", "acme:old")
        assert cli(*words, "--command", broken, code=2).err.startswith("error: ")


# --- files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 5, INLINE_BYTES_MAX - 1, INLINE_BYTES_MAX, 300_000])
def test_U2_a_file_is_shared_and_read_back(cli: Cli, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    source = tmp_path / "source"
    source.write_bytes(content)
    shared = cli("file", "share", "docs/a.bin", "--from", str(source), "--json").json
    assert (shared["size"], shared["sha256"]) == (size, hashlib.sha256(content).hexdigest())
    assert cli("file", "read", "docs/a.bin").raw == content
    target = tmp_path / "target"
    done = cli("file", "read", "docs/a.bin", "--output", str(target))
    assert (done.raw, target.read_bytes()) == (b"", content)
    cli("file", "share", "docs/b.bin", "--from", "-", stdin=content)
    assert cli("file", "read", "docs/b.bin").raw == content


def test_U2_without_a_source_the_local_file_of_that_name_is_shared(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    cli("file", "share", "notes.txt")
    assert cli("file", "read", "notes.txt").out == "hello"
    assert "--from -" in cli("file", "share", "other.txt", code=2).err


def test_U2_files_are_listed_and_deleted(cli: Cli) -> None:
    cli("file", "share", "a.txt", "--from", "-", stdin="hello")
    assert cli("file", "list").masked == (
        "PEER  PATH   SIZE  HERE  LAMPORT  UPDATED\n"
        f"ana   a.txt  5     yes   1        {TIME_MASK}\n"
    )
    listed = cli("file", "list", "--json").json
    assert (listed[0]["path"], listed[0]["here"]) == ("a.txt", True)
    assert cli("file", "list", "--peer", "bo", "--json").json == []
    cli("file", "delete", "a.txt")
    gone = cli("file", "read", "a.txt", "--json", code=4)
    assert gone.error["code"] == "unknown_file"
    cli("file", "delete", "a.txt", code=4)


def test_U2_a_file_in_json_carries_its_content(cli: Cli) -> None:
    cli("file", "share", "text", "--from", "-", stdin="żółw")
    cli("file", "share", "bytes", "--from", "-", stdin=b"\xff\x00")
    text = cli("file", "read", "text", "--json").json
    assert (text["encoding"], text["content"]) == ("utf-8", "żółw")
    raw = cli("file", "read", "bytes", "--json").json
    assert (raw["encoding"], raw["content"]) == ("base64", "/wA=")


def test_U2_a_file_is_written_whole_or_not_at_all(cli: Cli, tmp_path: Path) -> None:
    cli("file", "share", "a", "--from", "-", stdin="new")
    refused = cli("file", "read", "a", "--output", str(tmp_path / "no" / "folder"), code=2)
    assert refused.err.startswith("error: ")
    assert cli("file", "read", "a", "--output", str(tmp_path), code=2).out == ""


def test_S9_an_older_content_stands_in_until_the_newest_has_arrived(
    cli: Cli, tmp_path: Path
) -> None:
    with holdfast.open(tmp_path / "bo", peer="bo", create=True) as bo:
        team = bo.create_mesh("team")
        team.files.share("f", b"small enough to travel along")
        team.files.share("f", b"x" * INLINE_BYTES_MAX)
        with holdfast.open(cli.home) as ana:
            ana.apply([entry.raw for entry in bo.log.range()])
    words = ("file", "read", "f", "--peer", "bo")
    assert cli(*words, "--json", code=4).error["code"] == "blob_elsewhere"
    assert cli("file", "list", "--json").json[0]["here"] is False
    known = cli(*words, "--last-known")
    assert known.raw == b"small enough to travel along"
    assert known.err == "stale: this is the version of lamport 1\n"
    document = cli(*words, "--last-known", "--json").json
    assert (document["status"], document["size"], document["lamport"]) == ("stale", 28, 1)


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a//b", "", "a\\b", "ż\u202e"])
def test_U2_a_path_that_could_mean_something_else_is_refused(cli: Cli, path: str) -> None:
    for words in (("share", path, "--from", "-"), ("read", path), ("delete", path)):
        assert cli("file", *words, "--json", code=2).error["code"] == "bad_path"


def test_U2_every_write_takes_an_id(cli: Cli) -> None:
    writes = [
        ("state", "set", "k", "v"),
        ("state", "delete", "k"),
        ("memory", "set", "k", "v"),
        ("memory", "forget", "k"),
        ("vector", "store", "k", "[1]", "--model", "a:b"),
        ("vector", "delete", "k", "--model", "a:b"),
        ("file", "share", "f", "--from", "-"),
        ("file", "delete", "f"),
        ("task", "create", "t"),
        ("fact", "append", "s", "p", "o"),
    ]
    for number, words in enumerate(writes):
        id = f"{MINTED[:-2]}{number:02x}"
        assert cli(*words, "--id", id).out == f"{id}\n"
        assert cli(*words, "--id", id, "--json").json["id"] == id
    assert len(cli("log", "range", "--json").json) == len(writes)


def test_U2_a_key_that_stands_twice_in_a_json_value_is_refused(cli: Cli) -> None:
    """As over HTTP: parsers do not agree on what it means."""
    refused = cli("state", "set", "k", '{"a":1,"a":2}', "--json-value", "--json", code=None)
    assert "stands twice" in refused.error["message"]
    assert cli("state", "list", "--json").json == []
